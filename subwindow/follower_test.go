package subwindow_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// The flight of a follower, which leaves while the leader only refunds, isn't used
// again: what it admits alone can be refunded.
func (by way) TestARefundIsNotForgottenAsItsFlightIsUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, by.testARefundIsNotForgottenAsItsFlightIsUsedAgain)
}

func (by way) testARefundIsNotForgottenAsItsFlightIsUsedAgain(t *testing.T) {
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	inner := memory.New(nil)
	var mu sync.Mutex
	slow := time.Duration(0)
	store := &faultyStore{Store: inner, fault: func(operation, key string) error {
		mu.Lock()
		d := slow
		mu.Unlock()
		time.Sleep(d)
		return nil
	}}
	failed := 0
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second, RefundFailed: func() { failed++ }})
	now := time.Now()
	r := func(client string, cost int64) counters.Request {
		return counters.Request{Client: client, Cost: cost, Limit: 100, Now: now}
	}
	taken, err := l.Take(t.Context(), r("c", 1))
	require.NoError(t, err)
	mu.Lock()
	slow = 60 * time.Millisecond
	mu.Unlock()
	var callers sync.WaitGroup
	begin := time.Now()
	callers.Go(func() { _, _ = l.Take(t.Context(), r("c", 1)) }) // leads until 60 ms
	time.Sleep(10 * time.Millisecond)
	var local counters.Decision
	callers.Go(func() { // follows
		d, err := l.Limiter.Take(&counters.Deadline{At: begin.Add(150 * time.Millisecond)}, r("c", 7))
		if !assert.Error(t, err) {
			return
		}
		d, err = l.TakeLocal(r("c", 7), err)
		assert.NoError(t, err)
		assert.True(t, d.Allowed)
		local = d
	})
	time.Sleep(5 * time.Millisecond)
	callers.Go(func() { _ = l.Refund(&counters.Deadline{At: begin.Add(900 * time.Millisecond)}, r("c", 1), taken) }) // leads both
	callers.Wait()
	mu.Lock()
	slow = 0
	mu.Unlock()
	l.Flush()
	require.EqualValues(t, 100-8, take(t, l, now, 0, 100).Remaining)
	for i := range 100 {
		_, err := l.Take(t.Context(), r("x"+string(rune(0x61+i)), 1))
		require.NoError(t, err)
	}
	require.NoError(t, l.Refund(t.Context(), r("c", 7), local))
	l.Flush()
	fresh := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 100})
	assert.EqualValues(t, 100-1, take(t, fresh, now, 0, 100).Remaining, "the 7 are given back (failed: %d)", failed)
}
