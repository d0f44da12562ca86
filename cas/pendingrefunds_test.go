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

// A refundCounter counts what states are asked to give back.
type refundCounter struct {
	algorithm[bucketState]
	refunds int
}

func (c *refundCounter) refund(s bucketState, d *debt) bucketState {
	c.refunds++
	return c.algorithm.refund(s, d)
}

// While the store is gone, a refund takes no longer the more of them wait.
func (by way) TestManyRefundsWaitForTheStore(t *testing.T) {
	t.Parallel()
	for _, way := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard} {
		t.Run(way.Error(), func(t *testing.T) {
			const waiting = 1000
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			l, err := NewTokenBucket(by.on(store), time.Minute, 0, testConfig(10))
			require.NoError(t, err)
			counter := &refundCounter{algorithm: l.limiter.(*limiterOf[bucketState]).family.algorithm}
			l.limiter.(*limiterOf[bucketState]).family.algorithm = counter
			r := counters.Request{Client: "c", Cost: 1, Limit: 2 * waiting, Now: clock(t, "12:00:01.5")}
			var taken []counters.Decision
			for range waiting {
				d, err := l.Take(unhurried, r)
				require.NoError(t, err)
				taken = append(taken, d)
			}
			store.Fail(way)
			for _, d := range taken {
				assert.Error(t, l.Refund(unhurried, r, d))
			}
			store.Fail(nil)
			l.Flush()
			l.limiter.(*limiterOf[bucketState]).Change("c", func(*account[bucketState]) {
				assert.Less(t, counter.refunds, waiting*waiting/10)
			})
			d, err := l.Peek(unhurried, r)
			require.NoError(t, err)
			assert.EqualValues(t, 2*waiting, d.Remaining)
		})
	}
}
