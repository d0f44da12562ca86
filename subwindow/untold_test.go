package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// What was admitted alone is told, and has no answer; what others count then may be that. When it
// is given back, nothing is subtracted before its outcome is known: it might be theirs. A refund
// in another slot doesn't wait for that.
func (by way) TestARefundOfWhatMayNotBeCounted(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for i, outcome := range []func(func(bool, error)){done, undone} {
			store := &lateStore{Store: memory.New(nil)}
			options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
			l, other := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, store.Store, w, options)
			earlier, now := at("12:00:30"), at("12:01:01")
			require.True(t, take(t, l, earlier, 7, 100).Allowed)
			alone, err := l.TakeLocal(request(now, 5, 100), limitertest.ErrUnsent)
			require.NoError(t, err)
			store.late.Store(true)
			_, err = l.Take(t.Context(), request(now, 1, 100))
			require.ErrorIs(t, err, counters.ErrTimeout)
			store.late.Store(false)
			require.True(t, take(t, other, now, 5, 100).Allowed)
			take(t, l, now, 0, 100)

			require.NoError(t, l.Refund(t.Context(), request(now, 5, 100), alone))
			require.NoError(t, l.Refund(t.Context(), request(earlier, 3, 100), admittedAt("12:00:30")))
			assert.EqualValues(t, 5, used(t, store.Store, w, now), "%s %d", name, i)
			assert.EqualValues(t, 4, used(t, store.Store, w, earlier), "%s %d", name, i)
			outcome(store.tell[0])
			l.Flush()
			assert.EqualValues(t, 5, used(t, store.Store, w, now), "%s %d", name, i)
		}
	}
}

// Others give back what was taken for the flight's. So the store has less than is to be given back
// if the flight was done: nothing was lost. It wasn't done, and nothing is told of it.
func (by way) TestARefundOfWhatOthersHaveGivenBack(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &lateStore{Store: memory.New(nil)}
		options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
		l, other := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, store.Store, w, options)
		now := at("12:00:01")
		alone, err := l.TakeLocal(request(now, 5, 100), limitertest.ErrUnsent)
		require.NoError(t, err)
		store.late.Store(true)
		_, err = l.Take(t.Context(), request(now, 1, 100))
		require.ErrorIs(t, err, counters.ErrTimeout)
		store.late.Store(false)
		require.True(t, take(t, other, now, 5, 100).Allowed)
		take(t, l, now, 0, 100)
		require.NoError(t, l.Refund(t.Context(), request(now, 5, 100), alone))

		require.NoError(t, other.Refund(t.Context(), request(now, 5, 100), counters.Decision{Allowed: true}))
		take(t, l, now, 0, 100)
		undone(store.tell[0])
		l.Flush()
		assert.Zero(t, used(t, store.Store, w, now), name)
	}
}
