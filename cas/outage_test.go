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

// Two instances that share a busy client limit it alone for some windows, and together
// admit the limit in each. When the store is back, the bucket is as full as they know it to
// be: what they admit from then on isn't half as much again.
func TestABucketIsFullAfterAnOutageOfSomeWindows(t *testing.T) {
	const limit, n = 100, 2
	window, begin := time.Second, time.Now().Truncate(time.Second)
	now := begin
	p := limitertest.NewProcesses(t, n, memory.New(func() time.Time { return now }), func(s limitertest.Store) (counters.Limiter, error) {
		return NewTokenBucket(s, window, 0, testConfig(10))
	})
	admitted := int64(0)
	ask := func(for_ time.Duration) (sum int64) {
		for end, i := now.Add(for_), 0; now.Before(end); i++ {
			now = now.Add(window / (2 * limit))
			if p.Take(i/2%n, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}).Allowed {
				sum++
			}
		}
		admitted += sum
		return sum
	}
	for range 3 {
		ask(window)
	}
	p.Fail(limitertest.ErrUnsent)
	for range 3 {
		ask(window)
	}
	p.Fail(nil)
	after := ask(window)
	assert.LessOrEqual(t, after, int64(limit*115/100), "in the window after the outage")
	assert.LessOrEqual(t, admitted, int64(limit+7*limit+limit*15/100), "in all: burst + limit * t / window")
}

// A bucket that is full for 90 s expires while the store doesn't answer. What was admitted alone
// came on top of it, so that it isn't empty by then.
func TestABucketThatExpiresInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &limitertest.BrokenStore{Store: memory.New(nil)}
		l, err := NewTokenBucket(store, 100*time.Second, 0, testConfig(10))
		require.NoError(t, err)
		take := func(cost int64) counters.Decision {
			r := counters.Request{Client: "c", Cost: cost, Limit: 100, Now: time.Now()}
			d, err := l.Take(unhurried, r)
			if err != nil {
				d, err = l.TakeLocal(r, err)
			}
			require.NoError(t, err)
			require.True(t, d.Allowed)
			return d
		}
		take(90)
		time.Sleep(80 * time.Second)
		store.Fail(limitertest.ErrUnsent)
		take(60)
		time.Sleep(15 * time.Second)
		store.Fail(nil)
		assert.Equal(t, int64(100-(90+60-80-15)-1), take(1).Remaining)
	})
}
