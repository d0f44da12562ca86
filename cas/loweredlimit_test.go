package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/racetest"
)

// A lower limit finds the entries as the higher one has cut them: of ten each.
// They count in full until their first has left, less 1 until their last has.
func TestEntriesOfAHigherLimitStayWhole(t *testing.T) {
	t.Parallel()
	c := countingClient(t, time.Minute, 8, false)
	r := counters.Request{Cost: 1, Limit: 80, Now: clock(t, "12:00:00")}
	for range 80 { // until 12:00:07.9
		require.True(t, c.ask(t, r).Allowed)
		r.Now = r.Now.Add(100 * time.Millisecond)
	}
	r.Limit = 16
	for _, step := range []struct {
		at        string
		inWindow  int
		remaining int64
	}{
		{"12:00:10", 80, 0},
		{"12:01:06.01", 19, 0}, // the first of 12:00:06 has left: 9 and 10
		{"12:01:06.41", 15, 0}, // an exact log has room for 1
		{"12:01:06.89", 11, 0}, // and for 5
		{"12:01:06.91", 10, 6},
		{"12:01:07.01", 9, 7},
		{"12:01:07.89", 1, 7},
		{"12:01:07.91", 0, 16},
	} {
		r.Now = clock(t, step.at)
		d := c.peek(t, r)
		assert.Equal(t, step.remaining, d.Remaining, "%s: the window holds %d", step.at, step.inWindow)
		assert.Equal(t, step.remaining > 0, d.Allowed, step.at)
	}
}

// With limits that change from one request to the next: the bounds are those of
// the limit that is asked for, less an entry's share of the highest.
func TestCountingLogKeepsItsBoundsWhenLimitsChange(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const entries = 8
		c := countingClient(t, time.Minute, entries, false)
		now := clock(t, "12:00:00")
		admitted := &logModel{window: time.Minute}
		longer := &logModel{window: time.Minute + time.Duration(c.algorithm.(log).grain())}
		var highest int64
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			limit := rapid.SampledFrom([]int64{5, 40, 400}).Draw(t, "limit")
			highest = max(highest, limit)
			r := counters.Request{Cost: rapid.Int64Range(1, 5).Draw(t, "cost"), Limit: limit, Now: now}
			if c.ask(t, r).Allowed {
				_, used := admitted.live(now.UnixNano())
				require.LessOrEqual(t, used+r.Cost, limit)
				admitted.list = append(admitted.list, logged{now.UnixNano(), r.Cost})
				longer.list = admitted.list
			} else {
				_, used := longer.live(now.UnixNano())
				require.Greater(t, used+r.Cost, limit-max(0, (highest+entries-1)/entries-2))
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause")))
		}
	})
}
