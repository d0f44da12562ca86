package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

func TestStoreErrorUnderAllowAdmitsAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		counters.ErrTimeout, fmt.Errorf("%w: connection refused", counters.ErrUnavailable), counters.ErrForeignValue, errors.New("strange"),
	} {
		p := newPolicy("api", fixed("per-minute", 2, time.Minute), sliding("per-hour", 3, time.Hour, 60, "weighted"))
		p.OnStoreError = policy.StoreErrorAllow
		s := newService(p)
		s.store.failWith(err)
		r := s.admits(t, `{"policy":"api","client":"alice"}`)
		assert.True(t, r.Degraded)
		assert.Equal(t, []limitResult{
			{Name: "per-minute", Algorithm: "fixed_window", Allowed: true, Limit: 2, Remaining: 2},
			{Name: "per-hour", Algorithm: "sliding_window", Allowed: true, Limit: 3, Remaining: 3},
		}, r.Limits)
		assert.NotContains(t, r.Header, "Ratelimit", "nothing is known")
		assert.NotContains(t, r.Header, "Ratelimit-Policy")

		s.store.failWith(nil)
		assert.False(t, s.admits(t, `{"policy":"api","client":"alice"}`).Degraded)
	}
}

func TestStoreErrorUnderDenyRefuses(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 2, time.Minute), fixed("per-hour", 3, time.Hour))
	p.OnStoreError = policy.StoreErrorDeny
	s := newService(p)
	s.store.onCall(func(_ context.Context, _, key string) error {
		if strings.HasPrefix(key, "weir:api/per-hour:") {
			return counters.ErrTimeout
		}
		return nil
	})
	r := s.check(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
	assert.NotContains(t, r.Header, "Retry-After")
	assert.JSONEq(t, `{
		"type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
		"title": "Temporary Reduced Capacity", "status": 503,
		"detail": "the store could not decide in time and policy \"api\" denies then; try again",
		"policy": "api", "client": "alice", "degraded": true, "violated-policies": ["per-hour"]}`, r.Body)
	assert.Empty(t, s.store.counts(t), "what the first limit admitted is given back")
}

// One limit that can't be asked doesn't keep another from denying.
func TestDenialStandsWhenAnotherLimitIsUnknown(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1, time.Minute), fixed("per-hour", 3, time.Hour))
	p.OnStoreError = policy.StoreErrorAllow
	s := newService(p)
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.store.onCall(func(_ context.Context, _, key string) error {
		if strings.HasPrefix(key, "weir:api/per-hour:") {
			return counters.ErrTimeout
		}
		return nil
	})
	s.clock.at(2 * time.Second) // what is remembered is too old now
	r := s.denies(t, `{"policy":"api","client":"alice"}`)
	assert.True(t, r.Degraded)
	assert.Equal(t, `"per-minute";r=0;t=58`, r.Header.Get("RateLimit"), "only of the limit that is known")
	assert.Equal(t, `"per-minute";q=1;w=60`, r.Header.Get("RateLimit-Policy"))
}

func TestDenialStandsWhenGivingBackFails(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-hour", 9, time.Hour), fixed("per-minute", 2, time.Minute)))
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.store.onCall(func(_ context.Context, operation, _ string) error {
		if operation == "subtract" {
			return counters.ErrTimeout
		}
		return nil
	})
	r := s.denies(t, `{"policy":"api","client":"alice","cost":2}`)
	assert.EqualValues(t, 6, r.Limits[0].Remaining, "what is counted is what is reported")
}

// All operations of a check share one deadline, which counts from its start.
func TestStoreOperationsEndWithTheTimeout(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, 70 * time.Millisecond} {
		p := newPolicy("api", fixed("per-hour", 9, time.Hour), fixed("per-minute", 3, time.Minute), sliding("ten", 5, 10*time.Second, 10, "weighted"))
		s := newServiceWith(func(cfg *Config) { cfg.StoreTimeout = timeout }, p)
		s.clock.at(7 * time.Second)
		s.store.onCall(func(context.Context, string, string) error {
			s.clock.set(s.clock.now().Add(time.Millisecond)) // each operation takes a while
			return nil
		})
		for range 2 {
			for _, request := range []*http.Request{
				newRequest(http.MethodPost, "/v1/check", `{"policy":"api","client":"alice","cost":2}`),
				newRequest(http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"api","client":"alice","cost":2}]}`), // is denied
				newRequest(http.MethodGet, "/v1/auth/api", ""),
				newRequest(http.MethodGet, "/v1/policies/api/clients/alice", ""),
				newRequest(http.MethodDelete, "/v1/policies/api/clients/alice", ""),
			} {
				start, before := s.clock.now(), len(s.store.deadlines)
				s.serve(t, request)
				require.Greater(t, len(s.store.deadlines), before)
				for _, deadline := range s.store.deadlines[before:] {
					require.Equal(t, start.Add(max(timeout, counters.DefaultTimeout)), deadline, "%s %s", request.Method, request.URL)
				}
			}
		}
	}
}

func TestSilentStoreCostsOneTimeout(t *testing.T) {
	t.Parallel()
	for _, mode := range []policy.OnStoreError{policy.StoreErrorLocal, policy.StoreErrorAllow, policy.StoreErrorDeny} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPolicy("api", fixed("per-hour", 9, time.Hour), fixed("per-minute", 5, time.Minute), sliding("ten", 5, 10*time.Second, 10, "weighted"))
				p.OnStoreError = mode
				s := newServiceWith(func(cfg *Config) { cfg.Now = nil }, p)
				s.store.onCall(waitForDeadline)
				for _, request := range []*http.Request{
					newRequest(http.MethodPost, "/v1/check", `{"policy":"api","client":"alice"}`),
					newRequest(http.MethodGet, "/v1/auth/api", ""),
					newRequest(http.MethodGet, "/v1/policies/api/clients/alice", ""),
				} {
					start := time.Now()
					r := s.serve(t, request)
					assert.Equal(t, 50*time.Millisecond, time.Since(start), "three limits, one timeout")
					// Forward auth says nothing more to what it admits.
					assert.Equal(t, r.Body != "", r.Degraded)
					assert.Equal(t, mode != policy.StoreErrorDeny, r.Code == http.StatusOK)
				}
			})
		})
	}
}

func TestPausedMemcachedDegradesAndRecovers(t *testing.T) {
	server := memcachedtest.Start(t)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	defer store.Close()
	allow, deny := newPolicy("allow", fixed("per-day", 1000, 24*time.Hour)), newPolicy("deny", fixed("per-day", 1000, 24*time.Hour))
	allow.OnStoreError, deny.OnStoreError = policy.StoreErrorAllow, policy.StoreErrorDeny
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.Health, cfg.StoreTimeout = nil, store.Ping, 200*time.Millisecond
		cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(store), cfg.Metrics, allow, deny)
	})
	answers := func() bool {
		return !s.admits(t, `{"policy":"allow","client":"alice"}`).Degraded
	}
	require.Eventually(t, answers, time.Minute, time.Millisecond)
	require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/readyz", "").Code)

	server.Pause()
	require.Eventually(t, func() bool { return !answers() }, time.Minute, time.Millisecond, "a signal takes a moment")

	// Each of these returns although the server stays silent.
	timeouts := func(operation string) (n int) {
		line := fmt.Sprintf(`weir_store_operations_total{operation=%q,outcome="timeout",server=%q} `, operation, server.Addr)
		_, rest, _ := strings.Cut(s.do(t, http.MethodGet, "/metrics", "").Body, line)
		_, err := fmt.Sscan(rest, &n)
		require.NoError(t, err)
		return n
	}
	before := timeouts("add")
	assert.True(t, s.admits(t, `{"policy":"allow","client":"alice"}`).Degraded)
	assert.Equal(t, http.StatusServiceUnavailable, s.check(t, `{"policy":"deny","client":"alice"}`).Code)
	assert.Equal(t, http.StatusAccepted, s.do(t, http.MethodDelete, "/v1/policies/allow/clients/alice", "").Code)
	var r result
	require.Eventually(t, func() bool {
		r = s.do(t, http.MethodGet, "/readyz", "")
		return r.Code == http.StatusServiceUnavailable
	}, time.Minute, time.Millisecond, "what it says is a second old at most")
	assert.Contains(t, r.Body, `{"server":"`+server.Addr+`","up":false,"error":"the store is not available: `)
	assert.Equal(t, before+1, timeouts("add"), "of the first; who asks next, and a reset, look first")
	assert.Zero(t, timeouts("delete"))

	server.Resume()
	require.Eventually(t, answers, time.Minute, time.Millisecond)
	assert.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/readyz", "").Code)
}

func TestKilledMemcachedDegrades(t *testing.T) {
	server := memcachedtest.StartSocket(t)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	defer store.Close()
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.Health = nil, store.Ping
		cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", fixed("per-day", 1000, 24*time.Hour)))
	})
	server.Kill()
	assert.True(t, s.admits(t, `{"policy":"api","client":"alice"}`).Degraded)
	requireMetrics(t, s, `weir_store_operations_total{operation="add",outcome="error",server="`+server.Addr+`"} 1`)
	assert.Contains(t, s.do(t, http.MethodGet, "/readyz", "").Body, `"error":"the store is not available`)
}

func TestShadowModeAllowsEvenWhatTheStoreCannotDecide(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-hour", 9, time.Hour))
	p.OnStoreError, p.Shadow = policy.StoreErrorDeny, true
	s := newService(p)
	s.store.failWith(counters.ErrTimeout)
	r := s.admits(t, `{"policy":"api","client":"alice"}`)
	assert.True(t, r.Degraded)
	assert.True(t, r.Shadow)
	requireMetrics(t, s, `weir_checks_total{decision="shadow_denied",policy="api"} 1`, `weir_degraded_checks_total{mode="deny",policy="api"} 1`)
}

// By default the process limits alone, and the store counts that when it is
// back.
func TestStoreErrorUnderLocalLimitsAlone(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute), sliding("per-hour", 9, time.Hour, 60, "weighted")))
	other := newService(newPolicy("api", fixed("per-minute", 3, time.Minute), sliding("per-hour", 9, time.Hour, 60, "weighted")))
	other.store.Store = s.memory
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.store.failWith(fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent))
	s.clock.at(10 * time.Second)
	for remaining := range int64(2) {
		r := s.admits(t, `{"policy":"api","client":"alice"}`)
		assert.True(t, r.Degraded)
		assert.EqualValues(t, 1-remaining, r.Limits[0].Remaining)
		assert.EqualValues(t, 7-remaining, r.Limits[1].Remaining)
	}
	for range 5 {
		r := s.denies(t, `{"policy":"api","client":"alice"}`)
		assert.True(t, r.Degraded)
		assert.Equal(t, 50*time.Second, r.retry())
		assert.EqualValues(t, 6, r.Limits[1].Remaining, "what one limit denies isn't taken from the other")
	}
	r := s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.True(t, r.Degraded)
	assert.EqualValues(t, 0, r.Limits[0].Remaining)
	requireMetrics(t, s, `weir_degraded_checks_total{mode="local",policy="api"} 7`, `weir_checks_total{decision="denied",policy="api"} 5`)

	s.store.failWith(nil)
	assert.False(t, s.denies(t, `{"policy":"api","client":"alice"}`).Degraded)
	other.clock.at(10 * time.Second)
	assert.Eventually(t, func() bool {
		return other.denies(t, `{"policy":"api","client":"alice"}`).Limits[1].Remaining == 6
	}, time.Minute, time.Millisecond, "in the limit that wasn't asked, too")
}

// Of each check that the store couldn't decide, whatever its answer, the server
// tells whose it was; of no other, and not of peeks.
func TestUndecidedChecksAreTold(t *testing.T) {
	t.Parallel()
	for _, mode := range []policy.OnStoreError{policy.StoreErrorLocal, policy.StoreErrorAllow, policy.StoreErrorDeny} {
		p := newPolicy("api", fixed("per-minute", 1, time.Minute), sliding("per-hour", 9, time.Hour, 60, "weighted"))
		p.OnStoreError = mode
		var mu sync.Mutex
		var told []string
		s := newServiceWith(func(cfg *Config) {
			cfg.Undecided = func(client string, err error) {
				mu.Lock()
				defer mu.Unlock()
				assert.ErrorIs(t, err, counters.ErrTimeout)
				told = append(told, client)
			}
		}, p)
		s.admits(t, `{"policy":"api","client":"alice"}`)
		s.denies(t, `{"policy":"api","client":"alice"}`)
		s.store.failWith(counters.ErrTimeout)
		s.denies(t, `{"policy":"api","client":"alice"}`) // as it is known
		assert.Empty(t, told)
		s.do(t, http.MethodGet, "/v1/policies/api/clients/bob", "")
		s.do(t, http.MethodDelete, "/v1/policies/api/clients/bob", "")
		s.check(t, `{"policy":"none","client":"bob"}`)
		assert.Empty(t, told, "they are no checks")
		s.check(t, `{"policy":"api","client":"bob"}`)
		s.check(t, `{"policy":"api","client":"bob"}`)
		s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"api","client":"carol"},{"policy":"api","client":"dave"}]}`)
		s.do(t, http.MethodGet, "/v1/auth/api", "")
		assert.ElementsMatch(t, []string{"bob", "bob", "carol", "dave", "192.0.2.1"}, told)
	}
}

// A client that the process knows to be over its limit stays denied, whatever
// on_store_error says, until its time has come.
func TestKnownDenialsStandWithoutTheStore(t *testing.T) {
	t.Parallel()
	for _, mode := range []policy.OnStoreError{policy.StoreErrorLocal, policy.StoreErrorAllow, policy.StoreErrorDeny} {
		for _, limit := range []policy.Limit{
			fixed("limit", 2, time.Minute), sliding("limit", 2, time.Minute, 10, "strict"), token("limit", 2, time.Minute, 0), slidingLog("limit", 2, time.Minute),
		} {
			p := newPolicy("api", limit)
			p.OnStoreError = mode
			s := newService(p)
			s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
			s.store.failWith(counters.ErrTimeout)
			s.clock.at(20 * time.Second)
			retry := s.denies(t, `{"policy":"api","client":"alice"}`).retry()
			s.clock.at(20*time.Second + retry - time.Millisecond)
			assert.True(t, s.denies(t, `{"policy":"api","client":"alice"}`).Degraded, "%s %s", mode, limit.Algorithm)
			s.clock.at(20*time.Second + retry)
			assert.Equal(t, mode != policy.StoreErrorDeny, s.check(t, `{"policy":"api","client":"alice"}`).Allowed, "%s %s", mode, limit.Algorithm)
		}
	}
}

// Health checks and scrapes share the socket of the checks.
func TestHealthOpensNoConnections(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	server := memcachedtest.Start(t)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	defer store.Close()
	s := newServiceWith(func(cfg *Config) { cfg.Health = store.Ping })
	before := server.Stat("total_connections")
	for range 250 {
		require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/readyz", "").Code)
		require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/metrics", "").Code)
	}
	// One is the store's, and one asks for this number. The one that found the
	// server ready may be counted late.
	require.LessOrEqual(t, server.Stat("total_connections")-before, int64(3))
}
