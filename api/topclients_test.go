package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/fleet"
	"weir/api/policy"
	"weir/counters"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
)

func TestTopNamesTheBusiestAndTheMostDenied(t *testing.T) {
	t.Parallel()
	api := newPolicy("api", fixed("per-minute", 3, time.Minute))
	api.Clients = clients(map[string]policy.Terms{"probe": {Exempt: true}, "abuser": {Blocked: true}})
	trial := newPolicy("trial", fixed("per-minute", 1, time.Minute))
	trial.Shadow = true
	s := newService(api, trial)
	ask := func(policy, client string, times int) {
		for range times {
			s.check(t, `{"policy":"`+policy+`","client":"`+client+`"}`)
		}
	}
	top := func(query string) string {
		t.Helper()
		r := s.do(t, http.MethodGet, "/v1/policies/"+query, "")
		assert.Equal(t, http.StatusOK, r.Code, r.Body)
		return strings.TrimSpace(r.Body)
	}
	assert.Equal(t, `{"policy":"api","by":"denied","window":60,"clients":[]}`, top("api/top"))
	ask("api", "alice", 5)
	ask("api", "bob", 4)
	ask("api", "probe", 9)
	ask("api", "abuser", 7)
	ask("trial", "carol", 3)
	ask("api", "", 3)
	s.do(t, http.MethodGet, "/v1/policies/api/clients/abuser", "")
	assert.Equal(t, `{"policy":"api","by":"denied","window":60,"clients":[`+
		`{"client":"abuser","count":7,"error":0},{"client":"alice","count":2,"error":0},{"client":"bob","count":1,"error":0}]}`, top("api/top"))
	assert.Equal(t, `{"policy":"api","by":"allowed","window":60,"clients":[`+
		`{"client":"probe","count":9,"error":0},{"client":"alice","count":3,"error":0}]}`, top("api/top?by=allowed&n=2"))
	assert.Equal(t, `{"policy":"trial","by":"denied","window":60,"clients":[{"client":"carol","count":2,"error":0}]}`, top("trial/top?by=denied"),
		"what shadow mode would have denied")

	s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("api", fixed("per-minute", 5, time.Minute))))
	ask("api", "bob", 2)
	assert.Contains(t, top("api/top?by=allowed"), `{"client":"bob","count":5,`, "a reload forgets nothing")

	s.clock.at(70 * time.Second)
	assert.Contains(t, top("api/top"), `"clients":[]`)
}

func (by way) TestTopCountsBatchesAndForwardAuthToo(t *testing.T) {
	t.Parallel()
	keyed := newPolicy("keyed", fixed("per-minute", 1, time.Minute))
	keyed.Identify = []policy.Identifier{{Header: "X-Api-Key"}}
	s := by.newService(keyed)
	s.do(t, http.MethodGet, "/v1/auth/keyed", "", "X-Api-Key", "a\xffb")
	s.do(t, http.MethodGet, "/v1/auth/keyed", "", "X-Api-Key", "a\xffb")
	s.batch(t, `{"policy":"keyed","client":"bob"}`)
	r := s.do(t, http.MethodGet, "/v1/policies/keyed/top?by=allowed", "")
	assert.Contains(t, r.Body, `[{"client":"a\ufffdb","count":1,"error":0},{"client":"bob","count":1,"error":0}]`)
}

// What a settlement gives back is taken off where it was counted, and what is charged
// afterwards is added.
func TestTopByCostCountsWhatWasUsedInTheEnd(t *testing.T) {
	t.Parallel()
	requests, held := fixed("requests", 1000, time.Minute), places("in-flight", 1000, time.Minute)
	requests.CountsRequests, held.CountsRequests = true, true
	limits := func() *policy.Policy {
		return newPolicy("llm", requests, fixed("tokens", 10_000, time.Minute), token("burst", 10_000, time.Minute, 0), held)
	}
	s := newService(limits())
	other := newTwin(s, limits())
	requireTop := func(by *service, clients string) {
		t.Helper()
		r := by.do(t, http.MethodGet, "/v1/policies/llm/top?by=cost", "")
		require.Equal(t, `{"policy":"llm","by":"cost","window":60,"clients":[`+clients+`]}`, strings.TrimSpace(r.Body))
	}
	less, more := s.reserveFor(t, "alice", 600), s.reserveFor(t, "bob", 100)
	s.reserveFor(t, "carol", 0)
	require.False(t, s.reserveFor(t, "alice", 9_900).Allowed)
	requireTop(s, `{"client":"alice","count":600,"error":0},{"client":"bob","count":100,"error":0}`)

	s.clock.at(20 * time.Second)
	for range 2 {
		require.Equal(t, http.StatusOK, s.settleAt(t, less.Receipt, 183).Code)
		require.Equal(t, http.StatusOK, s.settleAt(t, more.Receipt, 150).Code)
		require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"dave","cost":160,"id":"7"}`).Code)
	}
	requireTop(s, `{"client":"alice","count":183,"error":0},{"client":"dave","count":160,"error":0},{"client":"bob","count":150,"error":0}`)
	requireMetrics(t, s, `weir_charged_units_total{policy="llm"} 160`,
		`weir_settled_units_total{direction="charged",policy="llm"} 50`, `weir_settled_units_total{direction="refunded",policy="llm"} 417`)

	elsewhere := s.reserveFor(t, "erin", 500)
	require.Equal(t, http.StatusOK, other.settleAt(t, elsewhere.Receipt, 1).Code)
	requireTop(other, "")
	s.clock.at(70 * time.Second)
	requireTop(s, `{"client":"erin","count":500,"error":0},{"client":"dave","count":160,"error":0},{"client":"bob","count":50,"error":0}`)
}

// Whom the store failed asked no more often than others.
func TestTopLeavesOutWhatTheStoreCouldNotDecide(t *testing.T) {
	t.Parallel()
	closed := newPolicy("closed", fixed("per-minute", 2, time.Minute))
	closed.OnStoreError = policy.StoreErrorDeny
	s := newService(closed)
	s.store.failWith(counters.ErrTimeout)
	assert.Equal(t, http.StatusServiceUnavailable, s.check(t, `{"policy":"closed","client":"alice"}`).Code)
	for _, by := range []string{"allowed", "denied"} {
		assert.Contains(t, s.do(t, http.MethodGet, "/v1/policies/closed/top?by="+by, "").Body, `"clients":[]`)
	}
}

func TestTopSaysWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.Tokens = []Token{{Secret: "secret"}} }, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for query, want := range map[string]string{
		"?n=0":                 `n is "0" and must be a whole number from 1 to 100`,
		"?n=101":               `n is "101" and must be a whole number from 1 to 100`,
		"?n=":                  `n is "" and must be a whole number from 1 to 100`,
		"?by=denied;n=2":       `the query can't be read: invalid semicolon separator in query`,
		"?by=%zz":              `the query can't be read: invalid URL escape "%zz"`,
		"?by=allowed&by=cost":  `by is given 2 times and must be given once`,
		"?by=refused&n=100":    `by is "refused" and must be denied, allowed or cost`,
		"?limit=5":             `there is no parameter "limit"; there are by, n and scope`,
		"?scope=all":           `scope is "all" and must be instance or fleet`,
		"?by=cost&scope=fleet": `scope=fleet has by=denied and by=allowed; each instance knows costs as it has settled them`,
	} {
		r := s.do(t, http.MethodGet, "/v1/policies/api/top"+query, "", "Authorization", "Bearer secret")
		requireProblem(t, r, http.StatusBadRequest, want)
	}
	r := s.do(t, http.MethodGet, "/v1/policies/none/top", "", "Authorization", "Bearer secret")
	requireProblem(t, r, http.StatusNotFound, `there is no policy "none"`)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/top", ""), http.StatusUnauthorized, "a bearer token is needed")
}

// Whichever instance is asked, the top of the fleet is the sum of what all have decided, and
// without the store it says what can be asked instead.
func TestTopOfTheFleetIsTheSum(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	on := storeOn(t, server)
	now := &clock{time: epoch}
	var instances []*service
	for i := range 3 {
		s := newServiceOn(on, func(cfg *Config) {
			cfg.Now = now.now
			cfg.Fleet = fleet.New(fleet.Config{Store: on, KeyPrefix: "weir", Now: now.now})
		}, newPolicy("api", fixed("per-minute", 4, time.Minute)), newPolicy("idle", fixed("per-minute", 4, time.Minute)))
		instances = append(instances, s)
		s.Sample()
		for range 3 + i {
			s.check(t, `{"policy":"api","client":"everywhere"}`)
		}
		s.check(t, fmt.Sprintf(`{"policy":"api","client":"only-%d"}`, i))
		s.Sample()
	}
	// On a busy machine either may take too long, as it waits for the store for half a second.
	for _, s := range instances {
		require.Eventually(t, func() bool { return s.cfg.Fleet.Leave(context.Background(), s.Report()) == nil }, time.Minute, time.Millisecond)
	}
	passed := time.Second
	for _, s := range instances {
		require.Eventually(t, func() bool {
			passed += fleet.Interval/2 + 1 // it reads anew
			now.at(passed)
			_, missing, err := s.cfg.Fleet.Others()
			return err == nil && missing == 0
		}, time.Minute, time.Millisecond)
		top := func(target string) string {
			t.Helper()
			r := s.do(t, http.MethodGet, "/v1/policies/"+target, "")
			require.Equal(t, http.StatusOK, r.Code, r.Body)
			return r.Body
		}
		assert.JSONEq(t, `{"policy":"api","by":"denied","window":60,"clients":[{"client":"everywhere","count":8,"error":0}],
			"fleet":{"instances":3,"missing":0,"allowed":1.4,"denied":1.6,"degraded":0}}`, top("api/top?scope=fleet"))
		assert.JSONEq(t, `{"policy":"api","by":"allowed","window":60,"clients":[{"client":"everywhere","count":4,"error":0},{"client":"only-0","count":1,"error":0}],
			"fleet":{"instances":3,"missing":0,"allowed":1.4,"denied":1.6,"degraded":0}}`, top("api/top?scope=fleet&by=allowed&n=2"))
		assert.JSONEq(t, `{"policy":"idle","by":"denied","window":60,"clients":[],"fleet":{"instances":3,"missing":0,"allowed":0,"denied":0,"degraded":0}}`,
			top("idle/top?scope=fleet"))
		assert.NotContains(t, top("api/top"), "fleet")
	}

	now.at(passed + fleet.Interval)
	server.Kill()
	s := instances[0]
	r := s.do(t, http.MethodGet, "/v1/policies/api/top?scope=fleet", "")
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.Contains(t, r.Body, "without scope=fleet, this instance answers for itself")
	assert.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/v1/policies/api/top?scope=instance", "").Code)
}

// What other instances refuse, as the store doesn't answer, is told of them too, though it
// names nobody. It is denied and degraded.
func TestTopOfTheFleetHasWhatOthersRefuse(t *testing.T) {
	t.Parallel()
	on, now := memory.New(nil), &clock{time: epoch}
	var instances []*service
	for range 2 {
		closed := newPolicy("closed", fixed("per-minute", 2, time.Minute))
		closed.OnStoreError = policy.StoreErrorDeny
		s := newServiceWith(func(cfg *Config) {
			cfg.Now = now.now
			cfg.Fleet = fleet.New(fleet.Config{Store: on, KeyPrefix: "weir", Now: now.now})
		}, closed, newPolicy("idle", fixed("per-minute", 2, time.Minute)))
		instances = append(instances, s)
		s.store.failWith(counters.ErrTimeout)
		s.Sample()
		for range 5 {
			s.check(t, `{"policy":"closed","client":"alice"}`)
		}
		s.Sample()
		require.NotContains(t, s.Report().Policies, "idle")
		require.NoError(t, s.cfg.Fleet.Leave(t.Context(), s.Report()))
	}
	assert.JSONEq(t, `{"policy":"closed","by":"denied","window":60,"clients":[],
		"fleet":{"instances":2,"missing":0,"allowed":0,"denied":2,"degraded":2}}`,
		instances[0].do(t, http.MethodGet, "/v1/policies/closed/top?scope=fleet", "").Body)
}
