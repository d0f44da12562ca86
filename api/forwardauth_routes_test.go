package api

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
)

// route returns a route of p with limits of its own: name, number, name,
// number.
func route(p *policy.Policy, method, path string, cost int64, own map[string]int64) policy.Route {
	r := policy.Route{Method: method, Path: path, Cost: cost}
	for _, l := range p.Limits {
		if n, ok := own[l.Name]; ok {
			l.Limit, l.Route = n, r.String()
			r.Limits = append(r.Limits, l)
		}
	}
	return r
}

// proxied asks forward auth about a request that a trusted proxy has got.
func (s *service) proxied(t require.TestingT, client, method, uri string) result {
	return s.do(t, http.MethodGet, "/v1/auth/api", "", "X-User", client, "X-Forwarded-Method", method, "X-Forwarded-Uri", uri)
}

// newRouted returns a service with 100 a minute and 1000 an hour, but 5 a minute
// for POST /login, and a cost of 10 below /export, and none below /static.
func newRouted(change func(*policy.Policy)) *service {
	p := newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted"), fixed("per-hour", 1000, time.Hour))
	p.Identify = []policy.Identifier{{Header: "X-User"}}
	p.Routes = []policy.Route{
		route(p, "POST", "/login", 1, map[string]int64{"per-minute": 5}),
		{Path: "/export", Cost: 10}, {Path: "/static", Cost: 0},
	}
	if change != nil {
		change(p)
	}
	return newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("192.0.2.0/24") }, p)
}

// used returns how much a client has used of the policy's limits.
func (s *service) used(t require.TestingT, client string) (used []int64) {
	for _, l := range s.do(t, http.MethodGet, "/v1/policies/api/clients/"+client, "").Limits {
		used = append(used, l.Limit-l.Remaining)
	}
	return used
}

// A limit that a route has counts apart, and all others together.
func TestRoutesHaveLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newRouted(nil)
	for i := range 50 {
		r := s.proxied(t, "alice", "GET", "/")
		require.Equal(t, http.StatusOK, r.Code)
		require.Contains(t, r.Header.Get("RateLimit"), fmt.Sprintf(`"per-minute";r=%d;`, 99-i))
	}
	for i := range 5 {
		r := s.proxied(t, "alice", "POST", "/login?next=/")
		require.Equal(t, http.StatusOK, r.Code, "GET / took nothing of it")
		require.Equal(t, `"per-minute";q=5;w=60, "per-hour";q=1000;w=3600`, r.Header.Get("RateLimit-Policy"))
		require.Contains(t, r.Header.Get("RateLimit"), fmt.Sprintf(`"per-minute";r=%d;`, 4-i))
		require.Contains(t, r.Header.Get("RateLimit"), fmt.Sprintf(`"per-hour";r=%d;`, 949-i))
	}
	r := s.proxied(t, "alice", "POST", "/login/otp")
	assert.Equal(t, http.StatusTooManyRequests, r.Code)
	assert.Equal(t, []string{"per-minute"}, r.Violated)
	assert.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", "/login").Code, "another method")
	assert.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", "/").Code)
	assert.Equal(t, http.StatusOK, s.proxied(t, "bob", "POST", "/login").Code, "another client")
	assert.Equal(t, []int64{52, 57}, s.used(t, "alice"))

	// A reset is one of all.
	require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "").Code)
	s.clock.at(time.Second)
	assert.Equal(t, http.StatusOK, s.proxied(t, "alice", "POST", "/login").Code)
	assert.Equal(t, []int64{0, 1}, s.used(t, "alice"))
	// A check knows no routes.
	s.admits(t, `{"policy":"api","client":"alice","cost":6}`)
}

func TestRoutesHaveACost(t *testing.T) {
	t.Parallel()
	s := newRouted(nil)
	for range 10 {
		require.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", "/export/all.csv").Code)
	}
	assert.Equal(t, []int64{100, 100}, s.used(t, "alice"))
	assert.Equal(t, http.StatusTooManyRequests, s.proxied(t, "alice", "GET", "/export").Code)
	assert.Equal(t, http.StatusTooManyRequests, s.proxied(t, "alice", "GET", "/exports").Code)
	assert.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", "/static/x.css").Code, "which takes nothing")
	assert.Equal(t, []int64{100, 100}, s.used(t, "alice"), "and a denial neither")
}

// A path with several readings costs nothing if one of them is denied, or can never be admitted.
func TestADeniedReadingCostsNothing(t *testing.T) {
	t.Parallel()
	s := newRouted(func(p *policy.Policy) { p.Routes[1].Cost = 101 })
	for range 5 {
		require.Equal(t, http.StatusOK, s.proxied(t, "alice", "POST", "/LOGIN").Code)
	}
	assert.Equal(t, []int64{5, 10}, s.used(t, "alice"), "as /LOGIN and as /login")
	for range 10 {
		require.Equal(t, http.StatusTooManyRequests, s.proxied(t, "alice", "POST", "/LOGIN").Code)
		require.Equal(t, http.StatusBadRequest, s.proxied(t, "alice", "GET", "/EXPORT").Code)
	}
	assert.Equal(t, []int64{5, 10}, s.used(t, "alice"))

	s = newRouted(func(p *policy.Policy) {
		p.Shadow, p.Routes[1].Cost, p.Limits[0].Limit, p.Limits[1].Limit = true, 1001, 1000, 100
	})
	for range 100 {
		require.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", "/").Code)
	}
	require.Equal(t, http.StatusBadRequest, s.proxied(t, "alice", "GET", "/EXPORT").Code)
	assert.Equal(t, []int64{100, 100}, s.used(t, "alice"), "what shadow mode admits has been given back")
}

// A client's own limits don't open what a route guards; exempt and blocked mean
// everywhere.
func TestRoutesAndClients(t *testing.T) {
	t.Parallel()
	s := newRouted(func(p *policy.Policy) {
		p.Clients = clients(map[string]policy.Terms{
			"gold": {Limits: map[string]int64{"per-minute": 1000, "per-hour": 10}}, "probe": {Exempt: true}, "abuser": {Blocked: true},
		})
	})
	r := s.proxied(t, "gold", "GET", "/")
	assert.Equal(t, `"per-minute";q=1000;w=60, "per-hour";q=10;w=3600`, r.Header.Get("RateLimit-Policy"))
	r = s.proxied(t, "gold", "POST", "/login")
	assert.Equal(t, `"per-minute";q=5;w=60, "per-hour";q=10;w=3600`, r.Header.Get("RateLimit-Policy"))
	for range 10 {
		assert.Equal(t, http.StatusOK, s.proxied(t, "probe", "POST", "/login").Code)
	}
	assert.Equal(t, http.StatusTooManyRequests, s.proxied(t, "abuser", "GET", "/static").Code)
}

// Nobody gets more logins by writing the path in another way.
func TestNoSpellingEvadesARoute(t *testing.T) {
	t.Parallel()
	spellings := []string{
		"/login", "/login/", "/login?x", "/login/x", "//login", "/./login", "/x/../login", "/login/.", "/LOGIN", "/%6cogin", "/%6C%6F%67%69%6E", "/login%2F",
		"/%2Flogin", `\login`, `/\login`, "/%5clogin", "/login;a=b", "/login%3ba", "/login#x", "/login%23", "/login%00", "/login%20", "/x/%2e%2e/login",
		"/x/%2E./login", "/x/..%2flogin", "/x%2f..%2flogin", "/x/..;/login", "/x//../../login", "/static/../login", "/static/..%2flogin", "/static/%2e%2e%2flogin",
		"/../login", "/static//..//../login", "http://example.com/login", "HTTP://example.com:80//login", "//example.com/login", "/login//..", "/login/../",
	}
	for _, spelling := range spellings {
		s := newRouted(nil)
		for range 5 {
			require.Equal(t, http.StatusOK, s.proxied(t, "alice", "POST", spelling).Code, spelling)
		}
		r := s.proxied(t, "alice", "POST", spelling)
		assert.Equal(t, http.StatusTooManyRequests, r.Code, spelling)
		assert.Equal(t, http.StatusTooManyRequests, s.proxied(t, "alice", "POST", "/login").Code, spelling)
		assert.Equal(t, http.StatusTooManyRequests, s.proxied(t, "alice", "post", "/login").Code)
	}
	// Nor does anybody pay less.
	for _, spelling := range []string{
		"/static/../export", "/export/../static", "/static/..%2fexport", "/static%2f..%2fexport", "/export//../../static", `/static/..\export`, "/static/..;/export",
	} {
		s := newRouted(nil)
		require.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", spelling).Code)
		assert.GreaterOrEqual(t, s.used(t, "alice")[0], int64(10), spelling)
	}
	for _, spelling := range []string{"/STATIC", "//static", "/static;x", "/%2fstatic", `\static/x`, "/static%2fx"} {
		s := newRouted(nil)
		require.Equal(t, http.StatusOK, s.proxied(t, "alice", "GET", spelling).Code)
		assert.Positive(t, s.used(t, "alice")[0], spelling)
	}
}

// Only a trusted proxy says in headers what its client asked for. A path below
// the policy's is what the client asked for.
func TestWhereTheRouteComesFrom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what, peer, method, target string
		forwarded                  []string // X-Forwarded-Method, X-Forwarded-Uri
		login                      bool
	}{
		{"headers", "192.0.2.1:80", "GET", "/v1/auth/api", []string{"POST", "/login"}, true},
		{"headers, and a query that the proxy appended", "192.0.2.1:80", "GET", "/v1/auth/api?x=/", []string{"POST", "/login?x=/"}, true},
		{"headers of a stranger", "203.0.113.9:80", "GET", "/v1/auth/api", []string{"POST", "/login"}, false},
		{"a stranger's own method and path", "203.0.113.9:80", "POST", "/v1/auth/api/login", nil, true},
		{"and not the headers", "203.0.113.9:80", "POST", "/v1/auth/api/login", []string{"GET", "/"}, true},
		{"a path below", "192.0.2.1:80", "POST", "/v1/auth/api/login", nil, true},
		{"a path below with a query", "192.0.2.1:80", "POST", "/v1/auth/api/login?x", nil, true},
		{"a path far below", "192.0.2.1:80", "POST", "/v1/auth/api/login/x/y", nil, true},
		{"a path below that is encoded", "192.0.2.1:80", "POST", "/v1/auth/api/%6cogin%2fx", nil, true},
		{"a path below with an empty segment", "192.0.2.1:80", "POST", "/v1/auth/api//login", nil, true},
		{"a path below that climbs", "192.0.2.1:80", "POST", "/v1/auth/api/static/../login", nil, true},
		{"another path below", "192.0.2.1:80", "POST", "/v1/auth/api/x/login", nil, false},
		{"another method", "192.0.2.1:80", "GET", "/v1/auth/api/login", nil, false},
		{"a path below and a client's header", "192.0.2.1:80", "POST", "/v1/auth/api/", []string{"POST", "/login"}, false},
		{"a path below and a method", "192.0.2.1:80", "GET", "/v1/auth/api/login", []string{"POST", "/"}, true},
		{"nothing", "192.0.2.1:80", "POST", "/v1/auth/api", nil, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := newRouted(nil)
			r := newRequest(test.method, test.target, "", "X-User", "alice")
			r.RemoteAddr = test.peer
			if test.forwarded != nil {
				r.Header.Set("X-Forwarded-Method", test.forwarded[0])
				r.Header.Set("X-Forwarded-Uri", test.forwarded[1])
			}
			answer := s.serve(t, r)
			require.Equal(t, http.StatusOK, answer.Code)
			assert.Equal(t, test.login, strings.HasPrefix(answer.Header.Get("RateLimit"), `"per-minute";r=4`), answer.Header.Get("RateLimit"))
		})
	}
	// A proxy that appends leaves what its client sent in front.
	s := newRouted(nil)
	r := newRequest(http.MethodGet, "/v1/auth/api", "", "X-User", "alice")
	r.Header["X-Forwarded-Method"], r.Header["X-Forwarded-Uri"] = []string{"GET", "POST"}, []string{"/static", "/login"}
	assert.Contains(t, s.serve(t, r).Header.Get("RateLimit"), `"per-minute";r=4`)
}

// A proxy that doesn't say what it asks about makes routes count for nothing: the
// log and a metric tell, and the policy may refuse.
func TestARequestWithoutAPath(t *testing.T) {
	t.Parallel()
	policies := func() []*policy.Policy {
		open, shut, plain := newPolicy("open", fixed("per-minute", 9, time.Minute)), newPolicy("shut", fixed("per-minute", 9, time.Minute)),
			newPolicy("plain", fixed("per-minute", 9, time.Minute))
		open.Routes, shut.Routes = []policy.Route{{Path: "/login", Cost: 3}}, []policy.Route{{Path: "/login", Cost: 3}}
		shut.OnMissingPath = policy.MissingPathDeny
		return []*policy.Policy{open, shut, plain}
	}
	s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("192.0.2.0/24") }, policies()...)
	ask := func(policy, peer string, headers ...string) result {
		r := newRequest(http.MethodGet, "/v1/auth/"+policy, "", headers...)
		r.RemoteAddr = peer
		return s.serve(t, r)
	}
	const trusted, stranger = "192.0.2.1:80", "203.0.113.9:80"

	// Told the path, weir counts by the route.
	assert.Contains(t, ask("open", trusted, "X-Forwarded-Uri", "/login").Header.Get("RateLimit"), `"per-minute";r=6`)
	assert.Contains(t, ask("shut", trusted, "X-Forwarded-Uri", "/login").Header.Get("RateLimit"), `"per-minute";r=6`)
	assert.Equal(t, http.StatusOK, ask("plain", trusted).Code)
	assert.NotContains(t, s.log.String(), "WARN")
	requireMetrics(t, s, `weir_auth_missing_path_total{policy="open"} 0`, `weir_auth_missing_path_total{policy="plain"} 0`)

	// By default the policy's own limits count.
	for range 3 {
		assert.Equal(t, http.StatusOK, ask("open", trusted).Code)
	}
	assert.Contains(t, ask("open", stranger, "X-Forwarded-Uri", "/login").Header.Get("RateLimit"), `"per-minute";r=8`)
	assert.Equal(t, http.StatusOK, ask("open", trusted, "X-Forwarded-Uri", "").Code)
	requireMetrics(t, s, `weir_auth_missing_path_total{policy="open"} 5`)
	requireUsed(t, s, "open", "192.0.2.1", 7)

	// Or it is refused, and nothing counted.
	for range 2 {
		requireProblem(t, ask("shut", trusted), http.StatusBadRequest, "no path: ")
	}
	requireMetrics(t, s, `weir_auth_missing_path_total{policy="shut"} 2`)
	requireUsed(t, s, "shut", "192.0.2.1", 3)

	// The log says so once a policy, whatever is loaded anew.
	s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, policies()...))
	assert.Equal(t, http.StatusOK, ask("open", trusted).Code)
	requireMetrics(t, s, `weir_auth_missing_path_total{policy="open"} 6`)
	for _, policy := range []string{"open", "shut"} {
		assert.Equal(t, 1, strings.Count(s.log.String(), "policy="+policy+"\n"), s.log)
	}
	assert.Equal(t, 2, strings.Count(s.log.String(), "level=WARN"), s.log)
}

// Connections survive denials and routes too, when the proxy reads the answer.
func TestForwardAuthReusesOneConnection(t *testing.T) {
	t.Parallel()
	s := newRouted(func(p *policy.Policy) { p.Identify = []policy.Identifier{{Header: "X-User"}, {}} })
	server := httptest.NewUnstartedServer(s.handler)
	opened := make(chan struct{}, 1000)
	server.Config.ConnState = countNew(opened)
	server.Start()
	defer server.Close()
	codes := make(map[int]int)
	for i := range 100 {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE", "OPTIONS"} {
			request, err := http.NewRequest(method, server.URL+"/v1/auth/api/login", strings.NewReader(strings.Repeat("x", i)))
			require.NoError(t, err)
			response, err := server.Client().Do(request)
			require.NoError(t, err)
			codes[decodeResult(t, response).Code]++
		}
	}
	assert.Equal(t, map[int]int{http.StatusOK: 105, http.StatusTooManyRequests: 395}, codes)
	// A client that is still writing a body when the answer comes may give up the
	// connection.
	assert.LessOrEqual(t, len(opened), 5, "of 500 requests")
}

// countNew puts something in opened for each new connection.
func countNew(opened chan<- struct{}) func(net.Conn, http.ConnState) {
	return func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened <- struct{}{}
		}
	}
}
