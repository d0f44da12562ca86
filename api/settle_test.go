package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

// eachAlgorithm are limits of 100 in a minute, one of each algorithm.
func eachAlgorithm() map[string]policy.Limit {
	return map[string]policy.Limit{
		"fixed":    fixed("tokens", 100, time.Minute),
		"sliding":  sliding("tokens", 100, time.Minute, 10, "weighted"),
		"strict":   sliding("tokens", 100, time.Minute, 60, "strict"),
		"token":    token("tokens", 100, time.Minute, 0),
		"leaky":    leaky("tokens", 100, time.Minute, 0),
		"log":      slidingLog("tokens", 100, time.Minute),
		"counting": countingLog("tokens", 100, time.Minute, 8),
	}
}

// each runs a test beside others for a limit of each algorithm.
func each(t *testing.T, test func(t *testing.T, name string, limit policy.Limit)) {
	for name, limit := range eachAlgorithm() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name, limit)
		})
	}
}

// reserve asks for a cost that is to be settled, which must be admitted.
func (s *service) reserve(t *testing.T, cost int64) result {
	t.Helper()
	r := s.check(t, fmt.Sprintf(`{"policy":"llm","client":"team-a","cost":%d,"settle":true}`, cost))
	require.True(t, r.Allowed, r.Body)
	require.NotEmpty(t, r.Receipt)
	return r
}

func (s *service) settleAt(t *testing.T, receipt string, cost int64) result {
	t.Helper()
	return s.do(t, http.MethodPost, "/v1/settle", fmt.Sprintf(`{"receipt":%q,"cost":%d}`, receipt, cost))
}

// remains returns what remains to the client.
func (s *service) remains(t *testing.T) int64 {
	t.Helper()
	return s.do(t, http.MethodGet, "/v1/policies/llm/clients/team-a", "").Limits[0].Remaining
}

func TestWhatWasNotUsedIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		r := s.reserve(t, 60)
		assert.EqualValues(t, 600, r.SettleWithin)
		require.EqualValues(t, 40, r.Limits[0].Remaining)
		settled := s.settleAt(t, r.Receipt, 18)
		require.Equal(t, http.StatusOK, settled.Code, settled.Body)
		assert.JSONEq(t, `{"settled":true,"already":false,"cost":18,"limits":[{"name":"tokens","refunded":42,"charged":0,"remaining":82}]}`, settled.Body)
		for _, cost := range []int64{18, 0, 90} {
			again := s.settleAt(t, r.Receipt, cost)
			assert.JSONEq(t, fmt.Sprintf(`{"settled":true,"already":true,"cost":%d}`, cost), again.Body)
		}
		assert.EqualValues(t, 82, s.remains(t))
	})
}

func TestWhatWasUsedBeyondTheEstimateIsCharged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		r := s.reserve(t, 60)
		settled := s.settleAt(t, r.Receipt, 75)
		assert.JSONEq(t, `{"settled":true,"already":false,"cost":75,"limits":[{"name":"tokens","refunded":0,"charged":15,"remaining":25}]}`, settled.Body)
		r = s.reserve(t, 1)
		settled = s.settleAt(t, r.Receipt, 91)
		assert.Contains(t, settled.Body, `"charged":90,"remaining":0`, "above the limit")
		denied := s.check(t, `{"policy":"llm","client":"team-a","settle":true}`)
		assert.False(t, denied.Allowed)
		assert.Empty(t, denied.Receipt, "nothing was reserved")
		if name == "token" || name == "leaky" { // 66 are above the limit, and drain first
			assert.InDelta(t, 67*0.6, denied.RetryAfter, 0.01)
		}
	})
}

// When many settle more than they have reserved, and more than the limit, a bucket owes all of it.
func TestWhatManyHaveUsedBeyondTheLimitIsAllOwed(t *testing.T) {
	t.Parallel()
	for name, limit := range eachAlgorithm() {
		if !drains(limit) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(newPolicy("llm", limit))
			var receipts []string
			for range 5 {
				receipts = append(receipts, s.reserve(t, 1).Receipt)
			}
			for _, r := range receipts {
				require.Equal(t, http.StatusOK, s.settleAt(t, r, 400).Code)
			}
			require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":500}`).Code)
			denied := s.check(t, `{"policy":"llm","client":"team-a"}`)
			assert.False(t, denied.Allowed)
			assert.InDelta(t, (5*400+500-99)*0.6, denied.RetryAfter, 0.01)
		})
	}
}

func TestCostsFromAndToZeroAreSettled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		r := s.reserve(t, 0)
		require.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 30).Code)
		assert.EqualValues(t, 70, s.remains(t))
		r = s.reserve(t, 30)
		require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/settle", fmt.Sprintf(`{"receipt":%q}`, r.Receipt)).Code, "as reserved")
		assert.EqualValues(t, 40, s.remains(t))
		r = s.reserve(t, 40)
		require.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 0).Code)
		assert.EqualValues(t, 40, s.remains(t))
	})
}

func TestALimitOfRequestsIsNeverSettled(t *testing.T) {
	t.Parallel()
	requests := fixed("requests", 3, time.Minute)
	requests.CountsRequests = true
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute), requests))
	r := s.reserve(t, 60)
	require.EqualValues(t, 2, r.Limits[1].Remaining)
	settled := s.settleAt(t, r.Receipt, 10)
	assert.Equal(t, 1, len(settled.Limits), settled.Body)
	s.reserve(t, 0)
	assert.EqualValues(t, 1, s.do(t, http.MethodGet, "/v1/policies/llm/clients/team-a", "").Limits[1].Remaining, "each check is a request, whatever it costs")
	charged := s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":50}`)
	assert.EqualValues(t, 40, charged.Limits[0].Remaining)
	assert.EqualValues(t, 1, charged.Limits[1].Remaining, "a charge is no request")
}

func TestChargesCountWhateverIsLeft(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		charge := func(body string) result {
			r := s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a",`+body+`}`)
			require.Equal(t, http.StatusOK, r.Code, r.Body)
			require.True(t, r.Allowed)
			return r
		}
		assert.EqualValues(t, 70, charge(`"cost":30`).Limits[0].Remaining)
		for range 3 {
			assert.EqualValues(t, 50, charge(`"cost":20,"id":"invoice 7"`).Limits[0].Remaining, "once")
		}
		assert.EqualValues(t, 30, charge(`"cost":20,"id":"invoice 8"`).Limits[0].Remaining)
		over := charge(`"cost":95`)
		assert.Zero(t, over.Limits[0].Remaining)
		assert.False(t, over.Limits[0].Allowed, "more is in use than the limit")
		assert.Positive(t, over.RetryAfter)
		assert.False(t, s.check(t, `{"policy":"llm","client":"team-a"}`).Allowed)
	})
}

// What a charge answers is how the client stands, whoever has counted what.
func TestAChargeKnowsWhatOthersHaveCounted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		a := newService(newPolicy("llm", limit))
		b := newTwin(a, newPolicy("llm", limit))
		charge := func(by *service, body string) result {
			return by.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a",`+body+`}`)
		}
		assert.EqualValues(t, 90, charge(b, `"cost":10`).Limits[0].Remaining)
		assert.EqualValues(t, 70, charge(a, `"cost":20,"id":"invoice 7"`).Limits[0].Remaining)
		assert.EqualValues(t, 70, charge(b, `"cost":20,"id":"invoice 7"`).Limits[0].Remaining, "sent again, to another instance")
		assert.False(t, charge(a, `"cost":80`).Limits[0].Allowed)
		over := charge(b, `"cost":0`)
		assert.False(t, over.Limits[0].Allowed)
		assert.Positive(t, over.RetryAfter)
	})
}

// A text that is no receipt changes nothing.
func TestWrongReceipts(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute)))
	r := s.reserve(t, 60)
	stranger := newServiceWith(func(cfg *Config) { cfg.Tokens = []Token{{Secret: "secret"}} }, newPolicy("llm", fixed("tokens", 100, time.Minute)))
	foreign := stranger.do(t, "POST", "/v1/check", `{"policy":"llm","client":"team-a","settle":true}`, "Authorization", "Bearer secret").Receipt
	require.NotEmpty(t, foreign)
	before, asked := s.store.counts(t), s.store.operations()
	for body, detail := range map[string]string{
		`{}`:                      "receipt is missing",
		`{"receipt":"","cost":1}`: "receipt is none that this service has given",
		fmt.Sprintf(`{"receipt":%q,"cost":1}`, r.Receipt[:40]):                "receipt is none",
		fmt.Sprintf(`{"receipt":%q,"cost":1}`, r.Receipt+"A"):                 "receipt is none",
		fmt.Sprintf(`{"receipt":%q,"cost":1}`, foreign):                       "given with other tokens",
		fmt.Sprintf(`{"receipt":%q,"cost":-1}`, r.Receipt):                    "cost -1 must be",
		fmt.Sprintf(`{"receipt":%q,"cost":1.5}`, r.Receipt):                   "cost is 1.5",
		fmt.Sprintf(`{"receipt":%q,"cost":1000000001}`, r.Receipt):            "cost 1000000001 must be",
		fmt.Sprintf(`{"receipt":%q,"cost":1,"tokens":2}`, r.Receipt):          "unknown field",
		`{"receipt":7,"cost":1}`:                                              "receipt must be a string",
		`{"receipt":"` + strings.Repeat("A", 40000) + `","cost":1}`:           "receipt is none",
		fmt.Sprintf(`{"receipt":%q,"cost":1}`, "w1."+strings.Repeat("A", 40)): "receipt is none",
	} {
		got := s.do(t, http.MethodPost, "/v1/settle", body)
		assert.Equal(t, http.StatusBadRequest, got.Code, body)
		assert.Contains(t, got.Detail, detail, body)
	}
	assert.Contains(t, s.do(t, http.MethodPost, "/v1/renew", `{}`).Detail, "receipt is missing")
	for _, wrong := range []string{"", r.Receipt[:40], r.Receipt + "A", foreign} {
		one := fmt.Sprintf(`{"receipt":%q}`, wrong)
		assert.Equal(t, http.StatusBadRequest, s.do(t, http.MethodPost, "/v1/renew", one).Code)
		assert.EqualValues(t, http.StatusBadRequest, s.do(t, http.MethodPost, "/v1/settle/batch", `{"settlements":[`+one+`]}`).Results[0].Status)
	}
	assert.Equal(t, asked, s.store.operations(), "the store wasn't asked")
	assert.Equal(t, before, s.store.counts(t))
	assert.EqualValues(t, 40, s.remains(t))
	r = s.reserve(t, 1) // everybody can write what a service without tokens takes
	stolen := stranger.do(t, http.MethodPost, "/v1/settle", fmt.Sprintf(`{"receipt":%q,"cost":1}`, r.Receipt), "Authorization", "Bearer secret")
	assert.Equal(t, http.StatusBadRequest, stolen.Code)
	s.SetPolicies(policy.Policies{})
	assert.Equal(t, http.StatusNotFound, s.settleAt(t, r.Receipt, 1).Code, "the policy is gone")
}

func TestAReceiptIsSettledInTime(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", fixed("tokens", 100, time.Hour))
	p.SettleWithin = 30 * time.Second
	s := newService(p)
	r, other := s.reserve(t, 30), s.reserve(t, 30)
	s.clock.at(30 * time.Second)
	require.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 0).Code)
	s.clock.at(30*time.Second + 1)
	assert.Equal(t, http.StatusGone, s.settleAt(t, other.Receipt, 0).Code)
	assert.EqualValues(t, 70, s.remains(t), "the estimate stays")
}

func TestAResetClientGetsNothingBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		r := s.reserve(t, 60)
		s.clock.at(time.Second)
		require.Equal(t, http.StatusNoContent, s.do(t, "DELETE", "/v1/policies/llm/clients/team-a", "").Code)
		s.clock.at(2 * time.Second)
		s.reserve(t, 50)
		before := s.remains(t)
		require.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 0).Code)
		assert.Equal(t, before, s.remains(t))
	})
}

// A policy whose limit counts otherwise by now gives nothing back, and nothing panics.
func TestALimitThatHasChangedMeanwhile(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for name, limit := range eachAlgorithm() {
		for other, changed := range eachAlgorithm() {
			s := newService(newPolicy("llm", limit))
			r := s.reserve(t, 60)
			now := newTwin(s, newPolicy("llm", changed))
			settled := now.settleAt(t, r.Receipt, 10)
			require.Equal(t, http.StatusOK, settled.Code, settled.Body)
			if name == other {
				assert.Len(t, settled.Limits, 1)
			}
			assert.LessOrEqual(t, now.remains(t), int64(100))
		}
	}
}

// A limit that counts requests by now isn't charged tokens: of 60 a minute, 90,000 would be in the
// way for a day. It isn't given any back either.
func TestALimitThatCountsRequestsSinceAReload(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		for _, cost := range []int64{10, 90_000} {
			r := s.reserve(t, 20)
			requests := limit
			requests.CountsRequests = true
			s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("llm", requests)))
			before := s.remains(t)
			settled := s.settleAt(t, r.Receipt, cost)
			require.Equal(t, http.StatusOK, settled.Code, settled.Body)
			assert.Empty(t, settled.Limits)
			assert.Equal(t, before, s.remains(t))
			s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("llm", limit)))
		}
	})
}

// When 64 callers settle one receipt at three instances, one of them does.
func TestManySettleOneReceipt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newServiceOn(newMemcached(t), func(*Config) {}, newPolicy("llm", limit))
		instances := []*service{s, newTwin(s, newPolicy("llm", limit)), newTwin(s, newPolicy("llm", limit))}
		for _, cost := range []int64{10, 70} {
			r := s.reserve(t, 20)
			before := s.remains(t)
			var settling sync.WaitGroup
			var mu sync.Mutex
			first := 0
			for i := range 64 {
				settling.Go(func() {
					settled := instances[i%3].settleAt(t, r.Receipt, cost)
					mu.Lock()
					defer mu.Unlock()
					if assert.Equal(t, http.StatusOK, settled.Code, settled.Body) && !settled.Already {
						first++
					}
				})
			}
			settling.Wait()
			assert.Equal(t, 1, first)
			s.clock.set(s.clock.now().Add(time.Millisecond))
			assert.InDelta(t, before+20-cost, s.remains(t), 0.1)
		}
	})
}

func TestABatchOfSettlements(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute)))
	batch := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"llm","client":"team-a","cost":30,"settle":true},{"policy":"llm","client":"team-a","cost":30},{"policy":"llm","client":"team-a","cost":30,"settle":true}]}`)
	one, other := batch.Results[0].Receipt, batch.Results[2].Receipt
	require.NotEmpty(t, one)
	require.Empty(t, batch.Results[1].Receipt)
	r := s.do(t, http.MethodPost, "/v1/settle/batch", fmt.Sprintf(`{"settlements":[{"receipt":%q,"cost":10},{"receipt":"w1.x","cost":1},{"receipt":%q,"cost":0},{"receipt":%q}]}`, one, other, one))
	require.Equal(t, http.StatusOK, r.Code, r.Body)
	var status []int
	for _, one := range r.Results {
		status = append(status, int(one.Status))
	}
	assert.Equal(t, []int{200, 400, 200, 200}, status)
	// Of the two that settle one receipt, whichever is first counts: at 10, or at 30.
	assert.EqualValues(t, 60, s.remains(t)+20*int64(strings.Count(r.Body, `"refunded":0`)))
	third := s.reserve(t, 5).Receipt
	r = s.do(t, http.MethodPost, "/v1/settle/batch", fmt.Sprintf(`{"settlements":[{"cost":10},{},{"receipt":%q,"cost":-1},{"cost":-1,"receipt":%[1]q},{"receipt":%[1]q,"cost":0}]}`, third))
	require.Equal(t, http.StatusOK, r.Code, r.Body)
	missing, negative := `receipt is missing; it is what a check with "settle": true has answered`, "cost -1 must be a whole number from 0 to 1000000000"
	for i, detail := range []string{missing, missing, negative, negative} {
		assert.EqualValues(t, http.StatusBadRequest, r.Results[i].Status, i)
		assert.Equal(t, detail, r.Results[i].Detail, i)
	}
	assert.EqualValues(t, http.StatusOK, r.Results[4].Status, "the others are settled")
	unknown := s.do(t, http.MethodPost, "/v1/settle/batch", fmt.Sprintf(`{"settlements":[{"receipt":%q},{"tokens":1}]}`, third))
	assert.Equal(t, http.StatusBadRequest, unknown.Code)
	assert.Contains(t, unknown.Detail, "settlements[1].tokens", "nobody knows what else that means")
	assert.Equal(t, http.StatusBadRequest, s.do(t, http.MethodPost, "/v1/settle/batch", `{}`).Code)
}

// While the store can't say whether a receipt was settled before, nothing happens. If it
// turns out to have taken the claim, the settlement is done after all.
func TestASettlementThatTheStoreDidNotHearOf(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute)))
	r, other := s.reserve(t, 30), s.reserve(t, 30)
	var tell func(error)
	s.store.onCall(func(_ context.Context, operation, key string) error {
		if operation != "swap" {
			return nil
		}
		return &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }}
	})
	for i, receipt := range []string{r.Receipt, other.Receipt} {
		got := s.settleAt(t, receipt, 10)
		assert.Equal(t, http.StatusServiceUnavailable, got.Code, got.Body)
		assert.Contains(t, got.Detail, "nothing is done yet; send it again")
		if i == 0 {
			tell(nil)
		} else {
			tell(counters.ErrNotSent)
		}
	}
	s.cfg.Claims.Late.Wait()
	s.store.onCall(nil)
	assert.EqualValues(t, 60, s.remains(t))
	assert.False(t, s.settleAt(t, other.Receipt, 10).Already)
	requireMetrics(t, s, `weir_settlements_total{outcome="failed",policy="llm"} 2`, `weir_settlements_total{outcome="refunded",policy="llm"} 2`)
	assert.EqualValues(t, 80, s.remains(t))
}

// What was admitted without the store is charged what it costs more, and given nothing
// back, as nobody knows when the store was told.
func TestReceiptsOfAnOutage(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		s := newService(newPolicy("llm", limit))
		s.store.failWith(counters.ErrUnavailable)
		less, more := s.reserve(t, 20), s.reserve(t, 20)
		charged := s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":5}`)
		assert.True(t, charged.Degraded, charged.Body)
		assert.EqualValues(t, 55, charged.Limits[0].Remaining, "it counts here")
		require.Equal(t, http.StatusServiceUnavailable, s.settleAt(t, less.Receipt, 10).Code)
		s.store.failWith(nil)
		require.Equal(t, http.StatusOK, s.settleAt(t, less.Receipt, 10).Code)
		require.Equal(t, http.StatusOK, s.settleAt(t, more.Receipt, 30).Code)
		assert.EqualValues(t, 100-20-30-5, s.remains(t))
	})
}

// Whatever is asked of one or three instances in whatever order, through resets and reloads:
// when all is settled, what is in use is the sum of what was used in the end.
func TestWhatCountsIsWhatWasUsedInTheEnd(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for name := range eachAlgorithm() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				settleAtRandom(t, nil, 1+2*int(seed%2), name, rand.New(rand.NewPCG(seed, 9)))
			}
			for seed := range uint64(4) {
				settleAtRandom(t, newMemcached(t), 1+2*int(seed%2), name, rand.New(rand.NewPCG(seed, 10)))
			}
		})
	}
}

// settleAtRandom is on a store, or embedded ones if that is nil.
func settleAtRandom(t *testing.T, on telemetry.Store, many int, algorithm string, random *rand.Rand) {
	t.Helper()
	limit := eachAlgorithm()[algorithm]
	limit.Limit = 2000
	s := newServiceOn(on, func(*Config) {}, newPolicy("llm", limit))
	instances := []*service{s}
	for len(instances) < many {
		instances = append(instances, newTwin(s, newPolicy("llm", limit)))
	}
	type reserved struct {
		receipt string
		cost    int64
		since   int // so many resets
	}
	var open []reserved
	resets := 0
	now, used := time.Duration(0), int64(0)
	capacity := make(map[*service]int64) // after a reload
	reload := func(by *service, limit policy.Limit) {
		by.tells() // what its limiters would tell a moment later
		by.SetPolicies(bindLimiters(s.store, by.cfg.Metrics, newPolicy("llm", limit)))
		capacity[by] = cmp.Or(limit.Burst, limit.Limit)
	}
	settle := func(i int) {
		cost := random.Int64N(2 * open[i].cost)
		r := instances[random.IntN(many)].settleAt(t, open[i].receipt, cost)
		require.Equal(t, http.StatusOK, r.Code, r.Body)
		require.False(t, r.Already)
		if more := cost - open[i].cost; more > 0 || open[i].since == resets {
			used += more
		}
		open = slices.Delete(open, i, i+1)
	}
	for range 60 {
		if now += time.Duration(random.IntN(int(300 * time.Millisecond))); limit.Algorithm != "token_bucket" && limit.Algorithm != "leaky_bucket" {
			s.clock.at(now) // of those nothing drains: they are exact by their own tests
		}
		by := instances[random.IntN(many)]
		switch what := random.IntN(10); {
		case what < 5:
			cost := 1 + random.Int64N(40)
			open, used = append(open, reserved{by.reserve(t, cost).Receipt, cost, resets}), used+cost
		case what < 8 && len(open) > 0:
			settle(random.IntN(len(open)))
		case what == 8:
			cost := random.Int64N(30)
			require.Equal(t, http.StatusOK, by.do(t, http.MethodPost, "/v1/charge", fmt.Sprintf(`{"policy":"llm","client":"team-a","cost":%d}`, cost)).Code)
			used += cost
		case what == 9 && random.IntN(2) == 0:
			reload(by, changedAtRandom(limit, random))
		case what == 9 && resets < 2:
			resets++
			now += time.Second
			s.clock.at(now)
			require.Equal(t, http.StatusNoContent, by.do(t, http.MethodDelete, "/v1/policies/llm/clients/team-a", "").Code)
			used = 0
			now += 3 * time.Second // all know of it, and give back again
			s.clock.at(now)
		}
	}
	for len(open) > 0 {
		settle(0)
	}
	if drains := limit.Algorithm == "token_bucket" || limit.Algorithm == "leaky_bucket"; !drains {
		s.clock.at(now + time.Second) // by then all instances know
	}
	for _, by := range instances {
		by.tells()
	}
	for _, by := range instances {
		require.EqualValues(t, used, cmp.Or(capacity[by], 2000)-by.remains(t), algorithm)
	}
}

// changedAtRandom returns the limit with other options, by which it counts in the same place.
func changedAtRandom(limit policy.Limit, random *rand.Rand) policy.Limit {
	limit.Limit += random.Int64N(8000)
	switch {
	case drains(limit):
		limit.Burst = limit.Limit + random.Int64N(8000)
	case limit.Entries > 0:
		limit.Entries = 8 << random.IntN(4)
	case limit.SubWindows > 0:
		limit.Estimate = []string{"weighted", "strict"}[random.IntN(2)]
	}
	return limit
}

// newMemcached returns a store on an empty server.
func newMemcached(t *testing.T) telemetry.Store {
	t.Helper()
	return storeOn(t, memcachedtest.Start(t))
}

func storeOn(t *testing.T, server *memcachedtest.Server) telemetry.Store {
	t.Helper()
	store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return store
}

func TestEachAlgorithmOfCostsIsSettled(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for limit := range maps.Values(eachAlgorithm()) {
		names[limit.Algorithm] = true
	}
	assert.Len(t, names, 5)
}

// A charge counts whatever is left, also while its client is blocked.
func TestAChargeOfABlockedClientCounts(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Hour)))
	d, err := s.active.Load().Find("llm")
	require.NoError(t, err)
	key, err := policy.ParseClientKey("team-a")
	require.NoError(t, err)
	d.Override(map[policy.ClientKey]policy.Terms{key: {Blocked: true}})
	r := s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":60,"id":"1"}`)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.True(t, r.Allowed, "the body of a check that was admitted")
	d.Override(nil)
	assert.EqualValues(t, 40, s.remains(t))
}

// A receipt can be settled for as long as its answer says.
func TestAReceiptLastsForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", fixed("tokens", 100, time.Hour))
	p.SettleWithin = time.Second
	s := newService(p)
	s.clock.at(990 * time.Millisecond)
	r := s.reserve(t, 60)
	require.EqualValues(t, 1, r.SettleWithin)
	s.clock.at(1100 * time.Millisecond) // 110 ms later
	assert.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 10).Code)
}
