package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// An envoyGateway is the part of its configuration that the examples have.
type envoyGateway struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Gateway    struct {
		ControllerName string `yaml:"controllerName"`
	}
	Provider struct {
		Type       string
		Kubernetes struct {
			RateLimitDeployment struct {
				Replicas  int
				Container struct {
					Image string
					Env   []struct{ Name, Value string }
				}
			} `yaml:"rateLimitDeployment"`
		}
	}
	RateLimit struct {
		Backend struct {
			Type  string
			Redis struct{ URL string }
		}
	} `yaml:"rateLimit"`
}

// readGateway returns the variables that an example gives weir.
func readGateway(t *testing.T, name string, into any, config *envoyGateway) (variables []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../deploy/envoy", name))
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(into))
	deployment := config.Provider.Kubernetes.RateLimitDeployment
	assert.Equal(t, "weir", deployment.Container.Image)
	assert.NotEmpty(t, config.RateLimit.Backend.Redis.URL, "Envoy Gateway doesn't take its configuration without")
	for _, v := range deployment.Container.Env {
		variables = append(variables, v.Name+"="+v.Value)
	}
	return variables
}

// In a container as Envoy Gateway makes it, weir takes the limits that Envoy Gateway sends, and
// Envoy's questions.
func TestWeirRunsAsGatewaysStartIt(t *testing.T) {
	t.Parallel()
	gateway := new(envoyGateway)
	var values struct {
		Config struct {
			EnvoyGateway envoyGateway `yaml:"envoyGateway"`
		}
	}
	for name, example := range map[string][]string{
		"Envoy Gateway":    readGateway(t, "gateway.yaml", gateway, gateway),
		"Envoy AI Gateway": readGateway(t, "ai-gateway.yaml", &values, &values.Config.EnvoyGateway),
	} {
		ca := servertest.NewAuthority(t)
		cert, key := ca.Issue(t, "tls")
		own, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		ads, _ := servertest.StartADS(t, "", &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})
		// The places of files and servers are those of the test.
		places := strings.NewReplacer("/certs/tls.crt", cert, "/certs/tls.key", key, "/certs/ca.crt", ca.File, "envoy-gateway:18001", ads.Addr,
			"memcached-0.memcached.weir:11211,memcached-1.memcached.weir:11211", memcachedtest.Start(t).Addr)
		environment := []string{"GRPC_HOST=127.0.0.1", "GRPC_PORT=0"}
		for _, v := range append(gatewayEnvironment, example...) {
			if !strings.HasPrefix(v, "MEMCACHE_HOST_PORT=memcached:") {
				environment = append(environment, places.Replace(v))
			}
		}
		cfg, err := parseConfig([]string{"-envoy-env"}, environment, io.Discard)
		require.NoError(t, err, name)
		var args []string
		for _, s := range cfg.envoyFlags {
			args = append(args, s.String())
		}
		r := startProgram(t, append(args, "-store-timeout", "5s")...)
		assert.Equal(t, "envoy-ratelimit", ads.Next(t).GetNode().GetId(), name)
		r.requireReady(t, false)

		const route = "httproute/default/app/rule/0/match/0/www_example_com"
		rule := perDay("rule-0-match-0", 1)
		rule.Value = rule.Key
		ads.Set(t, "1", domain("default/eg/http", &ratelimit.RateLimitDescriptor{Key: route, Value: route, Descriptors: []*ratelimit.RateLimitDescriptor{rule}}))
		version, wrong := ads.NextAck(t)
		require.Equal(t, "1", version, wrong)
		r.requireReady(t, true)
		conn, err := grpc.NewClient(r.program.grpcListener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool()})))
		require.NoError(t, err)
		defer conn.Close()
		for _, want := range []rls.RateLimitResponse_Code{rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT} {
			answer, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
				Domain: "default/eg/http", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{
					{Key: route, Value: route}, {Key: rule.Key, Value: rule.Value},
				}}},
			})
			require.NoError(t, err, name)
			assert.Equal(t, want, answer.GetOverallCode(), name)
			assert.Empty(t, answer.GetResponseHeadersToAdd(), name)
		}
	}
}
