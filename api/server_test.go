package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func TestHealthz(t *testing.T) {
	s := newService()
	r := s.do(t, http.MethodGet, "/healthz", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.JSONEq(t, `{"status":"ok"}`, r.Body)

	server := httptest.NewServer(s.handler)
	defer server.Close()
	response, err := server.Client().Head(server.URL + "/healthz")
	require.NoError(t, err)
	r = decodeResult(t, response)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Empty(t, r.Body)
}

func TestReadyzNamesEachServer(t *testing.T) {
	up := counters.ServerStatus{Server: "a:11211"}
	down := counters.ServerStatus{Server: "/run/b.sock", Err: fmt.Errorf("%w: no such file", counters.ErrUnavailable)}
	strange := counters.ServerStatus{Server: "c:11211", Err: errors.New("strange")}
	for _, test := range []struct {
		what    string
		servers []counters.ServerStatus
		status  int
		body    string
	}{
		{"all answer", []counters.ServerStatus{up}, http.StatusOK,
			`{"ready":true,"draining":false,"servers":[{"server":"a:11211","up":true}]}`},
		{"one answers", []counters.ServerStatus{down, up, strange}, http.StatusOK,
			`{"ready":true,"draining":false,"servers":[{"server":"/run/b.sock","up":false,"error":"the store is not available: no such file"},` +
				`{"server":"a:11211","up":true},{"server":"c:11211","up":false,"error":"strange"}]}`},
		{"none answers", []counters.ServerStatus{down}, http.StatusServiceUnavailable,
			`{"ready":false,"draining":false,"servers":[{"server":"/run/b.sock","up":false,"error":"the store is not available: no such file"}]}`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := newServiceWith(func(cfg *Config) {
				cfg.Health = func(ctx context.Context) []counters.ServerStatus {
					_, bounded := ctx.Deadline()
					assert.True(t, bounded)
					return test.servers
				}
			})
			r := s.do(t, http.MethodGet, "/readyz", "")
			assert.Equal(t, test.status, r.Code)
			assert.JSONEq(t, test.body, r.Body)
			assert.Equal(t, test.status, s.do(t, http.MethodHead, "/readyz", "").Code)
		})
	}
}

func TestDrainingAnswersAndClosesConnections(t *testing.T) {
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	get := func(target string) (result, bool) {
		response, err := server.Client().Get(server.URL + target)
		require.NoError(t, err)
		return decodeResult(t, response), response.Close
	}
	r, closes := get("/readyz")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.False(t, closes)

	s.Drain()
	r, closes = get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.JSONEq(t, `{"ready":false,"draining":true,"servers":[{"server":"embedded","up":true}]}`, r.Body)
	assert.True(t, closes)
	for _, target := range []string{"/healthz", "/v1/policies/api/clients/alice", "/v1/auth/api"} {
		r, closes = get(target)
		assert.Equal(t, http.StatusOK, r.Code, "what still arrives is answered")
		assert.True(t, closes)
	}
	_, closes = get("/nothing")
	assert.True(t, closes)
}

func TestPoliciesAreShown(t *testing.T) {
	b := newPolicy("b", sliding("ten", 5, 10*time.Second, 10, "strict"), fixed("short", 3, 1500*time.Millisecond))
	b.Description, b.Shadow, b.CountDenied, b.OnStoreError = "a trial", true, true, StoreErrorDeny
	b.Clients = map[string]Client{"secret-1": {Exempt: true}, "secret-2": {}}
	s := newService(b, newPolicy("a", fixed("per-minute", 100, time.Minute)))
	const (
		jsonA = `{"name":"a","limits":[{"name":"per-minute","algorithm":"fixed_window","limit":100,"window":60}],` +
			`"count_denied":false,"on_store_error":"allow","mode":"enforce","clients":0}`
		jsonB = `{"name":"b","description":"a trial","limits":[` +
			`{"name":"ten","algorithm":"sliding_window","limit":5,"window":10,"sub_windows":10,"estimate":"strict"},` +
			`{"name":"short","algorithm":"fixed_window","limit":3,"window":1.5}],` +
			`"count_denied":true,"on_store_error":"deny","mode":"shadow","clients":2}`
	)
	r := s.do(t, http.MethodGet, "/v1/policies", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.JSONEq(t, `{"policies":[`+jsonA+`,`+jsonB+`]}`, r.Body)
	assert.JSONEq(t, jsonB, s.do(t, http.MethodGet, "/v1/policies/b", "").Body)
	assert.JSONEq(t, `{"policies":[]}`, newService().do(t, http.MethodGet, "/v1/policies", "").Body)
}

// Every answer shows one set of policies, never parts of two.
func TestSetPoliciesSwapsAsAWhole(t *testing.T) {
	s := newService()
	set := func(limit int64) Policies {
		return equip(s.store, nil, s.cfg.Metrics,
			newPolicy("a", fixed("per-minute", limit, time.Minute), fixed("per-hour", limit, time.Hour)),
			newPolicy("b", fixed("per-minute", limit, time.Minute)))
	}
	sets := []Policies{set(1_000_000), set(2_000_000)}
	s.SetPolicies(sets[0])
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s.SetPolicies(sets[i%2])
			}
		}
	})
	for range 200 {
		r := s.admits(t, `{"policy":"a","client":"alice"}`)
		assert.Equal(t, r.Limits[0].Limit, r.Limits[1].Limit)
		shown := s.do(t, http.MethodGet, "/v1/policies", "").Body
		assert.NotEqual(t, strings.Contains(shown, "1000000"), strings.Contains(shown, "2000000"), shown)
	}
	close(stop)
	swapping.Wait()

	s.SetPolicies(set(7))
	assert.EqualValues(t, 7, s.admits(t, `{"policy":"b","client":"alice"}`).Limits[0].Limit)
	s.SetPolicies(Policies{})
	requireProblem(t, s.check(t, `{"policy":"b","client":"alice"}`), http.StatusNotFound, `there is no policy "b"`)
}

// A check under way ends with the policy it began with.
func TestSetPoliciesLeavesChecksUnderWayAlone(t *testing.T) {
	s := newService(newPolicy("api", fixed("per-minute", 5, time.Minute), fixed("per-hour", 5, time.Hour)))
	s.store.onCall(func(context.Context, string, string) error {
		s.SetPolicies(Policies{})
		return nil
	})
	r := s.admits(t, `{"policy":"api","client":"alice"}`)
	assert.Len(t, r.Limits, 2)
	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="api"} 1`)
	assert.Equal(t, http.StatusNotFound, s.check(t, `{"policy":"api","client":"alice"}`).Code)
}

func TestRequestsAreLoggedAtDebugOnly(t *testing.T) {
	debug := new(syncBuffer)
	s := newServiceWith(func(cfg *Config) {
		cfg.Log = slog.New(slog.NewTextHandler(debug, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, newPolicy("api", fixed("per-minute", 100, time.Minute)))
	r := s.do(t, http.MethodPost, "/v1/check", `{"policy":"none","client":"alice"}`)
	assert.NotEmpty(t, r.Header.Get("X-Request-Id"))
	assert.Contains(t, debug.String(), "method=POST path=/v1/check status=404")
	assert.Contains(t, debug.String(), "id="+r.Header.Get("X-Request-Id"))

	quiet := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	quiet.admits(t, `{"policy":"api","client":"alice"}`)
	assert.Empty(t, quiet.log.String())
}

func TestServerBoundsSlowPeers(t *testing.T) {
	server := newService().HTTPServer()
	assert.Positive(t, server.ReadHeaderTimeout)
	assert.Positive(t, server.ReadTimeout)
	assert.Positive(t, server.WriteTimeout)
	assert.Positive(t, server.IdleTimeout)
	assert.Positive(t, server.MaxHeaderBytes)
}

func TestConcurrentChecksNeverExceedTheLimit(t *testing.T) {
	// Who waits for another check of the client looks at the real time, and the
	// test's clock stands in the past.
	patient := func(c *Config) { c.StoreTimeout = 100 * 365 * 24 * time.Hour }
	s := newServiceWith(patient, newPolicy("api", fixed("per-minute", 50, time.Minute), sliding("per-hour", 60, time.Hour, 60, "weighted")))
	var wg sync.WaitGroup
	admitted := make(chan bool, 200)
	for range 8 {
		wg.Go(func() {
			for range 25 {
				admitted <- s.check(t, `{"policy":"api","client":"alice"}`).Allowed
			}
		})
	}
	wg.Wait()
	close(admitted)
	n := 0
	for allowed := range admitted {
		if allowed {
			n++
		}
	}
	assert.LessOrEqual(t, n, 50)
	// Two that race for the last places may both be denied; those places are
	// still there.
	for range 50 - n {
		s.admits(t, `{"policy":"api","client":"alice"}`)
	}
	s.denies(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, map[string]int64{
		"weir:api/per-minute:60000:alice_29166660": 50,
		"weir:api/per-hour:60000:alice_29166660":   50,
	}, s.store.counts(t))
}

func TestNewServerUsesTheRealClockByDefault(t *testing.T) {
	s := newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 100, time.Minute)))
	before := time.Now()
	s.admits(t, `{"policy":"api","client":"alice"}`)
	deadline := s.store.deadlines[0]
	assert.False(t, deadline.Before(before.Add(50*time.Millisecond)))
	assert.False(t, deadline.After(time.Now().Add(50*time.Millisecond)))
}
