package cas

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A gatedStore loads nothing until the gate is open.
type gatedStore struct {
	counters.StateStore
	gate chan struct{}
}

func (s *gatedStore) Load(ctx context.Context, key string) (counters.State, error) {
	<-s.gate
	return s.StateStore.Load(ctx, key)
}

// What is admitted in a batch whose first call only looks is in use when the store is gone.
func TestWhatIsAdmittedBehindALookIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := &limitertest.BrokenStore{Store: memory.New(nil)}
		store := &gatedStore{inner, make(chan struct{})}
		l, err := NewTokenBucket(store, time.Hour, 0, testConfig(10))
		require.NoError(t, err)
		request := func(cost int64) counters.Request {
			return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: time.Now()}
		}
		for range 2 { // the first leads, and the second is the first of the next batch
			go func() {
				_, err := l.Peek(unhurried, request(1))
				assert.NoError(t, err)
			}()
			synctest.Wait()
		}
		go func() {
			d, err := l.Take(unhurried, request(60))
			assert.NoError(t, err)
			assert.True(t, d.Allowed)
		}()
		synctest.Wait()
		close(store.gate)
		synctest.Wait()
		inner.Fail(limitertest.ErrUnsent)
		d, err := l.TakeLocal(request(60), limitertest.ErrUnsent)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "60 of 100 are in use")
	})
}
