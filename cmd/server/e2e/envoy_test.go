package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

var grpcAddress = regexp.MustCompile(` grpc=(\S+)`)

// dialGRPC returns a client of the rate limit service of the process that has the log, on a connection of
// its own.
func dialGRPC(t testing.TB, log *servertest.Log, creds credentials.TransportCredentials) rls.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(grpcAddress.FindStringSubmatch(log.String())[1], grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return rls.NewRateLimitServiceClient(conn)
}

// descriptor returns a request's descriptor: keys and values in turn.
func descriptor(keysAndValues ...string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

// envoyAsks asks about descriptors of the domain shop.
func envoyAsks(t testing.TB, c rls.RateLimitServiceClient, descriptors ...*common.RateLimitDescriptor) *rls.RateLimitResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), servertest.Patience)
	defer cancel()
	r, err := c.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "shop", Descriptors: descriptors})
	require.NoError(t, err)
	return r
}

const envoyShop = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: bucket
    rate_limit: {unit: year, requests_per_unit: 100}
    metadata: {weir: {algorithm: token_bucket}}
  - key: slide
    rate_limit: {unit: year, requests_per_unit: 100}
    metadata: {weir: {algorithm: sliding_window, sub_windows: 10, estimate: strict}}
  - key: wide
    rate_limit: {unit: year, requests_per_unit: 1000}
    metadata: {weir: {count_denied: false}}
`

// Limits of Envoy's files are operated as policies are: by the same requests, of which a
// client's name is the domain and the entries of its descriptor.
func TestEnvoysLimitsAreOperatedAsPoliciesAre(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	file := servertest.WriteFile(t, "shop.yaml", envoyShop+`
  - key: dry
    rate_limit: {unit: year, requests_per_unit: 1}
    shadow_mode: true
  - {key: banned, rate_limit: {unit: day, requests_per_unit: 0}}
`)
	processes := startProcesses(t, []string{m.Addr, m.Addr}, "-grpc-listen", "127.0.0.1:0", "-envoy-config", file)
	p := processes[0]
	var callers []rls.RateLimitServiceClient
	for _, p := range processes {
		callers = append(callers, dialGRPC(t, p.log, insecure.NewCredentials()))
	}
	send := func(method, path, body string) (int, string) {
		t.Helper()
		status, _, answer, err := p.Send(method, "/v1/policies/envoy"+path, "application/json", body)
		require.NoError(t, err)
		return status, string(answer)
	}
	override := func(key, body string) {
		t.Helper()
		status, answer := send(http.MethodPut, "/overrides/"+url.PathEscape(key), body)
		require.Equal(t, http.StatusOK, status, answer)
	}
	// within a second, with room for a machine that is busy
	everywhere := func(code rls.RateLimitResponse_Code, descriptors ...*common.RateLimitDescriptor) {
		t.Helper()
		for _, c := range callers {
			require.Eventually(t, func() bool { return envoyAsks(t, c, descriptors...).OverallCode == code }, servertest.Patience, 10*time.Millisecond)
		}
	}
	ok, over := rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT

	_, body := p.Get(t, "/v1/policies")
	assert.Contains(t, body, `"name":"envoy"`)
	_, body = send(http.MethodGet, "", "")
	assert.Contains(t, body, `{"name":"slide","algorithm":"sliding_window","limit":100,"window":31536000,"sub_windows":10,"estimate":"strict","pattern":"shop|slide=*"}`)

	for range 3 {
		envoyAsks(t, callers[0], descriptor("user", "a|b"))
	}
	_, body = send(http.MethodGet, "/top?by=allowed", "")
	assert.Contains(t, body, `"clients":[{"client":"shop|user=a\\|b","count":3,"error":0}]`)
	const client = "shop%7Cuser=a%5C%7Cb"
	_, body = send(http.MethodGet, "/clients/"+client, "")
	assert.Contains(t, body, `"limits":[{"name":"user","algorithm":"fixed_window","allowed":true,"limit":100,"remaining":97,`)
	_, body = send(http.MethodGet, "/clients/"+client+"/state", "")
	assert.Regexp(t, `"slots":\[{"start":"[^"]+","count":3,"weight":1}\]`, body)

	began := time.Now()
	override(`shop|user=a\|b`, `{"blocked":true,"for":"10m"}`)
	everywhere(over, descriptor("user", "a|b"), descriptor("wide", "x"))
	t.Logf("denied by both instances after %v", time.Since(began))
	blocked := envoyAsks(t, callers[1], descriptor("user", "a|b")).Statuses[0]
	assert.Equal(t, over, blocked.Code)
	left := blocked.DurationUntilReset.AsDuration()
	assert.LessOrEqual(t, left, 10*time.Minute)
	assert.GreaterOrEqual(t, left, 10*time.Minute-time.Since(began)-time.Second)
	assert.Equal(t, ok, envoyAsks(t, callers[1], descriptor("user", "c")).OverallCode)
	_, body = send(http.MethodGet, "/clients/"+client+"/state", "")
	assert.Contains(t, body, `"allowed":false,`)
	assert.Contains(t, body, `"kind":"blocked","override":true`)
	_, body = send(http.MethodGet, "/top", "")
	assert.Contains(t, body, `"client":"shop|user=a\\|b"`)
	_, body = p.Get(t, "/metrics")
	assert.Regexp(t, `weir_override_decisions_total{kind="blocked",policy="envoy"} [1-9]`, body)

	override(`shop|user=a\|b`, `{"limits":{"user":3},"for":"10m"}`)
	require.Eventually(t, func() bool {
		return envoyAsks(t, callers[1], descriptor("user", "a|b")).Statuses[0].CurrentLimit.RequestsPerUnit == 3
	}, servertest.Patience, 10*time.Millisecond)
	everywhere(over, descriptor("user", "a|b"))
	override("shop|user=*", `{"exempt":true,"for":"10m"}`)
	everywhere(ok, descriptor("user", "z"))
	assert.Equal(t, over, envoyAsks(t, callers[0], descriptor("user", "a|b")).OverallCode, "its own key comes first")
	status, _ := send(http.MethodDelete, "/clients/"+client, "")
	require.Equal(t, http.StatusNoContent, status)
	everywhere(ok, descriptor("user", "a|b"))
	status, _ = send(http.MethodDelete, "/overrides/"+client, "")
	require.Equal(t, http.StatusNoContent, status)
	status, _ = send(http.MethodDelete, "/overrides/shop%7Cuser=*", "")
	require.Equal(t, http.StatusNoContent, status)
	look := descriptor("user", "a|b")
	look.HitsAddend = wrapperspb.UInt64(0)
	require.Eventually(t, func() bool {
		at := envoyAsks(t, callers[1], look).Statuses[0]
		return at.CurrentLimit.RequestsPerUnit == 100 && at.LimitRemaining > 90
	}, servertest.Patience, 10*time.Millisecond)

	// A limit in shadow mode admits whom an override blocks; one of 0 can't be given another.
	envoyAsks(t, callers[0], descriptor("dry", "a"))
	override("shop|dry=a", `{"blocked":true,"for":"10m"}`)
	assert.Equal(t, ok, envoyAsks(t, callers[0], descriptor("dry", "a")).OverallCode)
	status, body = send(http.MethodPut, "/overrides/shop%7Cbanned=a", `{"limits":{"banned":3},"for":"10m"}`)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, body, `no limit \"banned\" that an override can change; it can change `)
	_, body = send(http.MethodGet, "/clients/shop%7Cbanned=a/state", "")
	assert.Contains(t, body, `"name":"banned"`)

	// Nobody else counts in these limits, and what isn't a client of them is told apart.
	assert.Equal(t, http.StatusBadRequest, p.Check(t, "envoy", "shop|user=a", 1).Status)
	status, body = send(http.MethodGet, "/clients/alice/state", "")
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, body, `no limit of policy \"envoy\" counts the client \"alice\"`)
}

// Clients of gRPC may compress what they send. How large a request may be is
// counted when that is undone.
func TestEnvoyAsksInGzip(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop))
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	ask := func(value string) (*rls.RateLimitResponse, error) {
		return c.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{
			Domain: "shop", Descriptors: []*common.RateLimitDescriptor{descriptor("user", value)},
		}, grpc.UseCompressor(gzip.Name))
	}
	r, err := ask("a")
	require.NoError(t, err)
	assert.EqualValues(t, 99, r.Statuses[0].LimitRemaining)
	_, err = ask(strings.Repeat("a", 5<<20))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
	assert.EqualValues(t, 98, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining)
}

// The same file by JSON, and changed while weir runs.
func TestEnvoyJSONAndReload(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "shop.yaml", envoyShop)
	p := startProcess(racing{t}, "-grpc-listen", "127.0.0.1:0", "-envoy-config", file, "-envoy-algorithm", "sliding_window", "-envoy-headers", "legacy")
	assert.Contains(t, p.log.String(), `policies=9 envoy="4 limits in 1 domain" envoy_limits="shop|bucket=*,shop|slide=*,shop|user=*,shop|wide=*"`)
	status, body := p.Get(t, "/healthcheck")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "OK", body)
	const request = `{"domain":"shop","hitsAddend":60,"descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`
	post := func(body string) int {
		status, _, _, err := p.Send(http.MethodPost, "/json", "application/json", body)
		require.NoError(t, err)
		return status
	}
	assert.Equal(t, http.StatusOK, post(request))
	assert.Equal(t, http.StatusTooManyRequests, post(request))
	assert.Equal(t, http.StatusBadRequest, post("{}"))

	c := dialGRPC(t, p.log, insecure.NewCredentials())
	assert.Equal(t, "100", envoyAsks(t, c, descriptor("user", "a")).ResponseHeadersToAdd[0].Value)
	require.NoError(t, os.WriteFile(file, []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: years}}]"), 0o600))
	p.log.Wait(t, "shop.yaml:2: unit")
	assert.EqualValues(t, 38, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining, "as before")
	require.NoError(t, os.WriteFile(file, []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 200}}]"), 0o600))
	p.log.Wait(t, "policies loaded")
	assert.EqualValues(t, 137, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining, "what was counted stays")
	_, metrics := p.Get(t, "/metrics")
	assert.Contains(t, metrics, `weir_checks_total{decision="denied",policy="envoy"} 1`)
	assert.Contains(t, metrics, `weir_http_requests_total{code="429",route="/json"} 1`)
}

// What HTTP answers for Envoy is what the document says.
func TestEnvoyJSONKeepsTheContract(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop+"  - {key: banned, rate_limit: {unit: day}}\n"))
	_, _, text, err := p.Send(http.MethodGet, "/openapi.yaml", "", "")
	require.NoError(t, err)
	doc, err := openapi3.NewLoader().LoadFromData([]byte(text))
	require.NoError(t, err)
	router, err := legacy.NewRouter(doc)
	require.NoError(t, err)
	for _, step := range []struct {
		method, path, body string
		status             int
		undescribed        bool
	}{
		{"POST", "/json", `{"domain":"shop","hitsAddend":60,"descriptors":[{"entries":[{"key":"user","value":"a"}]},{"entries":[{"key":"none","value":"a"}]}]}`, 200, false},
		{"POST", "/json", `{"domain":"shop","hits_addend":60,"descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":"70"}]}`, 429, false},
		{"POST", "/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}],"limit":{"requestsPerUnit":3,"unit":"DAY"}}]}`, 200, false},
		{"POST", "/json", `{"domain":"","descriptors":[]}`, 400, true},
		{"POST", "/json", `{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}`, 400, true},
		{"GET", "/healthcheck", "", 200, false},
		{"GET", "/rlconfig", "", 200, false},
		{"GET", "/v1/policies", "", 200, false},
		{"GET", "/v1/policies/envoy", "", 200, false},
		{"GET", "/v1/policies/envoy/top", "", 200, false},
		{"GET", "/v1/policies/envoy/clients/shop%7Cuser=a", "", 200, false},
		{"GET", "/v1/policies/envoy/clients/shop%7Cbanned=a/state", "", 200, false},
		{"POST", "/v1/check", `{"policy":"envoy","client":"shop|user=a"}`, 400, false},
	} {
		request := httptest.NewRequest(step.method, step.path, strings.NewReader(step.body))
		request.Header.Set("Content-Type", "application/json")
		route, params, err := router.FindRoute(request)
		require.NoError(t, err)
		input := &openapi3filter.RequestValidationInput{Request: request, PathParams: params, Route: route,
			Options: &openapi3filter.Options{IncludeResponseStatus: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
		err = openapi3filter.ValidateRequest(t.Context(), input)
		assert.Equal(t, step.undescribed, err != nil, "%s: %v", step.body, err)
		status, header, body, err := p.Send(step.method, step.path, "application/json", step.body)
		require.NoError(t, err)
		assert.Equal(t, step.status, status, body)
		answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: status, Header: header, Options: input.Options}
		answer.SetBodyBytes([]byte(body))
		assert.NoError(t, openapi3filter.ValidateResponse(t.Context(), answer), body)
	}
}

// gRPC has the certificates of HTTP, and asks for those of clients.
func TestEnvoyTLS(t *testing.T) {
	t.Parallel()
	a := servertest.NewAuthority(t)
	cert, key := a.Issue(t, "server")
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop),
		"-tls-cert", cert, "-tls-key", key, "-tls-client-ca", a.File)
	stranger := dialGRPC(t, p.log, credentials.NewTLS(&tls.Config{RootCAs: a.Pool()}))
	_, err := stranger.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
	own, err := tls.LoadX509KeyPair(a.Issue(t, "client"))
	require.NoError(t, err)
	c := dialGRPC(t, p.log, credentials.NewTLS(&tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{own}}))
	assert.EqualValues(t, 99, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining)
}

// A store that is silent doesn't hold up Envoy: the process limits alone.
func TestEnvoyWithASilentStore(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	p := startProcess(t, "-memcached", m.Addr, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop))
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	require.EqualValues(t, 99, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining)
	m.Pause()
	t.Cleanup(m.Resume)
	for want := uint32(98); want > 90; want-- { // each is answered while it stands still
		assert.Equal(t, want, envoyAsks(t, c, descriptor("user", "a")).Statuses[0].LimitRemaining)
	}
}

// Callers that connect for each check are answered, or refused when they
// connect.
func TestEnvoyAnswersOrRefusesNewConnections(t *testing.T) {
	t.Parallel()
	const callers = 32
	for range 5 {
		p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop))
		address := grpcAddress.FindStringSubmatch(p.log.String())[1]
		request := &rls.RateLimitRequest{Domain: "shop", Descriptors: []*common.RateLimitDescriptor{descriptor("user", "a")}}
		var done sync.WaitGroup
		var answered atomic.Int64
		for range callers {
			done.Go(func() {
				for {
					conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
					if !assert.NoError(t, err) {
						return
					}
					_, err = rls.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), request)
					conn.Close()
					if err != nil && strings.Contains(err.Error(), "connection refused") {
						return
					}
					if !assert.NoError(t, err) {
						return
					}
					answered.Add(1)
				}
			})
		}
		require.Eventually(t, func() bool { return answered.Load() > 3*callers }, servertest.Patience, time.Millisecond)
		p.terminate(t)
		done.Wait()
		p.requireExit(t)
	}
}

// Envoy's :path has the query, which anybody may vary.
func TestTheFileOfDeployLimitsLoginsWhateverTheQuery(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-grpc-listen", "127.0.0.1:0", "-envoy-config", "../../../deploy/envoy/limits.yaml")
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	ask := func(path string) rls.RateLimitResponse_Code {
		r, err := c.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{
			Domain: "edge", Descriptors: []*common.RateLimitDescriptor{descriptor("path", path, "remote_address", "192.0.2.1")},
		})
		require.NoError(t, err)
		return r.OverallCode
	}
	for i := range 5 {
		assert.Equal(t, rls.RateLimitResponse_OK, ask(fmt.Sprintf("/login?%d", i)))
	}
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, ask("/login"))
	assert.Equal(t, rls.RateLimitResponse_OK, ask("/"))
}

// What a language model's answer has cost is known when it has been sent. So Envoy, as
// its AI Gateway tells it to, asks with 0 first and debits the tokens afterwards, whatever
// is left. Then 4 answers of 300 tokens fit a limit of 1,000, and nothing is free.
func TestTokensThatAreDebitedAfterwards(t *testing.T) {
	t.Parallel()
	const file = `
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: sliding, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: sliding_window, count_denied: true}}}
  - {key: strict, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: sliding_window, estimate: strict, count_denied: true}}}
  - {key: token, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: token_bucket, count_denied: true}}}
  - {key: leaky, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: leaky_bucket, count_denied: true}}}
  - {key: log, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: sliding_log, count_denied: true}}}
  - {key: counting, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: sliding_log, entries: 32, count_denied: true}}}
  - {key: admitted, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {count_denied: false}}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 1000}, metadata: {weir: {algorithm: token_bucket}}}
`
	m := memcachedtest.Start(t)
	processes := startProcesses(t, []string{m.Addr, m.Addr}, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", file))
	var clients []rls.RateLimitServiceClient
	for _, p := range processes {
		clients = append(clients, dialGRPC(t, p.log, insecure.NewCredentials()))
	}
	served := func(key, user string, tokens uint64) (n int) {
		for i := range 30 {
			d := descriptor(key, user)
			d.HitsAddend = wrapperspb.UInt64(0)
			if envoyAsks(t, clients[i%2], d).OverallCode == rls.RateLimitResponse_OK {
				n++
				d.HitsAddend = wrapperspb.UInt64(tokens)
				envoyAsks(t, clients[(i+1)%2], d)
			}
		}
		return n
	}
	for _, key := range []string{"fixed", "sliding", "strict", "token", "leaky", "log", "counting"} {
		assert.Equal(t, 4, served(key, "a", 300), key)
		assert.Equal(t, 1, served(key, "largest", 1_000_000_000), key)
	}
	for _, key := range []string{"admitted", "bucket"} {
		assert.Equal(t, 30, served(key, "a", 300), "%s counts no cost that doesn't fit", key)
	}

	// What another limit denies counts in those that count denied requests, and in no other.
	for range 5 {
		large := descriptor("fixed", "b")
		large.HitsAddend = wrapperspb.UInt64(400)
		envoyAsks(t, clients[0], large, descriptor("token", "b"), descriptor("bucket", "b"), descriptor("admitted", "b"))
	}
	look := envoyAsks(t, clients[0], descriptor("token", "b"), descriptor("bucket", "b"), descriptor("admitted", "b"))
	assert.EqualValues(t, 994, look.Statuses[0].LimitRemaining)
	assert.EqualValues(t, 997, look.Statuses[1].LimitRemaining)
	assert.EqualValues(t, 997, look.Statuses[2].LimitRemaining)
}
