package limitertest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Telling tests that a process whose store answers again leaves room for what
// another has admitted alone and has still to tell, be that the limit or less, but
// not for long. Of the rest it admits its share at least. For newStore and newLimiter
// see Outage; the StoreTimeout is a second.
func Telling(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, s Store) counters.Limiter) {
	const limit = 100
	for _, test := range []struct {
		alone int // asked for
		told  bool
	}{{10, false}, {10, true}, {limit, false}, {limit, true}} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			now := now
			both := NewProcesses(t, 2, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
			used := 0
			asks := func(i, n int) { used += admits(t, both.Limiters[i], &now, limit, n) }
			for range 20 {
				asks(0, 1)
				asks(1, 1)
			}
			for i, store := range both.Stores {
				store.Fail(ErrUnsent)
				asks(i, test.alone)
			}
			if test.told {
				both.Stores[1].Fail(nil)
				asks(1, 1)
			}
			both.Stores[0].Fail(nil)
			left := limit - used
			asks(0, limit)
			assert.LessOrEqual(t, used, limit+6)
			assert.GreaterOrEqual(t, used, limit-left/2-6, "it has half of the client's requests")
			both.Stores[1].Fail(nil)
			asks(1, limit)
			assert.LessOrEqual(t, used, limit+6)
			now = now.Add(2*time.Second + time.Millisecond)
			asks(1, limit)
			assert.InDelta(t, limit, used, 6)
		})
	}
	t.Run("a denial for others says until when", func(t *testing.T) {
		now := now
		both := NewProcesses(t, 2, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
		for n := range 16 {
			admits(t, both.Limiters[n%2], &now, limit, 1)
		}
		both.Stores[0].Fail(ErrUnsent)
		admits(t, both.Limiters[0], &now, limit, limit)
		both.Stores[0].Fail(nil)
		take := func() counters.Decision {
			d, err := both.Limiters[0].Take(Unhurried, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
			require.NoError(t, err)
			return d
		}
		var d counters.Decision
		for range 20 {
			now = now.Add(time.Microsecond)
			if d = take(); !d.Allowed {
				assert.LessOrEqual(t, d.RetryAfter, 2*time.Second)
			}
		}
		require.False(t, d.Allowed)
		now = now.Add(d.RetryAfter)
		assert.True(t, take().Allowed, "who waits that long is admitted")
		now = now.Add(2*time.Second + time.Millisecond)
		assert.Equal(t, 10, admits(t, both.Limiters[0], &now, limit, 10))
	})
	t.Run("checks of another client that fail hold nobody back", func(t *testing.T) {
		now := now
		both := NewProcesses(t, 2, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
		used := 0
		asks := func(i, n int) { used += admits(t, both.Limiters[i], &now, limit, n) }
		for n := range 20 {
			asks(n%2, 1)
		}
		both.Stores[0].Fail(ErrUnsent)
		asks(0, 20)
		both.Stores[0].Fail(nil)
		for range 10 {
			both.Stores[0].Fail(ErrUnsent)
			takeAnyway(t, both.Limiters[0], counters.Request{Client: "another", Cost: 1, Limit: limit, Now: now})
			both.Stores[0].Fail(nil)
			now = now.Add(2*time.Second + time.Millisecond)
			asks(0, 10)
		}
		assert.GreaterOrEqual(t, used, limit)
	})
	for _, charged := range []int64{0, 20} {
		t.Run(fmt.Sprintf("for nothing beside what was given back, %d charged", charged), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // or a bucket drains while the machine stands still
				now := now
				both := NewProcesses(t, 2, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
				for n := range 40 {
					admits(t, both.Limiters[n%2], &now, limit, 1)
				}
				both.Stores[0].Fail(ErrUnsent)
				r := counters.Request{Client: "c", Cost: charged, Limit: limit, Now: now}
				_ = both.Limiters[0].Charge(Unhurried, r) // is consumed all the same
				r.Cost = 10
				alone := takeAnyway(t, both.Limiters[0], r)
				require.True(t, alone.Allowed)
				require.NoError(t, both.Limiters[0].Refund(Unhurried, r, alone))
				both.Stores[0].Fail(nil)
				assert.Equal(t, 60-int(charged), admits(t, both.Limiters[0], &now, limit, 60))
			})
		})
	}
	t.Run("beside what is given back as much as without it", func(t *testing.T) {
		now := now
		both := NewProcesses(t, 2, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
		used := 0
		asks := func(i, n int) { used += admits(t, both.Limiters[i], &now, limit, n) }
		for n := range 40 {
			asks(n%2, 1)
		}
		both.Fail(ErrUnsent)
		for n := range 40 {
			asks(n%2, 1)
		}
		both.Stores[0].Fail(nil)
		asks(0, 1)
		both.Stores[0].Fail(ErrUnsent)
		r := counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}
		alone := takeAnyway(t, both.Limiters[0], r)
		require.True(t, alone.Allowed)
		require.NoError(t, both.Limiters[0].Refund(Unhurried, r, alone))
		both.Stores[0].Fail(nil)
		asks(0, limit)
		both.Stores[1].Fail(nil)
		asks(1, 1)
		assert.LessOrEqual(t, used, limit+6)
	})
	t.Run("one after the other", func(t *testing.T) {
		for seed := range uint64(20) {
			now, random := now, rand.New(rand.NewPCG(seed, 0))
			four := NewProcesses(t, 4, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
			used := 0
			asks := func(i, n int) { used += admits(t, four.Limiters[i], &now, limit, n) }
			for range 10 {
				for i := range four.Limiters {
					asks(i, 1)
				}
			}
			for i, store := range four.Stores {
				store.Fail(ErrUnsent)
				asks(i, 2+random.IntN(12))
			}
			for _, i := range random.Perm(4) {
				four.Stores[i].Fail(nil)
				asks(i, limit)
				four.Stores[i].Fail(ErrUnsent) // for calls that it hasn't answered in time
				asks(i, 3)
				four.Stores[i].Fail(nil)
			}
			assert.LessOrEqual(t, used, limit+4, "course %d", seed)
			for i := range four.Limiters {
				asks(i, 1)
			}
			now = now.Add(3 * time.Second)
			asks(0, limit)
			assert.InDelta(t, limit, used, 6, "course %d: a bucket has drained for 3 s", seed)
		}
	})
	for _, instances := range []int{1, 2} {
		t.Run(fmt.Sprint(instances, " after an update"), func(t *testing.T) {
			store, now := newStore(), now
			used := 0
			asks := func(l counters.Limiter, n int) { used += admits(t, l, &now, limit, n) }
			asks(newLimiter(t, store), 30) // and is replaced
			broken := &BrokenStore{Store: store}
			var limiters []counters.Limiter
			for range instances {
				limiters = append(limiters, newLimiter(t, broken))
			}
			for range 12 / instances {
				for _, l := range limiters {
					asks(l, 1)
				}
			}
			broken.Fail(ErrUnsent)
			for _, l := range limiters {
				asks(l, limit)
			}
			assert.InDelta(t, limit, used, 8)
		})
	}
	t.Run("never", func(t *testing.T) {
		store := &BrokenStore{Store: newStore()}
		l, gone := newLimiter(t, store), newLimiter(t, store.Store)
		takes := func(l counters.Limiter, n int) int { return admits(t, l, &now, limit, n) }
		for range 20 {
			require.Equal(t, 1, takes(l, 1))
			require.Equal(t, 1, takes(gone, 1))
		}
		store.Fail(ErrUnsent)
		require.InDelta(t, 30, takes(l, limit), 6)
		store.Fail(nil)
		require.Less(t, takes(l, limit), 6)
		for range 2 { // who goes on asking waits no longer
			now = now.Add(time.Second + time.Millisecond)
			takes(l, 1)
		}
		require.Greater(t, takes(l, limit), 20)
	})
}

// admits returns how many of n checks a limiter admits, each a microsecond after the one
// before; where its store fails, alone.
func admits(t *testing.T, l counters.Limiter, now *time.Time, limit int64, n int) (admitted int) {
	for range n {
		*now = now.Add(time.Microsecond)
		if takeAnyway(t, l, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: *now}).Allowed {
			admitted++
		}
	}
	return admitted
}
