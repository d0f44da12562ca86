package subwindow_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A call is counted again after its counter was found to be lost, while its caller
// leaves.
func (by way) TestACallerLeavesWhileItsSlotIsCountedAgain(t *testing.T) {
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	inner := memory.New(nil)
	var slow atomic.Bool
	var adds atomic.Int64
	store := &faultyStore{Store: inner}
	store.fault = func(operation, key string) error {
		if !slow.Load() {
			return nil
		}
		time.Sleep(30 * time.Millisecond)
		if operation == "add" && adds.Add(1) == 2 {
			return counters.ErrLost
		}
		return nil
	}
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second})
	now := time.Now()
	r := func(cost int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now}
	}
	_, err = l.Take(t.Context(), r(1))
	require.NoError(t, err)
	slow.Store(true)
	var callers sync.WaitGroup
	begin := time.Now()
	for _, timeout := range []time.Duration{time.Second, 105 * time.Millisecond, time.Second} {
		callers.Go(func() {
			if _, err := l.Limiter.Take(&counters.Deadline{At: begin.Add(timeout)}, r(1)); err != nil {
				_, _ = l.TakeLocal(r(1), err)
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
	callers.Wait()
	l.Flush()
}
