package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/cmd/server/servertest"
	"weir/counters/racetest"
)

// domain is a config that has the descriptors.
func domain(name string, descriptors ...*ratelimit.RateLimitDescriptor) *ratelimit.RateLimitConfig {
	return &ratelimit.RateLimitConfig{Name: name, Domain: name, Descriptors: descriptors}
}

func perDay(key string, limit uint32) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{Key: key, RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_DAY, RequestsPerUnit: limit}}
}

// envoyStatus returns the status that /json answers a request about the key in the domain d.
func (r *running) envoyStatus(t testing.TB, key string) int {
	t.Helper()
	return r.Ask(t, http.MethodPost, "/json", "application/json", `{"domain":"d","descriptors":[{"entries":[{"key":"`+key+`","value":"v"}]}]}`).Status
}

func (r *running) requireReady(t *testing.T, want bool) {
	t.Helper()
	ready, _ := r.Get(t, "/readyz")
	health, _ := r.Get(t, "/healthcheck")
	head, _, _, err := r.Send(http.MethodHead, "/healthcheck", "", "")
	require.NoError(t, err)
	require.Equal(t, health, head)
	if want {
		require.Equal(t, []int{http.StatusOK, http.StatusOK}, []int{ready, health})
	} else {
		require.Equal(t, []int{http.StatusServiceUnavailable, http.StatusInternalServerError}, []int{ready, health})
	}
}

func TestLimitsOverXDS(t *testing.T) {
	t.Parallel()
	ads, stop := servertest.StartADS(t, "", nil)
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-envoy-xds", ads.Addr, "-envoy-xds-node", "edge-1", "-config", file)
	assert.Equal(t, "edge-1", ads.Next(t).GetNode().GetId())
	r.requireReady(t, false)
	assert.Equal(t, http.StatusOK, r.envoyStatus(t, "k"), "nothing is limited yet")

	ads.Set(t, "1", domain("d", perDay("k", 2)))
	version, wrong := ads.NextAck(t)
	require.Equal(t, "1", version, wrong)
	r.requireReady(t, true)
	assert.Contains(t, r.log.Wait(t, "policies loaded"), `envoy="1 limit in 1 domain" envoy_limits="d|k=*" changed=envoy`)
	assert.Equal(t, http.StatusOK, r.envoyStatus(t, "k"))
	assert.Equal(t, http.StatusOK, r.envoyStatus(t, "k"))
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))

	// What is wrong is named, and what was in force stays.
	bad := perDay("bad", 1)
	bad.RateLimit.Unit = ratelimit.RateLimitUnit_UNKNOWN
	ads.Set(t, "2", domain("d", perDay("k", 9), &ratelimit.RateLimitDescriptor{Key: "a", Value: "b", Descriptors: []*ratelimit.RateLimitDescriptor{bad}}))
	version, wrong = ads.NextAck(t)
	assert.Equal(t, "1", version)
	assert.Equal(t, `xDS resource d: descriptor "a_b.bad": unit "" must be second or minute or hour or day or week or month or year`, wrong)
	r.log.Wait(t, `msg="the policies stay as they were" error="xDS resource d: descriptor`)
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))
	r.requireReloads(t, "1", "1")
	_, metrics := r.Get(t, "/metrics")
	assert.Contains(t, metrics, "weir_config_last_reload_successful 0\n")

	// The policy file and the set change without each other.
	r.reloadWith(t, file, func(string) string { return limit5 })
	r.requireLimit(t, 5)
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))
	r.reloadWith(t, file, func(string) string { return halfBad })
	ads.Set(t, "3", domain("d", perDay("k", 6), perDay("other", 1)))
	for version != "3" {
		version, wrong = ads.NextAck(t)
		require.True(t, wrong == "" || strings.Contains(wrong, "a_b.bad"), "the set isn't refused for the file: %s", wrong)
	}
	r.requireLimit(t, 5)
	assert.Equal(t, http.StatusOK, r.envoyStatus(t, "k"), "what was asked for under the limit of 2 is remembered, and 3 of that was denied")
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))

	stop()
	r.log.Wait(t, "no stream from the xDS server; the limits stay as they are")
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))
	r.requireReady(t, true)
	r.hangup <- syscall.SIGHUP
	r.hangup <- syscall.SIGHUP
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))
}

// A set that can't be read is told as one with a mistake is.
func TestASetThatCannotBeRead(t *testing.T) {
	t.Parallel()
	ads, _ := servertest.StartADS(t, "", nil)
	r := startProgram(t, "-envoy-xds", ads.Addr)
	other, err := anypb.New(structpb.NewStringValue("no limits"))
	require.NoError(t, err)
	ads.SetRaw("1", other)
	_, wrong := ads.NextAck(t)
	assert.Contains(t, wrong, "resource 1 of 1: ")
	_, metrics := r.Get(t, "/metrics")
	assert.Contains(t, metrics, "weir_config_last_reload_successful 0\n")
	r.requireReloads(t, "0", "1")
	assert.Contains(t, r.log.Wait(t, "the policies stay as they were"), "resource 1 of 1: ")
	ads.Set(t, "2", domain("d", perDay("k", 2)))
	r.log.Wait(t, "policies loaded")
}

func TestReadyWithoutLimitsAfterAWhile(t *testing.T) {
	t.Parallel()
	r := startProgram(t, "-envoy-xds", "127.0.0.1:1", "-envoy-xds-wait", "10ms", "-grpc-listen", "127.0.0.1:0")
	r.log.Wait(t, "no limits have come from the xDS server yet")
	r.requireReady(t, true)
}

// The server and weir show each other certificates. Those of gRPC are its own.
func TestXDSOverTLS(t *testing.T) {
	t.Parallel()
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "everybody")
	own, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	ads, stop := servertest.StartADS(t, "", &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})
	r := startProgram(t, "-envoy-xds", ads.Addr, "-envoy-xds-tls", "-envoy-xds-ca", ca.File, "-envoy-xds-cert", cert, "-envoy-xds-key", key,
		"-grpc-listen", "127.0.0.1:0", "-grpc-tls-cert", cert, "-grpc-tls-key", key, "-grpc-tls-client-ca", ca.File)
	health := func(config *tls.Config) (healthpb.HealthCheckResponse_ServingStatus, error) {
		conn, err := grpc.NewClient(r.program.grpcListener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		require.NoError(t, err)
		defer conn.Close()
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), new(healthpb.HealthCheckRequest))
		return answer.GetStatus(), err
	}
	trusting := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{own}}
	status, err := health(trusting)
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, status)
	_, err = health(&tls.Config{RootCAs: ca.Pool()})
	assert.Error(t, err, "needs a certificate")

	ads.Set(t, "1", domain("d", perDay("k", 0)))
	version, _ := ads.NextAck(t)
	assert.Equal(t, "1", version)
	assert.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"), "over plain HTTP")
	status, err = health(trusting)
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, status)

	// The next connection is by what the files have become.
	other := servertest.NewAuthority(t)
	otherCert, otherKey := other.Issue(t, "everybody")
	own, err = tls.LoadX509KeyPair(otherCert, otherKey)
	require.NoError(t, err)
	for file, of := range map[string]string{ca.File: other.File, cert: otherCert, key: otherKey} {
		copyFile(t, file, of)
	}
	stop()
	again, _ := servertest.StartADS(t, ads.Addr, &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: other.Pool(), ClientAuth: tls.RequireAndVerifyClientCert})
	again.Set(t, "2", domain("d", perDay("k", 1)))
	version, _ = again.NextAck(t)
	assert.Equal(t, "2", version)

	_, err = parseConfig([]string{"-envoy-xds", "a:1", "-envoy-xds-ca", other.File}, env(nil), io.Discard)
	assert.EqualError(t, err, "-envoy-xds-ca, -envoy-xds-cert and -envoy-xds-name need -envoy-xds-tls")
}

// A set as Envoy Gateway makes it takes as long for each descriptor as a small one, and checks under
// way don't fail, though the server drops its streams again and again.
func TestALargeSetIsInForceSoon(t *testing.T) {
	descriptors := 10_000
	if racetest.Enabled() { // which makes each take twenty times as long
		descriptors = 500
	}
	set := func(limit uint32, descriptors int) *ratelimit.RateLimitConfig {
		d := domain("d", perDay("k", limit))
		for i := range descriptors {
			name := fmt.Sprintf("httproute/default/backend-%d/rule/0/match/0/www_example_com", i)
			d.Descriptors = append(d.Descriptors, &ratelimit.RateLimitDescriptor{
				Key: name, Value: name, Descriptors: []*ratelimit.RateLimitDescriptor{perDay("rule-0-match-0", 1_000_000)},
			})
		}
		return d
	}
	ads, _ := servertest.StartADS(t, "", nil)
	r := startProgram(t, "-envoy-xds", ads.Addr)
	ads.Set(t, "1", set(1_000_000, descriptors))
	version, wrong := ads.NextAck(t)
	require.Equal(t, "1", version, wrong)

	number := 1
	put := func(descriptors int) (took time.Duration) {
		number++
		next, err := anypb.New(set(uint32(2_000_000+number), descriptors))
		require.NoError(t, err)
		before := processorTime(t) // what else the machine does takes none of it
		ads.SetRaw(fmt.Sprint(number), next)
		for version != fmt.Sprint(number) {
			version, wrong = ads.NextAck(t)
			require.Empty(t, wrong)
		}
		return processorTime(t) - before
	}
	var parts time.Duration
	for range 10 {
		parts += put(descriptors / 10)
	}
	took := put(descriptors)
	if !racetest.Enabled() {
		assert.Less(t, took, 2*parts, "a descriptor takes as long, however many there are")
	}
	t.Parallel() // no sooner, as what the others take was counted, too

	var stop atomic.Bool
	var asking sync.WaitGroup
	var asked, failed atomic.Int64
	for range 4 {
		asking.Go(func() {
			for !stop.Load() {
				status, _, _, err := r.Send(http.MethodPost, "/json", "application/json", `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`)
				if asked.Add(1); err != nil || status != http.StatusOK {
					failed.Add(1)
				}
				time.Sleep(time.Millisecond) // which leaves a processor to the sets, and meets every change of them
			}
		})
	}
	for range 3 {
		put(descriptors)
		ads.Drop()
	}
	stop.Store(true)
	asking.Wait()
	t.Logf("%d limits took %v of processor time, and ten times a tenth %v; %d checks, %d failed", descriptors, took, parts, asked.Load(), failed.Load())
	assert.Zero(t, failed.Load())
	assert.Positive(t, asked.Load())
	require.Contains(t, r.log.String(), fmt.Sprintf(`envoy="%d limits in 1 domain"`, descriptors+1))
}

// processorTime returns how much of it this process has had.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A watching weir has an xDS server of its own.
type watching struct {
	*running
	ads    *servertest.ADS
	number int
	last   string // what was wrong
}

// startWatching puts a limit of 0 in force.
func startWatching(t *testing.T) *watching {
	t.Helper()
	ads, _ := servertest.StartADS(t, "", nil)
	w := &watching{running: startProgram(t, "-envoy-xds", ads.Addr), ads: ads}
	require.Empty(t, w.put(t, domain("d", perDay("k", 0))))
	w.requireInForce(t)
	return w
}

// put sends a set and returns what is wrong with it.
func (w *watching) put(t *testing.T, configs ...*ratelimit.RateLimitConfig) string {
	t.Helper()
	w.number++
	w.ads.Set(t, fmt.Sprint(w.number), configs...)
	for {
		version, wrong := w.ads.NextAck(t)
		if wrong != "" && wrong != w.last || version == fmt.Sprint(w.number) { // that before may be refused again
			w.last = wrong
			return wrong
		}
	}
}

func (w *watching) requireInForce(t *testing.T) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, w.envoyStatus(t, "k"))
	w.requireReady(t, true)
}

// Whatever a server sends, weir says in few words what is wrong with it, goes on by what it had,
// and takes the next set.
func TestHostileSetsOverXDS(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	long, deep, many := perDay(strings.Repeat("k", 5<<20), 1), perDay("k", 0), domain("d")
	long.RateLimit.Unit = ratelimit.RateLimitUnit_UNKNOWN
	for range 40 {
		deep = &ratelimit.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimit.RateLimitDescriptor{deep}}
	}
	for i := range 100_001 {
		many.Descriptors = append(many.Descriptors, perDay(fmt.Sprint(i), 1))
	}
	twice := domain("d", perDay("k", 0))
	for name, set := range map[string]struct {
		wrong   string
		configs []*ratelimit.RateLimitConfig
	}{
		"a long key":              {`unit "" must be`, []*ratelimit.RateLimitConfig{domain("d", long)}},
		"a deep descriptor":       {"32", []*ratelimit.RateLimitConfig{domain("d", deep)}},
		"many descriptors":        {"100000", []*ratelimit.RateLimitConfig{many}},
		"nothing":                 {"domain is missing", []*ratelimit.RateLimitConfig{{}}},
		"a descriptor of nothing": {"has no key", []*ratelimit.RateLimitConfig{domain("d", nil)}},
		"a resource twice":        {`"k"`, []*ratelimit.RateLimitConfig{twice, twice}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the next set is taken seconds after one that was refused
			w := startWatching(t)
			wrong := w.put(t, set.configs...)
			assert.Contains(t, wrong, set.wrong)
			assert.Less(t, len(wrong), 2000)
			w.requireInForce(t)
			require.Empty(t, w.put(t, domain("d", perDay("k", 0), perDay("l", 0))))
			w.requireInForce(t)
			assert.Equal(t, http.StatusTooManyRequests, w.envoyStatus(t, "l"))
		})
	}
}

// What is odd in a set, and not wrong, means what it does in a file.
func TestOddSetsOverXDS(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	w := startWatching(t)

	// Any text can be a key, a value or metadata.
	odd := "a\x00\t\n\r\x1b\x7f\u0080\u0085\u009f\u2028\u2029\ufeff\U0001f600 \"'\\: #- {}[]&*!|>%@`"
	metadata, err := structpb.NewStruct(map[string]any{odd: odd + strings.Repeat("x", 2000), "n": 1e300})
	require.NoError(t, err)
	d := perDay(odd, 0)
	d.Value, d.Metadata, d.RateLimit.Name = odd, metadata, odd
	require.Empty(t, w.put(t, domain("d", d, perDay("k", 0))))
	w.requireInForce(t)
	body, err := json.Marshal(map[string]any{"domain": "d", "descriptors": []any{map[string]any{"entries": []any{map[string]any{"key": odd, "value": odd}}}}})
	require.NoError(t, err)
	assert.Equal(t, http.StatusTooManyRequests, w.Ask(t, http.MethodPost, "/json", "application/json", string(body)).Status)

	// Metadata means what it does in a file.
	bucket := perDay("k", 0)
	bucket.Metadata, err = structpb.NewStruct(map[string]any{"weir": map[string]any{"algorithm": "token_bucket"}})
	require.NoError(t, err)
	require.Empty(t, w.put(t, domain("d", bucket)))
	_, listed := w.Get(t, "/v1/policies/envoy")
	assert.Contains(t, listed, `"token_bucket"`)
	w.requireInForce(t)

	// Resources of one domain are one domain.
	one, two := domain("d", perDay("k", 0)), domain("d", perDay("l", 0))
	two.Name = "another"
	require.Empty(t, w.put(t, one, two))
	w.requireInForce(t)
	assert.Equal(t, http.StatusTooManyRequests, w.envoyStatus(t, "l"))
	two.Name = "d"
	require.Empty(t, w.put(t, two, one))
	w.requireInForce(t)

	// More than gRPC takes ends the stream.
	huge, streams := domain("d", perDay("k", 5)), w.ads.Streams()
	huge.Descriptors[0].RateLimit.Name = strings.Repeat("n", 65<<20)
	w.number++
	w.ads.Set(t, fmt.Sprint(w.number), huge)
	w.log.Wait(t, "ResourceExhausted")
	w.requireInForce(t)
	require.Empty(t, w.put(t, domain("d", perDay("k", 0), perDay("m", 1))))
	assert.Greater(t, w.ads.Streams(), streams)
	w.requireInForce(t)

	// A server may take all limits away.
	require.Empty(t, w.put(t))
	assert.Equal(t, http.StatusOK, w.envoyStatus(t, "k"))
	w.requireReady(t, true)
	require.Empty(t, w.put(t, domain("d", perDay("k", 0))))
	w.requireInForce(t)
}
