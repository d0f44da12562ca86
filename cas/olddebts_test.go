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

// A process admits so much alone that it becomes one debt. Its store answers once, and fails
// again before it is told. What was admitted before that stands for itself alone, as the
// others had their time to tell: it isn't joined with what is admitted after that.
func TestManyDebtsFromBeforeAnAnswerStandForThemselves(t *testing.T) {
	t.Parallel()
	const limit, shared, before = 1000, 200, mostDebts + 2
	inner := memory.New(nil)
	broken := &limitertest.BrokenStore{Store: inner}
	store := &riggedStore{StateStore: broken}
	here, err := NewTokenBucket(store, 24*time.Hour, 0, testConfig(10))
	require.NoError(t, err)
	there, err := NewTokenBucket(inner, 24*time.Hour, 0, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 1, Limit: limit, Now: clock(t, "12:00:01")}
	for range shared / 2 {
		for _, l := range []*Limiter{here, there} {
			d, err := l.Take(unhurried, r)
			require.NoError(t, err)
			require.True(t, d.Allowed)
		}
	}
	for range before {
		alone(t, here, r)
	}
	_, err = there.Take(unhurried, r)
	require.NoError(t, err)
	store.afterSwap = func() error { // it comes second, and doesn't come to try again
		broken.Fail(limitertest.ErrUnsent)
		return nil
	}
	_, err = here.Take(unhurried, r)
	require.ErrorIs(t, err, counters.ErrNotSent)

	r.Now = r.Now.Add(time.Second) // nobody has anything to tell any more
	admitted := 2 * mostDebts
	for range admitted {
		alone(t, here, r)
	}
	require.NoError(t, here.Refund(unhurried, r, alone(t, here, r)))
	for allowed := true; allowed && admitted < limit; {
		d, err := here.TakeLocal(r, counters.ErrTimeout)
		require.NoError(t, err)
		if allowed = d.Allowed; allowed {
			admitted++
		}
	}
	assert.InDelta(t, (limit-shared-before-1)/2, admitted, 20, "it has half of the client's requests")
}
