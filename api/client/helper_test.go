package client_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/api"
	"weir/api/client"
	"weir/api/decide"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that has to happen.
const patience = time.Minute

// epoch begins a minute and an hour. It is far ahead, as a deadline that has
// passed would end checks that wait for others.
var epoch = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)

// weir is a real service in this process, on the embedded store and a clock
// that stands still until the test moves it.
type weir struct {
	URL    string
	server *httptest.Server

	mu       sync.Mutex
	time     time.Time
	requests []request
	meddle   func(w http.ResponseWriter, r *http.Request) bool
}

// A request is one that weir has got.
type request struct {
	method, path, token string
	connection          string
	checks              []client.Check // of a batch
}

func startWeir(policies ...*policy.Policy) *weir {
	w := &weir{time: epoch}
	byName := policy.Policies{}
	for _, p := range policies {
		byName[p.Name] = p
	}
	service := api.NewServer(api.Config{
		Policies: byName,
		Metrics:  telemetry.NewMetrics(nil, "test"),
		Log:      slog.New(slog.DiscardHandler),
		Now:      w.now,
		Claims:   decide.Claims{Store: memory.New(nil), KeyPrefix: counters.DefaultKeyPrefix, Late: new(counters.Goroutines)},
	})
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing, the service misses too
		r.Body = io.NopCloser(bytes.NewReader(body))
		seen := request{method: r.Method, path: r.URL.EscapedPath(), token: r.Header.Get("Authorization"), connection: r.RemoteAddr}
		var batch struct{ Checks []client.Check }
		if json.Unmarshal(body, &batch) == nil {
			seen.checks = batch.Checks
		}
		w.mu.Lock()
		w.requests = append(w.requests, seen)
		meddle := w.meddle
		w.mu.Unlock()
		if meddle == nil || !meddle(rw, r) {
			service.ServeHTTP(rw, r)
		}
	}))
	w.URL = w.server.URL
	return w
}

func (w *weir) Close() { w.server.Close() }

func (w *weir) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.time
}

// at sets the clock to d after epoch.
func (w *weir) at(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.time = epoch.Add(d)
}

// answers lets f answer requests before the service does; f reports whether it
// has. nil ends that.
func (w *weir) answers(f func(w http.ResponseWriter, r *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meddle = f
}

// asked returns the requests since it was called last.
func (w *weir) asked() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	requests := w.requests
	w.requests = nil
	return requests
}

// batches returns how many checks each request had since it was called last, in
// the order of their size.
func (w *weir) batches() []int {
	sizes := []int{}
	for _, r := range w.asked() {
		sizes = append(sizes, len(r.checks))
	}
	slices.Sort(sizes)
	return sizes
}

// A hold lets a weir keep requests until it is released.
type hold struct {
	arrived chan struct{} // a value for each request
	release chan struct{} // closed to answer
}

// holds makes weir keep all requests from now on.
func (w *weir) holds() *hold {
	h := &hold{arrived: make(chan struct{}, 10_000), release: make(chan struct{})}
	w.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		h.arrived <- struct{}{}
		select {
		case <-h.release:
		case <-r.Context().Done():
		}
		return false
	})
	return h
}

// start returns a weir and a client of it that share a clock.
func start(t *testing.T, cfg client.Config, policies ...*policy.Policy) (*weir, *client.Client) {
	t.Helper()
	w := startWeir(policies...)
	cfg.URL = w.URL
	if cfg.Timeout == 0 {
		cfg.Timeout = patience
	}
	c, err := client.New(cfg)
	require.NoError(t, err)
	c.SetClock(w.now)
	t.Cleanup(func() {
		c.Close()
		w.Close()
	})
	return w, c
}

// newPolicy returns a policy with the defaults of a policy file.
func newPolicy(name string, limits ...policy.Limit) *policy.Policy {
	return &policy.Policy{Name: name, Limits: limits, OnStoreError: policy.StoreErrorLocal, SettleWithin: 10 * time.Minute}
}

// setClient makes an exception of p for one client.
func setClient(p *policy.Policy, name string, exception policy.Terms) {
	key, err := policy.ParseClientKey(name)
	must(err)
	if p.Clients == nil {
		p.Clients = make(map[policy.ClientKey]policy.Terms)
	}
	p.Clients[key] = exception
}

// fixed returns a limit per minute.
func fixed(named string, limit int64) policy.Limit {
	window, err := subwindow.NewFixedWindow(time.Minute)
	must(err)
	return limitOf("per-minute", "fixed_window", limit, time.Minute, func(o counters.Options) (counters.Limiter, error) {
		return subwindow.New(memory.New(nil), window, o)
	}, named)
}

// tokens returns a bucket that fills by one a second.
func tokens(named string, burst int64) policy.Limit {
	l := limitOf("tokens", "token_bucket", 1, time.Second, func(o counters.Options) (counters.Limiter, error) {
		return cas.NewTokenBucket(memory.New(nil), time.Second, burst, cas.Config{Options: o})
	}, named)
	l.Burst = burst
	return l
}

// queue returns a bucket that drains by so many in a window.
func queue(named string, limit int64, window time.Duration) policy.Limit {
	return limitOf("queue", "leaky_bucket", limit, window, func(o counters.Options) (counters.Limiter, error) {
		return cas.NewLeakyBucket(memory.New(nil), window, 0, cas.Config{Options: o})
	}, named)
}

func limitOf(name, algorithm string, limit int64, window time.Duration, limiter func(counters.Options) (counters.Limiter, error), named string) policy.Limit {
	l, err := limiter(counters.Options{Policy: named, Limit: name})
	must(err)
	return policy.Limit{Name: name, Algorithm: algorithm, Limit: limit, Window: window, Limiter: l}
}

// must ends an example whose setup is wrong.
func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
