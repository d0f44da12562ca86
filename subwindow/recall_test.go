package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/limitertest"
	"weir/counters/memory"
)

// Who asks how a client will stand later changes nothing: what was admitted without the
// store still counts now.
func (by way) TestLookingAheadForgetsNothing(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			store.Fail(limitertest.ErrUnsent)
			l := by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			d, err := l.TakeLocal(request(now, 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			d, _ = l.Recall(request(now.Add(3*time.Minute), 5, 5))
			assert.True(t, d.Allowed, "in three minutes")
			d, err = l.TakeLocal(request(now, 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "now")
		})
	}
}
