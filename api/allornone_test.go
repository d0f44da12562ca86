package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/racetest"
)

// all asks for checks that are all admitted, or none.
func (s *service) all(t require.TestingT, checks ...string) result {
	return s.do(t, http.MethodPost, "/v1/check/batch", `{"all":true,"checks":[`+strings.Join(checks, ",")+`]}`)
}

// ask returns the check of a client.
func ask(policy, client string, cost int64) string {
	return fmt.Sprintf(`{"policy":%q,"client":%q,"cost":%d}`, policy, client, cost)
}

// ahead puts the clock far ahead, as a deadline that has passed would end checks
// that wait for others of their client.
func (s *service) ahead() *service {
	s.clock.set(time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC))
	return s
}

// left returns what remains of the first limit.
func (s *service) left(t require.TestingT, policy, client string) int64 {
	r := s.do(t, http.MethodGet, "/v1/policies/"+policy+"/clients/"+client, "")
	require.Equal(t, http.StatusOK, r.Code, r.Body)
	return r.Limits[0].Remaining
}

func (by way) TestAllAreAdmittedOrNone(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("user", fixed("per-minute", 5, time.Minute)), newPolicy("route", fixed("per-hour", 2, time.Hour)))
	checks := []string{ask("user", "alice", 2), ask("route", "export", 1)}
	r := s.all(t, checks...)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Equal(t, http.Header{"Content-Type": {"application/json"}}, r.Header)
	assert.Equal(t, `{"allowed":true,"retry_after":0,"wait":0,"degraded":false,"results":[`+
		`{"status":200,"allowed":true,"policy":"user","client":"alice","retry_after":0,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":true,"limit":5,"remaining":3,"reset_after":60,"retry_after":0}]},`+
		`{"status":200,"allowed":true,"policy":"route","client":"export","retry_after":0,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-hour","algorithm":"fixed_window","allowed":true,"limit":2,"remaining":1,"reset_after":3600,"retry_after":0}]}`+
		"]}\n", r.Body)
	s.clock.at(20 * time.Second)
	require.True(t, s.all(t, checks...).Allowed)
	for range 3 {
		r = s.all(t, checks...) // both deny: the user has 1 left
		assert.Equal(t, http.StatusTooManyRequests, r.Code)
		assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "Retry-After": {"3580"}}, r.Header)
		assert.Equal(t, `{"allowed":false,"retry_after":3580,"wait":0,"degraded":false,"results":[`+
			`{"status":429,"allowed":false,"policy":"user","client":"alice","retry_after":40,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":false,"limit":5,"remaining":1,"reset_after":40,"retry_after":40}]},`+
			`{"status":429,"allowed":false,"policy":"route","client":"export","retry_after":3580,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-hour","algorithm":"fixed_window","allowed":false,"limit":2,"remaining":0,"reset_after":3580,"retry_after":3580}]}`+
			"]}\n", r.Body)
	}
	r = s.all(t, ask("user", "bob", 1), ask("route", "export", 1))
	assert.EqualValues(t, 5, r.Results[0].Limits[0].Remaining)
	assert.True(t, r.Results[0].Limits[0].Allowed, "it's the other that denies")
	assert.EqualValues(t, 5, s.left(t, "user", "bob"))
	assert.EqualValues(t, 1, s.left(t, "user", "alice"))

	r = s.all(t)
	assert.Equal(t, `{"allowed":true,"retry_after":0,"wait":0,"degraded":false,"results":[]}`+"\n", r.Body)
	r = s.do(t, http.MethodPost, "/v1/check/batch", `{"all":false,"checks":[`+ask("user", "bob", 1)+`]}`)
	assert.Equal(t, "{\"results\"", r.Body[:10])
}

// Whatever is asked, what is admitted and what is left are those of a model that
// takes one request after the other.
func (by way) TestAllOrNoneAgainstAModel(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	algorithms := map[string]func() policy.Limit{
		"fixed":   func() policy.Limit { return fixed("l", 7, time.Hour) },
		"sliding": func() policy.Limit { return sliding("l", 7, time.Hour, 6, "strict") },
		"token":   func() policy.Limit { return token("l", 7, time.Hour, 0) },
		"leaky":   func() policy.Limit { return leaky("l", 7, time.Hour, 0) },
		"log":     func() policy.Limit { return slidingLog("l", 7, time.Hour) },
	}
	rapid.Check(t, func(t *rapid.T) {
		var policies []*policy.Policy
		var names []string
		for name, limit := range algorithms {
			policies, names = append(policies, newPolicy(name, limit())), append(names, name)
		}
		s := by.newService(policies...).ahead()
		used := make(map[string]int64)
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			var checks []string
			wanted := make(map[string]int64)
			for range rapid.IntRange(1, 6).Draw(t, "checks") {
				policy, client := rapid.SampledFrom(names).Draw(t, "policy"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "client")
				cost := rapid.Int64Range(0, 3).Draw(t, "cost")
				checks = append(checks, ask(policy, client, cost))
				wanted[policy+"/"+client] += cost
			}
			fits := true
			for key, cost := range wanted {
				fits = fits && used[key]+cost <= 7
			}
			r := s.all(t, checks...)
			require.Equal(t, fits, r.Allowed, "%v with %v: %s", checks, used, r.Body)
			require.Equal(t, fits, r.RetryAfter == 0)
			for _, one := range r.Results {
				require.Equal(t, fits, one.Allowed)
			}
			if fits {
				for key, cost := range wanted {
					used[key] += cost
				}
			}
			for _, name := range names {
				for _, client := range []string{"a", "b"} {
					require.Equal(t, 7-used[name+"/"+client], s.left(t, name, client), "%s of %s", client, name)
				}
			}
		}
	})
}

// Callers who race get no more together than one after the other, and what they
// are denied is there for others.
func (by way) TestAllOrNoneUnderRaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil },
			newPolicy("wide", sliding("l", 1000, time.Hour, 10, "strict")), newPolicy("narrow", token("l", 30, time.Hour, 0)), newPolicy("log", slidingLog("l", 40, time.Hour)))
		s.store.onCall(func(context.Context, string, string) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		admitted := limitertest.Race(64, 1, func(int, int) bool {
			return s.all(t, ask("wide", "a", 1), ask("narrow", "a", 1), ask("log", "a", 1)).Allowed
		})
		time.Sleep(2 * time.Second) // refunds are done, and what is remembered is old
		assert.LessOrEqual(t, admitted, int64(30))
		assert.Equal(t, 1000-admitted, s.left(t, "wide", "a"))
		assert.Equal(t, 30-admitted, s.left(t, "narrow", "a"))
		assert.Equal(t, 40-admitted, s.left(t, "log", "a"))
	})
}

// A client that is there twice is asked in order, and gets the sum or nothing.
func (by way) TestAllOfOneClient(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 5, time.Minute))).ahead()
	r := s.all(t, ask("api", "a", 1), ask("api", "b", 1), ask("api", "a", 1), ask("api", "a", 2))
	require.True(t, r.Allowed)
	for i, left := range []int64{4, 4, 3, 1} {
		assert.EqualValues(t, left, r.Results[i].Limits[0].Remaining, i)
	}
	r = s.all(t, ask("api", "a", 1), ask("api", "b", 1), ask("api", "a", 1))
	assert.False(t, r.Allowed)
	assert.EqualValues(t, 60, r.RetryAfter)
	for i, allowed := range []bool{true, true, false} {
		assert.Equal(t, allowed, r.Results[i].Limits[0].Allowed, i)
	}
	assert.EqualValues(t, 1, s.left(t, "api", "a"))
	assert.EqualValues(t, 4, s.left(t, "api", "b"))
	// More than the limit never fits.
	assert.False(t, s.all(t, ask("api", "c", 3), ask("api", "c", 3)).Allowed)
	assert.EqualValues(t, 5, s.left(t, "api", "c"))
}

// A thousand checks of one client take a few store operations, and are answered
// in order.
func (by way) TestAllOfOneBusyClientIsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 1000, time.Hour)))
		s.store.onCall(func(context.Context, string, string) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		start := time.Now()
		r := s.all(t, slices.Repeat([]string{ask("api", "a", 1)}, 1000)...)
		assert.Less(t, time.Since(start), 20*time.Millisecond)
		require.True(t, r.Allowed)
		for i, one := range r.Results {
			require.EqualValues(t, 999-i, one.Limits[0].Remaining)
			require.False(t, one.Degraded)
		}
	})
}

// If one can't be made, none is.
func (by way) TestAllAreRefusedForOne(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		check  string
		status int
		detail string
	}{
		{ask("none", "a", 1), 404, `checks[1]: there is no policy "none"`},
		{ask("api", "", 1), 400, "checks[1]: client is missing"},
		{ask("api", "a", 3), 400, "checks[1]: cost 3 is above the limit"},
		{ask("api", "a", -1), 400, "checks[1]: cost -1 must be"},
	} {
		s := by.newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
		r := s.all(t, ask("api", "a", 1), test.check, ask("none", "a", 1))
		requireProblem(t, r, test.status, test.detail)
		requireUntouched(t, s)
	}
}

func (by way) TestAllWithExceptions(t *testing.T) {
	t.Parallel()
	api := newPolicy("api", fixed("per-minute", 2, time.Minute))
	api.Clients = clients(map[string]policy.Terms{"probe": {Exempt: true}, "abuser": {Blocked: true}})
	trial := newPolicy("trial", fixed("per-minute", 1, time.Minute), fixed("per-hour", 9, time.Hour))
	trial.Shadow = true
	s := by.newService(api, trial)

	assert.True(t, s.all(t, ask("api", "probe", 1), ask("api", "a", 1)).Allowed)
	before := s.store.operations()
	r := s.all(t, ask("api", "a", 1), ask("api", "abuser", 1))
	assert.False(t, r.Allowed)
	assert.Zero(t, r.RetryAfter, "waiting is no help")
	assert.Empty(t, r.Header["Retry-After"])
	assert.Equal(t, before, s.store.operations(), "nothing was asked in vain")

	s.all(t, ask("api", "full", 2))
	assert.Zero(t, s.all(t, ask("api", "full", 1), ask("api", "abuser", 1)).RetryAfter)

	// A policy on trial denies nobody, and counts nothing that it would deny.
	assert.True(t, s.all(t, ask("trial", "a", 1), ask("api", "b", 1)).Allowed)
	r = s.all(t, ask("trial", "a", 1), ask("api", "b", 1))
	assert.True(t, r.Allowed)
	assert.True(t, r.Results[0].Shadow)
	assert.False(t, r.Results[0].Limits[0].Allowed)
	assert.EqualValues(t, 8, r.Results[0].Limits[1].Remaining)
	assert.EqualValues(t, 0, s.left(t, "api", "b"))
	r = s.all(t, ask("trial", "c", 1), ask("api", "b", 1))
	assert.False(t, r.Allowed)
	assert.False(t, r.Results[0].Allowed, "nothing was")
	assert.EqualValues(t, 60, r.RetryAfter)
	assert.EqualValues(t, 1, s.left(t, "trial", "c"), "nor counted")
	requireMetrics(t, s,
		`weir_checks_total{decision="allowed",policy="api"} 5`,
		`weir_checks_total{decision="denied",policy="api"} 5`,
		`weir_checks_total{decision="allowed",policy="trial"} 1`,
		`weir_checks_total{decision="shadow_denied",policy="trial"} 1`,
		`weir_checks_total{decision="denied",policy="trial"} 1`,
		`weir_limit_denials_total{limit="per-minute",policy="trial"} 1`)
}

// Where denied requests count, those count that others deny.
func (by way) TestAllWhereDeniedRequestsCount(t *testing.T) {
	t.Parallel()
	counting := newPolicy("counting", fixed("per-minute", 5, time.Minute))
	counting.CountDenied = true
	s := by.newService(counting, newPolicy("api", fixed("per-minute", 1, time.Minute)))
	for i, left := range []int64{4, 3, 2, 1, 0, 0} {
		r := s.all(t, ask("counting", "a", 1), ask("api", "a", 1))
		assert.Equal(t, i == 0, r.Allowed)
		assert.Equal(t, left, r.Results[0].Limits[0].Remaining, i)
		if i > 0 {
			assert.EqualValues(t, 60, r.RetryAfter)
		}
	}
}

func (by way) TestAllWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	closed, open := newPolicy("closed", fixed("per-minute", 2, time.Minute)), newPolicy("open", fixed("per-minute", 2, time.Minute))
	closed.OnStoreError, open.OnStoreError = policy.StoreErrorDeny, policy.StoreErrorAllow
	s := by.newService(closed, open, newPolicy("local", fixed("per-minute", 2, time.Minute)))
	require.True(t, s.all(t, ask("closed", "a", 1), ask("open", "a", 1), ask("local", "a", 1)).Allowed)

	s.store.failWith(counters.ErrTimeout)
	r := s.all(t, ask("open", "a", 1), ask("local", "a", 1))
	assert.True(t, r.Allowed)
	assert.True(t, r.Degraded)
	r = s.all(t, ask("open", "a", 1), ask("local", "a", 1))
	assert.False(t, r.Allowed, "this process limits alone")
	assert.True(t, r.Degraded)
	assert.EqualValues(t, 60, r.RetryAfter)

	r = s.all(t, ask("local", "b", 1), ask("closed", "b", 1))
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.Equal(t, typeReducedCapacity, r.Type)
	assert.Equal(t, "closed", r.Policy)
	assert.Equal(t, []string{"per-minute"}, r.Violated)
	s.store.failWith(nil)
	assert.EqualValues(t, 2, s.left(t, "local", "b"), "nothing is owed of what was refused")
	assert.EqualValues(t, 2, s.left(t, "closed", "b"))
	requireMetrics(t, s,
		`weir_checks_total{decision="error",policy="closed"} 1`,
		`weir_checks_total{decision="error",policy="local"} 1`)
}

// Ten limits take the time of one round trip to the store, as far as that may
// be; twice that if they deny, to give back what was taken; and nothing once the
// denial is known.
func (by way) TestAllShareTheirRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const trip = 2 * time.Millisecond
		var policies []*policy.Policy
		var checks []string
		for i := range 10 {
			limit := fixed("l", 3, time.Hour)
			if i%2 == 1 {
				limit = token("l", 3, time.Hour, 0)
			}
			policies = append(policies, newPolicy(fmt.Sprintf("p%d", i), limit))
			checks = append(checks, ask(policies[i].Name, "a", 1))
		}
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, policies...)
		s.store.onCall(func(context.Context, string, string) error {
			time.Sleep(trip)
			return nil
		})
		took := func(checks []string) (bool, int, time.Duration) {
			start, before := time.Now(), s.store.operations()
			allowed := s.all(t, checks...).Allowed
			return allowed, s.store.operations() - before, time.Since(start)
		}
		for range 3 {
			allowed, operations, time := took(checks)
			assert.True(t, allowed)
			assert.Equal(t, 10, operations)
			assert.Equal(t, trip, time)
		}
		fresh := append(strings.Split(strings.ReplaceAll(strings.Join(checks[:9], ";"), `"a"`, `"b"`), ";"), checks[9])
		allowed, _, took1 := took(fresh)
		assert.False(t, allowed)
		assert.LessOrEqual(t, took1, 2*trip, "the spent one first, then how the others stand")
		allowed, operations, took2 := took(checks)
		assert.False(t, allowed)
		assert.LessOrEqual(t, operations, 1)
		assert.LessOrEqual(t, took2, trip)
		allowed, operations, _ = took(checks)
		assert.False(t, allowed)
		assert.Zero(t, operations, "a denial that is known asks nothing")
	})
}

// A bug in a limiter is an answer, whichever goroutine it is met on.
func (by way) TestAllWithABuggyLimiter(t *testing.T) {
	t.Parallel()
	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	s := by.newService(newPolicy("api", fixed("per-minute", 2, time.Minute)), newPolicy("buggy", buggy))
	r := s.all(t, ask("api", "a", 1), ask("buggy", "a", 1), ask("buggy", "b", 1))
	requireProblem(t, r, http.StatusInternalServerError, "the request failed inside weir")
	assert.Contains(t, s.log.String(), "panic")
	assert.True(t, s.all(t, ask("api", "b", 1), ask("api", "c", 1)).Allowed)
}
