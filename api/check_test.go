package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/racetest"
)

func TestCheckSaysHowTheLimitStands(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	s.clock.at(20*time.Second + 300*time.Millisecond)

	r := s.check(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Equal(t, `{"allowed":true,"policy":"api","client":"alice","retry_after":0,"wait":0,"degraded":false,"shadow":false,`+
		`"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":true,"limit":2,"remaining":1,"reset_after":39.7,"retry_after":0}]}`+"\n", r.Body)
	assert.Equal(t, http.Header{
		"Content-Type":     {"application/json"},
		"Ratelimit-Policy": {`"per-minute";q=2;w=60`},
		"Ratelimit":        {`"per-minute";r=1;t=40`},
	}, r.Header)

	r = s.check(t, `{"policy":"api","client":"alice","cost":2}`)
	assert.Equal(t, http.StatusTooManyRequests, r.Code)
	assert.Equal(t, `{"allowed":false,"policy":"api","client":"alice","retry_after":39.7,"wait":0,"degraded":false,"shadow":false,`+
		`"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":false,"limit":2,"remaining":1,"reset_after":39.7,"retry_after":39.7}]}`+"\n", r.Body)
	assert.Equal(t, http.Header{
		"Content-Type":     {"application/json"},
		"Ratelimit-Policy": {`"per-minute";q=2;w=60`},
		"Ratelimit":        {`"per-minute";r=1;t=40`},
		"Retry-After":      {"40"},
	}, r.Header)
}

func TestHeadersOnADenialTellWhenToRetry(t *testing.T) {
	t.Parallel()
	// On a denial t is retry_after, which differs from reset_after when the
	// window slides.
	s := newService(newPolicy("api", sliding("ten", 10, 10*time.Second, 10, "weighted")))
	s.admits(t, `{"policy":"api","client":"alice","cost":5}`)
	s.clock.at(4 * time.Second)
	r := s.admits(t, `{"policy":"api","client":"alice","cost":5}`)
	assert.Equal(t, `"ten";r=0;t=11`, r.Header.Get("RateLimit"))

	r = s.denies(t, `{"policy":"api","client":"alice","cost":2}`)
	assert.Equal(t, 6.201, r.RetryAfter, "5 of slot 0 round down to 3 just after 10.2 s")
	assert.Equal(t, 10.801, r.Limits[0].ResetAfter, "5 of slot 4 round down to 0 just after 14.8 s")
	assert.Equal(t, `"ten";r=0;t=7`, r.Header.Get("RateLimit"))
	assert.Equal(t, "7", r.Header.Get("Retry-After"))
}

func TestHeadersNameEveryLimit(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api",
		fixed("burst", 5, 1500*time.Millisecond), fixed("per-minute", 100, time.Minute)))
	r := s.admits(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, `"burst";q=5, "per-minute";q=100;w=60`, r.Header.Get("RateLimit-Policy"),
		"w is whole seconds: a window of 1.5 s has none")
	assert.Equal(t, `"burst";r=4;t=2, "per-minute";r=99;t=60`, r.Header.Get("RateLimit"))
}

func TestClientStandsInTheAnswerAsItWasAsked(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	for _, client := range []string{`a"b\c`, "line\nbreak\x00\x7f", "héllo 🐢", "</script>&", "~tilde", "a:b/c_1"} {
		encoded, err := json.Marshal(client)
		require.NoError(t, err)
		r := s.admits(t, fmt.Sprintf(`{"policy":"api","client":%s}`, encoded))
		assert.Equal(t, client, r.Client)
		assert.EqualValues(t, 99, r.Limits[0].Remaining, "%q shares no counter with another", client)
	}
}

var sevenPer10s = []policy.Limit{
	fixed("fixed", 7, 10*time.Second),
	sliding("n1", 7, 10*time.Second, 1, "weighted"),
	sliding("n10", 7, 10*time.Second, 10, "weighted"),
	sliding("strict", 7, 10*time.Second, 10, "strict"),
}

// retry_after is true to the millisecond, for every algorithm, cost and
// history.
func TestRetryAfterIsTrue(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, l := range sevenPer10s {
		t.Run(l.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				s := newService(newPolicy("api", l))
				now := time.Duration(rapid.Int64Range(0, 20_000).Draw(t, "start, ms")) * time.Millisecond
				for range 60 {
					s.clock.at(now)
					cost := rapid.IntRange(1, 7).Draw(t, "cost")
					body := fmt.Sprintf(`{"policy":"api","client":"alice","cost":%d}`, cost)
					r := s.check(t, body)
					if r.Code == http.StatusOK {
						require.Zero(t, r.RetryAfter)
						require.NotContains(t, r.Header, "Retry-After")
						now += time.Duration(rapid.Int64Range(0, 2_000_000).Draw(t, "pause, us")) * time.Microsecond
						continue
					}
					require.Positive(t, r.RetryAfter)
					require.Equal(t, strconv.Itoa(int(math.Ceil(r.RetryAfter))), r.Header.Get("Retry-After"))

					s.clock.at(now + r.retry() - time.Millisecond)
					s.denies(t, body)
					s.clock.at(now + r.retry())
					s.admits(t, body)
					return
				}
			})
		})
	}
}

func TestResetAfterIsTrue(t *testing.T) {
	t.Parallel()
	for _, l := range sevenPer10s {
		t.Run(l.Name, func(t *testing.T) {
			s := newService(newPolicy("api", l))
			s.clock.at(1234 * time.Millisecond)
			s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
			s.clock.at(5678 * time.Millisecond)
			r := s.admits(t, `{"policy":"api","client":"alice","cost":3}`)
			reset := 5678*time.Millisecond + seconds(r.Limits[0].ResetAfter)

			const all = `{"policy":"api","client":"alice","cost":7}`
			s.clock.at(reset - time.Millisecond)
			assert.Less(t, s.denies(t, all).Limits[0].Remaining, int64(7))
			s.clock.at(reset)
			s.admits(t, all)
		})
	}
}

func TestDenialOfOneLimitGivesTheOthersBack(t *testing.T) {
	t.Parallel()
	const body = `{"policy":"api","client":"alice","cost":%d}`
	narrow, wide := fixed("narrow", 3, 10*time.Second), sliding("wide", 10, time.Minute, 6, "weighted")
	for _, order := range [][]policy.Limit{{narrow, wide}, {wide, narrow}} {
		t.Run(order[0].Name+" first", func(t *testing.T) {
			s := newService(newPolicy("api", order...))
			s.clock.at(time.Second)
			s.admits(t, fmt.Sprintf(body, 2))
			before := s.store.counts(t)

			r := s.denies(t, fmt.Sprintf(body, 2))
			assert.Equal(t, before, s.store.counts(t))
			byName := map[string]limitResult{}
			for _, l := range r.Limits {
				byName[l.Name] = l
			}
			assert.Equal(t, limitResult{
				Name: "narrow", Algorithm: "fixed_window", Limit: 3, Remaining: 1, ResetAfter: 9, RetryAfter: 9,
			}, byName["narrow"])
			// 2 in slot 0 round down to 1 after 60 s, and to 0
			// after 65 s.
			assert.Equal(t, limitResult{
				Name: "wide", Algorithm: "sliding_window", Allowed: true, Limit: 10, Remaining: 8, ResetAfter: 64.001,
			}, byName["wide"])
			assert.Equal(t, 9.0, r.RetryAfter)
		})
	}
}

// A denial by one of several limits leaves the store exactly as it was and
// reports what a look at the client says after it.
func TestSeveralLimitsAreCheckedAsOne(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.Permutation([]policy.Limit{
			fixed("second", 4, time.Second),
			sliding("ten", 9, 10*time.Second, 10, "weighted"),
			sliding("minute", 20, time.Minute, 1, "strict"),
		}).Draw(t, "limits")
		s := newService(newPolicy("api", limits...))
		now := time.Duration(0)
		for range rapid.IntRange(1, 40).Draw(t, "checks") {
			now += time.Duration(rapid.Int64Range(0, 1500).Draw(t, "pause, ms")) * time.Millisecond
			s.clock.at(now)
			before := s.store.counts(t)
			r := s.check(t, fmt.Sprintf(`{"policy":"api","client":"alice","cost":%d}`, rapid.IntRange(1, 4).Draw(t, "cost")))
			var retry float64
			allowed := true
			for _, l := range r.Limits {
				retry = max(retry, l.RetryAfter)
				allowed = allowed && l.Allowed
			}
			require.Equal(t, allowed, r.Allowed)
			require.Equal(t, retry, r.RetryAfter)
			if r.Allowed {
				require.NotEqual(t, before, s.store.counts(t))
			} else {
				require.Equal(t, before, s.store.counts(t))
			}
			look := s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "")
			require.Len(t, look.Limits, len(limits))
			for i, l := range r.Limits {
				require.Equal(t, limits[i].Name, l.Name)
				require.Equal(t, look.Limits[i].Remaining, l.Remaining)
				require.Equal(t, look.Limits[i].ResetAfter, l.ResetAfter)
			}
		}
	})
}

func TestCountDeniedKeepsAHammeringClientOut(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("second", 1, time.Second), sliding("minute", 2, time.Minute, 1, "weighted"))
	p.CountDenied = true
	s := newService(p)
	const body = `{"policy":"api","client":"alice"}`
	// At 0 s one is admitted; three more are denied by the first limit and
	// counted by both.
	s.admits(t, body)
	for range 3 {
		s.denies(t, body)
	}
	assert.Equal(t, map[string]int64{
		"weir:api/second:1000:alice_1749999600": 4,
		"weir:api/minute:60000:alice_29166660":  4,
	}, s.store.counts(t))
	// At 1 s the first limit would admit, the second has had 4 of its 2.
	s.clock.at(time.Second)
	r := s.denies(t, body)
	assert.True(t, r.Limits[0].Allowed)
	assert.False(t, r.Limits[1].Allowed)
	assert.EqualValues(t, 5, s.store.counts(t)["weir:api/minute:60000:alice_29166660"])
	// retry_after is true here too: 5 have become 1 after 96 s.
	s.clock.at(time.Second + r.retry() - time.Millisecond)
	require.False(t, s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "").Allowed)
	s.clock.at(time.Second + r.retry())
	s.admits(t, body)
}

func TestShadowDecidesAndCountsButAdmits(t *testing.T) {
	t.Parallel()
	p := newPolicy("trial", fixed("per-minute", 1, time.Minute))
	p.Shadow = true
	p.Clients = clients(map[string]policy.Terms{"abuser": {Blocked: true}})
	s := newService(p)
	s.admits(t, `{"policy":"trial","client":"alice"}`)

	r := s.admits(t, `{"policy":"trial","client":"alice"}`)
	assert.True(t, r.Shadow)
	assert.Zero(t, r.RetryAfter)
	assert.NotContains(t, r.Header, "Retry-After")
	assert.False(t, r.Limits[0].Allowed, "what would have been decided is there to see")
	assert.Equal(t, 60.0, r.Limits[0].RetryAfter)
	assert.True(t, s.admits(t, `{"policy":"trial","client":"abuser"}`).Shadow)

	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="trial"} 1`,
		`weir_checks_total{decision="shadow_denied",policy="trial"} 2`,
		`weir_checks_total{decision="denied",policy="trial"} 0`)
}

func TestExemptAndBlockedClientsAreNotCounted(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1, time.Minute))
	p.Clients = clients(map[string]policy.Terms{"probe": {Exempt: true}, "abuser": {Blocked: true}})
	s := newService(p)
	for range 3 {
		r := s.admits(t, `{"policy":"api","client":"probe","cost":1000}`)
		assert.Contains(t, r.Body, `"limits":[]`)
		r = s.denies(t, `{"policy":"api","client":"abuser"}`)
		assert.Contains(t, r.Body, `"limits":[]`)
		assert.Zero(t, r.RetryAfter)
		assert.NotContains(t, r.Header, "Retry-After", "waiting makes no difference")
		assert.NotContains(t, r.Header, "Ratelimit")
	}
	assert.Zero(t, s.store.operations())
	assert.True(t, s.do(t, http.MethodGet, "/v1/policies/api/clients/probe", "").Allowed)
	assert.False(t, s.do(t, http.MethodGet, "/v1/policies/api/clients/abuser", "").Allowed)
}

func TestLimitInForce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what, body         string
		perMinute, perHour int64
	}{
		{"the policy's", `{"policy":"api","client":"alice"}`, 100, 1000},
		{"the client's", `{"policy":"api","client":"gold"}`, 500, 1000},
		{"the caller's", `{"policy":"api","client":"alice","limits":{"per-minute":7}}`, 7, 1000},
		{"the caller's before the client's", `{"policy":"api","client":"gold","limits":{"per-minute":7,"per-hour":8}}`, 7, 8},
		{"the caller's, as small as can be", `{"policy":"api","client":"alice","limits":{"per-hour":1}}`, 100, 1},
		{"the caller's, as large as can be", `{"policy":"api","client":"alice","limits":{"per-hour":1000000000000}}`, 100, counters.MaxLimit},
		{"none of the caller's", `{"policy":"api","client":"alice","limits":{}}`, 100, 1000},
	} {
		t.Run(test.what, func(t *testing.T) {
			p := newPolicy("api", fixed("per-minute", 100, time.Minute), fixed("per-hour", 1000, time.Hour))
			p.Clients = clients(map[string]policy.Terms{"gold": {Limits: map[string]int64{"per-minute": 500}}})
			s := newService(p)
			r := s.admits(t, test.body)
			require.Len(t, r.Limits, 2)
			assert.Equal(t, test.perMinute, r.Limits[0].Limit)
			assert.Equal(t, test.perMinute-1, r.Limits[0].Remaining)
			assert.Equal(t, test.perHour, r.Limits[1].Limit)
			assert.Equal(t, test.perHour-1, r.Limits[1].Remaining)
			assert.Equal(t, fmt.Sprintf(`"per-minute";q=%d;w=60, "per-hour";q=%d;w=3600`, test.perMinute, test.perHour),
				r.Header.Get("RateLimit-Policy"))
		})
	}
}

func TestCallersLimitDecides(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 1, time.Minute)))
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.denies(t, `{"policy":"api","client":"alice"}`)
	s.admits(t, `{"policy":"api","client":"alice","limits":{"per-minute":2}}`)
	s.denies(t, `{"policy":"api","client":"alice","limits":{"per-minute":2}}`)
}

func TestCostZeroConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api",
		fixed("per-minute", 2, time.Minute), sliding("per-hour", 9, time.Hour, 60, "weighted")))
	for range 3 {
		r := s.admits(t, `{"policy":"api","client":"alice","cost":0}`)
		assert.EqualValues(t, 2, r.Limits[0].Remaining)
	}
	assert.Zero(t, s.memory.Len())
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	r := s.admits(t, `{"policy":"api","client":"alice","cost":0}`)
	assert.Zero(t, r.Limits[0].Remaining)
}

func TestLargestCostFits(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-hour", counters.MaxLimit, time.Hour)))
	r := s.admits(t, `{"policy":"api","client":"alice","cost":1000000000}`)
	assert.EqualValues(t, counters.MaxLimit-counters.MaxCost, r.Limits[0].Remaining)
}

func TestClocksThatJumpBackDenyNoOne(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	s.clock.at(61 * time.Second)
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	s.clock.at(59 * time.Second)
	r := s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	assert.Equal(t, 1.0, r.Limits[0].ResetAfter)
}

// Two limits of the same policy, one of which denies, leave no trace.
func TestDenialGivesBucketsBack(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("p",
		token("tokens", 10, time.Minute, 0), leaky("queue", 10, time.Minute, 0), slidingLog("log", 10, time.Minute), fixed("few", 2, time.Minute)))
	remaining := func(r result) (left []int64) {
		for _, l := range r.Limits {
			left = append(left, l.Remaining)
		}
		return left
	}
	assert.Equal(t, []int64{9, 9, 9, 1}, remaining(s.admits(t, `{"policy":"p","client":"c"}`)))
	s.clock.at(time.Second)
	for range 3 {
		assert.Equal(t, []int64{9, 9, 9, 1}, remaining(s.denies(t, `{"policy":"p","client":"c","cost":2}`)))
	}
	r := s.admits(t, `{"policy":"p","client":"c"}`)
	assert.Equal(t, []int64{8, 8, 8, 0}, remaining(r))
	assert.Equal(t, `"tokens";q=10;w=60, "queue";q=10;w=60, "log";q=10;w=60, "few";q=2;w=60`, r.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"tokens";r=8;t=11, "queue";r=8;t=11, "log";r=8;t=60, "few";r=0;t=59`, r.Header.Get("RateLimit"))
	assert.Equal(t, 5.0, r.Wait, "a turn each 6 s, and 1 s has passed")
	assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/p/clients/c", "").Code)
	assert.Equal(t, []int64{10, 10, 10, 2}, remaining(s.do(t, http.MethodGet, "/v1/policies/p/clients/c", "")))
}

func TestRetryAfterOfBucketsIsTrue(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]policy.Limit{
		"token_bucket": token("l", 7, time.Minute, 12), "leaky_bucket": leaky("l", 7, time.Minute, 12), "sliding_log": slidingLog("l", 12, time.Minute),
		"counting log": countingLog("l", 12, time.Minute, 8),
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(newPolicy("p", limit))
			s.admits(t, `{"policy":"p","client":"c","cost":12}`)
			s.clock.at(time.Second)
			r := s.denies(t, `{"policy":"p","client":"c","cost":5}`)
			at := time.Second + r.retry()
			s.clock.at(at - 2*time.Millisecond)
			s.denies(t, `{"policy":"p","client":"c","cost":5}`)
			s.clock.at(at)
			s.admits(t, `{"policy":"p","client":"c","cost":5}`)
		})
	}
}

func TestCostsAboveTheCapacityAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("small", token("t", 100, time.Minute, 20)), newPolicy("large", token("t", 20, time.Minute, 100)),
		newPolicy("log", slidingLog("l", 20, time.Minute)))
	requireProblem(t, s.check(t, `{"policy":"small","client":"c","cost":21}`), http.StatusBadRequest,
		`cost 21 is above the burst of the limit "t", which is 20, and can never be admitted`)
	s.admits(t, `{"policy":"small","client":"c","cost":20}`)
	s.admits(t, `{"policy":"large","client":"c","cost":100}`)
	requireProblem(t, s.check(t, `{"policy":"log","client":"c","cost":21}`), http.StatusBadRequest,
		`cost 21 is above the limit "l", which is 20, and can never be admitted`)
	s.admits(t, `{"policy":"log","client":"c","cost":10000,"limits":{"l":10000}}`)
	requireProblem(t, s.check(t, `{"policy":"log","client":"c","limits":{"l":10001}}`), http.StatusBadRequest,
		`limits: "l" is 10001 and must be a whole number from 1 to 10000`)
}

func TestConcurrentChecksNeverExceedTheLimit(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 50, time.Minute), sliding("per-hour", 60, time.Hour, 60, "weighted")))
	n := limitertest.Race(8, 25, func(int, int) bool { return s.check(t, `{"policy":"api","client":"alice"}`).Allowed })
	assert.LessOrEqual(t, n, int64(50))
	// Two that race for the last places may both be denied. Those places
	// are then still free.
	for range 50 - n {
		s.admits(t, `{"policy":"api","client":"alice"}`)
	}
	s.denies(t, `{"policy":"api","client":"alice"}`)
	assert.Equal(t, map[string]int64{
		"weir:api/per-minute:60000:alice_29166660": 50,
		"weir:api/per-hour:60000:alice_29166660":   50,
	}, s.store.counts(t))
}

// With count_denied, a limit that admitted what another denied has counted it:
// the check may come again when both have room.
func TestRetryAfterOfADeniedCheckThatOtherLimitsHaveCounted(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-second", 1, time.Second), fixed("per-hour", 2, time.Hour))
	p.CountDenied = true
	s := newService(p)
	s.admits(t, `{"policy":"api","client":"alice"}`)
	d := s.denies(t, `{"policy":"api","client":"alice"}`)
	assert.Greater(t, d.RetryAfter, 60.0, "the hour is used up")
	s.clock.at(time.Duration(d.RetryAfter * float64(time.Second)))
	s.admits(t, `{"policy":"api","client":"alice"}`)
}

// contendedLimiter is a bucket whose state others always change first.
type contendedLimiter struct{ counters.Limiter }

func (contendedLimiter) Take(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{Remaining: 5, RetryAfter: time.Millisecond, Contended: true}, nil
}

func (contendedLimiter) PeekLocal(counters.Request) (d counters.Decision, known bool) {
	return d, false
}

func TestAContendedCheckIsDenied(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-hour", 10, time.Hour), policy.Limit{
		Name: "bucket", Algorithm: "token_bucket", Limit: 10, Window: time.Second, Limiter: contendedLimiter{},
	})
	s := newService(p)
	r := s.denies(t, `{"policy":"api","client":"alice"}`)
	assert.False(t, r.Degraded, "the store has answered")
	assert.InDelta(t, 0.001, r.RetryAfter, 1e-9)
	assert.Equal(t, "1", r.Header.Get("Retry-After"))
	assert.Equal(t, int64(10), r.Limits[0].Remaining, "the other limit is given back")
	requireMetrics(t, s, `weir_checks_total{decision="contended",policy="api"} 1`, `weir_checks_total{decision="denied",policy="api"} 0`)
}

// Of the limits that a denied check doesn't ask, too, what other instances have
// counted a moment ago is known: a client that comes back when told to is
// admitted.
func TestRetryAfterKnowsWhatOtherInstancesHaveCounted(t *testing.T) {
	t.Parallel()
	policy := func() *policy.Policy {
		return newPolicy("api", fixed("per-second", 10, time.Second), fixed("per-hour", 10, time.Hour))
	}
	a, b := newService(policy()), newService(policy())
	b.store.Store = a.memory
	a.admits(t, `{"policy":"api","client":"alice"}`)
	b.admits(t, `{"policy":"api","client":"alice","cost":9}`)
	d := a.denies(t, `{"policy":"api","client":"alice"}`)
	a.clock.at(d.retry())
	a.admits(t, `{"policy":"api","client":"alice"}`)
}

// Windows take nothing back that may be from before a reset: for the clock skew
// after it, what another limit denies costs the client, unless that was known beforehand.
func TestDeniedChecksRightAfterAResetAreCounted(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-hour", 50, time.Hour), fixed("per-second", 3, time.Second)))
	require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "").Code)
	s.clock.at(20 * time.Millisecond)
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	for range 10 {
		s.denies(t, `{"policy":"api","client":"alice","cost":2}`)
	}
	look := s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "")
	assert.Equal(t, int64(28), look.Limits[0].Remaining)
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.denies(t, `{"policy":"api","client":"alice"}`)
	s.clock.at(1100 * time.Millisecond)
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	s.denies(t, `{"policy":"api","client":"alice","cost":2}`)
	look = s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "")
	assert.Equal(t, int64(25), look.Limits[0].Remaining)
}
