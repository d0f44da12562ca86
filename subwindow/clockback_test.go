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

// An instance whose clock was ahead for a moment, and is right again, sees what others
// count from then on.
func (by way) TestAClockThatWasAheadHidesNothing(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{10, 60} {
		const limit = 10
		start := at("12:00:00")
		store := memory.New(func() time.Time { return start })
		w := newWindow(t, time.Minute, slots, false)
		a, b := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
		require.True(t, take(t, a, start.Add(30*time.Second), 1, limit).Allowed) // by a clock that is 30 s ahead
		_, err := a.Peek(t.Context(), request(start.Add(time.Second), 1, limit)) // it is right again
		require.NoError(t, err)
		require.True(t, take(t, b, start.Add(2*time.Second), limit, limit).Allowed)
		d := take(t, a, start.Add(20*time.Second), limit, limit)
		assert.False(t, d.Allowed, "%d slots: twice the limit within 20 s", slots)
	}
}

// An instance whose clock was a year ahead, and is right again, doesn't remember the slots of
// that year.
func (by way) TestAClockThatWasFarAhead(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Second, 100, false), sameClock)
	now := at("12:00:00")
	require.True(t, take(t, l, now.Add(365*24*time.Hour), 10, 10).Allowed)
	for range 2 {
		assert.Equal(t, int64(5), take(t, l, now, 5, 10).Remaining)
		assert.False(t, take(t, l, now, 6, 10).Allowed)
		now = now.Add(2 * time.Second)
	}
}

// What a process has admitted alone while its clock was ahead is neither in the way of what comes
// when that is right again, nor forgotten; nor is what others have still to tell of that slot.
func (by way) TestAClockThatWasAheadWithoutTheStore(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Millisecond}
			here, there := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, store.Store, w, options)
			now, ahead := at("12:00:59.9985"), at("12:01:00.0005")
			for range 20 {
				require.True(t, take(t, here, now, 1, 100).Allowed)
				require.True(t, take(t, there, now, 1, 100).Allowed)
			}
			ahead = ahead.Add(w.Width) // two slots on
			store.Fail(limitertest.ErrUnsent)
			require.True(t, takeAnyway(t, here, request(ahead, 10, 100)))
			require.True(t, takeAnyway(t, here, request(now, 5, 100)))
			store.Fail(nil)
			require.True(t, take(t, here, now, 1, 100).Allowed)
			assert.False(t, take(t, here, now, 60, 100).Allowed)
			assert.True(t, take(t, here, now, 20, 100).Allowed)
			assert.EqualValues(t, 10, used(t, store.Store, w, ahead))
		})
	}
}
