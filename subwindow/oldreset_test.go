package subwindow_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A client was reset before this process saw it first, by another or before it was
// restarted. When the store loses the counter, what was counted since is put back.
func (by way) TestLossAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			store := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			before, l := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 100 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			require.NoError(t, store.Delete(t.Context(), []string{key(w, at("12:00:00"))})) // it is evicted
			admitted := 0
			for i := range 150 {
				if take(t, l, at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100).Allowed {
					admitted++
				}
			}
			assert.Zero(t, admitted, "beyond the 100 of the day, by one instance")
		})
	}
}

// And if the store fails then, the process decides by all that it has counted.
func (by way) TestOutageAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			inner := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			reads := 0
			down := false
			store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
				if down {
					if operation == "read" {
						if reads++; reads == 1 {
							return nil
						}
					}
					return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
				}
				return nil
			}}
			before, l := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 99 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			// One fails; then the store answers one read, and fails again.
			down, reads = true, 1
			admitted := 0
			for i := range 150 {
				r := request(at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100)
				d, err := l.Take(t.Context(), r)
				if err != nil {
					d, err = l.TakeLocal(r, err)
					require.NoError(t, err)
				}
				if d.Allowed {
					admitted++
				}
				if i == 0 {
					reads = 0 // the next read is answered
				}
			}
			assert.Equal(t, 1, admitted)
		})
	}
}

// And it knows that what is counted is its own.
func (by way) TestShareAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			inner := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			down := false
			store := &faultyStore{Store: inner, fault: func(string, string) error {
				if down {
					return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
				}
				return nil
			}}
			before, l := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 60 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			_, err = l.Peek(t.Context(), request(at("11:30:00"), 1, 100))
			require.NoError(t, err)
			down = true
			admitted := 0
			for i := range 150 {
				r := request(at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100)
				_, err := l.Take(t.Context(), r)
				require.Error(t, err)
				d, err := l.TakeLocal(r, err)
				require.NoError(t, err)
				if d.Allowed {
					admitted++
				}
			}
			assert.Equal(t, 40, admitted)
		})
	}
}

// An addition that is on its way while its process resets the client is from before that,
// whatever becomes of it: nobody puts back what the reset has deleted.
func (by way) TestAnAdditionUnderWayDuringAReset(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{0, 1} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				w := subwindow.Window{Strict: slots == 0, Width: time.Hour, Slots: slots}
				var tell func(error)
				var late atomic.Bool
				store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
					if operation != "add" || !late.CompareAndSwap(true, false) {
						return nil
					}
					time.Sleep(50 * time.Millisecond)
					return &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }}
				}}
				reseeded := 0
				l := by.newLimiterWith(t, store, w, counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond, Reseeded: func(n int) { reseeded += n }})
				require.True(t, take(t, l, time.Now(), 1, 10).Allowed)
				time.Sleep(100 * time.Millisecond)
				late.Store(true)
				counted := make(chan struct{})
				go func() {
					_, err := l.Take(t.Context(), request(time.Now(), 8, 10))
					assert.Error(t, err)
					close(counted)
				}()
				time.Sleep(10 * time.Millisecond)
				// It is counted, and deleted again.
				_, err := inner.Add(t.Context(), counters.Addition{Key: key(w, time.Now()), Delta: 8, TTL: time.Hour})
				require.NoError(t, err)
				require.NoError(t, l.Reset(t.Context(), "c", time.Now()))
				<-counted
				tell(nil)
				time.Sleep(2 * time.Second)
				l.Flush()
				assert.True(t, take(t, l, time.Now(), 10, 10).Allowed)
				assert.Zero(t, reseeded)
			})
		})
	}
}
