package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memory"
	"weir/subwindow"
)

// An instance may see a reset of a fixed window late, as nothing is missing: another has
// admitted more than it had. When that is given back, what it counted before the reset
// isn't put back.
func (by way) TestWhatWasCountedBeforeAResetIsNotPutBackAfterAGiveBack(t *testing.T) {
	t.Parallel()
	store, w := memory.New(nil), subwindow.Window{Strict: true, Width: time.Hour}
	resets, counted, gives := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	now := at("12:00:00")
	require.True(t, take(t, counted, now, 40, 100).Allowed)
	require.True(t, take(t, gives, now, 50, 100).Allowed)
	now = now.Add(2 * time.Second)
	require.NoError(t, resets.Reset(t.Context(), "c", now))
	now = now.Add(100 * time.Millisecond)
	taken := take(t, gives, now, 50, 100)
	require.True(t, taken.Allowed)
	require.True(t, take(t, counted, now, 1, 100).Allowed)
	require.NoError(t, gives.Refund(t.Context(), request(now, 50, 100), taken))
	for range 3 {
		now = now.Add(time.Second)
		require.True(t, take(t, counted, now, 1, 100).Allowed)
	}
	assert.Equal(t, int64(95), take(t, resets, now.Add(time.Second), 1, 100).Remaining, "five since the reset")
}
