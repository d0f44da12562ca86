package subwindow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A client is reset while an addition to its counts is under way, which has no answer in time.
// It turns out to be done, before the reset: nothing is taken from what was counted after that.
func (by way) TestALateAdditionFromBeforeAReset(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &lateStore{Store: memory.New(nil)}
		meanwhile := func() {}
		options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
		other := by.newLimiterWith(t, store.Store, w, options)
		l := by.newLimiterWith(t, &faultyStore{Store: store, fault: func(string, string) error {
			do := meanwhile
			meanwhile = func() {}
			do()
			return nil
		}}, w, options)
		now := at("12:00:01")
		require.True(t, take(t, l, now, 1, 100).Allowed)
		meanwhile = func() {
			require.NoError(t, l.Reset(t.Context(), "c", now))
			store.late.Store(true)
		}
		_, err := l.Take(t.Context(), request(now, 7, 100))
		require.ErrorIs(t, err, counters.ErrTimeout)
		store.late.Store(false)
		now = now.Add(time.Second)
		require.True(t, take(t, l, now, 9, 100).Allowed)
		require.True(t, take(t, other, now, 20, 100).Allowed)
		store.tell[0](false, nil) // what it has counted the reset has deleted
		l.Flush()
		assert.Equal(t, int64(100-9-20), take(t, other, now, 0, 100).Remaining, name)
	}
}

// What was admitted before a reset is given back after it, by a process that hasn't heard of the
// reset, and then more of the same slot that it has admitted alone since: none of that is taken from
// what others have admitted since.
func (by way) TestRefundsFromBeforeAndAfterAReset(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &limitertest.BrokenStore{Store: memory.New(nil)}
		here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store.Store, w, sameClock)
		before, after := at("12:00:01.1"), at("12:00:01.8")
		require.True(t, take(t, here, before, 10, 100).Allowed)
		store.Fail(limitertest.ErrUnsent)
		require.Error(t, here.Refund(t.Context(), request(before, 10, 100), admittedAt("12:00:01.1")))
		require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01.5")))
		require.True(t, take(t, there, at("12:00:01.6"), 20, 100).Allowed)
		alone, err := here.TakeLocal(request(after, 3, 100), limitertest.ErrUnsent)
		require.NoError(t, err)
		require.True(t, alone.Allowed)
		require.Error(t, here.Refund(t.Context(), request(after, 3, 100), alone))
		store.Fail(nil)
		require.True(t, take(t, here, at("12:00:01.9"), 1, 100).Allowed)
		here.Flush()
		assert.Equal(t, int64(20+1), used(t, store.Store, w, after), name)
	}
}

// While a check is under way, what was admitted before a reset is given back, by a process that
// hasn't heard of the reset: that makes no room for the check.
func (by way) TestARefundFromBeforeAResetMakesNoRoom(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store, meanwhile := memory.New(nil), func() {}
		here := by.newLimiter(t, &faultyStore{Store: store, fault: func(string, string) error {
			do := meanwhile
			meanwhile = func() {}
			do()
			return nil
		}}, w, sameClock)
		there := by.newLimiter(t, store, w, sameClock)
		require.True(t, take(t, here, at("12:00:01.1"), 5, 10).Allowed)
		require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01.5")))
		require.True(t, take(t, there, at("12:00:01.6"), 10, 10).Allowed)
		meanwhile = func() {
			gone, leave := context.WithCancel(t.Context())
			leave()
			require.Error(t, here.Refund(gone, request(at("12:00:01.1"), 5, 10), admittedAt("12:00:01.1")))
		}
		assert.False(t, take(t, here, at("12:00:01.7"), 1, 10).Allowed, name)
		here.Flush()
		assert.Equal(t, int64(10), used(t, store, w, at("12:00:01.8")), name)
	}
}
