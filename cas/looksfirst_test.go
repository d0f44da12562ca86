package cas

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A gatedStore answers its first Load when the gate is open.
type gatedStore struct {
	counters.StateStore
	entered, gate chan struct{}
}

func (s *gatedStore) Load(ctx context.Context, key string) (counters.State, error) {
	select {
	case s.entered <- struct{}{}:
		<-s.gate
	default:
	}
	return s.StateStore.Load(ctx, key)
}

// What is admitted in a batch whose first call only looks is in use when the store is gone.
func TestWhatIsAdmittedBehindALookIsRemembered(t *testing.T) {
	t.Parallel()
	inner := &limitertest.BrokenStore{Store: memory.New(nil)}
	store := &gatedStore{inner, make(chan struct{}, 1), make(chan struct{})}
	l, err := NewTokenBucket(store, time.Hour, 0, testConfig(10))
	require.NoError(t, err)
	now := time.Now()
	request := func(cost int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	look := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := l.Peek(ctx, request(1))
			done <- err
		}()
		return done
	}
	first := look()
	require.Eventually(t, func() bool { return len(store.entered) == 1 }, time.Minute, time.Millisecond)
	second := look()
	time.Sleep(20 * time.Millisecond) // until it waits
	taken := make(chan counters.Decision, 1)
	go func() {
		d, _ := l.Take(ctx, request(60))
		taken <- d
	}()
	time.Sleep(20 * time.Millisecond)
	close(store.gate)
	require.NoError(t, <-first)
	require.NoError(t, <-second)
	require.True(t, (<-taken).Allowed)
	inner.Fail(limitertest.ErrUnsent)
	d, err := l.TakeLocal(request(60), limitertest.ErrUnsent)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "60 of 100 are in use")
	inner.Fail(nil)
	l.Flush()
}
