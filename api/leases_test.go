package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// places returns a limit of how many are under way at once.
func places(name string, limit int64, lease time.Duration) policy.Limit {
	return policy.Limit{Name: name, Algorithm: "concurrency", Limit: limit, Lease: lease, Window: lease, MaxLimit: cas.MaxPlaces}
}

func (s *service) acquire(t require.TestingT) result {
	return s.check(t, `{"policy":"llm","client":"team-a","settle":true}`)
}

func (s *service) renewAt(t require.TestingT, receipt string) result {
	return s.do(t, http.MethodPost, "/v1/renew", fmt.Sprintf(`{"receipt":%q}`, receipt))
}

func (s *service) release(t require.TestingT, receipt string) result {
	return s.do(t, http.MethodPost, "/v1/settle", fmt.Sprintf(`{"receipt":%q}`, receipt))
}

func TestPlacesAreTakenUntilTheyAreReleased(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 2, 30*time.Second)))
	one, two := s.acquire(t), s.acquire(t)
	require.True(t, one.Allowed)
	require.True(t, two.Allowed)
	assert.Equal(t, 22.5, one.RenewWithin)
	assert.Equal(t, `"in-flight";q=2;qu="concurrent-requests"`, one.Header.Get("RateLimit-Policy"))
	s.clock.at(10 * time.Second)
	denied := s.acquire(t)
	assert.False(t, denied.Allowed)
	assert.GreaterOrEqual(t, denied.RetryAfter, 20.05, "the lease of the first, and the clock skew")
	assert.LessOrEqual(t, denied.RetryAfter, 21.925, "and a sixteenth of the lease")
	assert.Empty(t, denied.Receipt)
	assert.Equal(t, http.StatusOK, s.release(t, one.Receipt).Code)
	assert.EqualValues(t, 1, s.remains(t))
	for range 3 {
		assert.Equal(t, http.StatusOK, s.release(t, one.Receipt).Code, "releasing again is harmless")
	}
	assert.EqualValues(t, 1, s.remains(t))
	assert.True(t, s.acquire(t).Allowed, "a place that was freed is there at once")
	assert.False(t, s.acquire(t).Allowed)
	s.clock.at(29 * time.Second)
	assert.Zero(t, s.remains(t))
	s.clock.at(31*time.Second + 925*time.Millisecond)
	assert.EqualValues(t, 1, s.remains(t), "who has died holds no place for longer")
	without := s.check(t, `{"policy":"llm","client":"team-a"}`)
	requireProblem(t, without, http.StatusBadRequest, `needs "settle": true`)
}

func TestALeaseThatIsRenewedGoesOn(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 2, 10*time.Second)))
	receipt := s.acquire(t).Receipt
	s.clock.at(time.Second)
	s.acquire(t)
	for i := range 5 {
		s.clock.at(time.Duration(2+7*i) * time.Second)
		renewed := s.renewAt(t, receipt)
		require.Equal(t, http.StatusOK, renewed.Code, renewed.Body)
		require.Equal(t, 7.5, renewed.RenewWithin)
		require.NotEqual(t, receipt, renewed.Receipt)
		receipt = renewed.Receipt
	}
	s.clock.at(35 * time.Second)
	assert.EqualValues(t, 1, s.remains(t), "the other has ended")
	s.release(t, receipt)
	assert.EqualValues(t, 2, s.remains(t))

	// One that has ended is admitted again if there is room.
	one, two := s.acquire(t).Receipt, s.acquire(t).Receipt
	s.clock.at(50 * time.Second)
	require.Equal(t, http.StatusOK, s.renewAt(t, one).Code)
	require.True(t, s.acquire(t).Allowed)
	lost := s.renewAt(t, two)
	requireProblem(t, lost, http.StatusConflict, "the lease has ended")
	s.clock.at(11 * time.Minute)
	assert.Equal(t, http.StatusGone, s.renewAt(t, two).Code)
	assert.Equal(t, http.StatusBadRequest, s.renewAt(t, "w1.x").Code)
}

// One call ends the lease of a request and settles what it has cost.
func TestALeaseBesideTokens(t *testing.T) {
	t.Parallel()
	held := places("in-flight", 2, time.Minute)
	held.CountsRequests = true
	for _, limits := range [][]policy.Limit{{fixed("tokens", 100, time.Minute), held}, {held, fixed("tokens", 100, time.Minute)}} {
		s := newService(newPolicy("llm", limits...))
		stands := func() map[string]int64 {
			left := make(map[string]int64)
			for _, l := range s.do(t, http.MethodGet, "/v1/policies/llm/clients/team-a", "").Limits {
				left[l.Name] = l.Remaining
			}
			return left
		}
		r := s.reserve(t, 60)
		assert.Equal(t, map[string]int64{"tokens": 40, "in-flight": 1}, stands())
		assert.False(t, s.check(t, `{"policy":"llm","client":"team-a","cost":60,"settle":true}`).Allowed)
		assert.Equal(t, map[string]int64{"tokens": 40, "in-flight": 1}, stands(), "what the tokens deny takes no place")
		s.reserve(t, 10)
		assert.False(t, s.check(t, `{"policy":"llm","client":"team-a","cost":10,"settle":true}`).Allowed)
		assert.Equal(t, map[string]int64{"tokens": 30, "in-flight": 0}, stands(), "what has no place takes no tokens")
		require.Equal(t, http.StatusOK, s.settleAt(t, r.Receipt, 20).Code)
		assert.Equal(t, map[string]int64{"tokens": 70, "in-flight": 1}, stands())
	}
}

func TestSeveralPlacesAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 5, time.Minute)))
	r := s.reserve(t, 3)
	assert.False(t, s.check(t, `{"policy":"llm","client":"team-a","cost":3,"settle":true}`).Allowed)
	s.clock.at(time.Second)
	renewed := s.renewAt(t, r.Receipt)
	require.Equal(t, http.StatusOK, renewed.Code)
	assert.EqualValues(t, 2, s.remains(t))
	s.release(t, renewed.Receipt)
	assert.EqualValues(t, 5, s.remains(t))
}

// What others hold stays theirs, whatever is released twice, late, or was reset.
func TestNoReleaseFreesThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 3, 10*time.Second)))
	twin := newTwin(s, newPolicy("llm", places("in-flight", 3, 10*time.Second)))
	old := s.acquire(t).Receipt
	s.clock.at(5 * time.Second)
	renewed := s.renewAt(t, old).Receipt
	s.clock.at(6 * time.Second)
	other := twin.acquire(t).Receipt
	for _, receipt := range []string{old, renewed} { // of one lease
		s.release(t, receipt)
		assert.EqualValues(t, 2, twin.remains(t))
	}
	require.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/llm/clients/team-a", "").Code)
	s.clock.at(17 * time.Second)
	s.acquire(t)
	twin.release(t, other)
	assert.EqualValues(t, 2, twin.remains(t))
}

// A lower limit throws nobody out.
func TestALowerLimitOfPlaces(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 4, 10*time.Second)))
	var receipts []string
	for range 4 {
		receipts = append(receipts, s.acquire(t).Receipt)
	}
	s.clock.at(time.Second)
	less := newTwin(s, newPolicy("llm", places("in-flight", 2, 10*time.Second)))
	for i := range receipts {
		renewed := less.renewAt(t, receipts[i])
		require.Equal(t, http.StatusOK, renewed.Code, renewed.Body)
		receipts[i] = renewed.Receipt
	}
	for i, receipt := range receipts {
		if i < 3 { // two or more hold a place
			require.False(t, less.acquire(t).Allowed, i)
		}
		less.release(t, receipt)
		require.EqualValues(t, max(0, i-1), less.remains(t))
	}
}

// Of many who ask eight instances at once never more hold a place than there are, fewer than
// one in a thousand is denied as others were faster, and in the end all places are free.
func TestNeverMoreHoldAPlaceThanThereAre(t *testing.T) {
	t.Parallel()
	const limit, callers = 5, 64
	tries := racetest.Some(20)
	for _, on := range []string{"embedded", "memcached"} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			p := func() *policy.Policy { return newPolicy("llm", places("in-flight", limit, time.Minute)) }
			s := newServiceOn(nil, func(*Config) {}, p())
			if on == "memcached" {
				s = newServiceOn(newMemcached(t), func(*Config) {}, p())
			}
			instances := []*service{s}
			for range 7 {
				instances = append(instances, newTwin(s, p()))
			}
			var held, granted atomic.Int64
			var asking sync.WaitGroup
			for i := range callers {
				asking.Go(func() {
					by := instances[i%len(instances)]
					for range tries {
						r := by.acquire(t)
						if !r.Allowed {
							continue
						}
						granted.Add(1)
						if now := held.Add(1); now > limit {
							t.Errorf("%d hold a place", now)
						}
						time.Sleep(100 * time.Microsecond)
						held.Add(-1)
						if i%2 == 0 {
							by = instances[(i+1)%len(instances)]
						}
						if !assert.Equal(t, http.StatusOK, by.release(t, r.Receipt).Code) {
							return
						}
					}
				})
			}
			asking.Wait()
			assert.Greater(t, granted.Load(), int64(callers*tries/20))
			contended := 0
			for _, by := range instances {
				assert.EqualValues(t, limit, by.remains(t))
				contended += by.counted(t, `weir_checks_total{decision="contended",policy="llm"}`)
			}
			assert.Less(t, contended*1000, callers*int(tries))
		})
	}
}

// While the store doesn't answer an instance decides by what it knows, and what it has
// admitted then is there when the store is back.
func TestLeasesWithoutTheStore(t *testing.T) {
	t.Parallel()
	p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 3, time.Minute)) }
	s := newService(p())
	twin := newTwin(s, p())
	before := s.acquire(t).Receipt
	s.store.failWith(counters.ErrUnavailable)
	s.clock.at(time.Second)
	alone := s.acquire(t)
	require.True(t, alone.Allowed && alone.Degraded, alone.Body)
	s.acquire(t)
	require.False(t, s.acquire(t).Allowed)
	s.store.failWith(nil)
	s.clock.at(2 * time.Second)
	require.EqualValues(t, 0, s.remains(t))
	require.EqualValues(t, 0, twin.remains(t))
	for i, receipt := range []string{before, alone.Receipt} {
		require.Equal(t, http.StatusOK, s.release(t, receipt).Code)
		assert.EqualValues(t, i+1, twin.remains(t))
	}
	assert.EqualValues(t, 1, strings.Count(s.acquire(t).Body, `"allowed":true,"limit"`))
}

// Who can't renew its lease while the store is away, and is allowed to go on, releases the
// one that there is.
func TestALeaseThatCouldNotBeRenewed(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", places("in-flight", 1, time.Minute))
	p.OnStoreError = policy.StoreErrorAllow
	s := newService(p)
	receipt := s.acquire(t).Receipt
	s.store.failWith(counters.ErrUnavailable)
	s.clock.at(time.Second)
	renewed := s.renewAt(t, receipt)
	require.Equal(t, http.StatusOK, renewed.Code, renewed.Body)
	s.store.failWith(nil)
	require.Equal(t, http.StatusOK, s.release(t, renewed.Receipt).Code)
	assert.EqualValues(t, 1, s.remains(t))
}

// contendedRenewals are places whose state others always change before a renewal.
type contendedRenewals struct{ counters.Limiter }

func (c contendedRenewals) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if r.Renews != 0 {
		return counters.Decision{Remaining: 1, RetryAfter: time.Millisecond, Contended: true}, nil
	}
	return c.Limiter.Take(ctx, r)
}

// A lease that couldn't be renewed, as others were faster, isn't lost.
func TestARenewalThatIsContendedLosesNoLease(t *testing.T) {
	t.Parallel()
	l, err := cas.NewConcurrency(memory.New(nil), time.Minute, 2, cas.Config{Options: counters.Options{Policy: "llm", Limit: "in-flight"}})
	require.NoError(t, err)
	limit := places("in-flight", 2, time.Minute)
	limit.Limiter = contendedRenewals{l}
	s := newService(newPolicy("llm", limit))
	receipt := s.acquire(t).Receipt
	s.clock.at(time.Second)
	assert.Equal(t, http.StatusServiceUnavailable, s.renewAt(t, receipt).Code, "it goes on, and may be renewed")
}

// Whoever has no answer to a renewal sends it again, to whichever instance, with the receipt that it
// has: that takes no second place, and the lease is released by any of its receipts.
func TestARenewalMayBeSentAgain(t *testing.T) {
	t.Parallel()
	p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 2, 10*time.Second)) }
	s := newServiceOn(newMemcached(t), func(*Config) {}, p())
	twin := newTwin(s, p())
	receipt := s.acquire(t).Receipt
	other := twin.acquire(t)
	require.True(t, other.Allowed)
	for i := range 5 {
		for _, by := range []*service{s, twin, s} {
			s.clock.at(time.Duration(3*i) * time.Second)
			require.Equal(t, http.StatusOK, by.renewAt(t, receipt).Code)
		}
		require.Equal(t, http.StatusOK, twin.renewAt(t, other.Receipt).Code)
		require.Zero(t, s.remains(t))
	}
	twin.release(t, receipt)
	assert.EqualValues(t, 1, s.remains(t))
}

// What comes after its settlement renews nothing: nobody would end that lease.
func TestWhatIsSettledIsNotRenewed(t *testing.T) {
	t.Parallel()
	p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 2, 10*time.Second)) }
	s := newServiceOn(newMemcached(t), func(*Config) {}, p())
	twin := newTwin(s, p())
	old := s.acquire(t).Receipt
	s.clock.at(time.Second)
	renewed := s.renewAt(t, old).Receipt
	require.Equal(t, http.StatusOK, twin.release(t, renewed).Code)
	for _, receipt := range []string{old, renewed} {
		requireProblem(t, s.renewAt(t, receipt), http.StatusConflict, "was settled")
		assert.EqualValues(t, 2, twin.remains(t))
	}
}

// A place is taken, claimed to be settled, and released: each by one operation of the store.
func TestAReleaseReadsNothing(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 2, 10*time.Second)))
	s.release(t, s.acquire(t).Receipt)
	var mu sync.Mutex
	var operations []string
	s.store.onCall(func(_ context.Context, operation, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		operations = append(operations, operation)
		return nil
	})
	r := s.release(t, s.acquire(t).Receipt)
	assert.Equal(t, []string{"swap", "swap", "swap"}, operations)
	assert.Contains(t, r.Body, `"remaining":2`)
}

// Who is blocked while something is under way keeps its place until its lease ends, and
// doesn't hold it for good.
func TestABlockedClientRenewsNothing(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("in-flight", 1, 10*time.Second)))
	receipt := s.acquire(t).Receipt
	s.clock.at(time.Second)
	require.Equal(t, http.StatusOK, s.override(t, "llm", "team-a", `{"blocked":true,"for":"1h"}`).Code)
	requireProblem(t, s.renewAt(t, receipt), http.StatusConflict, "the client is blocked")
	require.Equal(t, http.StatusNoContent, s.endOverride(t, "llm", "team-a").Code)
	s.clock.at(9 * time.Second)
	assert.Equal(t, http.StatusOK, s.renewAt(t, receipt).Code, "it is still held")
}

// A renewal that is refused by one of two limits changes nothing in the other: the caller has
// only the old receipt to end it by.
func TestARefusedRenewalKeepsTheOtherLease(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", places("long", 3, time.Hour), places("short", 1, 10*time.Second)))
	one := s.acquire(t).Receipt
	s.clock.at(20 * time.Second)
	require.True(t, s.acquire(t).Allowed)
	require.Equal(t, http.StatusConflict, s.renewAt(t, one).Code)
	require.EqualValues(t, 1, s.remains(t))
	r := s.release(t, one)
	require.Equal(t, http.StatusOK, r.Code)
	assert.EqualValues(t, 2, s.remains(t), "of the long ones: %s", r.Body)
}

// A lease is lost if it was over and there was no room to renew it; not if a store doesn't
// answer, or others won a race.
func TestARefusedRenewalIsNotLost(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", places("in-flight", 1, 10*time.Second))
	p.OnStoreError = "deny"
	s := newService(p)
	receipt := s.acquire(t).Receipt
	s.clock.at(3 * time.Second)
	s.store.failWith(counters.ErrTimeout)
	require.Equal(t, http.StatusServiceUnavailable, s.renewAt(t, receipt).Code)
	assert.Contains(t, s.do(t, http.MethodGet, "/metrics", "").Body, `weir_leases_total{limit="in-flight",outcome="lost",policy="llm"} 0`+"\n")
}

// Nor if the store doesn't answer, and the instance remembers that the places were others'.
func TestARenewalThatTheStoreCannotDecideIsNotLost(t *testing.T) {
	t.Parallel()
	for _, onError := range []policy.OnStoreError{policy.StoreErrorDeny, policy.StoreErrorLocal, policy.StoreErrorAllow} {
		t.Run(string(onError), func(t *testing.T) {
			t.Parallel()
			p := func() *policy.Policy {
				p := newPolicy("llm", places("in-flight", 1, 10*time.Second))
				p.OnStoreError = onError
				return p
			}
			s := newService(p())
			twin := newTwin(s, p())
			require.Equal(t, http.StatusOK, twin.release(t, s.acquire(t).Receipt).Code)
			s.clock.at(time.Second)
			receipt := twin.acquire(t).Receipt
			s.clock.at(3 * time.Second)
			s.store.failWith(counters.ErrTimeout)
			require.Equal(t, http.StatusServiceUnavailable, s.renewAt(t, receipt).Code)
			s.store.failWith(nil)
			assert.Equal(t, http.StatusOK, s.renewAt(t, receipt).Code)
		})
	}
}

// What on_store_error admits takes no place and renews none, so it isn't counted as a lease: it
// never ends.
func TestWhatIsAllowedWithoutTheStoreIsNoLease(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", places("in-flight", 1, 10*time.Second))
	p.OnStoreError = policy.StoreErrorAllow
	s := newService(p)
	receipt := s.acquire(t).Receipt
	s.clock.at(3 * time.Second)
	s.store.failWith(counters.ErrTimeout)
	require.Equal(t, http.StatusOK, s.renewAt(t, receipt).Code)
	require.True(t, s.check(t, `{"policy":"llm","client":"another","settle":true}`).Allowed)
	counted := s.do(t, http.MethodGet, "/metrics", "").Body
	assert.Contains(t, counted, `weir_leases_total{limit="in-flight",outcome="granted",policy="llm"} 1`+"\n")
	assert.Contains(t, counted, `weir_leases_total{limit="in-flight",outcome="renewed",policy="llm"} 0`+"\n")
}

// Who couldn't be given a receipt is told so before anything is counted: nobody could release
// what it holds.
func TestAReceiptThatHasNoRoomIsRefused(t *testing.T) {
	t.Parallel()
	var limits []policy.Limit
	for i := range 13 {
		limits = append(limits, slidingLog(fmt.Sprintf("log%d", i), 9000, time.Minute))
	}
	s := newService(newPolicy("llm", append(limits, places("in-flight", 3, time.Minute))...))
	long := fmt.Sprintf(`{"policy":"llm","client":%q,"settle":true}`, strings.Repeat("n", 1024))
	refused := s.do(t, http.MethodPost, "/v1/check", long)
	assert.Equal(t, http.StatusBadRequest, refused.Code)
	assert.Contains(t, refused.Body, "has room for 12 limits, and \\\"llm\\\" has 14: use a shorter client, or fewer limits")
	assert.NotEmpty(t, s.check(t, `{"policy":"llm","client":"n","settle":true}`).Receipt)
}

// Where denied requests count, those take no places: nobody has a receipt to give them back.
func TestADenialThatCountsTakesNoPlace(t *testing.T) {
	t.Parallel()
	for _, rateFirst := range []bool{true, false} {
		limits := []policy.Limit{places("in-flight", 2, time.Hour), fixed("requests", 1, time.Minute)}
		if rateFirst {
			limits[0], limits[1] = limits[1], limits[0]
		}
		p := newPolicy("llm", limits...)
		p.CountDenied = true
		s := newService(p)
		require.Equal(t, http.StatusOK, s.release(t, s.acquire(t).Receipt).Code)
		for range 2 {
			require.False(t, s.acquire(t).Allowed)
		}
		s.clock.at(time.Minute)
		r := s.acquire(t)
		assert.True(t, r.Allowed, "nothing is under way, and this is the first of its minute: %s", r.Body)
	}
	// Nor do those that another check of the request denies.
	p := newPolicy("llm", places("in-flight", 2, time.Hour))
	p.CountDenied = true
	s := newService(p, newPolicy("other", fixed("requests", 1, time.Hour)))
	for range 2 {
		s.do(t, http.MethodPost, "/v1/check/batch", `{"all":true,"checks":[{"policy":"llm","client":"team-a","settle":true},{"policy":"other","client":"c"},{"policy":"other","client":"c"}]}`)
	}
	assert.EqualValues(t, 2, s.remains(t), "all or none")
}

// What was held until its turn still has its place for as long as the answer says.
func TestAHeldAnswerHasItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := places("in-flight", 1, 12*time.Second)
		queue := newPolicy("llm", leaky("queue", 1, 9*time.Second, 10), held)
		queue.Hold = true
		s := newServiceWith(func(cfg *Config) { cfg.Now = time.Now }, queue)
		require.Equal(t, http.StatusOK, s.release(t, s.acquire(t).Receipt).Code)
		r := s.acquire(t) // 9 s later
		require.True(t, r.Allowed)
		require.Zero(t, r.Wait)
		time.Sleep(time.Duration((r.RenewWithin - 1) * float64(time.Second)))
		other := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"llm","client":"team-a","settle":true}]}`)
		assert.EqualValues(t, http.StatusTooManyRequests, other.Results[0].Status, "the only place is held")
		assert.Equal(t, http.StatusOK, s.renewAt(t, r.Receipt).Code)
	})
}

// Any receipt of a lease renews it and gives it back, also after a reload that changes it.
func TestAReloadOfTheLeaseKeepsEarlierReceipts(t *testing.T) {
	t.Parallel()
	p := func(lease time.Duration) *policy.Policy { return newPolicy("llm", places("in-flight", 2, lease)) }
	for _, renews := range []bool{true, false} {
		s := newService(p(10 * time.Second))
		first := s.acquire(t).Receipt
		s.clock.at(2 * time.Second)
		require.Equal(t, http.StatusOK, s.renewAt(t, first).Code) // the answer is lost
		s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, p(time.Hour)))
		s.clock.at(3 * time.Second)
		if renews {
			require.Equal(t, http.StatusOK, s.renewAt(t, first).Code)
			assert.EqualValues(t, 1, s.remains(t), "it takes no second place")
		}
		require.Equal(t, http.StatusOK, s.release(t, first).Code)
		assert.EqualValues(t, 2, s.remains(t), "renews: %v", renews)
	}
}

// Shadow mode denies nothing: who may go on by a check may go on by a renewal.
func TestShadowModeDeniesNoRenewal(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", places("in-flight", 1, 10*time.Second))
	p.Shadow = true
	s := newService(p)
	late := s.acquire(t)
	require.NotEmpty(t, late.Receipt)
	s.clock.at(12 * time.Second)
	require.NotEmpty(t, s.acquire(t).Receipt, "another has the place")
	require.True(t, s.acquire(t).Allowed)
	assert.Equal(t, http.StatusOK, s.renewAt(t, late.Receipt).Code)
}

// A receipt without a lease, as the store didn't say whether there is a place, needs no renewal.
func TestAReceiptWithoutALeaseIsNotToBeRenewed(t *testing.T) {
	t.Parallel()
	p := newPolicy("llm", fixed("tokens", 100, time.Minute), places("in-flight", 3, time.Minute))
	p.OnStoreError = policy.StoreErrorAllow
	s := newService(p)
	s.store.onCall(func(_ context.Context, operation, _ string) error {
		if operation == "swap" || operation == "load" { // the server of the places is gone
			return counters.ErrUnavailable
		}
		return nil
	})
	r := s.acquire(t)
	require.NotEmpty(t, r.Receipt)
	assert.Zero(t, r.RenewWithin, r.Body)
}

// A check that costs nothing takes no place, so it isn't told to renew one.
func TestACheckWithoutACostHasNoLease(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute), places("in-flight", 3, time.Minute)))
	r := s.check(t, `{"policy":"llm","client":"team-a","cost":0,"settle":true}`)
	require.NotEmpty(t, r.Receipt)
	assert.Zero(t, r.RenewWithin, r.Body)
	requireProblem(t, s.renewAt(t, r.Receipt), http.StatusBadRequest, "has no lease")
	assert.Contains(t, s.settleAt(t, r.Receipt, 7).Body, `"charged":7`)
}

// Who counts tokens and what is under way in one policy learns why a cost is above the places.
func TestACostAboveThePlacesSaysWhatHelps(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("llm", fixed("tokens", 100, time.Minute), places("in-flight", 3, time.Minute)))
	r := s.check(t, `{"policy":"llm","client":"team-a","cost":60,"settle":true}`)
	requireProblem(t, r, http.StatusBadRequest, "cost 60 is above the limit \"in-flight\", which is 3, and can never be admitted; with counts: requests a check takes one place, whatever it costs")
}

// What was settled isn't renewed in shadow mode either, whether there is room or not.
func TestWhatIsSettledIsNotRenewedInShadowMode(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		p := newPolicy("llm", places("in-flight", 1, 10*time.Second))
		p.Shadow = true
		s := newService(p)
		receipt := s.acquire(t).Receipt
		s.clock.at(time.Second)
		require.Equal(t, http.StatusOK, s.release(t, receipt).Code)
		if taken {
			require.NotEmpty(t, s.acquire(t).Receipt)
		}
		r := s.renewAt(t, receipt)
		assert.Equal(t, http.StatusConflict, r.Code, "taken by another: %v, %s", taken, r.Body)
	}
}
