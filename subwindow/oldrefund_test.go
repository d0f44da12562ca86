package subwindow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// A refund of a request from many windows ago isn't taken for a clock that was set back:
// what is known of the client stays.
func TestARefundOfAnOldRequestForgetsNothing(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{0, 1, 10} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			w := subwindow.Window{Strict: true, Width: time.Minute, Slots: slots}
			if slots > 0 {
				w.Width /= time.Duration(slots)
			}
			l := newLimiter(t, store, w, sameClock)
			first := at("10:00:30")
			old := take(t, l, first, 5, 5)
			require.True(t, old.Allowed)
			now := first.Add(15 * time.Minute)
			require.True(t, take(t, l, now, 5, 5).Allowed)
			store.Fail(limitertest.ErrUnsent)
			require.Error(t, l.Refund(t.Context(), request(first, 5, 5), old))
			d, err := l.TakeLocal(request(now.Add(time.Second), 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "all of the limit was admitted a second ago")
		})
	}
}
