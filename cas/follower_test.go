package cas

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// contended is a client of whom other takes whenever limiter asks the store, which takes a
// millisecond.
type contended struct {
	way
	t              *testing.T
	rigged         *riggedStore
	limiter, other *Limiter
}

func (by way) newContended(t *testing.T, cfg Config) *contended {
	store := memory.New(nil)
	c := &contended{way: by, t: t, rigged: &riggedStore{StateStore: store}}
	var err error
	c.limiter, err = NewTokenBucket(by.on(c.rigged), time.Second, 0, cfg)
	require.NoError(t, err)
	c.other, err = NewTokenBucket(by.on(store), time.Second, 0, testConfig(10))
	require.NoError(t, err)
	c.rigged.beforeSwap = c.otherTakes
	return c
}

func (c *contended) request() counters.Request {
	return counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: time.Now()}
}

func (c *contended) takeBy(l *Limiter, timeout time.Duration) (counters.Decision, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), timeout)
	defer cancel()
	return c.take(ctx, l, c.request())
}

func (c *contended) otherTakes() {
	time.Sleep(time.Millisecond)
	d, err := c.takeBy(c.other, time.Second)
	assert.NoError(c.t, err)
	assert.True(c.t, d.Allowed)
}

// lead returns while limiter takes, contended for 60 ms. What that is told it sends.
func (c *contended) lead() chan counters.Decision {
	led := make(chan counters.Decision, 1)
	go func() {
		d, err := c.takeBy(c.limiter, 60*time.Millisecond)
		assert.NoError(c.t, err)
		led <- d
	}()
	time.Sleep(10500 * time.Microsecond)
	return led
}

// A follower of a contended leader is denied too where no clients, or too few,
// are remembered, as with -view-clients 0.
func (by way) TestAFollowerIsDeniedThoughNothingIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := by.newContended(t, testConfig(-1))
		c.lead()
		d, err := c.takeBy(c.limiter, 45*time.Millisecond)
		assert.NoError(t, err)
		assert.True(t, d.Contended)
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// Who only looks behind a contended leader is told what is left, and isn't denied.
func (by way) TestWhoLooksBehindAContendedLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := by.newContended(t, testConfig(10))
		c.lead()
		d, err := c.limiter.Peek(&counters.Deadline{At: time.Now().Add(45 * time.Millisecond)}, c.request())
		assert.NoError(t, err)
		assert.True(t, d.Allowed && !d.Contended, "%+v", d)
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// A follower that joins a contended leader at the end of the leader's time has
// its own time left, and is decided when the contention is over.
func (by way) TestAFollowerHasItsOwnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := by.newContended(t, testConfig(10))
		begin := time.Now()
		c.rigged.beforeSwap = func() {
			if time.Since(begin) < 49*time.Millisecond {
				c.otherTakes()
				return
			}
			time.Sleep(time.Millisecond)
		}
		go func() { _, _ = c.takeBy(c.limiter, 50*time.Millisecond) }()
		time.Sleep(47500 * time.Microsecond)
		asked := time.Now()
		d, err := c.takeBy(c.limiter, 50*time.Millisecond)
		assert.NoError(t, err)
		assert.True(t, d.Allowed, "%+v after %v of 50 ms", d, time.Since(asked))
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// Waiting for a turn leaves time enough for the store: an operation that takes
// less than the timeout doesn't fail because of it.
func (by way) TestATurnLeavesTheStoreItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		rigged := &riggedStore{StateStore: store}
		cfg := testConfig(10)
		cfg.StoreTimeout = 50 * time.Millisecond
		limiter, err := NewTokenBucket(by.on(rigged), time.Second, 0, cfg)
		require.NoError(t, err)
		other, err := NewTokenBucket(by.on(store), time.Second, 0, cfg)
		require.NoError(t, err)
		var deadline time.Time
		take := func(l *Limiter) (counters.Decision, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if l == limiter {
				deadline, _ = ctx.Deadline()
			}
			return by.take(ctx, l, counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: time.Now()})
		}
		trip, races := 10*time.Millisecond, 0
		rigged.beforeSwap = func() {
			time.Sleep(trip)
			if races > 0 {
				races--
				_, err := take(other)
				assert.NoError(t, err)
			}
		}
		rigged.afterSwap = func() error {
			if time.Now().After(deadline) {
				return counters.ErrTimeout
			}
			return nil
		}
		for range 6 {
			time.Sleep(time.Second)
			races = 3 // it wins at the fourth attempt
			d, err := take(limiter)
			assert.NoError(t, err)
			assert.True(t, d.Allowed)
		}
		races, trip = 0, 30*time.Millisecond
		d, err := take(limiter)
		assert.NoError(t, err, "a store that answers in 30 of 50 ms hasn't failed")
		assert.True(t, d.Allowed || d.Contended, "%+v", d)
	})
}

// A follower whose own time ends before the leader's is denied by what the
// leader has seen.
func (by way) TestAFollowerWhoseTimeEndsFirstIsDenied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		rigged := &riggedStore{StateStore: store}
		limiter, err := NewTokenBucket(by.on(rigged), time.Second, 0, testConfig(10))
		require.NoError(t, err)
		other, err := NewTokenBucket(by.on(store), time.Second, 0, testConfig(10))
		require.NoError(t, err)
		take := func(l *Limiter, timeout time.Duration) (counters.Decision, error) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			return by.take(ctx, l, counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: time.Now()})
		}
		rigged.beforeSwap = func() {
			time.Sleep(time.Millisecond)
			_, err := take(other, time.Second)
			assert.NoError(t, err)
		}
		go func() { _, _ = take(limiter, 60*time.Millisecond) }()
		time.Sleep(10500 * time.Microsecond)
		d, err := take(limiter, 45*time.Millisecond)
		assert.NoError(t, err)
		assert.True(t, d.Contended)
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// The deadline cuts off an attempt after a lost race: that is contention, and
// admits nothing.
func (by way) TestADeadlineAfterALostRaceIsContention(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	require.True(t, b.take(2).Allowed)
	require.True(t, a.take(1).Allowed)
	a.store.beforeSwap = func() {
		a.store.beforeSwap = nil
		require.True(t, b.take(1).Allowed)
		a.store.afterSwap = func() error {
			a.store.afterSwap = func() error { return counters.ErrTimeout }
			return nil
		}
	}
	d := a.take(1)
	assert.False(t, d.Allowed)
	assert.True(t, d.Contended)
}

// A refund that lost each race is tried again once, and done when the
// contention is over. One whose last attempt was cut off may be done already.
func (by way) TestAContendedRefundIsTriedAgainUnlessItMayBeDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := by.newPair(t)
		a.limit, b.limit = counters.MaxLimit, counters.MaxLimit
		taken := a.take(1000)
		begin, others := time.Now(), int64(0)
		a.store.beforeSwap = func() {
			time.Sleep(time.Millisecond)
			if time.Since(begin) < 20*time.Millisecond {
				b.take(1)
				others++
			}
		}
		refund := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			err := a.limiter.Refund(ctx, a.request(1000), taken)
			a.limiter.Flush()
			return err
		}
		require.ErrorIs(t, refund(), ErrContended)
		assert.Zero(t, a.refundsFailed)
		assert.InDelta(t, counters.MaxLimit-others, a.remaining(), 1, "a refund may be too small by a fraction")

		taken = a.take(1000)
		swaps := 0
		a.store.beforeSwap = func() {
			if swaps++; swaps == 1 {
				b.take(1)
			}
		}
		a.store.afterSwap = func() error {
			if swaps == 2 {
				return counters.ErrTimeout
			}
			return nil
		}
		require.ErrorIs(t, refund(), counters.ErrTimeout)
		assert.Equal(t, 2, swaps)
		assert.Equal(t, 1, a.refundsFailed)
	})
}

// A silentStore answers nothing once it is silent.
type silentStore struct {
	counters.StateStore
	silent atomic.Bool
	loaded func() // if not nil, called after each Load
}

func (s *silentStore) await(ctx context.Context) error {
	if !s.silent.Load() {
		return nil
	}
	<-ctx.Done()
	return counters.ErrTimeout
}

func (s *silentStore) Load(ctx context.Context, key string) (counters.State, error) {
	if err := s.await(ctx); err != nil {
		return counters.State{}, err
	}
	if s.loaded != nil {
		defer s.loaded()
	}
	return s.StateStore.Load(ctx, key)
}

func (s *silentStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if err := s.await(ctx); err != nil {
		return counters.State{}, false, err
	}
	return s.StateStore.Swap(ctx, key, old, value, ttl)
}

// A store that falls silent while nobody else writes has failed, although it has
// answered a moment ago: that is for on_store_error to decide.
func (by way) TestASilentStoreIsNoContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &silentStore{StateStore: memory.New(nil)}
		rigged := &riggedStore{StateStore: store}
		cfg := testConfig(10)
		cfg.StoreTimeout = 50 * time.Millisecond
		limiter, err := NewTokenBucket(by.on(rigged), time.Second, 0, cfg)
		require.NoError(t, err)
		var callers sync.WaitGroup
		take := func(check func(counters.Decision, error)) {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				check(by.take(ctx, limiter, counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: time.Now()}))
			})
			time.Sleep(time.Millisecond)
		}
		rigged.beforeSwap = func() { time.Sleep(4 * time.Millisecond) }
		rigged.afterSwap = func() error { store.silent.Store(true); return nil }
		take(func(d counters.Decision, err error) { assert.True(t, err == nil && d.Allowed, "%+v, %v", d, err) })
		for range 2 { // the second leads
			take(func(d counters.Decision, err error) { assert.Error(t, err, "%+v", d) })
		}
		callers.Wait()
		store.silent.Store(false) // or what may be consumed is asked for again and again
		time.Sleep(3 * time.Second)
	})
}

// So has one that falls silent in the middle of a check.
func (by way) TestAStoreThatFallsSilentIsNoContention(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &silentStore{StateStore: memory.New(nil)}
		limiter, err := NewTokenBucket(by.on(store), time.Hour, 0, testConfig(10))
		require.NoError(t, err)
		other, err := NewTokenBucket(by.on(store), time.Hour, 0, testConfig(10))
		require.NoError(t, err)
		take := func() (counters.Decision, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return by.take(ctx, limiter, counters.Request{Client: "c", Cost: 10, Limit: 10, Now: time.Now()})
		}
		d, err := take()
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, other.Reset(t.Context(), "c", time.Now()))
		time.Sleep(2 * time.Second)
		store.loaded = func() { store.silent.Store(true) } // and there is room
		d, err = take()
		assert.Error(t, err, "%+v", d)
	})
}

// A reconnecting store only loads at the first swap, as one does whose connection
// was lost.
type reconnecting struct {
	counters.StateStore
	lost bool
}

func (s *reconnecting) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if s.lost {
		s.lost = false
		now, err := s.Load(ctx, key)
		return now, false, err
	}
	return s.StateStore.Swap(ctx, key, old, value, ttl)
}

// A store that falls silent after an attempt that no other instance has
// forestalled has failed: what was tried on a guess was only asked for, and so
// was what was tried on a connection that was lost.
func (by way) TestAnAttemptThatOnlyAsksIsNoContention(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(take, other func() (counters.Decision, error), store *reconnecting){
		"others wrote before the client was met": func(_, other func() (counters.Decision, error), _ *reconnecting) {
			_, _ = other()
		},
		"others wrote long ago": func(take, other func() (counters.Decision, error), _ *reconnecting) {
			_, _ = take()
			_, _ = other()
			time.Sleep(2 * counters.MaxStaleness)
		},
		"the connection was lost": func(take, _ func() (counters.Decision, error), store *reconnecting) {
			_, _ = take()
			store.lost = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &reconnecting{StateStore: inner}
				silent := &riggedStore{StateStore: store}
				newTaker := func(store counters.StateStore) func() (counters.Decision, error) {
					cfg := testConfig(10)
					cfg.StoreTimeout = 50 * time.Millisecond
					l, err := NewTokenBucket(by.on(store), time.Minute, 0, cfg)
					require.NoError(t, err)
					return func() (counters.Decision, error) {
						now := time.Now()
						return by.take(&counters.Deadline{At: now.Add(cfg.StoreTimeout)}, l, counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: now})
					}
				}
				take, other := newTaker(silent), newTaker(inner)
				before(take, other, store)
				var attempts atomic.Int64
				silent.afterSwap = func() error {
					if attempts.Add(1) != 2 {
						return nil
					}
					time.Sleep(50 * time.Millisecond)
					return counters.ErrTimeout
				}
				d, err := take()
				assert.EqualValues(t, 2, attempts.Load())
				assert.ErrorIs(t, err, counters.ErrTimeout, "%+v", d)
				time.Sleep(3 * time.Second) // until what may be consumed is asked for
			})
		})
	}
}
