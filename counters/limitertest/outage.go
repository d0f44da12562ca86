package limitertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// A Store is a store of both kinds.
type Store interface {
	counters.Store
	Load(ctx context.Context, key string) (counters.State, error)
	Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error)
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
}

// The ways in which a BrokenStore fails.
var (
	// ErrUnsent: nothing is sent to the store.
	ErrUnsent = fmt.Errorf("%w, %w", counters.ErrUnavailable, counters.ErrNotSent)
	// ErrUnanswered: the store does it, and its answer is lost.
	ErrUnanswered = fmt.Errorf("%w, but it did", counters.ErrTimeout)
	// ErrUnheard: what is sent never reaches the store.
	ErrUnheard = fmt.Errorf("%w, nor will it", counters.ErrTimeout)
)

// A BrokenStore fails in one of those ways while Err isn't nil, but tells states
// all the same if it is readable. While hold isn't nil, each operation waits to
// receive from it first.
type BrokenStore struct {
	Store
	Err      error
	readable bool
	hold     chan struct{}
	// life is that of all versions; see counters.State.
	life uint64
}

// try does operate unless the store doesn't come to it.
func (s *BrokenStore) try(operate func() error) error {
	if s.hold != nil {
		<-s.hold
	}
	if s.Err == nil {
		return operate()
	}
	if s.Err == ErrUnanswered {
		_ = operate() // nobody hears of it
	}
	return s.Err
}

// Add implements counters.Store.
func (s *BrokenStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	err = s.try(func() (err error) { n, err = s.Store.Add(ctx, a); return err })
	return n, err
}

// Read implements counters.Store.
func (s *BrokenStore) Read(ctx context.Context, keys []string, counts []int64) error {
	return s.try(func() error { return s.Store.Read(ctx, keys, counts) })
}

// Subtract implements counters.Store.
func (s *BrokenStore) Subtract(ctx context.Context, key string, delta int64) error {
	return s.try(func() error { return s.Store.Subtract(ctx, key, delta) })
}

// Raise implements counters.Store.
func (s *BrokenStore) Raise(ctx context.Context, floors []counters.Floor) error {
	return s.try(func() error { return s.Store.Raise(ctx, floors) })
}

// Put implements counters.StateStore.
func (s *BrokenStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.try(func() error { return s.Store.Put(ctx, key, value, ttl) })
}

// Delete implements counters.Store.
func (s *BrokenStore) Delete(ctx context.Context, keys []string) error {
	return s.try(func() error { return s.Store.Delete(ctx, keys) })
}

// Load implements counters.StateStore.
func (s *BrokenStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	load := func() (err error) { state, err = s.Store.Load(ctx, key); return err }
	if s.readable {
		err = load()
	} else {
		err = s.try(load)
	}
	return s.alive(state), err
}

// Swap implements counters.StateStore.
func (s *BrokenStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (state counters.State, swapped bool, err error) {
	if old.Exists() && old.Life != s.life {
		state, err = s.Load(ctx, key)
		return state, false, err
	}
	old.Life = 0
	err = s.try(func() (err error) { state, swapped, err = s.Store.Swap(ctx, key, old, value, ttl); return err })
	return s.alive(state), swapped, err
}

func (s *BrokenStore) alive(state counters.State) counters.State {
	if state.Exists() {
		state.Life = s.life
	}
	return state
}

// An instance is a limiter as one process has it, and its clock.
type instance struct {
	t       *testing.T
	store   *BrokenStore
	limiter Limiter
	now     time.Time
	limit   int64
}

// check asks for cost, of the process alone if the store fails.
func (i *instance) check(cost int64) counters.Decision {
	i.t.Helper()
	r := counters.Request{Client: "c", Cost: cost, Limit: i.limit, Now: i.now}
	d, err := i.limiter.Take(context.Background(), r)
	if i.store.Err == nil {
		require.NoError(i.t, err)
	}
	if err == nil {
		return d
	}
	d, err = i.limiter.TakeLocal(r, err)
	require.NoError(i.t, err)
	assert.True(i.t, d.Local)
	return d
}

// admits returns how many of n checks are admitted.
func (i *instance) admits(n int) (admitted int) {
	i.t.Helper()
	for range n {
		if i.check(1).Allowed {
			admitted++
		}
	}
	return admitted
}

func (i *instance) refund(cost int64, taken counters.Decision) {
	i.t.Helper()
	r := counters.Request{Client: "c", Cost: cost, Limit: i.limit, Now: i.now}
	require.NoError(i.t, i.limiter.Refund(context.Background(), r, taken))
}

// Outage tests what a limiter decides without its store, and what the store has
// of that afterwards. newStore makes a store, and newLimiter a limiter of one
// process on it, at which a limit of ten lasts, from now on, for over a second.
func Outage(t *testing.T, now time.Time, newStore func() Store, newLimiter func(*testing.T, Store) Limiter) {
	const limit = 10
	begin := func(t *testing.T) (a, b *instance) {
		shared := newStore()
		instances := make([]*instance, 2)
		for i := range instances {
			store := &BrokenStore{Store: shared}
			instances[i] = &instance{t, store, newLimiter(t, store), now, limit}
		}
		return instances[0], instances[1]
	}
	for _, outage := range []error{ErrUnsent, ErrUnanswered, ErrUnheard} {
		t.Run(outage.Error(), func(t *testing.T) {
			t.Run("what is used up stays used up", func(t *testing.T) {
				a, _ := begin(t)
				require.Equal(t, limit, a.admits(limit))
				denial := a.check(1)
				a.store.Err = outage
				assert.Zero(t, a.admits(50))
				d, known := a.limiter.Recall(counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				assert.True(t, known)
				assert.Equal(t, denial.RetryAfter, d.RetryAfter)
				a.now = now.Add(denial.RetryAfter - 1)
				assert.False(t, a.check(1).Allowed)
				a.now = now.Add(denial.RetryAfter)
				assert.True(t, a.check(1).Allowed)
			})
			t.Run("the rest is admitted, once", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 4, a.admits(4))
				a.store.Err = outage
				assert.Equal(t, limit-4, a.admits(50))
				a.store.Err = nil
				assert.Zero(t, a.admits(20))
				assert.Zero(t, b.admits(20))
			})
			t.Run("the store counts once what was admitted", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 2, a.admits(2))
				a.store.Err = outage
				require.Equal(t, 3, a.admits(3))
				a.store.Err = nil
				require.Equal(t, 1, a.admits(1))
				require.Equal(t, 1, a.admits(1))
				assert.Equal(t, limit-7, b.admits(20))
			})
			t.Run("who only looks sees what was admitted", func(t *testing.T) {
				a, _ := begin(t)
				require.Equal(t, 2, a.admits(2))
				a.store.Err = outage
				require.Equal(t, limit-2, a.admits(50))
				a.store.Err = nil
				d, err := a.limiter.Peek(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Zero(t, d.Remaining)
			})
			t.Run("it is added to what others have counted", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 1, a.admits(1))
				a.store.Err = outage
				require.Equal(t, 3, a.admits(3))
				require.Equal(t, 2, b.admits(2))
				a.store.Err = nil
				require.True(t, a.check(1).Allowed)
				if outage == ErrUnheard { // others' counts may hide that a few are missing
					assert.LessOrEqual(t, b.admits(20), limit-6)
				} else {
					assert.Equal(t, limit-7, b.admits(20))
				}
			})
			t.Run("a client that isn't remembered is a new one", func(t *testing.T) {
				a, _ := begin(t)
				_, known := a.limiter.Recall(counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				assert.False(t, known)
				a.store.Err = outage
				assert.Equal(t, limit, a.admits(50))
			})
			t.Run("a refund is one here too", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 4, a.admits(4))
				a.store.Err = outage
				taken := a.check(5)
				require.True(t, taken.Allowed)
				a.refund(5, taken)
				assert.Equal(t, limit-4, a.admits(50))
				a.store.Err = nil
				assert.Zero(t, a.admits(20))
				assert.Zero(t, b.admits(20))
			})
		})
	}
	t.Run("a reset that fails forgets nothing", func(t *testing.T) {
		a, _ := begin(t)
		require.Equal(t, limit, a.admits(limit))
		a.store.Err = ErrUnsent
		require.Error(t, a.limiter.Reset(context.Background(), "c", now))
		assert.Zero(t, a.admits(20))
		a.store.Err = nil
		assert.Zero(t, a.admits(20))
	})
	t.Run("a reset by another takes what was admitted before it", func(t *testing.T) {
		a, b := begin(t)
		require.Equal(t, 2, a.admits(2))
		a.store.Err = ErrUnsent
		require.Equal(t, 5, a.admits(5))
		now = now.Add(100 * time.Millisecond)
		a.now, b.now = now, now
		require.NoError(t, b.limiter.Reset(context.Background(), "c", now))
		now = now.Add(100 * time.Millisecond)
		a.now, b.now = now, now
		a.store.Err = nil
		require.Equal(t, 1, a.admits(1))
		assert.Equal(t, limit-1, b.admits(20))
	})
	// What may have been counted isn't taken back.
	t.Run("a refund after the store is back is one there", func(t *testing.T) {
		a, b := begin(t)
		a.store.Err = ErrUnsent
		taken := a.check(5)
		a.store.Err = nil
		require.True(t, a.check(1).Allowed)
		a.refund(5, taken)
		assert.Equal(t, limit-1, b.admits(20))
	})
}
