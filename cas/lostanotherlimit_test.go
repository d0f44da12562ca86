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

// So it is where others have come in since: a check by a lower limit is denied by both buckets, and
// forgets nothing of the fuller one.
func TestALossThatALowerLimitFindsBesideWhatIsNew(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	here, err := NewTokenBucket(store, time.Hour, 0, testConfig(10))
	require.NoError(t, err)
	there, err := NewTokenBucket(store, time.Hour, 0, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 900, Limit: 1000, Now: clock(t, "12:00:01")}
	take := func(l *Limiter, cost, limit int64) counters.Decision {
		r.Cost, r.Limit, r.Now = cost, limit, r.Now.Add(time.Second)
		d, err := l.Take(unhurried, r)
		require.NoError(t, err)
		return d
	}
	require.True(t, take(here, 900, 1000).Allowed)
	require.NoError(t, store.Delete(t.Context(), []string{testKeys.StateKey("c")}))
	require.True(t, take(there, 20, 1000).Allowed)
	require.False(t, take(here, 1, 10).Allowed)
	assert.LessOrEqual(t, take(there, 0, 1000).Remaining, int64(100))
}
