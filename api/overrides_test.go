package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/overrides"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

func (s *service) override(t *testing.T, name, key, body string) result {
	t.Helper()
	return s.do(t, http.MethodPut, "/v1/policies/"+name+"/overrides/"+url.PathEscape(key), body)
}

func (s *service) endOverride(t *testing.T, name, key string) result {
	t.Helper()
	return s.do(t, http.MethodDelete, "/v1/policies/"+name+"/overrides/"+url.PathEscape(key), "")
}

// An override is in force at once until its end, or until somebody ends it; then what the
// policy says holds again.
func TestOverridesHoldForATime(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 3, time.Minute))
	p.Clients = clients(map[string]policy.Terms{"gold": {Limits: map[string]int64{"per-minute": 5}}, "abuser": {Blocked: true}})
	s := newService(p)
	check := func(client string, status int) result {
		t.Helper()
		r := s.check(t, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
		require.Equal(t, status, r.Code, r.Body)
		return r
	}
	s.clock.at(0)

	require.Equal(t, http.StatusOK, s.override(t, "api", "gold", `{"blocked":true,"for":"10m","reason":"INC-77"}`).Code)
	r := check("gold", http.StatusTooManyRequests)
	assert.InDelta(t, 600, r.RetryAfter, 0.001)
	assert.Equal(t, "600", r.Header.Get("Retry-After"))
	s.clock.at(9*time.Minute + 59*time.Second)
	assert.InDelta(t, 1, check("gold", http.StatusTooManyRequests).RetryAfter, 0.001)
	require.Equal(t, http.StatusNoContent, s.endOverride(t, "api", "gold").Code)
	assert.EqualValues(t, 5, check("gold", http.StatusOK).Limits[0].Limit, "what the policy says")

	require.Equal(t, http.StatusOK, s.override(t, "api", "abuser", `{"exempt":true,"for":"1m"}`).Code)
	assert.Empty(t, check("abuser", http.StatusOK).Limits)
	require.Equal(t, http.StatusNoContent, s.endOverride(t, "api", "abuser").Code)
	assert.Zero(t, check("abuser", http.StatusTooManyRequests).RetryAfter, "for good")

	require.Equal(t, http.StatusOK, s.override(t, "api", "team:*", `{"limits":{"per-minute":1},"for":"1m"}`).Code)
	check("team:a", http.StatusOK)
	check("team:a", http.StatusTooManyRequests)
	r = s.check(t, `{"policy":"api","client":"team:b","limits":{"per-minute":100}}`)
	assert.EqualValues(t, 1, r.Limits[0].Limit, "it wins over the check's own")
	require.Equal(t, http.StatusOK, s.override(t, "api", "10.0.0.0/8", `{"blocked":true,"for":"1m"}`).Code)
	check("10.1.2.3", http.StatusTooManyRequests)
	check("11.1.2.3", http.StatusOK)
}

// A client may be called like a range or a beginning of names, or have a * anywhere. In
// quotes its name is a key that holds for nobody else.
func TestOverridesOfNamesThatLookLikeMore(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	s.clock.at(0)
	status := func(client string) int {
		body, err := json.Marshal(map[string]any{"policy": "api", "client": client, "cost": 0})
		require.NoError(t, err)
		return s.check(t, string(body)).Code
	}
	for _, name := range []string{"user:*", "*", "**", "a*b", "10.0.0.0/8", "10.0.0.1/8", "2001:db8::/64", `"quoted"`, `"`, `""`, "d|files=a*b|path=*", strings.Repeat("*", 1024)} {
		key := `"` + name + `"`
		require.Equal(t, http.StatusOK, s.override(t, "api", key, `{"blocked":true,"for":"1m"}`).Code, name)
		assert.Equal(t, http.StatusTooManyRequests, status(name), name)
		for _, other := range []string{"user:a", "10.1.2.3", "2001:db8::1", "aXb", "quoted", "x", "**x"} {
			assert.Equal(t, http.StatusOK, status(other), "%s by %s", other, name)
		}
		held := s.state(t, "api", url.PathEscape(name)).Exception
		require.NotNil(t, held, name)
		assert.Contains(t, []string{key, name}, held.Client)
		require.Equal(t, http.StatusNoContent, s.endOverride(t, "api", held.Client).Code, name)
		assert.Equal(t, http.StatusOK, status(name), name)
	}
}

// A blocked client asks nothing of the store, alone, in a batch, and among checks of which
// all are admitted or none.
func TestBlockedClientsAskNothingOfTheStore(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute), token("bucket", 3, time.Minute, 0)))
	require.Equal(t, http.StatusOK, s.override(t, "api", "abuser", `{"blocked":true,"for":"10m"}`).Code)
	for range 100 {
		require.Equal(t, http.StatusTooManyRequests, s.check(t, `{"policy":"api","client":"abuser"}`).Code)
		s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"api","client":"abuser"},{"policy":"api","client":"abuser","cost":2}]}`)
		r := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"api","client":"abuser"}],"all":true}`)
		require.Equal(t, http.StatusTooManyRequests, r.Code)
		require.InDelta(t, 600, r.RetryAfter, 0.001)
	}
	requireUntouched(t, s)
	requireMetrics(t, s, `weir_override_decisions_total{kind="blocked",policy="api"} 400`)
}

// What is at its end, and not yet taken out of force, is no block for good.
func TestABlockThatIsAboutToEndSaysSo(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	d, err := s.active.Load().Find("api")
	require.NoError(t, err)
	key, err := policy.ParseClientKey("abuser")
	require.NoError(t, err)
	until := epoch.Add(time.Minute)
	d.Override(map[policy.ClientKey]policy.Terms{key: {Blocked: true, Until: until}})
	for after, retry := range map[time.Duration]float64{-time.Second: 1, 0: 0.001, 2 * time.Millisecond: 0.001} {
		s.clock.set(until.Add(after))
		denied := s.denies(t, `{"policy":"api","client":"abuser"}`)
		assert.Equal(t, retry, denied.RetryAfter, "%v", after)
		assert.Equal(t, "1", denied.Header.Get("Retry-After"))
	}
}

func TestOverridesAreListed(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.Tokens = []Token{{Secret: "secret", Name: "alice"}} }, newPolicy("api", fixed("per-minute", 3, time.Minute)), newPolicy("gone", fixed("l", 1, time.Minute)))
	auth := []string{"Authorization", "Bearer secret"}
	s.clock.at(0)
	put := s.do(t, http.MethodPut, "/v1/policies/api/overrides/a%2Fb", `{"limits":{"per-minute":7},"for":"1d1h","reason":"promised"}`, auth...)
	want := `{"client":"a/b","limits":{"per-minute":7},"until":"` + epoch.Add(25*time.Hour).UTC().Format(time.RFC3339) + `","reason":"promised","by":"alice","revision":1749999600000}`
	require.JSONEq(t, want, put.Body)
	assert.Equal(t, `"1749999600000"`, put.Header.Get("ETag"))
	assert.JSONEq(t, want, s.do(t, http.MethodGet, "/v1/policies/api/overrides/a%2Fb", "", auth...).Body)
	assert.JSONEq(t, `{"overrides":[`+want+`],"as_of":0}`, s.do(t, http.MethodGet, "/v1/policies/api/overrides", "", auth...).Body)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/api/overrides/a", "", auth...), http.StatusNotFound, `there is no override for client "a" in policy "api"`)
	requireProblem(t, s.do(t, http.MethodDelete, "/v1/policies/api/overrides/a", "", auth...), http.StatusNotFound, `there is no override for client "a"`)
	requireProblem(t, s.do(t, http.MethodDelete, "/v1/policies/api/overrides/a%2Fb", "", append(auth, "If-Match", `"2"`)...), http.StatusPreconditionFailed, "GET it again")
	requireProblem(t, s.do(t, http.MethodGet, "/v1/policies/none/overrides", "", auth...), http.StatusNotFound, `no policy "none"`)

	assert.Contains(t, s.do(t, http.MethodGet, "/v1/status", "", auth...).Body, `"overrides":{"in_force":1,"revision":1749999600000,"as_of":0}`)

	// They outlive a reload, and their policy too.
	require.Equal(t, http.StatusOK, s.do(t, http.MethodPut, "/v1/policies/gone/overrides/c", `{"blocked":true,"for":"1h"}`, auth...).Code)
	s.SetPolicies(policy.Policies{"api": s.active.Load().policies["api"]})
	r := s.do(t, http.MethodPost, "/v1/check", `{"policy":"api","client":"a/b"}`, auth...)
	assert.EqualValues(t, 7, r.Limits[0].Limit)
	r = s.do(t, http.MethodGet, "/v1/policies/gone/overrides", "", auth...)
	assert.Contains(t, r.Body, `"policy_missing":true`)
	assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/gone/overrides/c", "", auth...).Code)
}

func TestWrongOverridesChangeNothing(t *testing.T) {
	t.Parallel()
	small := fixed("small", 3, time.Minute)
	small.MaxLimit = 10
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute), small))
	for body, detail := range map[string]string{
		`{}`:                             `needs one of "blocked": true`,
		`{"for":"10m"}`:                  `needs one of "blocked": true`,
		`{"blocked":false,"for":"10m"}`:  `needs one of "blocked": true`,
		`{"limits":{},"for":"10m"}`:      `needs one of "blocked": true`,
		`{"blocked":true,"exempt":true}`: `needs one of "blocked": true`,
		`{"blocked":true,"limits":{"per-minute":1},"for":"1m"}`: `needs one of "blocked": true`,
		`{"blocked":true}`:                                                        `for is "" and must be how long it is to last, from 1s to 30d, such as "10m"`,
		`{"blocked":true,"for":"0.5s"}`:                                           `for is "0.5s"`,
		`{"blocked":true,"for":"721h"}`:                                           `for is "721h"`,
		`{"blocked":true,"for":"30d1s"}`:                                          `for is "30d1s"`,
		`{"blocked":true,"for":"-1h"}`:                                            `for is "-1h"`,
		`{"blocked":true,"for":"soon"}`:                                           `for is "soon"`,
		`{"blocked":true,"for":10}`:                                               `for must be a string`,
		`{"blocked":1,"for":"1m"}`:                                                `blocked must be true or false`,
		`{"limits":{"none":1},"for":"1m"}`:                                        `policy "api" has no limit "none" that an override can change; it can change "per-minute", "small"`,
		`{"limits":{"per-minute":0},"for":"1m"}`:                                  `"per-minute" is 0 and must be a whole number from 1`,
		`{"limits":{"small":11},"for":"1m"}`:                                      `"small" is 11 and must be a whole number from 1 to 10`,
		`{"limits":{"per-minute":1.5},"for":"1m"}`:                                `limits.per-minute is 1.5 and must be a whole number from 1 to 1000000000000`,
		`{"blocked":true,"for":"1m","until":"now"}`:                               `unknown field "until"; known are blocked, exempt, limits, for, reason`,
		`{"blocked":true,"for":"1m","reason":"` + strings.Repeat("r", 201) + `"}`: `reason is 201 bytes long`,
		`[]`: `the body must be an object`,
		``:   `the body is empty`,
	} {
		requireProblem(t, s.override(t, "api", "c", body), http.StatusBadRequest, detail)
	}
	const good = `{"blocked":true,"for":"1m"}`
	requireProblem(t, s.override(t, "none", "c", good), http.StatusNotFound, `no policy "none"`)
	requireProblem(t, s.override(t, "api", "a*b", good), http.StatusBadRequest, "has a * before its end")
	requireProblem(t, s.do(t, http.MethodPut, "/v1/policies/api/overrides/caf%E9", good), http.StatusBadRequest, "must be UTF-8")
	requireProblem(t, s.override(t, "api", "10.0.0.1/8", good), http.StatusBadRequest, "write 10.0.0.0/8 for the range")
	requireProblem(t, s.override(t, "api", strings.Repeat("c", 1025), good), http.StatusBadRequest, "1 to 1024 bytes")
	requireProblem(t, s.override(t, "api", "c", `{"blocked":true,"for":"1m","reason":"`+strings.Repeat("r", 1<<20)+`"}`), http.StatusRequestEntityTooLarge, "65536")
	for _, revision := range []string{`"0"`, `"x"`, `1`, `W/"1"`, `*`} {
		requireProblem(t, s.do(t, http.MethodPut, "/v1/policies/api/overrides/c", good, "If-Match", revision), http.StatusBadRequest, "must be the revision of an override")
	}
	requireProblem(t, s.do(t, http.MethodPut, "/v1/policies/api/overrides/c", good, "If-Match", `"1"`), http.StatusPreconditionFailed, "GET it again")
	assert.JSONEq(t, `{"overrides":[],"as_of":0}`, s.do(t, http.MethodGet, "/v1/policies/api/overrides", "").Body)
}

// Whoever may only make checks changes nothing for others, and the audit has who tried
// and who did.
func TestRights(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "secret", Name: "gateway", ChecksOnly: true}, {Secret: "other"}}
	}, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	const block = `{"blocked":true,"for":"10m","reason":"INC-77"}`
	for _, request := range []struct{ method, target, body string }{
		{http.MethodPut, "/v1/policies/api/overrides/c", block},
		{http.MethodGet, "/v1/policies/api/overrides/c", ""},
		{http.MethodDelete, "/v1/policies/api/overrides/c", ""},
		{http.MethodGet, "/v1/policies/api/overrides", ""},
		{http.MethodDelete, "/v1/policies/api/clients/c", ""},
		{http.MethodGet, "/v1/audit", ""},
	} {
		r := s.do(t, request.method, request.target, request.body, "Authorization", "Bearer secret")
		requireProblem(t, r, http.StatusForbidden, "this token may only make checks")
	}
	for _, target := range []string{"/v1/policies", "/v1/policies/api", "/v1/policies/api/top", "/v1/policies/api/clients/c"} {
		require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, target, "", "Authorization", "Bearer secret").Code, target)
	}
	require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/check", `{"policy":"api","client":"c"}`, "Authorization", "Bearer secret").Code)

	s.clock.at(time.Second)
	auth := []string{"Authorization", "Bearer other"}
	require.Equal(t, http.StatusOK, s.do(t, http.MethodPut, "/v1/policies/api/overrides/c", block, auth...).Code)
	require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/overrides/c", "", auth...).Code)
	require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/c", "", auth...).Code)
	r := s.do(t, http.MethodGet, "/v1/audit?n=4", "", auth...)
	require.Equal(t, http.StatusOK, r.Code, r.Body)
	var got struct{ Changes []change }
	require.NoError(t, json.Unmarshal([]byte(r.Body), &got))
	require.Len(t, got.Changes, 4)
	for i, want := range []change{
		{What: "client reset", By: "d9298a10"},
		{What: "override ended: blocked", By: "d9298a10", Reason: "INC-77"},
		{What: "override set: blocked for 10m0s", By: "d9298a10", Reason: "INC-77"},
		{What: "refused to one who may only make checks: GET /v1/audit", By: "gateway"},
	} {
		c := got.Changes[i]
		assert.Equal(t, want.What, c.What)
		assert.Equal(t, want.By, c.By)
		assert.Equal(t, want.Reason, c.Reason)
		assert.NotEqual(t, "c", c.Client, "it is hashed")
	}
	assert.Contains(t, s.log.String(), `level=INFO msg="override set: blocked for 10m0s" policy=api client=2e7d2c03a9507ae2 peer=192.0.2.1 by=d9298a10 reason=INC-77`)
	for _, n := range []string{"0", "1001", "x"} {
		requireProblem(t, s.do(t, http.MethodGet, "/v1/audit?n="+n, "", auth...), http.StatusBadRequest, "must be a whole number from 1 to 1000")
	}
	requireProblem(t, s.do(t, http.MethodGet, "/v1/audit?x=0", "", auth...), http.StatusBadRequest, `there is no parameter "x"; there is n`)
}

// A change of an override is in the audit although the store didn't say whether it was done: it may
// be in force a moment later. Where it surely isn't, the answer says so.
func TestTheAuditHasChangesOfWhichNobodyKnows(t *testing.T) {
	t.Parallel()
	store := &watchedStore{Store: memory.New(nil), keys: make(map[string]bool)}
	s := newServiceWith(func(cfg *Config) {
		cfg.LogClients = true
		cfg.Overrides = overrides.New(overrides.Config{Store: store, KeyPrefix: "weir", Now: cfg.Now, Foreign: func() {}, Log: cfg.Log})
	}, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	require.Equal(t, http.StatusOK, s.override(t, "api", "c", `{"blocked":true,"for":"1h"}`).Code)
	failSwaps := func(err error) {
		store.mu.Lock()
		defer store.mu.Unlock()
		store.fault = func(_ context.Context, operation, _ string) error {
			if operation == "swap" {
				return err
			}
			return nil
		}
	}
	const unsure, unchanged = "could not say whether this was done; do it again", "no override was changed, as the store failed; do it again"
	fails := func(r result, detail string) {
		t.Helper()
		require.Equal(t, http.StatusServiceUnavailable, r.Code)
		require.Contains(t, r.Detail, detail)
	}
	failSwaps(counters.ErrTimeout)
	fails(s.override(t, "api", "c", `{"exempt":true,"for":"10m","reason":"INC-77"}`), unsure)
	fails(s.endOverride(t, "api", "c"), unsure)
	for _, err := range []error{counters.ErrNotSent, counters.ErrRefused} {
		failSwaps(fmt.Errorf("%w: %w", counters.ErrUnavailable, err))
		fails(s.endOverride(t, "api", "c"), unchanged)
	}
	store.failWith(counters.ErrTimeout) // when the list is read
	fails(s.endOverride(t, "api", "c"), unchanged)
	store.failWith(nil)
	requireProblem(t, s.endOverride(t, "api", "d"), http.StatusNotFound, `no override for client "d"`)
	var got struct{ Changes []change }
	require.NoError(t, json.Unmarshal([]byte(s.do(t, http.MethodGet, "/v1/audit", "").Body), &got))
	require.Len(t, got.Changes, 3)
	for i, want := range []change{
		{What: "override perhaps ended: blocked", Error: counters.ErrTimeout.Error()},
		{What: "override perhaps set: exempt for 10m0s", Reason: "INC-77", Error: counters.ErrTimeout.Error()},
		{What: "override set: blocked for 1h0m0s"},
	} {
		want.Time, want.Peer, want.Policy, want.Client = got.Changes[i].Time, "192.0.2.1", "api", "c"
		assert.Equal(t, want, got.Changes[i])
	}
}

// The audit says what was asked for, with the client as the rest of the line has it.
func TestTheAuditSaysWhatWasRefused(t *testing.T) {
	t.Parallel()
	for _, shown := range []bool{false, true} {
		s := newServiceWith(func(cfg *Config) {
			cfg.Tokens, cfg.LogClients = []Token{{Secret: "secret", Name: "gateway", ChecksOnly: true}, {Secret: "other"}}, shown
		}, newPolicy("api", fixed("per-minute", 3, time.Minute)))
		for _, test := range []struct{ method, path, hidden, shown string }{
			{http.MethodGet, "/v1/policies/api/overrides", "/v1/policies/api/overrides", "/v1/policies/api/overrides"},
			{http.MethodDelete, "/v1/policies/api/clients/a%2Fb", "/v1/policies/api/clients/c14cddc033f64b9d", "/v1/policies/api/clients/a/b"},
			{http.MethodPut, "/v1/policies/api/overrides/c", "/v1/policies/api/overrides/2e7d2c03a9507ae2", "/v1/policies/api/overrides/c"},
			{http.MethodGet, "/v1/policies/" + strings.Repeat("p", 3000) + "/overrides", "/v1/policies/" + strings.Repeat("p", 187), "/v1/policies/" + strings.Repeat("p", 187)},
			{http.MethodDelete, "/v1/policies/api/clients/" + strings.Repeat("c", 150), "/v1/policies/api/clients/" + telemetry.HashClient(strings.Repeat("c", 150)), "/v1/policies/api/clients/" + strings.Repeat("c", 150)},
		} {
			s.do(t, test.method, test.path, "", "Authorization", "Bearer secret")
			r := s.do(t, http.MethodGet, "/v1/audit?n=1", "", "Authorization", "Bearer other")
			var got struct{ Changes []change }
			require.NoError(t, json.Unmarshal([]byte(r.Body), &got))
			want := test.hidden
			if shown {
				want = test.shown
			}
			assert.Equal(t, "refused to one who may only make checks: "+test.method+" "+want, got.Changes[0].What)
			if client := got.Changes[0].Client; !shown && client != "" {
				assert.True(t, strings.HasSuffix(want, client), "%s, as %s", want, client)
			}
		}
	}
}

// Each route is one for those who may only make checks, or refuses them before it looks at
// anything else, and the audit has a line of each refusal.
func TestRightsOfEveryRoute(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "secret", Name: "gateway", ChecksOnly: true}, {Secret: "other", Name: "alice"}}
	}, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	var mayCheck []string
	for _, route := range []string{
		"POST /v1/check", "POST /v1/check/batch", "POST /v1/settle", "POST /v1/settle/batch", "POST /v1/renew", "POST /v1/charge",
		"GET /v1/policies", "GET /v1/policies/:policy", "GET /v1/policies/:policy/top", "GET /v1/policies/:policy/history", "GET /v1/status", "GET /v1/look",
		"GET /v1/policies/:policy/clients/:client", "GET /v1/policies/:policy/clients/*", "GET /v1/policies/:policy/clients/:client/state",
		"echo_route_not_found /v1/auth/:policy", "echo_route_not_found /v1/auth/:policy/*",
	} {
		method, path, _ := strings.Cut(route, " ")
		method = strings.Replace(method, echo.RouteNotFound, "REPORT", 1)
		r := s.do(t, method, strings.NewReplacer(":policy", "api", ":client", "c", "*", "a/b").Replace(path), "", "Authorization", "Bearer secret")
		assert.NotEqual(t, http.StatusForbidden, r.Code, route)
		mayCheck = append(mayCheck, route)
	}
	refused := 0
	for _, route := range s.echo.Routes() {
		if !strings.HasPrefix(route.Path, "/v1/") || slices.Contains(mayCheck, route.Method+" "+route.Path) {
			continue
		}
		for _, names := range [][]string{{"api", "c"}, {"none", "c"}, {"api", "10.0.0.1%2F8"}, {"api", "%ff"}, {"api", "%22"}, {strings.Repeat("p", 3000), strings.Repeat("c", 3000)}} {
			path := strings.NewReplacer(":policy", names[0], ":client", names[1], ":key", names[1], "*", names[1]+"/x").Replace(route.Path)
			requireProblem(t, s.do(t, route.Method, path+"?none=x", "{", "Authorization", "Bearer secret", "If-Match", "x"), http.StatusForbidden, "this token may only make checks")
			refused++
		}
	}
	require.Equal(t, 7*6, refused, "GET, PUT, DELETE of overrides, their list, two ways to reset, the audit")
	r := s.do(t, http.MethodGet, "/v1/audit?n=1000", "", "Authorization", "Bearer other")
	var got struct{ Changes []change }
	require.NoError(t, json.Unmarshal([]byte(r.Body), &got))
	require.Len(t, got.Changes, refused)
	for _, c := range got.Changes {
		assert.Equal(t, "gateway", c.By)
		assert.True(t, strings.HasPrefix(c.What, "refused to one who may only make checks: "), c.What)
		assert.LessOrEqual(t, len(c.Policy), 100)
	}
	assert.Equal(t, refused, strings.Count(s.log.String(), "refused to one who may only make checks"))
}

func TestTheAuditHasTheLastChanges(t *testing.T) {
	t.Parallel()
	var a audit
	none, err := json.Marshal(a.last(1))
	require.NoError(t, err)
	assert.Equal(t, "[]", string(none))
	at := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	for n := range maxAudited + 10 {
		a.add(change{Time: at(n), What: fmt.Sprint(n)})
	}
	last := a.last(maxAudited + 1)
	require.Len(t, last, maxAudited)
	assert.Equal(t, "1009", last[0].What)
	assert.Equal(t, "10", last[maxAudited-1].What)
	assert.Len(t, a.last(3), 3)
	for n := range 3 * maxAudited {
		a.add(change{Time: at(n), What: fmt.Sprint("refused ", n), refused: true})
	}
	a.add(change{Time: at(2500).Add(time.Millisecond), What: "reset"})
	assert.Equal(t, "refused 2999", a.last(1)[0].What)
	assert.Equal(t, "reset", a.last(500)[499].What, "in the order of their times")
	all := a.last(3 * maxAudited)
	require.Len(t, all, 2*maxAudited)
	assert.Equal(t, "11", all[2*maxAudited-1].What, "nobody who is refused drives out what was done")
}

// Who blocks a mistyped address is told that it is a name.
func TestMistypedAddressesAreTold(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 10, time.Minute)))
	for key, want := range map[string]string{
		"10.0.0.300": "counts as a name", "10.0.0.1-10.0.0.9": "counts as a name", "2001:db8:::1": "counts as a name",
		"10.0.0.3:80": "counts as a name", "[2001:db8::1]": "counts as a name", "[2001:db8::1]:80": "counts as a name", "order:7": "",
		"[10.0.0.0/8]": "such as 10.0.0.0/8", "[2001:db8::]/32": "such as 2001:db8::/32", "[10.0.0.0/8]:80": "counts as a name",
		"::1%eth0": "such as ::1", "[fe80::1%eth0]:80": "such as fe80::1", "fe80::1%eth0/64": "such as fe80::/64", "\"[10.0.0.1]\"": "counts as a name",
		"50%off": "", "a/b": "", "[a]": "", "\"10.0.0.0/8\"": "", "\"10.0.0.0/33\"": "",
		"10.0.0.30": "", "10.0.0.0/8": "", "2001:db8::1": "", "\"10.0.0.1\"": "", "gold-co": "", "order-7": "", "7": "", "10.0.*": "",
	} {
		r := s.override(t, "api", key, `{"blocked":true,"for":"1m"}`)
		require.Equal(t, http.StatusOK, r.Code, r.Body)
		var told struct{ Note string }
		require.NoError(t, json.Unmarshal([]byte(r.Body), &told))
		if assert.Equal(t, want != "", told.Note != "", "%s: %s", key, told.Note) {
			assert.Contains(t, told.Note, want)
		}
	}
}

// Who gives one limit to a client with others of its own, or blocks one in shadow mode, is told
// what that does.
func TestOverridesTellWhatMostWouldNotExpect(t *testing.T) {
	t.Parallel()
	p, trial := newPolicy("api", fixed("per-minute", 10, time.Minute), fixed("per-hour", 100, time.Hour)), newPolicy("trial", fixed("per-minute", 10, time.Minute))
	p.Clients, trial.Shadow = clients(map[string]policy.Terms{"gold": {Limits: map[string]int64{"per-minute": 1000}}}), true
	s := newService(p, trial)
	for _, test := range []struct{ policy, key, body, note string }{
		{"api", "gold", `{"limits":{"per-hour":200},"for":"1m"}`, `the 1000 that the policy file gives by the limit "per-minute" don't hold meanwhile`},
		{"api", "gold", `{"limits":{"per-minute":2000},"for":"1m"}`, ""},
		{"api", "gold", `{"blocked":true,"for":"1m"}`, ""},
		{"api", "silver", `{"limits":{"per-hour":200},"for":"1m"}`, ""},
		{"trial", "c", `{"blocked":true,"for":"1m"}`, "the policy is in shadow mode, so its requests are admitted all the same"},
		{"trial", "c", `{"exempt":true,"for":"1m"}`, ""},
	} {
		r := s.override(t, test.policy, test.key, test.body)
		require.Equal(t, http.StatusOK, r.Code, r.Body)
		var told struct{ Note string }
		require.NoError(t, json.Unmarshal([]byte(r.Body), &told))
		assert.Equal(t, test.note, told.Note, test)
	}
}

// An override that was possible when it was made is told of when a limit has been given an
// algorithm that can't count as much.
func TestOverridesThatAReloadHasCappedAreTold(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 10, time.Minute)))
	require.NotContains(t, s.override(t, "api", "gold", `{"limits":{"per-minute":20000},"for":"1h"}`).Body, "note")
	s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("api", slidingLog("per-minute", 10, time.Minute))))
	assert.EqualValues(t, cas.MaxLogLimit, s.state(t, "api", "gold").Limits[0].Limit)
	assert.Contains(t, s.do(t, http.MethodGet, "/v1/policies/api/overrides", "").Body,
		`"note":"the limit \"per-minute\" is 10000 and not 20000, as it can't count more any longer"`)
}

// Who lowers a limit below what a route costs is told, as whoever writes that into the file is.
func TestLimitsBelowTheCostOfARouteAreTold(t *testing.T) {
	t.Parallel()
	s := newRouted(nil)
	for limits, want := range map[string]bool{`{"per-minute":9}`: true, `{"per-hour":9}`: true, `{"per-minute":10}`: false} {
		body := s.override(t, "api", "small", `{"limits":`+limits+`,"for":"1m"}`).Body
		assert.Equal(t, want, strings.Contains(body, `"note":"the cost 10 of the route /export is above 9, `), body)
		assert.Equal(t, want, s.proxied(t, "small", "GET", "/export").Code == http.StatusBadRequest, limits)
	}
}

// A limit that is raised has the burst that it had, and who raises it is told.
func TestRaisedLimitsKeepTheirBurst(t *testing.T) {
	t.Parallel()
	for _, bucket := range []func(string, int64, time.Duration, int64) policy.Limit{token, leaky} {
		s := newService(newPolicy("api", bucket("burst", 20, time.Second, 50), bucket("plain", 20, time.Second, 0)))
		note := func(body string) (j struct{ Note string }) {
			r := s.override(t, "api", "gold-co", body)
			require.Equal(t, http.StatusOK, r.Code, r.Body)
			require.NoError(t, json.Unmarshal([]byte(r.Body), &j))
			return j
		}
		assert.Empty(t, note(`{"limits":{"burst":10},"for":"1m"}`).Note)
		assert.Empty(t, note(`{"limits":{"plain":200},"for":"1m"}`).Note)
		assert.Equal(t, `the burst of the limit "burst" stays 50, and no more are admitted at once`, note(`{"limits":{"burst":200,"plain":200},"for":"1m"}`).Note)
		assert.Contains(t, s.do(t, http.MethodGet, "/v1/policies/api/overrides", "").Body, `"note":"the burst`)
		s.admits(t, `{"policy":"api","client":"gold-co","cost":50}`)
		s.denies(t, `{"policy":"api","client":"gold-co"}`)
		s.clock.at(250 * time.Millisecond)
		s.admits(t, `{"policy":"api","client":"gold-co","cost":50}`)
		s.denies(t, `{"policy":"api","client":"gold-co"}`)
		limits := s.state(t, "api", "gold-co").Limits
		assert.Equal(t, []float64{50, 200}, []float64{limits[0].Bucket.Capacity, limits[0].Bucket.DrainsPerSecond})
		assert.Equal(t, []float64{200, 200}, []float64{limits[1].Bucket.Capacity, limits[1].Bucket.DrainsPerSecond})
	}
}
