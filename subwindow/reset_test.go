package subwindow_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A deletingStore does something before and after the deletes of a reset.
type deletingStore struct {
	counters.Store
	before, after func()
}

func (s *deletingStore) Delete(ctx context.Context, keys []string) error {
	if s.before != nil {
		s.before()
	}
	err := s.Store.Delete(ctx, keys)
	if s.after != nil {
		s.after()
	}
	return err
}

// A refund while a reset is under way takes nothing from what is counted after
// the deletes.
func (by way) TestARefundDuringAResetTakesNothing(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, false)
	here := by.newLimiter(t, inner, w, 50*time.Millisecond)
	store := &deletingStore{Store: inner}
	there := by.newLimiter(t, store, w, 50*time.Millisecond)
	early := at("12:00:01.03") // by a clock that is ahead of the reset's
	require.True(t, take(t, here, early, 6, 10).Allowed)
	store.after = func() {
		require.True(t, take(t, there, at("12:00:01.01"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(early, 6, 10), counters.Decision{Allowed: true}))
	}
	require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01")))
	assert.Equal(t, int64(10), used(t, inner, w, early))
}

// A reset that takes long was over when it was over: what was counted before
// its deletes isn't refunded from what comes after them.
func (by way) TestARefundAfterASlowResetTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 4, false)
		here := by.newLimiter(t, inner, w, sameClock)
		there := by.newLimiter(t, &deletingStore{Store: inner, before: func() {
			time.Sleep(30 * time.Millisecond)
			require.True(t, take(t, here, at("12:00:01.03"), 6, 10).Allowed)
		}}, w, sameClock)
		require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01")))
		require.True(t, take(t, there, at("12:00:01.04"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(at("12:00:01.03"), 6, 10), counters.Decision{Allowed: true}))
		assert.Equal(t, int64(10), used(t, inner, w, at("12:00:01")))
	})
}

// Of two resets at a time neither makes the other seem to be over, or earlier
// than it was.
func (by way) TestARefundDuringTwoResetsTakesNothing(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, false)
	early := at("12:00:01.945")
	here := by.newLimiter(t, inner, w, sameClock)
	require.True(t, take(t, here, early, 6, 10).Allowed)
	second := by.newLimiter(t, &deletingStore{Store: inner, after: func() {
		require.True(t, take(t, by.newLimiter(t, inner, w, sameClock), at("12:00:01.97"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(early, 6, 10), counters.Decision{Allowed: true}))
		assert.Equal(t, int64(10), used(t, inner, w, early))
	}}, w, sameClock)
	first := by.newLimiter(t, &deletingStore{Store: inner, before: func() {
		require.NoError(t, second.Reset(t.Context(), "c", at("12:00:01.96")))
	}}, w, sameClock)
	require.NoError(t, first.Reset(t.Context(), "c", at("12:00:01.95")))
}

// A refund may come as late as two tries after its check, and still finds the
// mark of a reset.
func (by way) TestALateRefundFindsTheReset(t *testing.T) {
	t.Parallel()
	clock := &clock{now: at("12:00:00")}
	store := memory.New(clock.Now)
	w := newWindow(t, time.Minute, 4, false)
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: 5 * time.Second})
	require.True(t, take(t, l, clock.now, 6, 10).Allowed)
	clock.now = at("12:00:08")
	require.NoError(t, l.Reset(t.Context(), "c", clock.now))
	require.True(t, take(t, l, clock.now, 10, 10).Allowed)
	clock.now = at("12:00:10")
	require.NoError(t, l.Refund(t.Context(), request(at("12:00:00"), 6, 10), counters.Decision{Allowed: true}))
	assert.Equal(t, int64(10), used(t, store, w, at("12:00:00")))
}

// A reset also deletes what faster clocks have counted in slots that are still
// to come.
func (by way) TestAResetReachesFastClocks(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, 10*time.Second, 10, true)
	fast, slow := by.newLimiter(t, store, w, 5*time.Second), by.newLimiter(t, store, w, 5*time.Second)
	require.True(t, take(t, fast, at("12:00:10"), 10, 10).Allowed)
	require.NoError(t, slow.Reset(t.Context(), "c", at("12:00:05")))
	assert.True(t, take(t, slow, at("12:00:05"), 10, 10).Allowed)
}

// An instance that has settled a slot hears of a refund there within a second.
func (by way) TestARefundReachesEveryInstanceWithinASecond(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	require.True(t, take(t, here, at("12:00:00.9"), 6, 11).Allowed)
	require.Equal(t, int64(4), take(t, there, at("12:00:02"), 1, 11).Remaining, "the slot of 12:00:00 is settled")
	refund := &counters.Deadline{At: at("12:00:02.1")}
	require.NoError(t, here.Refund(refund, request(at("12:00:00.9"), 6, 11), counters.Decision{Allowed: true}))
	assert.Equal(t, int64(9), take(t, there, at("12:00:03"), 1, 11).Remaining)
}

// A counter of a strict window lives for as long as the slowest clock looks at
// it.
func (by way) TestStrictCountersLiveForTheSlowestClock(t *testing.T) {
	t.Parallel()
	const skew = 5 * time.Second
	clock := &clock{now: at("12:00:00")}
	store := memory.New(clock.Now) // by the fast clock
	w := newWindow(t, 10*time.Second, 10, true)
	fast, slow := by.newLimiter(t, store, w, skew), by.newLimiter(t, store, w, skew)
	require.True(t, take(t, fast, clock.now, 10, 10).Allowed)
	clock.now = at("12:00:20.5")
	d := take(t, slow, clock.now.Add(-skew), 1, 10)
	assert.False(t, d.Allowed)
	assert.Equal(t, 500*time.Millisecond, d.RetryAfter)
}

// A refund whose turn does not come in time is done later.
func (by way) TestARefundWithoutATurnIsDoneLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		failed := 0
		l := by.newLimiterWith(t, store, newWindow(t, time.Minute, 4, true), counters.Options{
			ClockSkew: sameClock, StoreTimeout: 50 * time.Millisecond, RefundFailed: func() { failed++ },
		})
		go func() { take(t, l, at("12:00:01"), 1, 20) }()
		synctest.Wait() // it is at the gate
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Refund(ctx, request(at("12:00:00"), 10, 20), counters.Decision{Allowed: true}), context.DeadlineExceeded)
		l.Flush()
		close(store.gate)
		synctest.Wait()
		l.Flush()
		assert.Zero(t, failed)
		assert.Zero(t, l.Owing())
	})
}

// The process learns of a reset, and then can't read what is counted since. It
// doesn't take what it remembers for that.
func (by way) TestWhatAResetEndedIsNotRememberedWhenTheReadAfterItFails(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 60, false)
	failures := 0
	store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
		if operation == "read" && failures > 0 {
			failures--
			return counters.ErrTimeout
		}
		return nil
	}}
	here, there := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.True(t, take(t, there, at("12:00:01"), 10, 10).Allowed)
	require.False(t, take(t, there, at("12:00:05"), 1, 10).Allowed)
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:05")))
	failures = 1
	_, err := there.Take(t.Context(), request(at("12:00:07"), 1, 100))
	require.ErrorIs(t, err, counters.ErrTimeout)
	assert.True(t, take(t, there, at("12:00:07"), 9, 10).Allowed, "at most the 1 that failed is counted")
}
