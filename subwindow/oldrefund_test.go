package subwindow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// A refund of a request that has left every window gives nothing back, and isn't taken
// for a clock that was set back: what is known of the client stays, while it is told and
// while it is told again.
func (by way) TestARefundOfAnOldRequestForgetsNothing(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{0, 1, 10} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			w := subwindow.Window{Strict: true, Width: time.Minute, Slots: slots}
			if slots > 0 {
				w.Width /= time.Duration(slots)
			}
			refunds := new(counters.Group)
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Refunds: refunds})
			first := at("10:00:30")
			old := take(t, l, first, 5, 5)
			require.True(t, old.Allowed)
			now := first.Add(15 * time.Minute)
			require.True(t, take(t, l, now, 5, 5).Allowed)
			store.Fail(limitertest.ErrUnsent)
			_ = l.Refund(t.Context(), request(first, 5, 5), old)
			refunds.Wait()
			d, err := l.TakeLocal(request(now.Add(time.Second), 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "all of the limit was admitted a second ago")
		})
	}
}
