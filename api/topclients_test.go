package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/api/policy"
	"weir/counters"
)

func TestTopNamesTheBusiestAndTheMostDenied(t *testing.T) {
	t.Parallel()
	api := newPolicy("api", fixed("per-minute", 3, time.Minute))
	api.Clients = clients(map[string]policy.Client{"probe": {Exempt: true}, "abuser": {Blocked: true}})
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
		"?n=0":              `n is "0" and must be a whole number from 1 to 100`,
		"?n=101":            `n is "101" and must be a whole number from 1 to 100`,
		"?n=":               `n is "" and must be a whole number from 1 to 100`,
		"?by=refused&n=100": `by is "refused" and must be denied or allowed`,
		"?limit=5":          `there is no parameter "limit"; there are by and n`,
	} {
		r := s.do(t, http.MethodGet, "/v1/policies/api/top"+query, "", "Authorization", "Bearer secret")
		requireProblem(t, r, http.StatusBadRequest, want)
	}
	r := s.do(t, http.MethodGet, "/v1/policies/none/top", "", "Authorization", "Bearer secret")
	requireProblem(t, r, http.StatusNotFound, `there is no policy "none"`)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/top", ""), http.StatusUnauthorized, "a bearer token is needed")
}
