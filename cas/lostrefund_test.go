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

// A server is restarted: what was given back meanwhile isn't put back with the rest, also if
// more was admitted alone.
func TestWhatIsGivenBackOfALostStateIsNotPutBack(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range map[string]func(store counters.StateStore) (limiter, error){
		"bucket": func(s counters.StateStore) (limiter, error) {
			return NewTokenBucket(s, 24*time.Hour, 0, testConfig(10))
		},
		"log":          func(s counters.StateStore) (limiter, error) { return NewSlidingLog(s, time.Hour, 100, testConfig(10)) },
		"counting log": func(s counters.StateStore) (limiter, error) { return NewCountingLog(s, time.Hour, 50, testConfig(10)) },
	} {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			store := &limitertest.BrokenStore{Store: inner}
			l, err := newLimiter(store)
			require.NoError(t, err)
			now := time.Now()
			request := func(cost int64) counters.Request {
				now = now.Add(time.Millisecond)
				return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now}
			}
			_, err = l.Take(unhurried, request(10))
			require.NoError(t, err)
			given := request(50)
			d, err := l.Take(unhurried, given)
			require.NoError(t, err)

			store.Fail(limitertest.ErrUnsent)
			require.Error(t, l.Refund(unhurried, given, d))
			d, err = l.TakeLocal(request(1), limitertest.ErrUnsent)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			for _, key := range []string{"token_bucket", "sliding_log"} {
				require.NoError(t, inner.Delete(t.Context(), []string{counters.StateNamespace("weir", "p", "l", key).StateKey("c")}))
			}
			require.Zero(t, inner.Len())
			store.Fail(nil)
			d, err = l.Take(unhurried, request(1))
			require.NoError(t, err)
			assert.Equal(t, int64(100-10-1-1), d.Remaining)
			l.Flush()
		})
	}
}
