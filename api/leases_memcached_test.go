package api

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

// Whatever was taken and released, the item of a client is as small in the end as an empty
// one, and Memcached forgets it.
func TestReleasedPlacesLeaveAnEmptyItem(t *testing.T) {
	racetest.Sequential(t)
	server, now := memcachedtest.Start(t), &clock{time: epoch}
	on := storeOn(t, server)
	var instances []*service
	for range 3 {
		p := newPolicy("llm", places("in-flight", 8, time.Second))
		p.SettleWithin = time.Second
		instances = append(instances, anInstance(on, now, p))
	}
	var open []string
	for i := range 1000 {
		now.set(now.now().Add(time.Millisecond))
		r := instances[i%3].acquire(t)
		require.True(t, r.Allowed)
		if open = append(open, r.Receipt); len(open) == 8 || i == 999 {
			for j, receipt := range open {
				require.Equal(t, http.StatusOK, instances[(i+j)%3].release(t, receipt).Code)
			}
			open = nil
		}
	}
	state, err := on.Load(t.Context(), "weir:llm/in-flight:concurrency:team-a")
	require.NoError(t, err)
	require.True(t, state.Exists())
	assert.Less(t, len(state.Value), 32, "a mark that something was given back, and no lease: %x", state.Value)
	for _, by := range instances {
		assert.EqualValues(t, 8, by.remains(t))
	}
	t.Parallel() // the others run while time passes, however late this one goes on
	require.Eventually(t, func() bool {
		server.Do("lru_crawler crawl all", "OK", "BUSY")
		return server.Stat("curr_items") == 0
	}, time.Minute, 100*time.Millisecond)
}

// Memcached loses everything again and again while many take places and release them. Not
// more hold one than each instance thinks there are, and one lease later all are free.
func TestPlacesOutliveWhatMemcachedLoses(t *testing.T) {
	t.Parallel()
	const limit, lease = 5, 16 * time.Second
	server, now := memcachedtest.Start(t), &clock{time: epoch}
	on := storeOn(t, server)
	var instances []*service
	for range 3 {
		instances = append(instances, anInstance(on, now, newPolicy("llm", places("in-flight", limit, lease))))
	}
	var held, granted atomic.Int64
	for step := 0; step < 15 || step < 150 && granted.Load() <= 10*limit; step++ { // on a busy machine most are denied
		now.set(now.now().Add(time.Second))
		var asking sync.WaitGroup
		for i := range 12 {
			asking.Go(func() {
				for j := range int(racetest.Some(10)) {
					r := instances[i%3].acquire(t)
					if !r.Allowed {
						continue
					}
					granted.Add(1)
					assert.LessOrEqual(t, held.Add(1), int64(limit*len(instances)))
					assert.LessOrEqual(t, r.Limits[0].Remaining, int64(limit-1))
					if i == 0 && j%3 == 0 {
						server.Do("flush_all", "OK")
					}
					held.Add(-1)
					if step%3 > 0 || i > 0 || j > 0 { // else it is never released
						assert.Equal(t, http.StatusOK, instances[(i+j)%3].release(t, r.Receipt).Code)
					}
				}
			})
		}
		asking.Wait()
		for _, by := range instances {
			left := by.remains(t)
			require.GreaterOrEqual(t, left, int64(0))
			require.LessOrEqual(t, left, int64(limit))
		}
	}
	assert.Greater(t, granted.Load(), int64(10*limit))
	now.set(now.now().Add(lease + lease/16 + 50*time.Millisecond))
	for _, by := range instances {
		require.EqualValues(t, limit, by.remains(t))
	}
	for i := range limit {
		require.True(t, instances[i%3].acquire(t).Allowed)
	}
	require.False(t, instances[0].acquire(t).Allowed)
}

// A denial by the rate or by the places leaves the other as it was, whichever is asked
// first and on whichever instance.
func TestARateAndPlacesDenySideBySide(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	each(t, func(t *testing.T, _ string, limit policy.Limit) {
		held := places("in-flight", 2, time.Minute)
		held.CountsRequests = true
		for i, limits := range [][]policy.Limit{{limit, held}, {held, limit}} {
			on, now := newMemcached(t), &clock{time: epoch}
			instances := []*service{anInstance(on, now, newPolicy("llm", limits...)), anInstance(on, now, newPolicy("llm", limits...))}
			requireLeft := func(tokens, inFlight int64) {
				t.Helper()
				// One that knows nothing reads what is there.
				stands := anInstance(on, now, newPolicy("llm", limits...)).do(t, http.MethodGet, "/v1/policies/llm/clients/team-a", "")
				require.Equal(t, tokens, stands.Limits[i].Remaining)
				require.Equal(t, inFlight, stands.Limits[1-i].Remaining)
			}
			one := instances[0].reserveFor(t, "team-a", 60)
			require.True(t, one.Allowed)
			for j := range 4 { // remembered or not
				require.False(t, instances[j%2].reserveFor(t, "team-a", 60).Allowed)
				requireLeft(40, 1)
			}
			other := instances[1].reserveFor(t, "team-a", 10)
			require.True(t, other.Allowed)
			for j := range 4 {
				require.False(t, instances[j%2].reserveFor(t, "team-a", 10).Allowed)
				requireLeft(30, 0)
			}
			require.Equal(t, http.StatusOK, instances[1].settleAt(t, one.Receipt, 60).Code)
			require.Equal(t, http.StatusOK, instances[0].settleAt(t, other.Receipt, 0).Code)
			requireLeft(40, 2)
		}
	})
}

// Whoever waits on another instance has a place that is freed when it asks next: that reads
// once, and writes once.
func TestAFreedPlaceIsThereForWhoeverAsksNext(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 1, time.Minute)) }
	one, other := anInstance(on, now, p()), anInstance(on, now, p())
	for range 20 { // and back
		receipt := one.acquire(t).Receipt
		require.NotEmpty(t, receipt)
		require.False(t, other.acquire(t).Allowed)
		require.Equal(t, http.StatusOK, one.release(t, receipt).Code)
		asked := other.store.operations()
		next := other.acquire(t)
		require.True(t, next.Allowed)
		require.LessOrEqual(t, other.store.operations()-asked, 2)
		require.False(t, one.acquire(t).Allowed)
		require.Equal(t, http.StatusOK, other.release(t, next.Receipt).Code)
	}
}

// Of many who renew one lease at once, at whichever instance, none takes a second place.
func TestManyRenewOneLease(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	var instances []*service
	for range 3 {
		instances = append(instances, anInstance(on, now, newPolicy("llm", places("in-flight", 2, 16*time.Second))))
	}
	receipt, other := instances[0].acquire(t).Receipt, instances[1].acquire(t).Receipt
	for range 5 {
		now.set(now.now().Add(9 * time.Second))
		var mu sync.Mutex
		var receipts []string
		var renewing sync.WaitGroup
		for i := range 64 {
			renewing.Go(func() {
				of := receipt
				if i%2 == 0 {
					of = other
				}
				r := instances[i%3].renewAt(t, of)
				if !assert.Equal(t, http.StatusOK, r.Code, r.Body) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if i%2 == 1 {
					receipts = append(receipts, r.Receipt)
				}
			})
		}
		renewing.Wait()
		for _, by := range instances {
			require.Zero(t, by.remains(t))
		}
		receipt = receipts[0]
	}
	require.Equal(t, http.StatusOK, instances[2].release(t, receipt).Code)
	for _, by := range instances {
		assert.EqualValues(t, 1, by.remains(t))
	}
}

// A reload that lowers the limit ends no lease and admits nobody until there is room.
func TestAReloadLowersALimitOfPlaces(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	p := func(limit int64) *policy.Policy { return newPolicy("llm", places("in-flight", limit, 16*time.Second)) }
	instances := []*service{anInstance(on, now, p(4)), anInstance(on, now, p(4))}
	var receipts []string
	for i := range 4 {
		receipts = append(receipts, instances[i%2].acquire(t).Receipt)
	}
	now.at(time.Second)
	for _, by := range instances {
		by.SetPolicies(bindLimiters(by.store, by.cfg.Metrics, p(2)))
	}
	for i, receipt := range receipts {
		require.Equal(t, http.StatusOK, instances[i/2].renewAt(t, receipt).Code)
	}
	now.at(16 * time.Second) // they go on
	for i, receipt := range receipts {
		if i < 3 {
			denied := instances[i%2].acquire(t)
			require.False(t, denied.Allowed)
			require.GreaterOrEqual(t, denied.RetryAfter, 1.0)
		}
		require.Equal(t, http.StatusOK, instances[(i+1)%2].release(t, receipt).Code)
	}
	for _, by := range instances {
		require.EqualValues(t, 2, by.remains(t))
	}
}

// A reload that changes the lease ends none: who holds a place renews it and gives it back by
// the receipt that it has.
func TestAReloadChangesALease(t *testing.T) {
	t.Parallel()
	p := func(lease time.Duration) *policy.Policy { return newPolicy("llm", places("in-flight", 2, lease)) }
	for _, lease := range []time.Duration{7 * time.Second, 40 * time.Second} {
		on, now := newMemcached(t), &clock{time: epoch}
		s := anInstance(on, now, p(16*time.Second))
		one, other := s.acquire(t).Receipt, s.acquire(t).Receipt
		now.at(time.Second)
		one = s.renewAt(t, one).Receipt
		s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, p(lease)))
		now.at(5 * time.Second)
		renewed := s.renewAt(t, one)
		require.Equal(t, http.StatusOK, renewed.Code, renewed.Body)
		require.Equal(t, lease.Seconds()*3/4, renewed.RenewWithin)
		require.Zero(t, s.remains(t))
		for i, receipt := range []string{other, renewed.Receipt} {
			require.Equal(t, http.StatusOK, s.release(t, receipt).Code)
			require.EqualValues(t, i+1, s.remains(t))
		}
	}
}

// Whoever takes a place for an hour and crashes, again and again, takes away the client's own
// places, and nobody else's. Each place is free again in its own time.
func TestHoldersCrashAgainAndAgain(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	const lease, pause = time.Hour, 10 * time.Minute
	p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 3, lease)) }
	instances := []*service{anInstance(on, now, p()), anInstance(on, now, p())}
	for round := range 2 { // the second finds each place free a lease after it was taken
		began := time.Duration(round) * (lease + lease/16 + time.Second)
		for i := range 3 {
			now.at(began + time.Duration(i)*pause)
			require.True(t, instances[i%2].acquire(t).Allowed, "round %d, %d", round, i)
		}
		for i, by := range instances {
			denied := by.acquire(t)
			require.False(t, denied.Allowed, "round %d", round)
			first := (lease - 2*pause).Seconds()
			require.GreaterOrEqual(t, denied.RetryAfter, first)
			require.LessOrEqual(t, denied.RetryAfter, first+(lease/16).Seconds()+1)
			other := by.check(t, `{"policy":"llm","client":"team-b","settle":true}`)
			require.True(t, other.Allowed)
			require.Equal(t, http.StatusOK, instances[1-i].release(t, other.Receipt).Code)
		}
	}
}

// What no instance has written renews and releases nothing.
func TestForgedReceiptsOfLeases(t *testing.T) {
	t.Parallel()
	on, now := newMemcached(t), &clock{time: epoch}
	s := anInstance(on, now, newPolicy("llm", places("in-flight", 2, 16*time.Second)))
	receipt := s.acquire(t).Receipt
	asked := s.store.operations()
	for i := len("w1."); i < len(receipt); i++ {
		forged := []byte(receipt)
		if forged[i] = 'A'; string(forged) == receipt {
			forged[i] = 'B'
		}
		for _, path := range []string{"renew", "settle"} {
			r := s.do(t, http.MethodPost, "/v1/"+path, fmt.Sprintf(`{"receipt":%q}`, forged))
			require.Equal(t, http.StatusBadRequest, r.Code)
		}
	}
	assert.Equal(t, asked, s.store.operations())
	assert.EqualValues(t, 1, s.remains(t))
}

// Places that Memcached has lost are put back by who remembers them, until somebody gives one
// back. Then they count again when they are renewed, if there is room.
func TestLostPlacesCountAgainWhenTheyAreRenewed(t *testing.T) {
	t.Parallel()
	server, now := memcachedtest.Start(t), &clock{time: epoch}
	on := storeOn(t, server)
	var instances []*service
	for range 2 {
		instances = append(instances, anInstance(on, now, newPolicy("llm", places("in-flight", 5, 16*time.Second))))
	}
	first := instances[0].acquire(t).Receipt
	var held []string
	for range 3 {
		held = append(held, instances[1].acquire(t).Receipt)
	}
	server.Do("flush_all", "OK")
	now.at(time.Second)
	require.True(t, instances[1].acquire(t).Allowed)
	require.EqualValues(t, 0, instances[0].remains(t), "all are back")
	server.Do("flush_all", "OK")
	require.Equal(t, http.StatusOK, instances[0].release(t, first).Code)
	for i, receipt := range held {
		require.Equal(t, http.StatusOK, instances[i%2].renewAt(t, receipt).Code)
	}
	for _, by := range instances {
		require.LessOrEqual(t, by.remains(t), int64(2))
	}
}

// A place that an instance has admitted without the store is given back by another before the
// store was told of it. It is free a moment after that was told, and not a lease later.
func TestAPlaceIsGivenBackBeforeTheStoreWasToldOfIt(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"taken", "renewed", "taken, and renewed elsewhere"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on, now := newMemcached(t), &clock{time: epoch}
			p := func() *policy.Policy { return newPolicy("llm", places("in-flight", 3, time.Minute)) }
			admits, settles := anInstance(on, now, p()), anInstance(on, now, p())
			var r result
			if name == "renewed" {
				r = admits.acquire(t)
				now.at(time.Second)
			}
			admits.store.failWith(limitertest.ErrUnsent)
			if name == "renewed" {
				r = admits.renewAt(t, r.Receipt)
			} else {
				r = admits.acquire(t)
				require.True(t, r.Allowed && r.Degraded, r.Body)
			}
			if name == "taken, and renewed elsewhere" {
				now.at(time.Second)
				r = settles.renewAt(t, r.Receipt)
			}
			require.Equal(t, http.StatusOK, settles.release(t, r.Receipt).Code)
			admits.store.failWith(nil)
			admits.tells()
			for _, by := range []*service{admits, settles} {
				assert.Eventually(t, func() bool { return by.remains(t) == 3 }, time.Minute, 10*time.Millisecond)
			}
		})
	}
}
