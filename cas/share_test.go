package cas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// Processes that have shared their clients evenly admit about the limit together
// while the store is gone, and one that has had all for itself admits all of it.
func TestAloneAProcessTakesItsShare(t *testing.T) {
	t.Parallel()
	const limit = 100
	for name, newLimiter := range map[string]func(s limitertest.Store) (limitertest.Limiter, error){
		"token bucket": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewTokenBucket(s, time.Minute, 0, testConfig(100))
		},
		"sliding log": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewSlidingLog(s, time.Minute, limit, testConfig(100))
		},
		"counting log": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewCountingLog(s, time.Minute, DefaultLogEntries, testConfig(100))
		},
	} {
		for _, processes := range []int{1, 2, 4, 8} {
			for _, used := range []int{0, 40} {
				t.Run(fmt.Sprint(name, " ", processes, " ", used), func(t *testing.T) {
					now := clock(t, "12:00:01.5")
					store := memory.New(nil)
					broken := make([]*limitertest.BrokenStore, processes)
					limiters := make([]limitertest.Limiter, processes)
					for i := range limiters {
						var err error
						broken[i] = &limitertest.BrokenStore{Store: store}
						limiters[i], err = newLimiter(broken[i])
						require.NoError(t, err)
					}
					take := func(i int, client string) bool {
						now = now.Add(time.Microsecond)
						r := counters.Request{Client: client, Cost: 1, Limit: limit, Now: now}
						d, err := limiters[i].Take(t.Context(), r)
						if err != nil {
							d, err = limiters[i].TakeLocal(r, err)
						}
						require.NoError(t, err)
						return d.Allowed
					}
					random := rand.New(rand.NewPCG(1, 1))
					for n := range 20 * 40 {
						take(random.IntN(processes), fmt.Sprint("warm", n/40))
					}
					for range used {
						take(random.IntN(processes), "c")
					}
					for _, s := range broken {
						s.Fail(limitertest.ErrUnsent)
					}
					admitted := used
					for n := range processes * limit {
						if take(n%processes, "c") {
							admitted++
						}
					}
					most := 15.0
					if used == 0 { // it has the share of all clients, of which it knows less
						most = 25
					}
					assert.InDelta(t, limit, admitted, most)
				})
			}
		}
	}
}

// When the store answers again, a process leaves room for what another has admitted
// alone and has still to tell, until that must be told.
func TestAProcessWaitsForWhatOthersHaveToTell(t *testing.T) {
	t.Parallel()
	const limit = 100
	for name, newLimiter := range makers {
		for _, test := range []struct {
			alone int // asked for
			told  bool
		}{{10, false}, {10, true}, {limit, false}, {limit, true}} {
			t.Run(fmt.Sprintf("%s %+v", name, test), func(t *testing.T) {
				now := clock(t, "12:00:01.5")
				store := memory.New(nil)
				var broken [2]*limitertest.BrokenStore
				var limiters [2]limitertest.Limiter
				cfg := testConfig(100)
				cfg.StoreTimeout = 50 * time.Millisecond
				for i := range limiters {
					var err error
					broken[i] = &limitertest.BrokenStore{Store: store}
					limiters[i], err = newLimiter(broken[i], cfg)
					require.NoError(t, err)
				}
				take := func(i int, client string) bool {
					now = now.Add(time.Microsecond)
					r := counters.Request{Client: client, Cost: 1, Limit: limit, Now: now}
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					d, err := limiters[i].Take(ctx, r)
					if err != nil {
						d, err = limiters[i].TakeLocal(r, err)
					}
					require.NoError(t, err)
					return d.Allowed
				}
				used := 0
				asks := func(i, n int) {
					for range n {
						if take(i, "c") {
							used++
						}
					}
				}
				for ; used < 40; used++ {
					require.True(t, take(used%2, "c"))
				}
				for i := range limiters {
					broken[i].Fail(limitertest.ErrUnsent)
					asks(i, test.alone)
				}
				if test.told {
					broken[1].Fail(nil)
					asks(1, 1)
				}
				broken[0].Fail(nil)
				asks(0, limit)
				assert.InDelta(t, limit, used, 6)
				broken[1].Fail(nil)
				asks(1, limit)
				assert.InDelta(t, limit, used, 6)
			})
		}
	}
}

// What the others never tell isn't waited for.
func TestAProcessDoesNotWaitForLong(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range makers {
		t.Run(name, func(t *testing.T) {
			now := clock(t, "12:00:01.5")
			store := memory.New(nil)
			broken := &limitertest.BrokenStore{Store: store}
			cfg := testConfig(100)
			cfg.StoreTimeout = time.Second
			l, err := newLimiter(broken, cfg)
			require.NoError(t, err)
			gone, err := newLimiter(store, cfg)
			require.NoError(t, err)
			take := func(l limitertest.Limiter) bool {
				now = now.Add(time.Microsecond)
				r := counters.Request{Client: "c", Cost: 1, Limit: 20, Now: now}
				d, err := l.Take(t.Context(), r)
				if err != nil {
					d, err = l.TakeLocal(r, err)
				}
				require.NoError(t, err)
				return d.Allowed
			}
			for range 5 {
				require.True(t, take(l))
				require.True(t, take(gone))
			}
			broken.Fail(limitertest.ErrUnsent)
			for range 20 {
				take(l)
			}
			broken.Fail(nil)
			require.False(t, take(l) && take(l) && take(l))
			now = now.Add(tellingTimeouts*time.Second + time.Millisecond)
			require.True(t, take(l) && take(l) && take(l))
		})
	}
}
