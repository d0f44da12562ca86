package api

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

// anInstance returns one more instance on a store, which knows nothing yet, at the time of
// clock.
func anInstance(on telemetry.Store, clock *clock, p *policy.Policy) *service {
	return way{many: true}.newServiceOn(on, func(cfg *Config) { cfg.Now = clock.now }, p)
}

// tells has the store told what s has given back, which it would be a moment later.
func (s *service) tells() {
	for _, p := range s.active.Load().policies {
		for l := range p.EachLimit() {
			l.Limiter.(interface{ Flush() }).Flush()
		}
	}
}

// dies has everything that s asks of the store from now on fail, but for the first n
// operations. It returns whether that has happened.
func (s *service) dies(n int64) (dead func() bool) {
	var asked atomic.Int64
	s.store.onCall(func(context.Context, string, string) error {
		if asked.Add(1) > n {
			return counters.ErrUnavailable
		}
		return nil
	})
	return func() bool { return asked.Load() > n }
}

// An instance dies before each step of a settlement, be it the one that has admitted the
// check or another. What counts afterwards is what was used, or the estimate, and no more
// is given back if the receipt is settled again elsewhere.
func TestAnInstanceDiesWhileItSettles(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on := newMemcached(t)
		for _, admitsItself := range []bool{true, false} {
			steps := int64(0)
			for dead := true; dead; steps++ {
				now, client := &clock{time: epoch}, fmt.Sprintf("team-%v-%d", admitsItself, steps)
				instance := func() *service { return anInstance(on, now, newPolicy("llm", limit)) }
				dying, survivor := instance(), instance()
				by := survivor
				if admitsItself {
					by = dying
				}
				receipt, other := by.reserveFor(t, client, 60).Receipt, survivor.reserveFor(t, client, 30).Receipt
				now.at(time.Second)
				died := dying.dies(steps)
				dying.settleAt(t, receipt, 18)
				dying.tells()
				dead = died()

				requireUsed := func(least, most int64) {
					t.Helper()
					if drains(limit) {
						least -= 2 // in a second, rounded up
					}
					stands := instance().do(t, http.MethodGet, "/v1/policies/llm/clients/"+client, "")
					used := 100 - stands.Limits[0].Remaining
					require.GreaterOrEqual(t, used, least, "it died after %d steps", steps)
					require.LessOrEqual(t, used, most, "it died after %d steps", steps)
				}
				requireUsed(48, 90)
				if !dead {
					requireUsed(48, 48)
				}
				for receipt, cost := range map[string]int64{receipt: 18, other: 30} {
					require.Equal(t, http.StatusOK, survivor.settleAt(t, receipt, cost).Code)
					survivor.tells()
					requireUsed(48, 90)
				}
			}
			assert.Greater(t, steps, int64(2), "a claim, and what it gives back")
		}
	})
}

// reserveFor asks for a cost of a client's that is to be settled.
func (s *service) reserveFor(t *testing.T, client string, cost int64) result {
	t.Helper()
	return s.check(t, fmt.Sprintf(`{"policy":"llm","client":%q,"cost":%d,"settle":true}`, client, cost))
}

// drains reports whether what a limit has counted drains with time.
func drains(limit policy.Limit) bool {
	return limit.Algorithm == "token_bucket" || limit.Algorithm == "leaky_bucket"
}

// What one instance gives back all can admit a second later, however long ago the slot has
// been closed in which it was counted, and no more than that.
func TestWhatIsGivenBackIsSeenByAllWithinASecond(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		var instances []*service
		for range 3 {
			instances = append(instances, anInstance(on, now, newPolicy("llm", limit)))
		}
		most := 58
		if drains(limit) {
			most = 1
		}
		for age := range most {
			settles := time.Duration(age)*time.Second + 500*time.Millisecond
			client := fmt.Sprintf("team-%d", age)
			now.at(0)
			receipt := instances[age%3].reserveFor(t, client, 60).Receipt
			require.True(t, instances[(age+1)%3].reserveFor(t, client, 30).Allowed)
			now.at(settles - 100*time.Millisecond)
			for _, by := range instances {
				require.False(t, by.reserveFor(t, client, 50).Allowed, "all know what is in use")
			}
			now.at(settles)
			by := instances[age/3%3]
			require.Equal(t, http.StatusOK, by.settleAt(t, receipt, 0).Code)
			by.tells()
			now.at(settles + time.Second)
			for i, cost := range []int64{23, 23, 24} {
				require.True(t, instances[i].reserveFor(t, client, cost).Allowed, "instance %d, %v after it was counted", i, settles)
			}
			if !drains(limit) {
				for _, by := range instances {
					require.False(t, by.reserveFor(t, client, 1).Allowed, "%v after it was counted", settles)
				}
			}
		}
	})
}

// Receipts take nothing of an instance, and of Memcached no longer than they can be
// settled.
func TestReceiptsLeaveNothingBehind(t *testing.T) {
	racetest.Sequential(t)
	const receipts, batch = 1000, 250
	server := memcachedtest.Start(t)
	p := newPolicy("llm", sliding("slots", 1e9, time.Second, 10, "weighted"), token("bucket", 1e9, time.Second, 0), places("in-flight", 1000, time.Second))
	p.SettleWithin = time.Second
	s := newServiceOn(storeOn(t, server), func(*Config) {}, p)
	settle := func(n int) {
		for range n / batch {
			checks, settlements := make([]string, batch), make([]string, batch)
			for i := range checks {
				checks[i] = fmt.Sprintf(`{"policy":"llm","client":"team-%d","cost":3,"settle":true}`, i)
			}
			for i, r := range s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`).Results {
				require.NotEmpty(t, r.Receipt)
				settlements[i] = fmt.Sprintf(`{"receipt":%q,"cost":%d}`, r.Receipt, i%5)
			}
			for _, r := range s.do(t, http.MethodPost, "/v1/settle/batch", `{"settlements":[`+strings.Join(settlements, ",")+`]}`).Results {
				require.EqualValues(t, http.StatusOK, r.Status)
			}
		}
	}
	live := func() int64 {
		s.store.keys, s.store.deadlines = make(map[string]bool), nil // which the test has remembered
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools hold is gone after two
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	settle(5 * receipts) // then it has most of what it keeps for clients and connections
	const most = 80      // bytes of a receipt
	var settled, grown int64
	for before := live(); settled < 100*receipts; { // buffers come and go by the megabyte, what receipts leave adds up
		settle(receipts)
		settled += receipts
		if grown = live() - before; grown < most*settled {
			break
		}
	}
	assert.Less(t, grown, most*settled, "bytes of %d receipts", settled)
	assert.Greater(t, server.Stat("total_items"), int64(receipts))
	t.Parallel()
	require.Eventually(t, func() bool {
		server.Do("lru_crawler crawl all", "OK", "BUSY") // else it looks for what has expired once a minute
		return server.Stat("curr_items") == 0
	}, time.Minute, 100*time.Millisecond)
}

// While nobody uses more than it has reserved, no window has more in it, in the end, than the
// limit, whichever of three instances reserve and settle at once.
func TestNoWindowHasMoreThanItsLimitInTheEnd(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		var instances []*service
		for range 3 {
			instances = append(instances, anInstance(on, now, newPolicy("llm", limit)))
		}
		type used struct {
			at   time.Duration
			cost int64
		}
		var mu sync.Mutex
		var all []used
		for step := range racetest.Some(60) {
			at := time.Duration(step) * 2900 * time.Millisecond
			now.at(at)
			var asking sync.WaitGroup
			for i := range 12 {
				random := rand.New(rand.NewPCG(step, uint64(i)))
				asking.Go(func() {
					estimate := 1 + random.Int64N(40)
					r := instances[i%3].check(t, fmt.Sprintf(`{"policy":"llm","client":"team-a","cost":%d,"settle":true}`, estimate))
					if !r.Allowed {
						return
					}
					cost := random.Int64N(estimate + 1)
					if assert.Equal(t, http.StatusOK, instances[random.IntN(3)].settleAt(t, r.Receipt, cost).Code) {
						mu.Lock()
						defer mu.Unlock()
						all = append(all, used{at, cost})
					}
				})
			}
			asking.Wait()
		}
		var total int64
		for _, last := range all {
			total += last.cost
			var sum int64
			for _, u := range all {
				in := u.at <= last.at && u.at > last.at-time.Minute
				if name == "fixed" { // of the calendar
					in = u.at/time.Minute == last.at/time.Minute
				}
				if in {
					sum += u.cost
				}
			}
			most := int64(100)
			if name == "sliding" || drains(limit) { // twice, as docs/PROMISES.md says
				most = 200
			}
			require.LessOrEqual(t, sum, most, "in the window that ends at %v", last.at)
		}
		require.Greater(t, total, int64(racetest.Some(200)), "and much is admitted meanwhile")
	})
}

// usedOf returns how much of 100 a client has in use, as an instance finds it that knows
// nothing but what Memcached has.
func usedOf(t *testing.T, on telemetry.Store, now *clock, limit policy.Limit, client string) int64 {
	t.Helper()
	stands := anInstance(on, now, newPolicy("llm", limit)).do(t, http.MethodGet, "/v1/policies/llm/clients/"+client, "")
	require.Equal(t, http.StatusOK, stands.Code, stands.Body)
	return limit.Limit - stands.Limits[0].Remaining
}

// What is settled when its slot has left the window changes nothing of what has come since.
func TestASettlementOfASlotThatHasLeft(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		instances := []*service{anInstance(on, now, newPolicy("llm", limit)), anInstance(on, now, newPolicy("llm", limit))}
		for i, by := range append(instances, anInstance(on, now, newPolicy("llm", limit))) {
			client := fmt.Sprintf("team-%d", i)
			now.at(0)
			receipt := instances[0].reserveFor(t, client, 60).Receipt
			now.at(3 * time.Minute)
			require.True(t, instances[1].reserveFor(t, client, 30).Allowed)
			require.EqualValues(t, 30, usedOf(t, on, now, limit, client))
			require.Equal(t, http.StatusOK, by.settleAt(t, receipt, 0).Code)
			by.tells()
			require.EqualValues(t, 30, usedOf(t, on, now, limit, client))
			for _, other := range instances {
				require.True(t, other.reserveFor(t, client, 35).Allowed)
			}
			require.False(t, instances[i%2].reserveFor(t, client, 1).Allowed)
		}
	})
}

// A denial's Retry-After is true, whatever is settled before it and after, if less was used
// than was reserved and nobody else asks.
func TestRetryAfterBesideSettlements(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		var instances []*service
		for range 2 {
			instances = append(instances, anInstance(on, now, newPolicy("llm", limit)))
		}
		denials := 0
		for seed := range uint64(60) {
			random := rand.New(rand.NewPCG(seed, 28))
			client, at := fmt.Sprintf("team-%d", seed), time.Duration(random.Int64N(int64(time.Minute)))
			type reserved struct {
				receipt string
				cost    int64
			}
			var open []reserved
			settle := func() {
				i := random.IntN(len(open))
				require.Equal(t, http.StatusOK, instances[random.IntN(2)].settleAt(t, open[i].receipt, random.Int64N(open[i].cost+1)).Code)
				open = append(open[:i], open[i+1:]...)
			}
			for range 12 {
				now.at(at)
				by := instances[random.IntN(2)]
				cost := 10 + random.Int64N(50)
				r := by.reserveFor(t, client, cost)
				switch {
				case r.Allowed:
					open = append(open, reserved{r.Receipt, cost})
				default:
					denials++
					if len(open) > 0 && random.IntN(2) == 0 {
						settle()
					}
					if at += r.retry(); random.IntN(2) == 0 && len(open) > 0 { // late, before it asks again
						now.at(at)
						settle()
					}
					now.at(at)
					again := by.reserveFor(t, client, cost)
					require.True(t, again.Allowed, "seed %d: %s, after %v: %s", seed, r.Body, r.retry(), again.Body)
					open = append(open, reserved{again.Receipt, cost})
				}
				if len(open) > 0 && random.IntN(3) == 0 {
					settle()
				}
				at += time.Duration(random.Int64N(int64(8 * time.Second)))
			}
		}
		require.Greater(t, denials, 60)
	})
}

// While some use more than they have reserved, nobody is admitted beside that: whoever is, on
// whichever of three instances, the window has no more in it than the limit, of estimates that are
// still under way and of what was used. So the limit is passed by no more than what those that are
// under way then use beyond their estimates.
func TestWhatIsUsedBeyondTheEstimateIsInTheWay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		var instances []*service
		for range 3 {
			instances = append(instances, anInstance(on, now, newPolicy("llm", limit)))
		}
		type used struct {
			at   time.Duration
			cost int64
		}
		type reserved struct {
			receipt string
			*used
		}
		var all []*used // in order
		var open []reserved
		random := rand.New(rand.NewPCG(28, 2))
		admitted, over := 0, 0
		for step := range racetest.Some(400) {
			at := time.Duration(step) * 700 * time.Millisecond
			now.at(at)
			by := instances[random.IntN(3)]
			if len(open) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(open))
				o := open[i]
				open = append(open[:i], open[i+1:]...)
				cost := random.Int64N(3 * o.cost)
				require.Equal(t, http.StatusOK, by.settleAt(t, o.receipt, cost).Code)
				if by.tells(); cost > o.cost {
					over++
					all = append(all, &used{at, cost - o.cost})
				} else {
					o.cost = cost
				}
				continue
			}
			estimate := 1 + random.Int64N(20)
			r := by.reserveFor(t, "team-a", estimate)
			if !r.Allowed {
				continue
			}
			admitted++
			all = append(all, &used{at, estimate})
			open = append(open, reserved{r.Receipt, all[len(all)-1]})
			var sum, level float64
			last := time.Duration(0)
			for _, u := range all {
				in := u.at > at-time.Minute
				if name == "fixed" { // of the calendar
					in = u.at/time.Minute == at/time.Minute
				}
				if in {
					sum += float64(u.cost)
				}
				level = max(0, level-100*(u.at-last).Minutes()) + float64(u.cost)
				last = u.at
			}
			switch {
			case drains(limit):
				require.LessOrEqual(t, level, 101.0, "at %v", at) // a part of one is rounded
			case name != "sliding": // of the oldest slot that has only a part
				require.LessOrEqual(t, sum, 100.0, "at %v", at)
			}
		}
		assert.Greater(t, admitted, int(racetest.Some(400))/20)
		assert.Greater(t, over, 0)
	})
}

// Who reserves and never settles gets the estimates back when they leave the window.
func TestWhatIsNeverSettledLeavesTheWindow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		limit.Limit = 10_000
		instances := []*service{anInstance(on, now, newPolicy("llm", limit)), anInstance(on, now, newPolicy("llm", limit))}
		for i := range 10 {
			checks := slices.Repeat([]string{`{"policy":"llm","client":"team-a","settle":true}`}, 1000)
			for _, r := range instances[i%2].do(t, http.MethodPost, "/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`).Results {
				require.NotEmpty(t, r.Receipt)
			}
			now.set(now.now().Add(time.Millisecond))
		}
		require.False(t, instances[0].reserveFor(t, "team-a", 100).Allowed)
		now.at(3 * time.Minute)
		for _, by := range instances {
			require.True(t, by.reserveFor(t, "team-a", 5000).Allowed)
		}
	})
}

// If Memcached loses that a receipt was settled, what was given back is given back again, and no
// more than that.
func TestASettlementThatMemcachedForgets(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		s := anInstance(on, now, newPolicy("llm", limit))
		receipt := s.reserveFor(t, "team-a", 30).Receipt
		require.True(t, s.reserveFor(t, "team-a", 50).Allowed)
		require.Equal(t, http.StatusOK, s.settleAt(t, receipt, 10).Code)
		s.tells()
		s.store.mu.Lock()
		claims := slices.DeleteFunc(slices.Collect(maps.Keys(s.store.keys)), func(key string) bool { return !strings.HasPrefix(key, "weir:llm/-:") })
		s.store.mu.Unlock()
		require.Len(t, claims, 1)
		require.NoError(t, on.Delete(t.Context(), claims))
		again := s.settleAt(t, receipt, 10)
		require.Equal(t, http.StatusOK, again.Code)
		assert.False(t, again.Already)
		s.tells()
		assert.EqualValues(t, 10+50-20, usedOf(t, on, now, limit, "team-a"))
		assert.True(t, s.settleAt(t, receipt, 0).Already)
	})
}

// The longest name of a client has a receipt as any other, which is settled, and so it is
// with every algorithm in one policy.
func TestReceiptsOfLongNames(t *testing.T) {
	t.Parallel()
	var limits []policy.Limit
	for name, limit := range eachAlgorithm() {
		limit.Name = name
		limits = append(limits, limit)
	}
	held := places("in-flight", 2, time.Minute)
	held.CountsRequests = true
	on, now := newMemcached(t), &clock{time: epoch}
	s, other := anInstance(on, now, newPolicy("llm", append(limits, held)...)), anInstance(on, now, newPolicy("llm", append(limits, held)...))
	for _, client := range []string{strings.Repeat("n", 1024), strings.Repeat("é", 512)} {
		r := s.reserveFor(t, client, 60)
		require.True(t, r.Allowed)
		require.NotEmpty(t, r.Receipt)
		require.LessOrEqual(t, len(r.Receipt), 2048)
		renewed := other.renewAt(t, r.Receipt)
		require.Equal(t, http.StatusOK, renewed.Code)
		settled := other.settleAt(t, renewed.Receipt, 10)
		require.Equal(t, http.StatusOK, settled.Code, settled.Body)
		assert.Len(t, settled.Limits, len(limits)+1)
		now.set(now.now().Add(time.Second))
		for _, cost := range []int64{80, 10} {
			require.True(t, s.reserveFor(t, client, cost).Allowed)
		}
		require.False(t, s.reserveFor(t, client, 10).Allowed)
	}
}

// The largest cost that there is denies the client for as long as its algorithm remembers,
// on all instances, and no sum overflows.
func TestTheLargestCostIsCharged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		instances := []*service{anInstance(on, now, newPolicy("llm", limit)), anInstance(on, now, newPolicy("llm", limit))}
		for i := range 4 { // 4 * 10^9
			r := instances[i%2].check(t, `{"policy":"llm","client":"team-a","cost":0,"settle":true}`)
			if i == 0 {
				require.True(t, r.Allowed)
			}
			if r.Receipt != "" {
				settled := instances[(i+1)%2].settleAt(t, r.Receipt, 1e9)
				require.Equal(t, http.StatusOK, settled.Code)
				require.Contains(t, settled.Body, `"remaining":0`)
			}
			require.Equal(t, http.StatusOK, instances[i%2].do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":1000000000}`).Code)
		}
		for _, by := range append(instances, anInstance(on, now, newPolicy("llm", limit))) {
			now.set(now.now().Add(time.Second))
			r := by.reserveFor(t, "team-a", 1)
			require.False(t, r.Allowed)
			require.Positive(t, r.RetryAfter)
			require.Equal(t, http.StatusOK, by.do(t, http.MethodGet, "/v1/policies/llm/clients/team-a", "").Code)
		}
		now.at(3 * time.Minute)
		for _, by := range append(instances, anInstance(on, now, newPolicy("llm", limit))) {
			require.Equal(t, !drains(limit), by.reserveFor(t, "team-a", 1).Allowed, "what is above a bucket drains first")
		}
	})
}

// A client that always says 1 and uses more is held to its rate all the same.
func TestAnEstimateThatIsAlwaysOne(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		instances := []*service{anInstance(on, now, newPolicy("llm", limit)), anInstance(on, now, newPolicy("llm", limit))}
		const each, minutes = 250, 20
		var used int64
		for second := range minutes * 60 {
			now.at(time.Duration(second) * time.Second)
			r := instances[second%2].reserveFor(t, "team-a", 1)
			if !r.Allowed {
				continue
			}
			require.Equal(t, http.StatusOK, instances[second/2%2].settleAt(t, r.Receipt, each).Code)
			used += each
		}
		// Windows forget what was above them; a bucket doesn't.
		most := int64(each * (minutes + 1))
		if drains(limit) {
			most = 100*(minutes+1) + each
		}
		assert.LessOrEqual(t, used, most)
		assert.GreaterOrEqual(t, used, most/3)
	})
}

// Whoever settles by a clock that is a minute off gives back no more than was reserved, and
// nothing of others.
func TestASettlementByAWrongClock(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on := newMemcached(t)
		for name, off := range map[string]time.Duration{"ahead": time.Minute, "behind": -time.Minute} {
			for _, knows := range []bool{true, false} {
				now, wrong := &clock{time: epoch}, &clock{time: epoch.Add(off)}
				client := fmt.Sprintf("%s-%v", name, knows)
				right, by := anInstance(on, now, newPolicy("llm", limit)), anInstance(on, wrong, newPolicy("llm", limit))
				receipt := right.reserveFor(t, client, 60).Receipt
				if knows {
					require.Equal(t, http.StatusOK, by.do(t, http.MethodGet, "/v1/policies/llm/clients/"+client, "").Code)
				}
				require.True(t, right.reserveFor(t, client, 30).Allowed)
				now.at(time.Second)
				wrong.at(time.Second + off)
				settled := by.settleAt(t, receipt, 18)
				require.Equal(t, http.StatusOK, settled.Code, settled.Body)
				by.tells()
				now.at(2 * time.Second)
				used := usedOf(t, on, now, limit, client)
				least := int64(48)
				if drains(limit) {
					least -= 4
				}
				assert.GreaterOrEqual(t, used, least, client)
				assert.LessOrEqual(t, used, int64(90), client)
				require.True(t, by.settleAt(t, receipt, 0).Already)
				require.Equal(t, used, usedOf(t, on, now, limit, client))
			}
		}
	})
}

// A policy that has another window when a receipt is settled counts elsewhere by then, and
// is left alone; when it has the old one again, the settlement was the only one.
func TestASettlementAfterAReloadWithAnotherWindow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		on, now := newMemcached(t), &clock{time: epoch}
		s := anInstance(on, now, newPolicy("llm", limit))
		reload := func(limit policy.Limit) {
			s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("llm", limit)))
		}
		longer := limit
		longer.Window = time.Hour
		receipt, kept := s.reserveFor(t, "team-a", 60).Receipt, s.reserveFor(t, "team-a", 30).Receipt
		reload(longer)
		before := usedOf(t, on, now, longer, "team-a")
		require.True(t, s.reserveFor(t, "team-a", 5).Allowed)
		settled := s.settleAt(t, receipt, 10)
		require.Equal(t, http.StatusOK, settled.Code, settled.Body)
		assert.Empty(t, settled.Limits)
		assert.Equal(t, before+5, usedOf(t, on, now, longer, "team-a"))
		reload(limit)
		assert.True(t, s.settleAt(t, receipt, 10).Already)
		settled = s.settleAt(t, kept, 10)
		assert.Contains(t, settled.Body, `"refunded":20`)
	})
}

// A log has entries or none, as its limit is raised or lowered, and reads the same state.
func TestASettlementAfterAReloadOfEntries(t *testing.T) {
	t.Parallel()
	all := eachAlgorithm()
	for _, reload := range []struct{ before, after string }{{"log", "counting"}, {"counting", "log"}} {
		on, now := newMemcached(t), &clock{time: epoch.Add(time.Nanosecond)}
		s := anInstance(on, now, newPolicy("llm", all[reload.before]))
		receipt := s.reserveFor(t, "team-a", 60).Receipt
		now.at(10 * time.Millisecond) // by which the entry before is closed
		other := s.reserveFor(t, "team-a", 10).Receipt
		after := all[reload.after]
		s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, newPolicy("llm", after)))
		settled := s.settleAt(t, receipt, 10)
		require.Equal(t, http.StatusOK, settled.Code, settled.Body)
		assert.Contains(t, settled.Body, `"refunded":50,"charged":0`)
		s.tells()
		assert.EqualValues(t, 20, usedOf(t, on, now, after, "team-a"), reload)
		assert.Contains(t, s.settleAt(t, other, 15).Body, `"refunded":0,"charged":5`)
		assert.EqualValues(t, 25, usedOf(t, on, now, after, "team-a"), reload)
	}
}

// What an exact log is charged counts in full, be it more than the log may admit, and so it does
// when a higher limit has made it one with entries.
func TestAnExactLogIsChargedInFull(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	higher := countingLog("tokens", 100_000, time.Minute, 64)
	s := anInstance(on, now, newPolicy("llm", slidingLog("tokens", 100, time.Minute)))
	settled := s.settleAt(t, s.reserveFor(t, "team-a", 60).Receipt, 30_000)
	assert.Contains(t, settled.Body, `"charged":29940,"remaining":0`)
	require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/charge", `{"policy":"llm","client":"team-a","cost":20000}`).Code)
	assert.EqualValues(t, 50_000, usedOf(t, on, now, higher, "team-a"))
}

// After a restart of Memcached a settlement makes no count negative, be it settled by the
// instance that has admitted the check or by one that knows nothing, and takes nothing away
// that others have counted since.
func TestASettlementAfterARestart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string, limit policy.Limit) {
		server, now := memcachedtest.Start(t), &clock{time: epoch}
		on := storeOn(t, server)
		instance := func() *service { return anInstance(on, now, newPolicy("llm", limit)) }
		clients := []string{"by-itself", "by-another", "by-a-new-one"}
		admits, other := instance(), instance()
		receipts := make(map[string]string)
		for _, client := range clients {
			r := admits.reserveFor(t, client, 60)
			require.True(t, r.Allowed)
			receipts[client] = r.Receipt
		}
		server.Kill()
		server.Restart()
		now.at(time.Second)
		for _, client := range clients {
			require.Eventually(t, func() bool { // its connections are closed yet
				r := other.reserveFor(t, client, 30)
				return r.Allowed && !r.Degraded
			}, time.Minute, time.Millisecond)
		}
		before := make(map[string]int64)
		for _, client := range clients {
			before[client] = usedOf(t, on, now, limit, client)
			require.GreaterOrEqual(t, before[client], int64(30))
		}
		for client, by := range map[string]*service{"by-itself": admits, "by-another": other, "by-a-new-one": instance()} {
			require.Eventually(t, func() bool {
				return by.settleAt(t, receipts[client], 0).Code == http.StatusOK
			}, time.Minute, time.Millisecond)
			by.tells()
			now.set(now.now().Add(time.Second))
			used := usedOf(t, on, now, limit, client)
			assert.LessOrEqual(t, used, before[client], client)
			least := int64(30)
			if drains(limit) {
				least -= 5
			}
			assert.GreaterOrEqual(t, used, least, client)
			assert.True(t, instance().reserveFor(t, client, 100-used).Allowed, client)
			assert.False(t, instance().reserveFor(t, client, 1).Allowed, "%s: no more than the limit", client)
		}
	})
}
