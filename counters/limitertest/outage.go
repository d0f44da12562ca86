package limitertest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// A Store is a store of both kinds.
type Store interface {
	counters.Store
	counters.StateStore
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
// receive from it first. What a process repays beside its checks is under way
// while this changes: change it by Fail and change.
type BrokenStore struct {
	Store
	Err      error
	readable bool
	hold     chan struct{}
	// life is that of all versions; see counters.State.
	life uint64

	mu sync.Mutex
}

// Fail has the store fail with err from now on.
func (s *BrokenStore) Fail(err error) { s.change(func() { s.Err = err }) }

func (s *BrokenStore) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// try does operate unless the store doesn't come to it, or, if it is readable,
// the operation only reads a state.
func (s *BrokenStore) try(reads bool, operate func(store Store, life uint64) error) error {
	s.mu.Lock()
	store, err, hold, readable, life := s.Store, s.Err, s.hold, s.readable, s.life
	s.mu.Unlock()
	if reads && readable {
		return operate(store, life)
	}
	if hold != nil {
		<-hold
		s.mu.Lock()
		err = s.Err
		s.mu.Unlock()
	}
	if err == nil {
		return operate(store, life)
	}
	if err == ErrUnanswered {
		_ = operate(store, life) // nobody hears of it
	}
	return err
}

// Add implements counters.Store.
func (s *BrokenStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	err = s.try(false, func(store Store, _ uint64) (err error) { n, err = store.Add(ctx, a); return err })
	return n, err
}

// Read implements counters.Store.
func (s *BrokenStore) Read(ctx context.Context, keys []string, counts []int64) error {
	return s.try(false, func(store Store, _ uint64) error { return store.Read(ctx, keys, counts) })
}

// Subtract implements counters.Store.
func (s *BrokenStore) Subtract(ctx context.Context, key string, delta int64) error {
	return s.try(false, func(store Store, _ uint64) error { return store.Subtract(ctx, key, delta) })
}

// Raise implements counters.Store.
func (s *BrokenStore) Raise(ctx context.Context, floors []counters.Floor) error {
	return s.try(false, func(store Store, _ uint64) error { return store.Raise(ctx, floors) })
}

// Put implements counters.StateStore.
func (s *BrokenStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.try(false, func(store Store, _ uint64) error { return store.Put(ctx, key, value, ttl) })
}

// Delete implements counters.Store.
func (s *BrokenStore) Delete(ctx context.Context, keys []string) error {
	return s.try(false, func(store Store, _ uint64) error { return store.Delete(ctx, keys) })
}

// Load implements counters.StateStore.
func (s *BrokenStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	err = s.try(true, func(store Store, life uint64) (err error) {
		state, err = store.Load(ctx, key)
		state = alive(state, life)
		return err
	})
	return state, err
}

// Swap implements counters.StateStore.
func (s *BrokenStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (state counters.State, swapped bool, err error) {
	s.mu.Lock()
	lost := old.Exists() && old.Life != s.life
	s.mu.Unlock()
	if lost {
		state, err = s.Load(ctx, key)
		return state, false, err
	}
	old.Life = 0
	err = s.try(false, func(store Store, life uint64) (err error) {
		state, swapped, err = store.Swap(ctx, key, old, value, ttl)
		state = alive(state, life)
		return err
	})
	return state, swapped, err
}

func alive(state counters.State, life uint64) counters.State {
	if state.Exists() {
		state.Life = life
	}
	return state
}

// An instance is a limiter as one process has it, and its clock.
type instance struct {
	t       *testing.T
	store   *BrokenStore
	limiter counters.Limiter
	now     time.Time
	limit   int64
}

// check asks for cost, of the process alone if the store fails.
func (i *instance) check(cost int64) counters.Decision {
	i.t.Helper()
	r := counters.Request{Client: "c", Cost: cost, Limit: i.limit, Now: i.now}
	ctx, cancel := context.WithTimeout(i.t.Context(), time.Minute) // of a machine that stands still
	defer cancel()
	d, err := i.limiter.Take(ctx, r)
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
// of that afterwards. newStore makes an empty store, and newLimiter a limiter on a
// store, as a process of its own has it. What is admitted at now of a limit of ten
// must stay in use for over a second.
func Outage(t *testing.T, now time.Time, newStore func() Store, newLimiter func(*testing.T, Store) counters.Limiter) {
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
				a.store.Fail(outage)
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
				a.store.Fail(outage)
				assert.Equal(t, limit-4, a.admits(50))
				a.store.Fail(nil)
				assert.Zero(t, a.admits(20))
				assert.Zero(t, b.admits(20))
			})
			t.Run("the store counts once what was admitted", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 2, a.admits(2))
				a.store.Fail(outage)
				require.Equal(t, 3, a.admits(3))
				a.store.Fail(nil)
				require.Equal(t, 1, a.admits(1))
				require.Equal(t, 1, a.admits(1))
				assert.Equal(t, limit-7, b.admits(20))
			})
			t.Run("who only looks sees what was admitted", func(t *testing.T) {
				a, _ := begin(t)
				require.Equal(t, 2, a.admits(2))
				a.store.Fail(outage)
				require.Equal(t, limit-2, a.admits(50))
				a.store.Fail(nil)
				d, err := a.limiter.Peek(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Zero(t, d.Remaining)
			})
			t.Run("it is added to what others have counted", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 1, a.admits(1))
				a.store.Fail(outage)
				require.Equal(t, 3, a.admits(3))
				require.Equal(t, 2, b.admits(2))
				a.store.Fail(nil)
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
				a.store.Fail(outage)
				assert.Equal(t, limit, a.admits(50))
			})
			t.Run("a refund is one here too", func(t *testing.T) {
				a, b := begin(t)
				require.Equal(t, 4, a.admits(4))
				a.store.Fail(outage)
				taken := a.check(5)
				require.True(t, taken.Allowed)
				a.refund(5, taken)
				assert.Equal(t, limit-4, a.admits(50))
				a.store.Fail(nil)
				assert.Zero(t, a.admits(20))
				assert.Zero(t, b.admits(20))
			})
		})
	}
	t.Run("a reset that fails forgets nothing", func(t *testing.T) {
		a, _ := begin(t)
		require.Equal(t, limit, a.admits(limit))
		a.store.Fail(ErrUnsent)
		require.Error(t, a.limiter.Reset(context.Background(), "c", now))
		assert.Zero(t, a.admits(20))
		a.store.Fail(nil)
		assert.Zero(t, a.admits(20))
	})
	t.Run("a reset by another takes what was admitted before it", func(t *testing.T) {
		a, b := begin(t)
		require.Equal(t, 2, a.admits(2))
		a.store.Fail(ErrUnsent)
		require.Equal(t, 5, a.admits(5))
		now = now.Add(100 * time.Millisecond)
		a.now, b.now = now, now
		require.NoError(t, b.limiter.Reset(context.Background(), "c", now))
		now = now.Add(100 * time.Millisecond)
		a.now, b.now = now, now
		a.store.Fail(nil)
		require.Equal(t, 1, a.admits(1))
		assert.Equal(t, limit-1, b.admits(20))
	})
	// What may have been counted isn't taken back.
	t.Run("a refund after the store is back is one there", func(t *testing.T) {
		a, b := begin(t)
		a.store.Fail(ErrUnsent)
		taken := a.check(5)
		a.store.Fail(nil)
		require.True(t, a.check(1).Allowed)
		a.refund(5, taken)
		assert.Equal(t, limit-1, b.admits(20))
	})
}
