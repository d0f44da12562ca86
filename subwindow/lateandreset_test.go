package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// admittedLate returns a process that has admitted r alone, as its check had no answer yet, another
// one, and their store.
func (by way) admittedLate(t *testing.T, w subwindow.Window, r counters.Request) (store *lateStore, here, there *limiter) {
	store = &lateStore{Store: memory.New(nil)}
	here, there = by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store.Store, w, sameClock)
	store.late.Store(true)
	_, err := here.Take(t.Context(), r)
	require.ErrorIs(t, err, counters.ErrTimeout)
	d, err := here.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	store.late.Store(false)
	return store, here, there
}

// What was admitted alone waits for the outcome of its flight. When that is known, the client has
// been reset elsewhere: it isn't counted.
func (by way) TestWhatWasNotCountedLateIsNotToldAfterAReset(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store, here, there := by.admittedLate(t, w, request(at("12:00:01.1"), 3, 10))
		require.True(t, take(t, here, at("12:00:01.2"), 1, 10).Allowed)
		require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01.5")))
		require.True(t, take(t, there, at("12:00:01.6"), 5, 10).Allowed)
		undone(store.tell[0])
		here.Flush()
		assert.Equal(t, int64(5), used(t, store.Store, w, at("12:00:01.7")), name)
	}
}

// What is admitted alone soon after a reset, by whom that is known, counts once, also if the store
// doesn't answer when it is told.
func (by way) TestWhatIsToldSoonAfterAResetCountsOnce(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &lateStore{Store: memory.New(nil)}
		l := by.newLimiter(t, store, w, 50*time.Millisecond)
		require.NoError(t, l.Reset(t.Context(), "c", at("12:00:01")))
		soon := request(at("12:00:01.03"), 3, 10)
		d, err := l.TakeLocal(soon, counters.ErrNotSent)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		store.late.Store(true)
		soon.Cost = 1
		_, err = l.Take(t.Context(), soon)
		require.ErrorIs(t, err, counters.ErrTimeout)
		store.late.Store(false)
		done(store.tell[0])
		l.Flush()
		assert.EqualValues(t, 10-3-1, take(t, l, at("12:00:01.1"), 1, 10).Remaining, name)
	}
}

// A check that is a little late looks at a slot more than those that were read before it.
func (by way) TestALateRequestReadsTheSlotBefore(t *testing.T) {
	t.Parallel()
	w := minuteWindows(t)["capped"] // so that the end of the oldest slot counts
	store := memory.New(func() time.Time { return at("12:00:01") })
	o := counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second, Clients: 10}
	here, there := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, store, w, o)
	take(t, here, at("11:50:00"), 1, 100)
	require.True(t, take(t, there, at("12:00:01"), 100, 100).Allowed)
	require.True(t, take(t, here, at("12:01:06.01"), 1, 100).Allowed, "the slot has left the window")
	assert.False(t, take(t, here, at("12:01:05.99"), 50, 100).Allowed, "80 of it and 1 are in use")
}

// What was admitted alone, and turns out to be counted, is the process's own: that it is lost is
// noticed although another has begun the slot anew.
func (by way) TestWhatIsCountedLateIsMissed(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store, here, there := by.admittedLate(t, w, request(at("12:00:01.1"), 50, 100))
		done(store.tell[0])
		here.Flush()
		require.Equal(t, int64(50), used(t, store.Store, w, at("12:00:01.2")), name)
		require.NoError(t, store.Delete(t.Context(), []string{key(w, at("12:00:01"))}))
		require.True(t, take(t, there, at("12:00:01.3"), 1, 100).Allowed)
		assert.LessOrEqual(t, take(t, here, at("12:00:01.4"), 1, 100).Remaining, int64(49), name)
	}
}

// Where denied requests count, what was denied alone is told, whether the client comes back or not.
func (by way) TestWhatIsDeniedAloneIsTold(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := memory.New(nil)
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, CountDenied: true, Clients: 10})
		now := at("12:00:01")
		require.True(t, take(t, l, now, 1, 1).Allowed)
		d, err := l.TakeLocal(request(now, 1, 1), counters.ErrNotSent)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		l.Flush()
		assert.Equal(t, int64(2), used(t, store, w, now), name)
	}
}
