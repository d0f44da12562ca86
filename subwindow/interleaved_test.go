package subwindow_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/memory"
)

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
