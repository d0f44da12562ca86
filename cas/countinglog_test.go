package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
)

func countingClient(t require.TestingT, window time.Duration, entries int64, countDenied bool) *client[countingState] {
	l, err := newCountingLog(window, entries, countDenied)
	require.NoError(t, err)
	c := newClient(l)
	c.countDenied = countDenied
	return c
}

// Whatever the traffic: at an admission the window holds no more than the
// limit, and at a denial more than the limit less an entry's share, and less
// the cost. (The window is longer there by what a time is rounded up by.)
func TestCountingLogKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{time.Second, time.Minute, counters.MaxWindow}).Draw(t, "window")
		entries := rapid.SampledFrom([]int64{8, 9, 64}).Draw(t, "entries")
		limit := rapid.SampledFrom([]int64{1, 7, 8, 9, 100, 1000}).Draw(t, "limit")
		c := countingClient(t, window, entries, false)
		now := clock(t, "12:00:00")
		admitted := &logModel{window: window}
		longer := &logModel{window: window + time.Duration(c.algorithm.(counting).grain())}
		share := (limit + entries - 1) / entries
		pause := rapid.SampledFrom([]int64{10, 100, 2 * limit}).Draw(t, "pace")
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			r := counters.Request{Cost: rapid.OneOf(rapid.Int64Range(1, 1), rapid.Int64Range(1, limit)).Draw(t, "cost"), Limit: limit, Now: now}
			if c.ask(t, r).Allowed {
				_, used := admitted.live(now.UnixNano())
				require.LessOrEqual(t, used+r.Cost, limit)
				admitted.list = append(admitted.list, logged{now.UnixNano(), r.Cost})
				longer.list = admitted.list
			} else {
				_, used := longer.live(now.UnixNano())
				require.Greater(t, used+r.Cost, limit-max(0, share-2))
			}
			require.LessOrEqual(t, int64(len(c.state(t).entries)), 2*entries+1)
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/pause).Draw(t, "pause")))
		}
	})
}

// An attacker who fills entries and asks whenever something may leave gets the
// limit and no more, and no less than the limit without an entry.
func TestAttackOnACountingLog(t *testing.T) {
	t.Parallel()
	const limit, entries = 1000, 64
	c := countingClient(t, time.Minute, entries, false)
	r := counters.Request{Cost: 1, Limit: limit, Now: clock(t, "12:00:00")}
	admitted := &logModel{window: time.Minute}
	least := int64(limit)
	for i := range 20_000 {
		if d := c.ask(t, r); d.Allowed {
			admitted.list = append(admitted.list, logged{r.Now.UnixNano(), 1})
			_, used := admitted.live(r.Now.UnixNano())
			require.LessOrEqual(t, used, int64(limit))
		} else {
			_, used := admitted.live(r.Now.UnixNano())
			least = min(least, used)
		}
		r.Now = r.Now.Add(20*time.Millisecond + time.Duration(i%7)*time.Millisecond)
	}
	assert.GreaterOrEqual(t, least, int64(limit-limit/entries-1))
	assert.Less(t, least, int64(limit-10), "the price is real")
	assert.Less(t, len(c.stored), 600)
}

func TestCountingLogReadsAnExactOne(t *testing.T) {
	t.Parallel()
	exact, counted := logClient(t, time.Minute, false), countingClient(t, time.Minute, 64, false)
	r := counters.Request{Cost: 3, Limit: 10, Now: clock(t, "12:00:00")}
	require.True(t, exact.ask(t, r).Allowed)
	r.Now = r.Now.Add(10 * time.Second)
	require.True(t, exact.ask(t, r).Allowed)
	s, err := counted.algorithm.decode(exact.stored)
	require.NoError(t, err)
	assert.Equal(t, exact.peek(t, r), counted.algorithm.peek(s, r))
}
