package cas_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cas"
	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A tellingStates does swaps while it is late, answers too late, and tells in the end.
type tellingStates struct {
	counters.StateStore
	mu          sync.Mutex
	late        bool
	falls, down bool // after the next late one, it doesn't answer any more
	tell        []func(error)
}

func (s *tellingStates) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, swapped, err := s.StateStore.Swap(ctx, key, old, value, ttl)
	if !s.late || err != nil {
		return state, swapped, err
	}
	late := &counters.Unanswered{Err: fmt.Errorf("%w: late", counters.ErrTimeout)}
	late.Await = func(f func(error)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tell = append(s.tell, f)
	}
	s.down = s.falls
	return counters.State{}, false, late
}

func (s *tellingStates) Load(ctx context.Context, key string) (counters.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return counters.State{}, limitertest.ErrUnsent
	}
	return s.StateStore.Load(ctx, key)
}

// What is still to be given back lifts the level above the capacity. It is taken
// from that level, and not from the capacity.
func TestALevelAboveTheCapacityIsNotForgotten(t *testing.T) {
	store := &tellingStates{StateStore: memory.New(nil)}
	background := new(counters.Goroutines)
	l, err := cas.NewTokenBucket(store, 24*time.Hour, 0, cas.Config{Options: counters.Options{Policy: "p", Limit: "l", Clients: 100, Background: background}})
	require.NoError(t, err)
	now := time.Now()
	late := func(is bool) { store.mu.Lock(); store.late = is; store.mu.Unlock() }
	r := func(cost int64, ago time.Duration) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now.Add(-ago)}
	}
	admitted := int64(0)
	alone := func(cost int64) {
		d, err := l.TakeLocal(r(cost, 0), limitertest.ErrUnsent)
		require.NoError(t, err)
		if d.Allowed {
			admitted += cost
		}
	}
	d, err := l.Take(limitertest.Unhurried, r(4, 0))
	require.NoError(t, err)
	require.True(t, d.Allowed)
	admitted += 4
	late(true)
	_, err = l.Take(limitertest.Unhurried, r(5, time.Millisecond)) // refused; done
	require.Error(t, err)
	alone(6)
	require.EqualValues(t, 10, admitted)
	late(false)
	d, err = l.Take(limitertest.Unhurried, r(1, 0)) // the store has 4+5+6 now
	require.NoError(t, err)
	require.False(t, d.Allowed)
	late(true)
	store.mu.Lock()
	store.falls = true
	store.mu.Unlock()
	require.Len(t, store.tell, 1)
	store.tell[0](nil) // the 5 were counted: they are given back, without an answer
	background.Wait()
	require.Len(t, store.tell, 2)
	for range 5 {
		alone(1)
	}
	assert.LessOrEqual(t, admitted, int64(10), "one process, nothing was lost")
}
