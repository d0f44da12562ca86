package subwindow_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// takeTogether has l decide the requests in one batch, in their order, and
// returns the decisions. The store's gate is open afterwards.
func takeTogether(t *testing.T, l *limiter, store *gatedStore, requests ...counters.Request) []counters.Decision {
	t.Helper()
	decisions := make([]counters.Decision, len(requests))
	leader := requests[0]
	// Others wait for it.
	go take(t, l, leader.Now.Add(-time.Second), 1, leader.Limit)
	synctest.Wait()
	for i, r := range requests {
		go func() { decisions[i] = take(t, l, r.Now, r.Cost, r.Limit) }()
		synctest.Wait()
	}
	close(store.gate)
	synctest.Wait()
	return decisions
}

// Each call of a batch that stands on both sides of a boundary is counted in
// its own slot.
func (by way) TestABatchAcrossABoundary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		w := newWindow(t, time.Minute, 4, false)
		l := by.newLimiter(t, store, w, sameClock)
		for _, d := range takeTogether(t, l, store, request(at("12:00:14.9"), 10, 100), request(at("12:00:15.1"), 20, 100)) {
			assert.True(t, d.Allowed)
		}
		assert.Equal(t, int64(1+10), used(t, store, w, at("12:00:14")))
		assert.Equal(t, int64(20), used(t, store, w, at("12:00:15")))
	})
}

// A batch looks as far ahead as the latest of its calls has to.
func (by way) TestABatchIsAsLateAsItsLatestCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 4, false)
		store := &gatedStore{Store: inner, gate: make(chan struct{})}
		slow := by.newLimiter(t, store, w, 50*time.Millisecond)
		go func() {
			time.Sleep(time.Second)
			take(t, by.newLimiter(t, inner, w, 50*time.Millisecond), at("12:00:15.01"), 9, 10)
		}()
		decisions := make([]counters.Decision, 3)
		for i, moment := range []string{"12:00:14.5", "12:00:14.9", "12:00:14.98"} {
			go func() { decisions[i] = take(t, slow, at(moment), 1, 10) }()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second) // the fast clock counts in the next slot
		close(store.gate)
		synctest.Wait()
		assert.True(t, decisions[0].Allowed)
		assert.False(t, decisions[1].Allowed || decisions[2].Allowed, "1 and 9 are in use")
	})
}

// Where a reset was asked for, it holds at once, also for a client that was
// denied a moment before.
func (by way) TestAResetIsSeenAtOnceWhereItWasAskedFor(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, 4, false), sameClock)
	require.True(t, take(t, l, at("12:00:01"), 10, 10).Allowed)
	require.False(t, take(t, l, at("12:00:01.1"), 1, 10).Allowed)
	require.NoError(t, l.Reset(t.Context(), "c", at("12:00:01.2")))
	assert.True(t, take(t, l, at("12:00:01.3"), 10, 10).Allowed)
}

// A generation that was evicted begins anew, and isn't taken for the old one.
func (by way) TestAGenerationIsNeverTakenForAnother(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, false)
	here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:00")))
	require.True(t, take(t, there, at("12:00:01"), 90, 100).Allowed)
	require.Equal(t, int64(9), take(t, there, at("12:00:03"), 1, 100).Remaining, "the slot of 12:00:01 is remembered")
	generation := counters.GenerationKey(counters.CounterNamespace("weir", "p", "l", w.Width).Client("c"))
	require.NoError(t, store.Delete(t.Context(), []string{generation}))
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:04")))
	assert.Equal(t, int64(99), take(t, there, at("12:00:05"), 1, 100).Remaining)
}
