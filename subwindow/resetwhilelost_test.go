package subwindow_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memory"
)

// The store has lost a part of the counts, so that a check which it has counted reads all of
// them. Meanwhile the same instance resets the client, the check's own count included: nothing
// is in use then, and the check is admitted.
func (by way) TestAResetWhileALossIsLookedAt(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			store := &faultyStore{Store: inner, fault: func(string, string) error { return nil }}
			l := by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			require.True(t, take(t, l, now, 5, 10).Allowed)
			require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
			require.True(t, take(t, by.newLimiter(t, inner, w, sameClock), now, 1, 10).Allowed)
			resets := 0
			store.fault = func(operation, _ string) error {
				if operation == "read" {
					if resets++; resets == 1 {
						return l.Reset(t.Context(), "c", now)
					}
				}
				return nil
			}
			d := take(t, l, now, 3, 10)
			assert.True(t, d.Allowed, "%+v", d)
			assert.Positive(t, resets)
		})
	}
}
