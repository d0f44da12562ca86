package subwindow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// Windows of an hour have slots that live for longer than the test, be the machine slow.
func (by way) TestCallersThatRaceFillTheLimit(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	races := func(name string, w subwindow.Window, now string) {
		t.Run(name, func(t *testing.T) {
			limitertest.Races(t, at(now), name == "fixed", func(t *testing.T, address string) counters.Limiter {
				return by.newLimiter(t, openMemcached(t, address), w, 50*time.Millisecond)
			})
		})
	}
	races("fixed", fixed, "12:00:10.2")
	for _, strict := range []bool{false, true} {
		races(fmt.Sprintf("an hour, strict %v", strict), newWindow(t, time.Hour, 1, strict), "12:00:00")
		for _, slots := range []int{4, 60} {
			races(fmt.Sprintf("%d slots of a minute, strict %v", slots, strict), newWindow(t, time.Minute, slots, strict), "12:00:00")
		}
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
