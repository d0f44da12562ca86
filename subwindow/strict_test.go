package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/memory"
)

// Under steady overload strict admits at least N/(N+1+h/w) of the limit, of N
// slots as wide as w, which clock skew and store timeout, h, keep in the window
// for longer. Where slots are much wider than that it is N/(N+1), and no less.
func (by way) TestStrictInNarrowSlots(t *testing.T) {
	t.Parallel()
	const slots, limit, windows = 10, 100, 33
	const h = counters.DefaultClockSkew + counters.DefaultTimeout
	for _, tt := range []struct {
		window    time.Duration
		low, high float64
	}{
		{time.Second, 10.0 / 12, 0.86}, // 100 ms
		{2 * time.Second, 10.0 / 11.5, 0.93},
		{10 * time.Second, 10.0 / 11.1, 0.93},
		{time.Minute, 10.0 / 11, 0.93},
	} {
		w := newWindow(t, tt.window, slots, true)
		assert.InDelta(t, slots/(slots+1+float64(h)/float64(w.Width)), tt.low, 0.002)
		for _, demand := range []time.Duration{110, 150, 200, 500} {
			now := at("12:00:00")
			l := by.newLimiterWith(t, memory.New(func() time.Time { return now }), w, counters.Options{StoreTimeout: counters.DefaultTimeout})
			admitted := 0.0
			for end := now.Add(windows * tt.window); now.Before(end); now = now.Add(tt.window / (limit * demand / 100)) {
				if take(t, l, now, 1, limit).Allowed {
					admitted++
				}
			}
			assert.GreaterOrEqual(t, admitted/(windows*limit), tt.low-0.001, "%v, demand %d%%", tt.window, demand)
			assert.Less(t, admitted/(windows*limit), tt.high, "%v, demand %d%%", tt.window, demand)
		}
	}
}
