package subwindow_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// Thousands of callers ask four instances for one client at once, with costs of
// all sizes. Who is denied only because others' costs were passing through the
// counter finds room a second later; in the end exactly the limit is admitted,
// and counted.
func (by way) TestThousandsOfCallersWithMixedCostsFillTheLimitExactly(t *testing.T) {
	server := memcachedtest.Start(t)
	const instances, callers, limit = 4, 1000, 5000
	// Counters live in real time: for longer than the test, be the machine slow.
	for _, test := range []struct {
		name string
		new  func(store counters.Store) *limiter
	}{
		{"fixed", func(store counters.Store) *limiter {
			w, err := subwindow.NewFixedWindow(time.Hour)
			require.NoError(t, err)
			return by.newLimiterWith(t, store, w, counters.Options{Policy: "fixed", ClockSkew: sameClock, Clients: 100})
		}},
		{"sliding", by.stormLimiter(t, "sliding", time.Hour, 1, false)},
		{"sliding-1s", by.stormLimiter(t, "sliding-1s", time.Minute, 60, false)},
		{"strict", by.stormLimiter(t, "strict", time.Minute, 60, true)},
	} {
		t.Run(test.name, func(t *testing.T) {
			limiters := make([]*limiter, instances)
			for i := range limiters {
				limiters[i] = test.new(openMemcached(t, server.Addr))
			}
			var admitted atomic.Int64
			storm := func(now time.Time, cost func(caller int) int64) {
				var wg sync.WaitGroup
				for _, l := range limiters {
					for caller := range callers {
						wg.Go(func() {
							r := counters.Request{Client: "hot", Cost: cost(caller), Limit: limit, Now: now}
							d, err := takePatiently(l, r)
							if assert.NoError(t, err) && d.Allowed {
								admitted.Add(r.Cost)
							}
						})
					}
				}
				wg.Wait()
			}
			storm(at("12:00:10.2"), func(caller int) int64 { return int64(1 + caller%9) })
			assert.LessOrEqual(t, admitted.Load(), int64(limit), "20,000 were asked for")
			// A second later, and then another, as some of these are denied by
			// what is passing through again.
			for i := 0; admitted.Load() < limit && i < 20; i++ {
				storm(at("12:00:11.2").Add(time.Duration(i)*time.Second), func(int) int64 { return 1 })
			}
			assert.Equal(t, int64(limit), admitted.Load())
			for _, l := range limiters {
				l.Flush()
			}
			fresh := test.new(openMemcached(t, server.Addr))
			var left counters.Decision
			require.NoError(t, patiently(func(ctx context.Context) (err error) {
				left, err = fresh.Peek(ctx, counters.Request{Client: "hot", Cost: 1, Limit: limit + 1, Now: at("12:00:31")})
				return err
			}))
			assert.Equal(t, int64(1), left.Remaining, "what was denied has been given back")
		})
	}
}

func (by way) stormLimiter(t *testing.T, policy string, length time.Duration, slots int, strict bool) func(counters.Store) *limiter {
	return func(store counters.Store) *limiter {
		w := newWindow(t, length, slots, strict)
		return by.newLimiterWith(t, store, w, counters.Options{Policy: policy, Clients: 100})
	}
}

// A client that was denied, and whose instance has denied it ever since without
// asking the store, is let in at the moment that it was promised.
func (by way) TestAKnownDenialEndsAtThePromisedMoment(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, slots := range []int{1, 4, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, slots, false), 50*time.Millisecond)
			now := at("12:00:00.3")
			for range 100 {
				require.True(t, take(t, l, now, 1, 100).Allowed)
			}
			promised := now.Add(take(t, l, now, 1, 100).RetryAfter)
			for ; now.Before(promised); now = now.Add(7 * time.Millisecond) {
				d, err := l.Take(context.Background(), counters.Request{Client: "c", Cost: 1, Limit: 100, Now: now})
				require.NoError(t, err)
				require.False(t, d.Allowed)
				require.Equal(t, promised, now.Add(d.RetryAfter), "the promise stays the same")
			}
			assert.True(t, take(t, l, promised, 1, 100).Allowed)
		})
	}
}

// A slowStore takes that long for each addition.
type slowStore struct {
	counters.Store
	d time.Duration
}

func (s slowStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	time.Sleep(s.d)
	return s.Store.Add(ctx, a)
}

// Calls of one client fall in several slots, by turns: a leader does all of them.
func (by way) TestCallsSpanManySlots(t *testing.T) {
	for name, test := range map[string]struct {
		length time.Duration
		slots  int
		calls  int
		apart  func(i int) time.Duration
	}{
		"on both sides of a boundary": {time.Minute, 10, 200, func(i int) time.Duration { return time.Duration(2*(i%2)-1) * time.Millisecond }},
		"of a millisecond each":       {100 * time.Millisecond, 100, 70, func(i int) time.Duration { return time.Duration(i%3-1) * time.Millisecond }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := slowStore{memory.New(nil), 100 * time.Microsecond}
				l := by.newLimiterWith(t, store, newWindow(t, test.length, test.slots, false), counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond})
				width := test.length / time.Duration(test.slots)
				boundary := time.Now().Truncate(width).Add(width)
				time.Sleep(time.Until(boundary))
				var callers sync.WaitGroup
				for i := range test.calls {
					callers.Go(func() {
						_, err := l.Take(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: 10000, Now: boundary.Add(test.apart(i))})
						assert.NoError(t, err)
					})
					synctest.Wait()
				}
				callers.Wait()
				l.Flush()
			})
		})
	}
}
