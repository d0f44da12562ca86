package envoy

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/api/decide"
	"weir/api/policy"
	"weir/api/receipt"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch begins a minute and an hour. It is far ahead, as a deadline that has
// passed would end checks that wait for others.
var epoch = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)

// A fixture is a service on an embedded store, called over gRPC.
type fixture struct {
	rls.RateLimitServiceClient
	*Service
	conn     *grpc.ClientConn
	server   *Server
	registry *prometheus.Registry

	mu   sync.Mutex
	time time.Time
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.time
}

// lease is that of the limits of what is under way at once.
const lease = 10 * time.Second

// serve serves a domain, d, with these descriptors.
func serve(t testing.TB, headers Headers, countDenied bool, descriptors ...*Descriptor) *fixture {
	t.Helper()
	f := &fixture{time: epoch, registry: prometheus.NewRegistry()}
	root := new(Descriptor)
	for _, d := range descriptors {
		require.NoError(t, root.Add(d))
	}
	store := memory.New(f.now)
	options := counters.Options{Policy: PolicyName, ClockSkew: -1, StoreTimeout: -1, CountDenied: countDenied}
	c := &Config{Domains: map[string]*Descriptor{"d": root}, Default: map[Unit]*policy.Limit{}}
	for _, unit := range Units {
		window, err := subwindow.NewFixedWindow(unit.Window())
		require.NoError(t, err)
		options.Limit = string(unit)
		limiter, err := subwindow.New(store, window, options)
		require.NoError(t, err)
		c.Default[unit] = &policy.Limit{Name: string(unit), Algorithm: "fixed_window", Window: unit.Window(), Limiter: limiter}
	}
	config := func(limit string) cas.Config {
		options.Limit = limit
		return cas.Config{Options: options}
	}
	own := make(map[string]counters.Limiter)
	bind := func(algorithm string, l counters.Limiter, err error) {
		require.NoError(t, err)
		own[algorithm] = l
	}
	bucket, err := cas.NewTokenBucket(store, time.Minute, 0, config("bucket"))
	bind("token_bucket", bucket, err)
	leaky, err := cas.NewLeakyBucket(store, time.Minute, 0, config("leaky"))
	bind("leaky_bucket", leaky, err)
	log, err := cas.NewSlidingLog(store, time.Minute, 1000, config("log"))
	bind("sliding_log", log, err)
	counting, err := cas.NewCountingLog(store, time.Minute, 8, config("counting"))
	bind("counting log", counting, err)
	window, err := subwindow.NewWindow(time.Minute, 10, false)
	require.NoError(t, err)
	options.Limit = "sliding"
	sliding, err := subwindow.New(store, window, options)
	bind("sliding_window", sliding, err)
	places, err := cas.NewConcurrency(store, lease, 10, config("places"))
	bind("concurrency", places, err)
	c.EachRule(func(r *Rule, _ string) {
		r.Limit.Window = r.Unit.Window()
		switch r.Limit.Algorithm {
		case "token_bucket", "leaky_bucket":
			r.Limit.Drains = true
		case "concurrency":
			r.Limit.Window, r.Limit.Lease = lease, lease
		case "":
			r.Limit.Algorithm = "fixed_window"
			r.Bind(c.Default[r.Unit].Limiter)
			return
		}
		r.Bind(own[r.Limit.Algorithm])
	})
	metrics := telemetry.NewMetrics(f.registry, "test")
	c.List()
	shared := &policy.Policy{Name: PolicyName, OnStoreError: policy.StoreErrorLocal, CountDenied: countDenied, Finder: c}
	checks := metrics.LimitChecks(shared, nil, telemetry.Listeners{})
	key := receipt.NewKey(nil)
	f.Service = NewService(headers, false, func() *receipt.Key { return key })
	f.SetConfig(c, decide.NewDecider(decide.Config{
		StoreTimeout: time.Minute, Now: f.now, Claims: decide.Claims{Store: store, KeyPrefix: counters.DefaultKeyPrefix, Late: new(counters.Goroutines)},
	}, shared, checks), func(limit string) { metrics.LimitDenied(PolicyName, limit) })
	f.server = NewServer(f.Service, nil, 0, 0, slog.New(slog.DiscardHandler))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()
	f.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	f.RateLimitServiceClient = rls.NewRateLimitServiceClient(f.conn)
	t.Cleanup(func() {
		require.NoError(t, f.conn.Close())
		require.NoError(t, f.server.Stop(context.Background()))
		if err := <-served; err != nil {
			require.ErrorIs(t, err, grpc.ErrServerStopped, "before it began")
		}
	})
	return f
}

// limited returns a descriptor with a limit per minute.
func limited(key, value string, limit int64) *Descriptor {
	return &Descriptor{Key: key, Value: value, Rule: &Rule{Unit: "minute", Limit: policy.Limit{Name: key, Limit: limit}}}
}

// entries returns a descriptor of a request: keys and values in turn.
func entries(keysAndValues ...string) *common.RateLimitDescriptor {
	d := new(common.RateLimitDescriptor)
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

func (f *fixture) ask(t testing.TB, descriptors ...*common.RateLimitDescriptor) *rls.RateLimitResponse {
	t.Helper()
	r, err := f.RateLimitServiceClient.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: "d", Descriptors: descriptors})
	require.NoError(t, err)
	return r
}
