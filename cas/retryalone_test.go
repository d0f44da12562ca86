package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// Denied requests count, and the store is gone. Of a client that two instances have shared
// evenly, whoever was admitted and waits until its cost is said to fit again is admitted: the
// other instance is thought to have admitted as much.
func (by way) TestFitsAfterIsTrueAlone(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, limit := range []int64{20, 21} { // the last is admitted, or thought to be the other's
			now := clock(t, "12:00:00")
			both := limitertest.NewProcesses(t, 2, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
				cfg := testConfig(10)
				cfg.CountDenied = true
				return newLimiter(s, cfg)
			})
			take := func(i int) counters.Decision {
				return both.Take(i, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
			}
			for n := range 20 {
				require.True(t, take(n%2).Allowed)
			}
			now = now.Add(10 * time.Minute)
			both.Stores[0].Fail(limitertest.ErrUnsent)
			waits := 0
			for range 100 {
				d := take(0)
				require.True(t, d.Allowed, "%s, limit %d, after %d waits", name, limit, waits)
				if now = now.Add(d.FitsAfter); d.FitsAfter > 0 {
					waits++
				}
			}
			assert.Positive(t, waits, "%s, limit %d", name, limit)
		}
	}
}
