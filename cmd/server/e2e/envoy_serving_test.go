package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// A socket takes what an address does. One that a killed process has left behind is no
// hindrance, one that is in use is.
func TestEnvoyAsksOnASocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "weir.sock")
	args := []string{"-grpc-listen", "unix:" + socket, "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop)}
	dial := func() rls.RateLimitServiceClient {
		conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return rls.NewRateLimitServiceClient(conn)
	}
	p := startProcess(t, args...)
	assert.EqualValues(t, 99, envoyAsks(t, dial(), descriptor("user", "a")).Statuses[0].LimitRemaining)
	p.kill()
	require.FileExists(t, socket)
	p = startProcess(t, args...)
	assert.EqualValues(t, 99, envoyAsks(t, dial(), descriptor("user", "a")).Statuses[0].LimitRemaining)
	p.terminate(t)
	p.requireExit(t)
	_, err := os.Stat(socket)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// connections counts those of a client.
type connections struct{ begun atomic.Int64 }

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.begun.Add(1)
	}
}

// Connections that are old enough are replaced, and no request notices.
func TestConnectionsOfGRPCEndWithoutAFailure(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-grpc-max-connection-age", "200ms", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop))
	seen := new(connections)
	conn, err := grpc.NewClient(grpcAddress.FindStringSubmatch(p.log.String())[1], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(seen))
	require.NoError(t, err)
	defer conn.Close()
	c := rls.NewRateLimitServiceClient(conn)
	var callers sync.WaitGroup
	var asked, failed atomic.Int64
	for i := range 8 {
		callers.Go(func() {
			for seen.begun.Load() < 6 && failed.Load() == 0 {
				_, err := c.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
					Domain: "shop", Descriptors: []*common.RateLimitDescriptor{descriptor("wide", fmt.Sprint(i))},
				})
				if asked.Add(1); err != nil {
					failed.Add(1)
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d requests on %d connections", asked.Load(), seen.begun.Load())
	assert.Zero(t, failed.Load())
}

// In shadow mode nothing is denied, and each descriptor says how it stands. Where all limits
// are quotas, what all deny is denied.
func TestModesOfAllLimits(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "shop.yaml", `
domain: shop
descriptors:
  - {key: one, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: two, rate_limit: {unit: year, requests_per_unit: 2}}
`)
	ok, over := rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT
	for mode, want := range map[string][]rls.RateLimitResponse_Code{
		"enforce": {ok, over, over}, "shadow": {ok, ok, ok}, "quota": {ok, ok, over},
	} {
		p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-mode", mode, "-envoy-config", file)
		c := dialGRPC(t, p.log, insecure.NewCredentials())
		for i, code := range want {
			r := envoyAsks(t, c, descriptor("one", "a"), descriptor("two", "a"))
			assert.Equal(t, code, r.OverallCode, "%s, %d", mode, i)
			assert.Equal(t, i >= 1, r.Statuses[0].Code == over, "%s, %d", mode, i)
			assert.Equal(t, i >= 2, r.Statuses[1].Code == over, "%s, %d", mode, i)
		}
	}
}

// A flag says what limits do while Memcached doesn't answer, unless their file says it.
func TestEnvoysLimitsWithoutAStore(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	p := startProcess(t, "-memcached", m.Addr, "-grpc-listen", "127.0.0.1:0", "-envoy-on-store-error", "allow", "-envoy-config", servertest.WriteFile(t, "shop.yaml", `
domain: shop
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: local, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {weir: {on_store_error: local}}}
  - {key: deny, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {weir: {on_store_error: deny}}}
`))
	m.Kill()
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	admitted := func(descriptors ...*common.RateLimitDescriptor) (n int) {
		for range 5 {
			if envoyAsks(t, c, descriptors...).OverallCode == rls.RateLimitResponse_OK {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 5, admitted(descriptor("plain", "a")))
	assert.Equal(t, 2, admitted(descriptor("local", "a")))
	assert.Equal(t, 0, admitted(descriptor("deny", "a")))
	assert.Equal(t, 0, admitted(descriptor("plain", "b"), descriptor("deny", "b")))
	r := envoyAsks(t, c, descriptor("plain", "b"), descriptor("deny", "b"))
	assert.Equal(t, rls.RateLimitResponse_OK, r.Statuses[0].Code)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.Statuses[1].Code)
}

// What is in force is told as envoyproxy/ratelimit tells it, to those who have a token if
// there are any.
func TestTheLimitsInForce(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "shop.yaml", `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 20}
    descriptors:
      - {key: path, value: /a*, rate_limit: {unit: day, requests_per_unit: 5}, shadow_mode: true, quota_mode: true}
  - {key: internal, rate_limit: {unlimited: true}}
  - {key: none}
`)
	_, text := startProcess(t, "-envoy-config", file).Get(t, "/rlconfig")
	assert.Equal(t, `shop.internal: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
shop.user.path_/a*: unit=DAY requests_per_unit=5, shadow_mode: true, quota_mode: true
shop.user: unit=MINUTE requests_per_unit=20, shadow_mode: false, quota_mode: false
`, text)
	status, _ := startProcess(t, "-envoy-config", file, "-token-file", servertest.WriteFile(t, "tokens", "secret\n")).Get(t, "/rlconfig")
	assert.Equal(t, 401, status)
}

// Two services have quotas of tokens. A request asks both with 0 and goes to the first that
// has something left, as the metadata says, where it costs 1. Then a service serves what its
// quota is, and one more.
func TestQuotasOfTokensChooseAService(t *testing.T) {
	t.Parallel()
	text := "domain: shop\ndescriptors:\n"
	algorithms := []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"}
	for _, a := range algorithms {
		for i, name := range []string{"one", "two"} {
			text += fmt.Sprintf("- {key: %s, value: %s, rate_limit: {unit: day, requests_per_unit: %d}, quota_mode: true, metadata: {service: %s, weir: {algorithm: %[1]s, count_denied: true}}}\n", a, name, i+1, name)
		}
	}
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-dynamic-metadata", "-envoy-config", servertest.WriteFile(t, "shop.yaml", text))
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	for _, a := range algorithms {
		var served []any
		for range 8 {
			both := []*common.RateLimitDescriptor{descriptor(a, "one"), descriptor(a, "two")}
			for _, d := range both {
				d.HitsAddend = wrapperspb.UInt64(0)
			}
			r := envoyAsks(t, c, both...)
			if r.OverallCode != rls.RateLimitResponse_OK {
				continue
			}
			service := r.DynamicMetadata.AsMap()["metadata"].(map[string]any)["service"]
			served = append(served, service)
			envoyAsks(t, c, descriptor(a, service.(string)))
		}
		assert.Equal(t, []any{"one", "one", "two", "two", "two"}, served, a)
	}
}
