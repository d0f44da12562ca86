package cas

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A client has a limit of 10 by one instance and of 1000 by another. The store loses the bucket,
// and each puts back what it knows of it. What the other had consumed has drained by then, so
// that it gives back nothing of what the first has in use.
func TestARefundOfWhatHasDrainedByAHigherLimit(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	here, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	there, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	start := clock(t, "12:00:01")
	at := func(after time.Duration, cost, limit int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: start.Add(after)}
	}
	takes := func(l *Limiter, r counters.Request) counters.Decision {
		t.Helper()
		d, err := l.Take(unhurried, r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		return d
	}
	takes(there, at(0, 1, 10))
	takes(here, at(1, 9, 10))
	require.NoError(t, store.Delete(t.Context(), []string{testKeys.StateKey("c")}))
	first := at(time.Millisecond, 20, 1000)
	taken := takes(there, first)
	takes(there, at(time.Second, 20, 1000))
	takes(there, at(2200*time.Millisecond, 1, 1000)) // 16.7 a second drain: a few are left
	last := at(2201*time.Millisecond, 1, 10)
	d, err := here.Take(unhurried, last) // 10 were in use 2.2 s ago
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.NoError(t, there.Refund(unhurried, first, taken))
	d, err = here.Peek(unhurried, last)
	require.NoError(t, err)
	assert.Zero(t, d.Remaining)
}

// A bucket expires by the limit that has filled it, also for an instance that remembers it, and asks
// by a lower limit then, with the store or without it.
func TestABucketThatHasDrainedByAHigherLimit(t *testing.T) {
	for name, failure := range map[string]error{"with the store": nil, "alone": limitertest.ErrUnsent} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &limitertest.BrokenStore{Store: memory.New(nil)}
				l, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
				require.NoError(t, err)
				take := func(cost, limit int64) counters.Decision {
					r := counters.Request{Client: "c", Cost: cost, Limit: limit, Now: time.Now()}
					d, err := l.Take(unhurried, r)
					if err != nil {
						d, err = l.TakeLocal(r, err)
					}
					require.NoError(t, err)
					return d
				}
				require.True(t, take(500, 1000).Allowed)
				time.Sleep(40 * time.Second)
				store.Fail(failure)
				assert.EqualValues(t, 9, take(1, 10).Remaining)
			})
		})
	}
}

// What a bucket has had above a lower limit is forgotten when that limit takes from it. Another
// instance, which is asked by a higher limit, takes it for lost, and puts it back: but not in the
// place of what the lower one has taken since, though that has drained by the higher.
func TestWhatALowerLimitHasTakenIsNotReplaced(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	here, err := NewTokenBucket(store, time.Second, 0, testConfig(10))
	require.NoError(t, err)
	there, err := NewTokenBucket(store, time.Second, 0, testConfig(10))
	require.NoError(t, err)
	start := clock(t, "12:00:01")
	take := func(l *Limiter, after time.Duration, cost, limit int64) bool {
		d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: limit, Now: start.Add(after)})
		require.NoError(t, err)
		return d.Allowed
	}
	require.True(t, take(there, 0, 5000, 5000))
	require.True(t, take(here, time.Second, 10, 10))
	take(there, 1200*time.Millisecond, 400, 300) // is denied
	assert.False(t, take(here, 1210*time.Millisecond, 5, 10))
}
