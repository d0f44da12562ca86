package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/api/decide"
	"weir/api/fleet"
	"weir/api/overrides"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/storetest"
	"weir/subwindow"
)

func TestMain(m *testing.M) {
	memcachedtest.Overlap(2) // two wait for something to expire
	// net/http closes half a second after it has refused a request.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// behindPlain gives every request of a service a connection behind a plain.Server, which
// is the other way to the handler. The race detector looks at that one, as more goroutines
// meet there; without it the tests ask the handler, and FuzzPlainServer compares the two.
var behindPlain = false

func TestOneByOne(t *testing.T)   { limitertest.Methods(t, way{}) }
func TestManyAtOnce(t *testing.T) { limitertest.Methods(t, way{many: true}) }

// A way is how the store of a service does what is asked of it for a batch: one operation
// by one, or many at once. Its methods are the tests that have to hold for both.
type way struct{ many bool }

// A manyStore does many additions at once, and many swaps.
type manyStore struct{ *watchedStore }

// together is the key of what a context has that many additions are done with.
type together struct{}

func (s manyStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	ctx = context.WithValue(ctx, together{}, true)
	allAtOnce(len(keys), func(i int) {
		for more := true; more; {
			additions, turn := begin(i, nil)
			if turn == counters.Later {
				time.Sleep(time.Microsecond)
				continue
			}
			more = turn == counters.Now && done(i, storetest.AddEach(ctx, s, additions), nil)
		}
	})
}

func (s manyStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	allAtOnce(len(keys), func(i int) {
		for again := true; again; {
			r, turn := begin(i)
			for ; turn == counters.Later; r, turn = begin(i) {
				time.Sleep(time.Microsecond)
			}
			if turn == counters.Never {
				return
			}
			var now counters.State
			var swapped bool
			var err error
			if r.Value == nil {
				now, err = s.Load(ctx, r.Key)
			} else {
				now, swapped, err = s.Swap(ctx, r.Key, r.Old, r.Value, r.TTL)
			}
			again = done(i, now, swapped, err)
		}
	})
}

// allAtOnce calls f for each number below n, each in a goroutine. The last panic
// of them is its own.
func allAtOnce(n int, f func(i int)) {
	var running sync.WaitGroup
	var cause atomic.Value
	for i := range n {
		running.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					cause.Store(v)
				}
			}()
			f(i)
		})
	}
	running.Wait()
	if v := cause.Load(); v != nil {
		panic(v)
	}
}

// epoch begins a minute and an hour.
var epoch = time.Unix(1_749_999_600, 0)

// A clock stands still until a test moves it.
type clock struct {
	mu   sync.Mutex
	time time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = t
}

// at sets the clock to d after epoch.
func (c *clock) at(d time.Duration) { c.set(epoch.Add(d)) }

// A watchedStore records what is asked of the store behind it, and fails on
// demand.
type watchedStore struct {
	telemetry.Store

	mu        sync.Mutex
	keys      map[string]bool
	calls     int
	deadlines []time.Time // of the contexts; zero for none
	fault     func(ctx context.Context, operation, key string) error
}

func (s *watchedStore) enter(ctx context.Context, operation, key string) error {
	s.mu.Lock()
	s.calls++
	deadline, _ := ctx.Deadline()
	s.deadlines = append(s.deadlines, deadline)
	s.keys[key] = true
	fault := s.fault
	s.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx, operation, key)
}

func (s *watchedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if err := s.enter(ctx, "add", a.Key); err != nil {
		return 0, err
	}
	return s.Store.Add(ctx, a)
}

func (s *watchedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	if err := s.enter(ctx, "read", keys[0]); err != nil {
		return err
	}
	return s.Store.Read(ctx, keys, counts)
}

func (s *watchedStore) Subtract(ctx context.Context, key string, delta int64) error {
	if err := s.enter(ctx, "subtract", key); err != nil {
		return err
	}
	return s.Store.Subtract(ctx, key, delta)
}

func (s *watchedStore) Raise(ctx context.Context, floors []counters.Floor) error {
	if err := s.enter(ctx, "raise", floors[0].Key); err != nil {
		return err
	}
	return s.Store.Raise(ctx, floors)
}

func (s *watchedStore) Delete(ctx context.Context, keys []string) error {
	if err := s.enter(ctx, "delete", keys[0]); err != nil {
		return err
	}
	return s.Store.Delete(ctx, keys)
}

func (s *watchedStore) Load(ctx context.Context, key string) (counters.State, error) {
	if err := s.enter(ctx, "load", key); err != nil {
		return counters.State{}, err
	}
	return s.Store.Load(ctx, key)
}

func (s *watchedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if err := s.enter(ctx, "swap", key); err != nil {
		return counters.State{}, false, err
	}
	return s.Store.Swap(ctx, key, old, value, ttl)
}

func (s *watchedStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if err := s.enter(ctx, "put", key); err != nil {
		return err
	}
	return s.Store.Put(ctx, key, value, ttl)
}

// failWith makes every operation fail; nil ends that.
func (s *watchedStore) failWith(err error) {
	s.onCall(func(context.Context, string, string) error { return err })
}

// onCall makes every operation do what fault does first, and fail if that
// fails.
func (s *watchedStore) onCall(fault func(ctx context.Context, operation, key string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// waitForDeadline answers like a store that is silent.
func waitForDeadline(ctx context.Context, _, _ string) error {
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline))
	return counters.ErrTimeout
}

// operations returns how many operations were asked for.
func (s *watchedStore) operations() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// counts returns all counters of slots that aren't 0, by key.
func (s *watchedStore) counts(t require.TestingT) map[string]int64 {
	s.mu.Lock()
	keys := maps.Clone(s.keys)
	s.mu.Unlock()
	counts := make(map[string]int64)
	for key := range keys {
		var n [1]int64
		require.NoError(t, s.Store.Read(context.Background(), []string{key}, n[:]))
		if n[0] > 0 && !strings.Contains(key, counters.GenerationKey("_")) {
			counts[key] = n[0]
		}
	}
	return counts
}

// A service is a Server on an embedded store and a clock of its own.
type service struct {
	*Server
	handler  http.Handler
	clock    *clock
	memory   *memory.Store
	store    *watchedStore
	registry *prometheus.Registry
	log      *syncBuffer
}

// syncBuffer is a log that may be written to from several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func newService(policies ...*policy.Policy) *service { return way{}.newService(policies...) }

func newServiceOn(on telemetry.Store, configure func(*Config), policies ...*policy.Policy) *service {
	return way{}.newServiceOn(on, configure, policies...)
}

func newServiceWith(configure func(*Config), policies ...*policy.Policy) *service {
	return way{}.newServiceWith(configure, policies...)
}

func (by way) newService(policies ...*policy.Policy) *service {
	return by.newServiceWith(func(*Config) {}, policies...)
}

// newServiceWith lets configure change the server's configuration. A store in
// it is behind the watched store; the policies get their limiters on that.
func (by way) newServiceWith(configure func(*Config), policies ...*policy.Policy) *service {
	return by.newServiceOn(nil, configure, policies...)
}

// newServiceOn is newServiceWith on a store, whose answers may take long, or on an embedded one if
// that is nil.
func (by way) newServiceOn(on telemetry.Store, configure func(*Config), policies ...*policy.Policy) *service {
	s := &service{clock: &clock{time: epoch}, registry: prometheus.NewRegistry(), log: new(syncBuffer)}
	s.memory = memory.New(s.clock.now)
	options := counters.Options{Clients: viewClients, StoreTimeout: slowStore}
	if on == nil {
		on, options.StoreTimeout = s.memory, -1
	}
	s.store = &watchedStore{Store: on, keys: make(map[string]bool)}
	health := func() []counters.ServerStatus {
		return []counters.ServerStatus{{Server: "embedded"}}
	}
	cfg := Config{
		StoreTimeout: patience,
		Health:       health,
		Metrics:      telemetry.NewMetrics(s.registry, "v1.2.3"),
		Gatherer:     s.registry,
		Log:          slog.New(slog.NewTextHandler(s.log, nil)),
		Now:          s.clock.now,
	}
	var store telemetry.Store = s.store
	if by.many {
		store = manyStore{s.store}
	}
	cfg.Claims = decide.Claims{Store: store, KeyPrefix: counters.DefaultKeyPrefix, Late: new(counters.Goroutines)}
	cfg.Policies = bindLimitersBy(options, cfg.Metrics.InstrumentStore(store), cfg.Metrics, policies...)
	cfg.Overrides = overrides.New(overrides.Config{
		Store: memory.New(nil), KeyPrefix: counters.DefaultKeyPrefix, Now: s.clock.now, Foreign: cfg.Metrics.Foreign, Log: cfg.Log,
	})
	cfg.Fleet = fleet.New(fleet.Config{Store: s.memory, KeyPrefix: counters.DefaultKeyPrefix, Now: s.clock.now})
	must(cfg.Overrides.Read(context.Background()))
	configure(&cfg)
	if cfg.Now == nil && cfg.StoreTimeout == patience { // by a clock that goes on
		cfg.StoreTimeout = 50 * time.Millisecond
	}
	s.Server = NewServer(cfg)
	s.handler = s.HTTPServer().Handler
	if behindPlain {
		s.handler = plainHandler{s}
	}
	return s
}

// patience is a store timeout that no check reaches: one that waits for another of its
// client goes by the real time, and the test's clock stands in the past.
const patience = 100 * 365 * 24 * time.Hour

const (
	// viewClients are so many as limiters of tests remember.
	viewClients = 1000
	// slowStore is for how long they tell a store that others wait for, too: of what isn't
	// answered nobody knows what became of it.
	slowStore = counters.MaxTimeout
)

// bindLimiters gives every limit that has none its limiter on the store.
func bindLimiters(store telemetry.Store, m *telemetry.Metrics, policies ...*policy.Policy) policy.Policies {
	return bindLimitersFor(viewClients, store, m, policies...)
}

// bindLimitersFor is bindLimiters with limiters that remember as many clients. A check has what
// its server gives it.
func bindLimitersFor(clients int, store telemetry.Store, m *telemetry.Metrics, policies ...*policy.Policy) policy.Policies {
	return bindLimitersBy(counters.Options{Clients: clients, StoreTimeout: -1}, store, m, policies...)
}

// bindLimitersBy is bindLimiters with options.
func bindLimitersBy(options counters.Options, store telemetry.Store, m *telemetry.Metrics, policies ...*policy.Policy) policy.Policies {
	options.Batch, options.RefundFailed = m.Batch, m.RefundFailed
	bound := policy.Policies{}
	for _, p := range policies {
		for l := range p.EachLimit() {
			if l.Limiter != nil {
				continue
			}
			options.Policy, options.Limit, options.CountDenied = p.Name, l.StoredName(), p.CountDenied
			config := cas.Config{Options: options, Swaps: m.Swaps, Foreign: m.Foreign}
			var err error
			switch l.Algorithm {
			case "token_bucket":
				l.Limiter, err = cas.NewTokenBucket(store, l.Window, l.Burst, config)
			case "leaky_bucket":
				l.Limiter, err = cas.NewLeakyBucket(store, l.Window, l.Burst, config)
			case "sliding_log":
				if l.Entries > 0 {
					l.Limiter, err = cas.NewCountingLog(store, l.Window, l.Entries, config)
					break
				}
				l.Limiter, err = cas.NewSlidingLog(store, l.Window, l.Limit, config)
			case "concurrency":
				l.Limiter, err = cas.NewConcurrency(store, l.Lease, l.Limit, config)
			case "fixed_window":
				var window subwindow.Window
				window, err = subwindow.NewFixedWindow(l.Window)
				must(err)
				l.Limiter, err = subwindow.New(store, window, options)
			default:
				var window subwindow.Window
				window, err = subwindow.NewWindow(l.Window, l.SubWindows, l.Estimate == "strict")
				must(err)
				l.Limiter, err = subwindow.New(store, window, options)
			}
			must(err)
		}
		bound[p.Name] = p
	}
	return bound
}

// must ends a test whose setup is wrong.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// newPolicy returns a policy with the defaults of a policy file.
func newPolicy(name string, limits ...policy.Limit) *policy.Policy {
	return &policy.Policy{
		Name: name, Limits: limits, OnStoreError: policy.StoreErrorLocal, SettleWithin: 10 * time.Minute,
		Identify: []policy.Identifier{{}}, AuthDenyStatus: http.StatusTooManyRequests,
	}
}

func fixed(name string, limit int64, window time.Duration) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "fixed_window", Limit: limit, Window: window}
}

func sliding(name string, limit int64, window time.Duration, subWindows int, estimate string) policy.Limit {
	return policy.Limit{
		Name: name, Algorithm: "sliding_window", Limit: limit, Window: window,
		SubWindows: subWindows, Estimate: estimate,
	}
}

func token(name string, limit int64, window time.Duration, burst int64) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "token_bucket", Limit: limit, Window: window, Burst: burst}
}

func leaky(name string, limit int64, window time.Duration, burst int64) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "leaky_bucket", Limit: limit, Window: window, Burst: burst}
}

func slidingLog(name string, limit int64, window time.Duration) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "sliding_log", Limit: limit, Window: window, MaxLimit: cas.MaxLogLimit}
}

func countingLog(name string, limit int64, window time.Duration, entries int64) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "sliding_log", Limit: limit, Window: window, Entries: entries}
}

// A result is the answer to a request.
type result struct {
	Code   int         `json:"-"`
	Header http.Header `json:"-"`
	Body   string      `json:"-"`

	Status     status        `json:"status"` // of a result in a batch, or of a problem
	Allowed    bool          `json:"allowed"`
	Policy     string        `json:"policy"`
	Client     string        `json:"client"`
	RetryAfter float64       `json:"retry_after"`
	Wait       float64       `json:"wait"`
	Degraded   bool          `json:"degraded"`
	Shadow     bool          `json:"shadow"`
	Limits     []limitResult `json:"limits"`

	Receipt      string  `json:"receipt"`
	SettleWithin float64 `json:"settle_within"`
	RenewWithin  float64 `json:"renew_within"`
	Already      bool    `json:"already"`

	Type     string   `json:"type"` // and the rest, of a problem
	Title    string   `json:"title"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies"`

	Results []result `json:"results"` // of a batch
}

// status is a number everywhere but in /healthz, whose words it drops.
type status int

func (s *status) UnmarshalJSON(b []byte) error {
	if string(b) == `"ok"` {
		return nil
	}
	return json.Unmarshal(b, (*int)(s))
}

type limitResult struct {
	Name       string  `json:"name"`
	Algorithm  string  `json:"algorithm"`
	Allowed    bool    `json:"allowed"`
	Limit      int64   `json:"limit"`
	Remaining  int64   `json:"remaining"`
	ResetAfter float64 `json:"reset_after"`
	RetryAfter float64 `json:"retry_after"`
}

// retry returns the answer's retry_after.
func (r result) retry() time.Duration { return seconds(r.RetryAfter) }

// seconds returns s, which has at most three decimals, without the error of a
// floating-point number.
func seconds(s float64) time.Duration {
	return time.Duration(s*1000+0.5) * time.Millisecond
}

// newRequest returns a request with the headers name, value, name, value.
func newRequest(method, target, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// serve answers r and decodes what is JSON.
func (s *service) serve(t require.TestingT, r *http.Request) result {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return decodeResult(t, w.Result())
}

func decodeResult(t require.TestingT, response *http.Response) result {
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	answer := result{Code: response.StatusCode, Header: response.Header, Body: string(body)}
	if strings.HasSuffix(response.Header.Get("Content-Type"), "json") && len(body) > 0 {
		var other *json.UnmarshalTypeError
		if err := json.Unmarshal(body, &answer); !errors.As(err, &other) { // of an override, the limits are others
			require.NoError(t, err, "%s", body)
		}
	}
	return answer
}

func (s *service) do(t require.TestingT, method, target, body string, headers ...string) result {
	return s.serve(t, newRequest(method, target, body, headers...))
}

func (s *service) check(t require.TestingT, body string) result {
	return s.do(t, http.MethodPost, "/v1/check", body)
}

func (s *service) admits(t require.TestingT, body string) result {
	r := s.check(t, body)
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	require.True(t, r.Allowed)
	return r
}

func (s *service) denies(t require.TestingT, body string) result {
	r := s.check(t, body)
	require.Equal(t, http.StatusTooManyRequests, r.Code, "%s", r.Body)
	require.False(t, r.Allowed)
	return r
}

// requireProblem asserts that r is a problem without a type of its own whose
// detail holds the given words.
func requireProblem(t require.TestingT, r result, status int, detail string) {
	require.Equal(t, status, r.Code, "%s", r.Body)
	require.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
	require.Equal(t, "about:blank", r.Type)
	require.Equal(t, http.StatusText(status), r.Title)
	require.EqualValues(t, status, r.Status)
	require.Contains(t, r.Detail, detail)
}

// requireUntouched asserts that nothing was asked of the store.
func requireUntouched(t *testing.T, s *service) {
	t.Helper()
	require.Zero(t, s.store.operations())
	require.Zero(t, s.memory.Len())
}

// requireMetrics asserts that /metrics has the given lines.
func requireMetrics(t *testing.T, s *service, lines ...string) {
	t.Helper()
	r := s.do(t, http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusOK, r.Code)
	got := strings.Split(r.Body, "\n")
	for _, line := range lines {
		require.Contains(t, got, line)
	}
}

// counted returns the value of a counter.
func (s *service) counted(t require.TestingT, name string) int {
	_, rest, found := strings.Cut(s.do(t, http.MethodGet, "/metrics", "").Body, "\n"+name+" ")
	require.True(t, found, name)
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.Atoi(value)
	require.NoError(t, err)
	return n
}

// clientChecks are checks of as many clients, whose names begin so.
func clientChecks(prefix string, clients int) []string {
	checks := make([]string, clients)
	for i := range checks {
		checks[i] = fmt.Sprintf(`{"policy":"api","client":"%s-%d"}`, prefix, i)
	}
	return checks
}
