package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
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
