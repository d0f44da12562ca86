package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
)

func (s *service) state(t *testing.T, policyName, client string) (j stateJSON) {
	t.Helper()
	r := s.do(t, http.MethodGet, "/v1/policies/"+policyName+"/clients/"+client+"/state", "")
	require.Equal(t, http.StatusOK, r.Code, r.Body)
	require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
	return j
}

// The state of a client has the key of an override for it alone: of an address each way that it
// is written; of the value of a header its name, whatever that looks like.
func TestStateHasTheKeyOfAnOverride(t *testing.T) {
	t.Parallel()
	headers := newPolicy("headers", fixed("l", 10, time.Minute))
	headers.Identify = []policy.Identifier{{Header: "X-Client"}}
	s := newService(newPolicy("addresses", fixed("l", 10, time.Minute)), headers)
	for _, c := range []struct{ policy, client, want string }{
		{"addresses", "alice", "alice"},
		{"addresses", "10.1.2.3", "10.1.2.3"},
		{"addresses", "::ffff:10.1.2.3", "10.1.2.3"},
		{"addresses", "2001:DB8::1", "2001:db8::1"},
		{"addresses", "2001:db8::/64", `"2001:db8::/64"`},
		{"addresses", "10.1.2.3/32", `"10.1.2.3/32"`},
		{"addresses", "team:*", `"team:*"`},
		{"headers", "alice", "alice"},
		{"headers", "10.1.2.3", `"10.1.2.3"`},
		{"headers", "2001:DB8::1", `"2001:DB8::1"`},
	} {
		key := s.state(t, c.policy, url.PathEscape(c.client)).Key
		assert.Equal(t, c.want, key, c)
		require.Equal(t, http.StatusOK, s.override(t, c.policy, key, `{"blocked":true,"for":"1m"}`).Code, c)
		assert.False(t, s.state(t, c.policy, url.PathEscape(c.client)).Allowed, c)
		if c.policy == "headers" {
			assert.Equal(t, http.StatusTooManyRequests, s.do(t, http.MethodGet, "/v1/auth/headers", "", "X-Client", c.client).Code, c)
		}
		require.Equal(t, http.StatusNoContent, s.endOverride(t, c.policy, key).Code, c)
	}
}

// An address is counted by its network where a proxy asks, and as it stands where a check names
// it. However it is written, what is told of it, and reset, is what denies it.
func TestAddressesAreFoundHoweverTheyAreCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ written, asked, countedAs, other string }{
		{"2001:db8::1", "2001:db8::1", "2001:db8::/64", "2001:db8::2"},
		{"2001:DB8:0::00:1", "2001:db8::1", "2001:db8::/64", "2001:db8::ffff:2"},
		{"2001:db8::", "2001:db8::", "2001:db8::/64", "2001:db8::7"},
		{"fe80::1", "[fe80::1%eth0]:5678", "fe80::/64", "fe80::9"},
		{"10.1.2.3", "10.1.2.3", "10.1.2.3", "10.1.2.3"},
		{"::ffff:10.1.2.3", "10.1.2.3", "10.1.2.3", "10.1.2.3"},
		{"::FFFF:10.1.2.3", "::ffff:a01:203", "10.1.2.3", "10.1.2.3"},
	} {
		p := newPolicy("edge", fixed("per-minute", 2, time.Minute))
		p.Routes = []policy.Route{{Path: "/login", Cost: 1, Limits: []policy.Limit{fixed("per-minute", 1, time.Minute)}}}
		p.Routes[0].Limits[0].Route = "/login"
		s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = trustedProxies{netip.MustParsePrefix("192.0.2.1/32")} }, p)
		asked := func(path string, addresses ...string) (codes []int) {
			for _, address := range addresses {
				codes = append(codes, s.do(t, http.MethodGet, "/v1/auth/edge"+path, "", "X-Forwarded-For", address).Code)
			}
			return codes
		}
		client := "/v1/policies/edge/clients/" + url.PathEscape(c.written)
		require.Equal(t, []int{200, 200, 429}, asked("/", c.asked, c.other, c.asked), c)
		require.Equal(t, []int{200, 429}, asked("/login", c.other, c.asked), c)
		state := s.state(t, "edge", url.PathEscape(c.written))
		assert.False(t, state.Allowed, c)
		assert.Equal(t, c.countedAs, state.CountedAs, c)
		assert.Equal(t, []slotJSON{{epoch.UTC(), 2, 1}}, state.Limits[0].Slots, c)
		require.Len(t, state.Limits, 2)
		assert.Equal(t, []slotJSON{{epoch.UTC(), 1, 1}}, state.Limits[1].Slots, c)
		r := s.do(t, http.MethodGet, client, "")
		assert.False(t, r.Allowed, c)
		assert.Equal(t, c.countedAs, r.Client, c)

		require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, client, "").Code, c)
		require.Equal(t, []int{200, 200}, asked("/", c.asked, c.other), c)
		require.Equal(t, []int{200, 429}, asked("/login", c.other, c.asked), c)

		// An override is of the one address, which is counted by itself then.
		require.Equal(t, http.StatusOK, s.override(t, "edge", state.Key, `{"limits":{"per-minute":3},"for":"1m"}`).Code)
		state = s.state(t, "edge", url.PathEscape(c.written))
		assert.True(t, state.Allowed, c)
		assert.EqualValues(t, 3, state.Limits[0].Limit, c)
		require.Equal(t, []int{200, 429}, asked("/", c.asked, c.other), c)
	}

	// Of checks that name the address themselves it is what they have used.
	for _, name := range []string{"2001:db8::1", "2001:DB8::1", "::ffff:10.1.2.3", "10.1.2.3"} {
		s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
		client := "/v1/policies/api/clients/" + url.PathEscape(name)
		s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q,"cost":2}`, name))
		s.denies(t, fmt.Sprintf(`{"policy":"api","client":%q}`, name))
		assert.Equal(t, name, s.state(t, "api", url.PathEscape(name)).CountedAs)
		assert.False(t, s.do(t, http.MethodGet, client, "").Allowed, name)
		require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, client, "").Code)
		s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q,"cost":2}`, name))
		s.store.failWith(counters.ErrTimeout)
		require.Equal(t, http.StatusAccepted, s.do(t, http.MethodDelete, client, "").Code)
		s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q,"cost":2}`, name))
	}

	// Where headers name clients, an address is a name.
	p := newPolicy("headers", fixed("per-minute", 2, time.Minute))
	p.Identify = []policy.Identifier{{Header: "X-Client"}}
	s := newService(p)
	s.admits(t, `{"policy":"headers","client":"2001:db8::/64","cost":2}`)
	assert.Equal(t, "2001:db8::1", s.state(t, "headers", "2001:db8::1").CountedAs)
	assert.True(t, s.state(t, "headers", "2001:db8::1").Allowed)
}

// The state of a client has what decides, part by part.
func TestStateShowsWhatIsInUse(t *testing.T) {
	t.Parallel()
	s := newService(
		newPolicy("fixed", fixed("l", 10, time.Minute)), newPolicy("sliding", sliding("l", 10, time.Minute, 4, "weighted")),
		newPolicy("token", token("l", 60, time.Minute, 10)), newPolicy("leaky", leaky("l", 60, time.Minute, 10)),
		newPolicy("log", slidingLog("l", 10, time.Minute)), newPolicy("in-flight", places("l", 3, 30*time.Second)),
	)
	take := func(name string, cost int) {
		t.Helper()
		require.Equal(t, http.StatusOK, s.check(t, fmt.Sprintf(`{"policy":%q,"client":"c","cost":%d,"settle":true}`, name, cost)).Code)
	}
	s.clock.at(0)
	for _, name := range []string{"fixed", "sliding", "token", "leaky", "log", "in-flight"} {
		take(name, 2)
	}
	s.clock.at(15 * time.Second)
	take("sliding", 3)
	take("log", 3)
	s.clock.at(15*time.Second + 500*time.Millisecond)

	state := s.state(t, "fixed", "c")
	assert.Equal(t, []slotJSON{{epoch.UTC(), 2, 1}}, state.Limits[0].Slots)
	assert.EqualValues(t, 8, state.Limits[0].Remaining)
	assert.Equal(t, "c", state.CountedAs)
	assert.True(t, state.Allowed)
	for _, name := range []string{"token", "leaky"} {
		b := s.state(t, name, "c").Limits[0].Bucket
		assert.Equal(t, &bucketJSON{0, 10, 1}, b, name)
		take(name, 10)
		s.clock.at(15*time.Second + 750*time.Millisecond)
		b = s.state(t, name, "c").Limits[0].Bucket
		assert.Equal(t, &bucketJSON{9.75, 10, 1}, b, name)
		s.clock.at(15*time.Second + 500*time.Millisecond)
	}
	first, second := epoch.UTC(), epoch.UTC().Add(15*time.Second)
	assert.Equal(t, []entryJSON{{first, first, first.Add(time.Minute), 2}, {second, second, second.Add(time.Minute), 3}}, s.state(t, "log", "c").Limits[0].Entries)
	leases := s.state(t, "in-flight", "c").Limits[0].Leases
	require.Len(t, leases, 1)
	assert.EqualValues(t, 2, leases[0].Cost)

	s.clock.at(65 * time.Second) // of the oldest slot two thirds have left the window
	state = s.state(t, "sliding", "c")
	require.Len(t, state.Limits[0].Slots, 5)
	oldest := state.Limits[0].Slots[0]
	assert.Equal(t, first, oldest.Start)
	assert.EqualValues(t, 2, oldest.Count)
	assert.Equal(t, 0.5, oldest.Weight, "1 of 2, rounded down")
	assert.Equal(t, slotJSON{second, 3, 1}, state.Limits[0].Slots[1])
}

// What holds for a client is named.
func TestStateNamesWhatHolds(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 3, time.Minute))
	p.Clients = clients(map[string]policy.Terms{"team:*": {Limits: map[string]int64{"per-minute": 7}}, "probe": {Exempt: true}})
	s := newService(p)
	s.clock.at(0)
	assert.Nil(t, s.state(t, "api", "c").Exception)
	assert.Equal(t, &exceptionJSON{Client: "probe", Kind: "exempt"}, s.state(t, "api", "probe").Exception)
	state := s.state(t, "api", "team:a")
	assert.Equal(t, &exceptionJSON{Client: "team:*", Kind: "limits"}, state.Exception)
	assert.EqualValues(t, 7, state.Limits[0].Limit)
	require.Equal(t, http.StatusOK, s.override(t, "api", "10.0.0.0/8", `{"blocked":true,"for":"10m"}`).Code)
	state = s.state(t, "api", "10.1.2.3")
	until := epoch.Add(10 * time.Minute).UTC()
	assert.Equal(t, &exceptionJSON{Client: "10.0.0.0/8", Kind: "blocked", Override: true, Until: until}, state.Exception)
	assert.False(t, state.Allowed)
	assert.Equal(t, 600.0, state.RetryAfter)
	assert.Equal(t, "~CvmaYJFpU4U41Ym_EIohMdi8", s.state(t, "api", "a%2Fb%20c").CountedAs)
}

// The history has each second's decisions, also across reloads.
func TestHistory(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	s.check(t, `{"policy":"api","client":"c"}`) // in the first second, too
	s.Sample()
	for second := range 3 {
		for range second {
			s.check(t, `{"policy":"api","client":"c"}`)
		}
		s.Sample()
		s.SetPolicies(policy.Policies{"api": s.active.Load().policies["api"]})
	}
	var j historyJSON
	r := s.do(t, http.MethodGet, "/v1/policies/api/history?seconds=4", "")
	require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
	assert.Equal(t, []uint32{1, 0, 1, 1}, j.Decisions["allowed"])
	assert.Equal(t, []uint32{0, 0, 0, 1}, j.Decisions["denied"])
	assert.Equal(t, []uint32{0, 0, 0, 0}, j.Decisions["degraded"])
	for range 400 {
		s.Sample()
	}
	r = s.do(t, http.MethodGet, "/v1/policies/api/history", "")
	require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
	require.Len(t, j.Decisions["allowed"], 300)
	assert.NotContains(t, j.Decisions["allowed"], uint32(1))
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/history?second=4", ""), http.StatusBadRequest, `there is no parameter "second"; there is seconds`)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/history?seconds=4;", ""), http.StatusBadRequest, `the query can't be read: invalid semicolon separator in query`)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/history?seconds=", ""), http.StatusBadRequest, `seconds is "" and must be a whole number from 1 to 300`)
}

// A policy that goes and comes back has decided nothing meanwhile.
func TestHistoryOfAPolicyThatComesBack(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)), newPolicy("other", fixed("per-minute", 3, time.Minute)))
	policies := s.active.Load().policies
	s.check(t, `{"policy":"api","client":"c"}`)
	s.Sample()
	s.SetPolicies(policy.Policies{"other": policies["other"]})
	s.Sample()
	s.SetPolicies(policies)
	s.check(t, `{"policy":"api","client":"d"}`)
	s.check(t, `{"policy":"api","client":"d"}`)
	s.Sample()
	var j historyJSON
	r := s.do(t, http.MethodGet, "/v1/policies/api/history?seconds=3", "")
	require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
	assert.Equal(t, []uint32{0, 0, 2}, j.Decisions["allowed"])
}

// A check that the store couldn't decide counts once in the history, at its own time, although
// on_store_error has changed since.
func TestHistoryOfAnotherStoreError(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 100, time.Minute))
	s := newService(p)
	use := func(e policy.OnStoreError) {
		other := *p
		other.OnStoreError = e
		s.SetPolicies(policy.Policies{"api": &other})
		s.check(t, `{"policy":"api","client":"c"}`)
		s.Sample()
	}
	s.store.failWith(counters.ErrTimeout)
	s.check(t, `{"policy":"api","client":"c"}`)
	s.Sample()
	s.check(t, `{"policy":"api","client":"c"}`)
	use(policy.StoreErrorDeny)
	use(policy.StoreErrorAllow)
	s.store.failWith(nil)
	use(policy.StoreErrorDeny)
	use(policy.StoreErrorAllow)
	use(policy.StoreErrorLocal)
	s.store.failWith(counters.ErrTimeout)
	use(policy.StoreErrorLocal)
	var j historyJSON
	r := s.do(t, http.MethodGet, "/v1/policies/api/history?seconds=7", "")
	require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
	assert.Equal(t, []uint32{1, 2, 1, 0, 0, 0, 1}, j.Decisions["degraded"])
}

// A page of another site may change nothing and learn nothing, whatever it sends; what a
// proxy asks for one has such headers too.
func TestPagesOfOtherSites(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		for _, request := range []struct{ method, target, body string }{
			{http.MethodPost, "/v1/check", `{"policy":"api","client":"c"}`},
			{http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"api","client":"c"}]}`},
			{http.MethodPost, "/v1/settle", `{}`},
			{http.MethodPost, "/v1/charge", `{"policy":"api","client":"c"}`},
			{http.MethodDelete, "/v1/policies/api/clients/c", ""},
			{http.MethodPut, "/v1/policies/api/overrides/c", `{"blocked":true,"for":"1m"}`},
			{http.MethodDelete, "/v1/policies/api/overrides/c", ""},
		} {
			r := s.do(t, request.method, request.target, request.body, headers...)
			requireProblem(t, r, http.StatusForbidden, "pages of other sites may not ask for this")
		}
		requireUntouched(t, s)
		require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/v1/policies", "", headers...).Code)
	}
	for _, headers := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://example.com"}, nil} {
		require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/check", `{"policy":"api","client":"`+fmt.Sprint(headers)+`"}`, headers...).Code, headers)
	}
	require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/auth/api", "", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example").Code)
}

// Where the page needs no token, no page whose name points here gets an answer.
func TestTheConsoleWithoutATokenAnswersLocalNamesOnly(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.LocalOnly = true }, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for host, status := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "LOCALHOST": 200, "127.0.0.1:8080": 200, "[::1]:8080": 200, "::1": 200,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "": 421,
	} {
		r := newRequest(http.MethodGet, "/v1/policies", "")
		r.Host = host
		assert.Equal(t, status, s.serve(t, r).Code, host)
		for _, target := range []string{"/v1/auth/api", "/healthz"} { // proxies ask for another host, or none
			r := newRequest(http.MethodGet, target, "")
			r.Host, r.RemoteAddr = host, "192.0.2."+strconv.Itoa(len(host))+":1234"
			assert.Equal(t, http.StatusOK, s.serve(t, r).Code, "%s of %s", target, host)
		}
	}
}

func TestRequestIDsComeBack(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for id, comesBack := range map[string]bool{"abc-123": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "a b": false, "\u00e9": false, "": false} {
		for _, target := range []string{"/v1/check", "/v1/nothing"} {
			r := s.do(t, http.MethodPost, target, `{"policy":"api","client":"c","cost":0}`, "X-Request-Id", id)
			if want := id; comesBack {
				assert.Equal(t, want, r.Header.Get("X-Request-Id"))
			} else {
				assert.NotContains(t, r.Header, "X-Request-Id")
			}
		}
	}
}

// What Envoy asks over HTTP consumes, too.
func TestOtherSitesMayNotAskJSON(t *testing.T) {
	t.Parallel()
	asked := false
	s := newServiceWith(func(c *Config) {
		c.Handlers = map[string]http.Handler{"POST /json": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true })}
	}, newPolicy("llm", fixed("tokens", 1, time.Minute)))
	r := s.do(t, http.MethodPost, "/json", `{}`, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example", "Content-Type", "text/plain")
	assert.Equal(t, http.StatusForbidden, r.Code)
	assert.False(t, asked)
}

// A client that a route's limit denies is admitted elsewhere; its state names the route.
func TestStateShowsTheLimitsOfRoutes(t *testing.T) {
	t.Parallel()
	s := newRouted(nil)
	for range 6 {
		s.proxied(t, "alice", "POST", "/login")
	}
	j := s.state(t, "api", "alice")
	assert.True(t, j.Allowed)
	require.Len(t, j.Limits, 3)
	for i, want := range []limitStateJSON{
		{Name: "per-minute", Allowed: true, Limit: 100, Remaining: 100},
		{Name: "per-hour", Allowed: true, Limit: 1000, Remaining: 995},
		{Name: "per-minute", Route: "POST /login", Limit: 5},
	} {
		got := j.Limits[i]
		assert.Equal(t, want, limitStateJSON{Name: got.Name, Route: got.Route, Allowed: got.Allowed, Limit: got.Limit, Remaining: got.Remaining})
	}
	assert.NotZero(t, j.Limits[2].RetryAfter)
	used := int64(0)
	for _, slot := range j.Limits[2].Slots {
		used += slot.Count
	}
	assert.EqualValues(t, 5, used)
}
