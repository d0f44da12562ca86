package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// The store loses a bucket, and whoever asks next has another limit: it looks, or is denied, and so
// makes nothing of what is in use be forgotten, nor drain sooner.
func TestALossThatAnotherLimitFinds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		used, limit, cost, other int64
		remaining                int64 // what drains in 11 s is in it
	}{
		"a look by a lower one":  {900, 1000, 0, 10, 103},
		"a check by a lower one": {900, 1000, 1, 10, 103},
		"a look by a higher one": {10, 10, 0, 1000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			l, err := NewTokenBucket(store, time.Hour, 0, testConfig(10))
			require.NoError(t, err)
			start := clock(t, "12:00:01")
			take := func(after time.Duration, cost, limit int64) counters.Decision {
				d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: limit, Now: start.Add(after)})
				require.NoError(t, err)
				return d
			}
			require.True(t, take(0, test.used, test.limit).Allowed)
			require.NoError(t, store.Delete(t.Context(), []string{testKeys.StateKey("c")}))
			take(10*time.Second, test.cost, test.other)
			assert.LessOrEqual(t, take(11*time.Second, 0, test.limit).Remaining, test.remaining)
		})
	}
}
