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

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
)

func TestDrainingAnswersAndClosesConnections(t *testing.T) {
	t.Parallel()
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

// Every answer shows one set of policies, never parts of two.
func TestSetPoliciesSwapsAsAWhole(t *testing.T) {
	t.Parallel()
	s := newService()
	set := func(limit int64) policy.Policies {
		return bindLimiters(s.store, s.cfg.Metrics,
			newPolicy("a", fixed("per-minute", limit, time.Minute), fixed("per-hour", limit, time.Hour)),
			newPolicy("b", fixed("per-minute", limit, time.Minute)))
	}
	sets := []policy.Policies{set(1_000_000), set(2_000_000)}
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
	s.SetPolicies(policy.Policies{})
	requireProblem(t, s.check(t, `{"policy":"b","client":"alice"}`), http.StatusNotFound, `there is no policy "b"`)
}

// A check under way ends with the policy it began with.
func TestSetPoliciesLeavesChecksUnderWayAlone(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 5, time.Minute), fixed("per-hour", 5, time.Hour)))
	reload := sync.OnceFunc(func() { s.SetPolicies(policy.Policies{}) })
	s.store.onCall(func(context.Context, string, string) error {
		reload()
		return nil
	})
	r := s.admits(t, `{"policy":"api","client":"alice"}`)
	assert.Len(t, r.Limits, 2)
	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="api"} 1`)
	assert.Equal(t, http.StatusNotFound, s.check(t, `{"policy":"api","client":"alice"}`).Code)
}

func TestRequestsAreLoggedAtDebugOnly(t *testing.T) {
	t.Parallel()
	debug := new(syncBuffer)
	s := newServiceWith(func(cfg *Config) {
		cfg.Log = slog.New(slog.NewTextHandler(debug, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, newPolicy("api", fixed("per-minute", 100, time.Minute)))
	r := s.do(t, http.MethodPost, "/v1/check", `{"policy":"none","client":"alice"}`)
	assert.NotEmpty(t, r.Header.Get("X-Request-Id"))
	assert.Contains(t, debug.String(), "method=POST path=/v1/check status=404")
	assert.Contains(t, debug.String(), "id="+r.Header.Get("X-Request-Id"))
	// nginx takes an answer with a long one for a failure.
	r = s.do(t, http.MethodGet, "/v1/policies", "", "X-Request-Id", strings.Repeat("a", 129))
	assert.Less(t, len(r.Header.Get("X-Request-Id")), 129)
	assert.Contains(t, debug.String(), "id="+r.Header.Get("X-Request-Id"))

	quiet := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	quiet.admits(t, `{"policy":"api","client":"alice"}`)
	assert.Empty(t, quiet.log.String())
}

// At debug a line says of each check whose it was, and what decided it.
func TestChecksAreLoggedAtDebug(t *testing.T) {
	t.Parallel()
	log := new(syncBuffer)
	trial := newPolicy("trial", fixed("per-minute", 1, time.Minute))
	trial.Shadow = true
	strict := newPolicy("strict", fixed("per-minute", 1, time.Minute))
	strict.OnStoreError = policy.StoreErrorDeny
	api := newPolicy("api", fixed("per-minute", 1, time.Minute), fixed("per-hour", 9, time.Hour))
	s := newServiceWith(func(cfg *Config) {
		cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, api, trial, strict)
	last := func() string {
		t.Helper()
		lines := strings.SplitAfter(log.String(), "msg=check ")
		line, _, _ := strings.Cut(lines[len(lines)-1], "\n")
		return line
	}
	const hash = "2bd806c97f0e00af"
	s.check(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, "policy=api client="+hash+" decision=allowed limits=per-minute,per-hour degraded=false", last())
	s.check(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, "policy=api client="+hash+" decision=denied limits=per-minute degraded=false", last())
	s.check(t, `{"policy":"trial","client":"alice","cost":0}`)
	s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"trial","client":"alice"}]}`)
	assert.Equal(t, "policy=trial client="+hash+" decision=allowed limits=per-minute degraded=false", last())
	s.do(t, http.MethodPost, "/v1/check/batch", `{"all":true,"checks":[{"policy":"trial","client":"alice"}]}`)
	assert.Equal(t, "policy=trial client="+hash+" decision=shadow_denied limits=per-minute degraded=false", last())
	s.do(t, http.MethodGet, "/v1/auth/api", "")
	assert.Contains(t, last(), "policy=api client="+telemetry.HashClient("192.0.2.1")+" ")
	s.store.failWith(counters.ErrTimeout)
	s.check(t, `{"policy":"strict","client":"alice"}`)
	assert.Equal(t, "policy=strict client="+hash+" decision=error limits=per-minute degraded=true", last())
	assert.NotContains(t, log.String(), "alice")
}

// A caller with a wrong name for its policy finds no limit. Neither it nor a
// hostile one can fill the log.
func TestUnknownPoliciesAreToldOnce(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	ask := func(policy string) {
		t.Helper()
		body := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"`+policy+`","client":"alice"},{"policy":"api","client":"alice"}]}`).Body
		require.Contains(t, body, `"status":404`)
		require.Equal(t, http.StatusNotFound, s.do(t, http.MethodGet, "/v1/auth/"+policy, "").Code)
		require.Equal(t, http.StatusNotFound, s.check(t, `{"policy":"`+policy+`","client":"alice"}`).Code)
	}
	ask("apj")
	ask("apj")
	assert.Equal(t, 1, strings.Count(s.log.String(), "\n"))
	assert.Regexp(t, `level=WARN msg="there is no such policy: .*" policy=apj\n$`, s.log.String())
	ask(strings.Repeat("x", 10_000))
	assert.Less(t, len(s.log.String()), 1000)
	for i := range 2 * maxUnknown {
		ask(fmt.Sprint("none-", i))
	}
	assert.Equal(t, maxUnknown, strings.Count(s.log.String(), "\n"))
	assert.Equal(t, 1, strings.Count(s.log.String(), "no more of them are named"))
	s.SetPolicies(s.cfg.Policies)
	ask("apj")
	assert.Equal(t, maxUnknown+1, strings.Count(s.log.String(), "\n"), "the policies are others, perhaps")
}

// Whoever may read the log doesn't learn who asks, unless that is wanted.
func TestClientsAreHashedInTheLog(t *testing.T) {
	t.Parallel()
	logged := func(show bool, method, target string) string {
		log := new(syncBuffer)
		s := newServiceWith(func(cfg *Config) {
			cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			cfg.LogClients = show
		}, newPolicy("api", fixed("per-minute", 100, time.Minute)))
		r := newRequest(method, target, "")
		r.RemoteAddr = "192.0.2.7:1234"
		s.serve(t, r)
		return log.String()
	}
	const hash = "2bd806c97f0e00af" // printf alice | sha256sum
	path := "/v1/policies/api/clients/"
	assert.Contains(t, logged(false, http.MethodGet, path+"alice"), "path="+path+hash+" status=200")
	assert.Contains(t, logged(false, http.MethodGet, path+"%61lice"), "path="+path+hash+" ")
	assert.Contains(t, logged(true, http.MethodGet, path+"alice"), "path="+path+"alice status=200")
	for _, target := range []string{path + "alice", path + "alice/x", "/v1/policies/none/clients/alice", "/clients/alice"} {
		for _, method := range []string{http.MethodDelete, http.MethodPost} {
			assert.NotContains(t, logged(false, method, target), "alice", "%s %s", method, target)
		}
	}

	assert.NotContains(t, logged(false, http.MethodGet, "/v1/auth/api/"), "192.0.2.7", "it names the client")
	assert.Contains(t, logged(true, http.MethodGet, "/v1/auth/api/"), "peer=192.0.2.7 ")
	assert.Contains(t, logged(false, http.MethodGet, "/v1/policies"), "peer=192.0.2.7 ")
}

func TestServerBoundsSlowPeers(t *testing.T) {
	t.Parallel()
	server := newService().HTTPServer()
	assert.Positive(t, server.ReadHeaderTimeout)
	assert.Positive(t, server.ReadTimeout)
	assert.Positive(t, server.WriteTimeout)
	assert.Positive(t, server.IdleTimeout)
	assert.Positive(t, server.MaxHeaderBytes)
}

func TestNewServerUsesTheRealClockByDefault(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 100, time.Minute)))
	before := time.Now()
	s.admits(t, `{"policy":"api","client":"alice"}`)
	deadline := s.store.deadlines[0]
	assert.False(t, deadline.Before(before.Add(50*time.Millisecond)))
	assert.False(t, deadline.After(time.Now().Add(50*time.Millisecond)))
}

func TestUnknownPolicy(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	for _, request := range []struct{ method, target, body string }{
		{http.MethodPost, "/v1/check", `{"policy":"apj","client":"alice"}`},
		{http.MethodGet, "/v1/policies/apj", ""},
		{http.MethodGet, "/v1/policies/apj/clients/alice", ""},
		{http.MethodDelete, "/v1/policies/apj/clients/alice", ""},
		{http.MethodGet, "/v1/auth/apj", ""},
	} {
		r := s.do(t, request.method, request.target, request.body)
		requireProblem(t, r, http.StatusNotFound, `there is no policy "apj"; GET /v1/policies lists them`)
	}
	requireUntouched(t, s)
}

func TestWrongMethod(t *testing.T) {
	t.Parallel()
	for what, tokens := range map[string][]Token{"open": nil, "with tokens": {{Secret: "secret"}}} {
		t.Run(what, func(t *testing.T) {
			s := newServiceWith(func(cfg *Config) { cfg.Tokens = tokens }, newPolicy("api", fixed("per-minute", 100, time.Minute)))
			for _, test := range []struct{ method, target, allow string }{
				{http.MethodGet, "/v1/check", "POST"},
				{http.MethodPut, "/v1/check/batch", "POST"},
				{http.MethodPost, "/v1/policies", "GET"},
				{http.MethodDelete, "/v1/policies/api", "GET"},
				{http.MethodPost, "/v1/policies/api/top", "GET"},
				{http.MethodPost, "/v1/policies/api/clients/alice", "DELETE, GET"},
				{http.MethodPost, "/healthz", "GET, HEAD"},
				{http.MethodDelete, "/metrics", "GET"},
			} {
				r := s.do(t, test.method, test.target, "", "Authorization", "Bearer secret")
				requireProblem(t, r, http.StatusMethodNotAllowed,
					test.method+" is not possible at "+test.target+"; the Allow header lists what is")
				assert.ElementsMatch(t, append(strings.Split(test.allow, ", "), "OPTIONS"), strings.Split(r.Header.Get("Allow"), ", "), test.target)
			}
			requireUntouched(t, s)
		})
	}
}

func TestUnknownPaths(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	for _, target := range []string{"/", "/v1", "/v1/checks", "/v1/policies/api/clients", "/healthz/x", "/v1/policies%2Fapi"} {
		requireProblem(t, s.do(t, http.MethodGet, target, ""), http.StatusNotFound, "there is nothing at "+target)
	}
}

// A panickingLimiter has a bug.
type panickingLimiter struct{ counters.Limiter }

func (panickingLimiter) Take(context.Context, counters.Request) (counters.Decision, error) {
	panic("a bug")
}

func TestPanicIsAProblemAndTheServerSurvives(t *testing.T) {
	t.Parallel()
	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	s := newService(newPolicy("buggy", buggy), newPolicy("api", fixed("per-minute", 100, time.Minute)))
	const detail = "the request failed inside weir; its log says why"

	requireProblem(t, s.check(t, `{"policy":"buggy","client":"alice"}`), http.StatusInternalServerError, detail)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/buggy", ""), http.StatusInternalServerError, detail)
	assert.Contains(t, s.log.String(), `level=ERROR msg=panic path=/v1/check error="a bug" stack=`)
	assert.Contains(t, s.log.String(), "panickingLimiter.Take")
	s.admits(t, `{"policy":"api","client":"alice"}`)

	r := s.batch(t, `{"policy":"buggy","client":"alice"}`, `{"policy":"api","client":"alice"}`)
	require.Len(t, r.Results, 2)
	assert.EqualValues(t, http.StatusInternalServerError, r.Results[0].Status)
	assert.Equal(t, detail, r.Results[0].Detail)
	assert.EqualValues(t, http.StatusOK, r.Results[1].Status)
	assert.Contains(t, s.log.String(), "path=/v1/check/batch")
}

func TestUnexpectedErrorIsLoggedAndNotShown(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	s.echo.GET("/broken", func(echo.Context) error { return errors.New("secret detail") })
	r := s.do(t, http.MethodGet, "/broken", "")
	requireProblem(t, r, http.StatusInternalServerError, "the request failed inside weir; its log says why")
	assert.NotContains(t, r.Body, "secret detail")
	assert.Contains(t, s.log.String(), `error="secret detail"`)
}

// What reaches a handler when the store is about to be closed isn't answered.
func TestNoRequestBeginsAfterTheLast(t *testing.T) {
	t.Parallel()
	var s Server
	s.Await()
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { s.ServeHTTP(nil, nil) })
}
