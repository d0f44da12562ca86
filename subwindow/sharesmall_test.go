package subwindow_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// Four processes that have shared their clients evenly for ten windows admit about the
// limit together while the store is gone, also where a client asks so rarely that most
// processes see it once in a window.
func (by way) TestTheShareOfSmallLimits(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const processes, clients = 4, 100
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{"fixed": fixed, "N=10": newWindow(t, time.Minute, 10, false)} {
		for _, limit := range []int{5, 10, 20} {
			now := at("12:00:00")
			p := limitertest.NewProcesses(t, processes, memory.New(func() time.Time { return now }), func(s limitertest.Store) (counters.Limiter, error) {
				return by.newLimiter(t, s, w, 50*time.Millisecond), nil
			})
			take := func(i int, client string) bool {
				return p.Take(i, counters.Request{Client: client, Cost: 1, Limit: int64(limit), Now: now}).Allowed
			}
			random := rand.New(rand.NewPCG(1, 1))
			rate := limit * 2 / 5 // in a window
			for range 10 * rate {
				for c := range clients {
					now = now.Add(time.Minute / time.Duration(rate*clients))
					require.True(t, take(random.IntN(processes), fmt.Sprint("c", c)))
				}
			}
			p.Fail(limitertest.ErrUnsent) // at the beginning of a window, of which all is left in a fixed one
			now = now.Add(time.Second)
			admitted := 0
			for n := range processes * limit {
				for c := range clients {
					if take(n%processes, fmt.Sprint("c", c)) {
						admitted++
					}
				}
			}
			left := limit
			if w.Slots > 0 {
				left -= rate
			}
			assert.LessOrEqual(t, float64(admitted)/clients, 1.4*float64(left)+1.2, "%s, limit %d: %d are left", name, limit, left)
		}
	}
}

// After an outage a process whose share is next to nothing leaves no room that isn't there.
func (by way) TestATinyShareMakesNoRoom(t *testing.T) {
	shared := memory.New(nil)
	broken := &limitertest.BrokenStore{Store: shared}
	o := counters.Options{ClockSkew: 50 * time.Millisecond, Clients: 100, StoreTimeout: time.Second, CountDenied: true}
	w := newWindow(t, time.Minute, 6, false)
	here, there := by.newLimiterWith(t, broken, w, o), by.newLimiterWith(t, shared, w, o)
	const most, limit = 1_000_000_000, 1_000_003_000
	now := at("12:00:02")
	take := func(l *limiter, cost int64) counters.Decision {
		r := request(now, cost, limit)
		d, err := l.Limiter.Take(t.Context(), r)
		if err != nil {
			d, err = l.TakeLocal(r, err)
		}
		require.NoError(t, err)
		now = now.Add(2 * time.Millisecond)
		return d
	}
	take(here, 1)
	take(there, most)
	now = now.Add(1100 * time.Millisecond)
	take(here, 1)
	broken.Fail(limitertest.ErrUnsent)
	take(here, 1)
	take(here, 1)
	broken.Fail(nil)
	take(here, 1000)
	assert.False(t, take(here, most).Allowed)
}

// What is charged while the store is gone stands for itself: others are charged by themselves. The
// first check that is admitted alone then stands for itself, too, so that every process can admit one.
func (by way) TestTheFirstAfterAChargeStandsForItself(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &limitertest.BrokenStore{Store: newMemory()}
		here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store.Store, w, sameClock)
		now := at("12:00:01")
		for range 44 {
			require.True(t, take(t, here, now, 1, 100).Allowed)
			require.True(t, take(t, there, now, 1, 100).Allowed)
		}
		store.Fail(limitertest.ErrUnsent)
		require.Error(t, here.Charge(t.Context(), request(now, 1, 100)))
		d, err := here.TakeLocal(request(now, 7, 100), limitertest.ErrUnsent)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "%s: 11 of 100 are left", name)
		d, err = here.TakeLocal(request(now, 1, 100), limitertest.ErrUnsent)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "%s: another process has admitted as much", name)
		store.Fail(nil)
		here.Flush()
	}
}
