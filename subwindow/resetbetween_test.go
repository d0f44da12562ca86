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

// Of what is due back in one slot some is from before a reset that the process hasn't heard
// of: nothing is taken from what was counted since.
func (by way) TestRefundsFromBeforeAndAfterAReset(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	store := &limitertest.BrokenStore{Store: inner}
	w := newWindow(t, time.Minute, 1, false)
	l, other := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
	before := take(t, other, at("10:00:10"), 8, 10)
	require.True(t, before.Allowed)
	require.True(t, take(t, l, at("10:00:11"), 1, 10).Allowed)
	require.NoError(t, other.Reset(t.Context(), "c", at("10:00:20")))
	after := take(t, other, at("10:00:30"), 9, 10)
	require.True(t, after.Allowed)
	store.Fail(limitertest.ErrUnsent)
	for _, back := range []struct {
		now   time.Time
		cost  int64
		taken counters.Decision
	}{{at("10:00:10"), 7, before}, {at("10:00:30"), 2, after}} {
		back.taken.Receipt = counters.Receipt{Generation: back.taken.Receipt.Generation, Refunded: back.taken.Receipt.Refunded}
		require.Error(t, l.Refund(t.Context(), request(back.now, back.cost, 10), back.taken))
	}
	store.Fail(nil)
	l.Flush()
	d := take(t, l, at("10:00:31"), 4, 10)
	assert.False(t, d.Allowed, "7 to 9 of 10 are in use")
}
