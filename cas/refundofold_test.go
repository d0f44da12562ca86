package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A refund of what was admitted alone and has drained since makes no room: what was
// admitted after that drains no sooner. One process admits no more than burst + what drains.
func TestARefundOfWhatHasDrainedMakesNoRoom(t *testing.T) {
	t.Parallel()
	const limit = 100
	for _, refunds := range []bool{false, true} {
		l, err := NewTokenBucket(memory.New(nil), time.Minute, 0, testConfig(10))
		require.NoError(t, err)
		now := clock(t, "12:00:01.5")
		alone := func(cost int64) (counters.Request, counters.Decision) {
			r := counters.Request{Client: "c", Cost: cost, Limit: limit, Now: now}
			d, err := l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
			return r, d
		}
		early, taken := alone(40)
		require.True(t, taken.Allowed)
		now = now.Add(time.Minute) // it has drained
		for range 2 {
			_, d := alone(50)
			require.True(t, d.Allowed)
		}
		if refunds {
			require.NoError(t, l.Refund(unhurried, early, taken))
		}
		now = now.Add(30 * time.Second)
		alone(1) // half of what was admitted has drained
		d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: 85, Limit: limit, Now: now})
		require.NoError(t, err)
		assert.False(t, d.Allowed, "refunds %v: 186 in 30 s of at most 100 + 50", refunds)
	}
}
