package cas

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A swapping does a Swap, or something in its place.
type swapping func(do func() (counters.State, bool, error)) (counters.State, bool, error)

// A scriptedSwap's next Swap is what the test says, once.
type scriptedSwap struct {
	limitertest.Store
	mu   sync.Mutex // as what is due is told in the background, too
	swap swapping
}

// next has the next Swap be f, and returns what it was to be.
func (s *scriptedSwap) next(f swapping) swapping {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.swap
	s.swap = f
	return before
}

func (s *scriptedSwap) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	do := func() (counters.State, bool, error) { return s.Store.Swap(ctx, key, old, value, ttl) }
	if f := s.next(nil); f != nil {
		return f(do)
	}
	return do()
}

// A lateSwap can be told of after its deadline.
type lateSwap struct{ tell func(error) }

// late has the next Swap not be answered; done says whether it is done.
func (s *scriptedSwap) late(done bool) *lateSwap {
	f := new(lateSwap)
	s.next(func(do func() (counters.State, bool, error)) (counters.State, bool, error) {
		if done {
			_, _, _ = do()
		}
		return counters.State{}, false, &counters.Unanswered{Err: counters.ErrTimeout, Await: func(tell func(error)) { f.tell = tell }}
	})
	return f
}

// A script is a client of a limiter by one of the algorithms, at a limit of 100.
type script struct {
	t      *testing.T
	store  *scriptedSwap
	inner  *memory.Store
	l, see counters.Limiter // of the process, and of another
	now    time.Time
	// failed is how many refunds have, and foreign how many states weren't read.
	failed, foreign int
	background      counters.Goroutines
}

// scripts runs a test for each of the algorithms.
func (by way) scripts(t *testing.T, run func(t *testing.T, s *script)) {
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t, inner: memory.New(nil), now: clock(t, "12:00:01.5")}
			s.store = &scriptedSwap{Store: s.inner}
			cfg := testConfig(10)
			cfg.RefundFailed, cfg.Foreign, cfg.Background = func() { s.failed++ }, func() { s.foreign++ }, &s.background
			var err error
			s.l, err = newLimiter(s.store, cfg)
			require.NoError(t, err)
			s.see, err = newLimiter(s.inner, cfg)
			require.NoError(t, err)
			run(t, s)
		})
	}
}

func (s *script) request(cost int64) counters.Request {
	s.now = s.now.Add(1)
	return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: s.now}
}

func (s *script) take(cost int64) (counters.Request, counters.Decision, error) {
	r := s.request(cost)
	d, err := s.l.Take(s.t.Context(), r)
	return r, d, err
}

// takes has a check admitted, however long that takes.
func (s *script) takes(cost int64) (counters.Request, counters.Decision) {
	r := s.request(cost)
	d, err := s.l.Take(unhurried, r)
	require.NoError(s.t, err)
	require.True(s.t, d.Allowed)
	return r, d
}

// alone decides a check alone that failed with err.
func (s *script) alone(r counters.Request, err error) counters.Decision {
	d, err := s.l.TakeLocal(r, err)
	require.NoError(s.t, err)
	return d
}

// used returns what another process sees in use.
func (s *script) used() int64 {
	d, err := s.see.Peek(s.t.Context(), s.request(1))
	require.NoError(s.t, err)
	return 100 - d.Remaining
}

// lose has the store lose the client's state.
func (s *script) lose() {
	for _, key := range []string{"token_bucket", "leaky_bucket", "sliding_log"} {
		_ = s.inner.Delete(s.t.Context(), []string{counters.StateNamespace("weir", "p", "l", key).StateKey("c")})
	}
}

// reset has another process reset the client.
func (s *script) reset() {
	require.NoError(s.t, s.see.(interface {
		Reset(context.Context, string, time.Time) error
	}).Reset(s.t.Context(), "c", s.now))
}

func (s *script) flush() {
	for range 3 {
		s.l.(interface{ Flush() }).Flush()
	}
	require.Zero(s.t, s.l.(interface{ Owing() int }).Owing())
}

// Two swaps in a row that tell the store the same have no answer, and the second is
// done: what they tell is consumed once.
func (by way) TestTheSameIsSettledTwice(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		r := s.request(50)
		require.True(t, s.alone(r, counters.ErrTimeout).Allowed) // the breaker was open
		first := s.store.late(false)
		_, _, err := s.take(60) // denied, but what is due is told
		require.ErrorIs(t, err, counters.ErrTimeout)
		second := s.store.late(true)
		_, _, err = s.take(60)
		require.ErrorIs(t, err, counters.ErrTimeout)
		s.takes(1)
		first.tell(counters.ErrNotSent) // another connection than that of the second
		second.tell(nil)
		s.flush()
		assert.EqualValues(t, 52, s.used(), "each was counted once")
	})
}

// A swap is told to be done, and then lost by the store. The next one puts it back,
// and has no answer though it is done.
func (by way) TestWhatIsLostBetweenTwoLateSwaps(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		late := s.store.late(true)
		r, _, err := s.take(10)
		require.ErrorIs(t, err, counters.ErrTimeout)
		require.True(t, s.alone(r, err).Allowed)
		late.tell(nil)
		s.background.Wait() // or it takes the next late swap
		s.lose()
		r = s.request(20)
		require.True(t, s.alone(r, counters.ErrTimeout).Allowed)
		late = s.store.late(true)
		_, _, err = s.take(90) // is denied
		require.ErrorIs(t, err, counters.ErrTimeout)
		s.takes(1)
		late.tell(nil)
		s.flush()
		assert.EqualValues(t, 32, s.used(), "each was counted once")
	})
}

// A check that was refused, as its swap had no answer, turns out to have been counted, after which
// the store has lost all. It isn't given back of what another instance has admitted since.
func (by way) TestWhatIsLostIsNotGivenBack(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(10)
		refused := s.store.late(true)
		_, _, err := s.take(60)
		require.ErrorIs(t, err, counters.ErrTimeout)
		s.lose()
		s.store.next(func(do func() (counters.State, bool, error)) (counters.State, bool, error) {
			refused.tell(nil)
			_, _, _ = do() // puts the 10 back
			d, err := s.see.Take(unhurried, s.request(70))
			require.NoError(t, err)
			require.True(t, d.Allowed)
			return counters.State{}, false, &counters.Unanswered{Err: counters.ErrTimeout, Await: func(func(error)) {}}
		})
		_, _, err = s.take(5)
		require.ErrorIs(t, err, counters.ErrTimeout)
		_, d, err := s.take(30)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "10 and 70 of 100 are in use")
		s.flush()
		assert.GreaterOrEqual(t, s.used(), int64(80))
	})
}

// A refund has no answer, and then the store loses the client. What is put back is without it, and
// it isn't done again.
func (by way) TestARefundWithoutAnAnswerOfALostState(t *testing.T) {
	for _, done := range []bool{true, false} {
		by.scripts(t, func(t *testing.T, s *script) {
			s.takes(30)
			r, d := s.takes(50)
			s.takes(15)
			s.store.late(done)
			require.ErrorIs(t, s.l.Refund(unhurried, r, d), counters.ErrTimeout)
			s.lose()
			s.takes(1)
			s.flush()
			assert.EqualValues(t, 30+15+1, s.used(), "done: %v", done)
		})
	}
}

// The first swap after the process's own reset has no answer. What is admitted alone
// is in use, though nobody ever tells what has become of it.
func (by way) TestTheFirstSwapAfterAReset(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		require.NoError(t, s.l.(interface {
			Reset(context.Context, string, time.Time) error
		}).Reset(t.Context(), "c", s.now))
		s.now = s.now.Add(time.Second)
		s.store.late(false)
		r, _, err := s.take(60)
		require.ErrorIs(t, err, counters.ErrTimeout)
		require.True(t, s.alone(r, err).Allowed)
		s.now = s.now.Add(time.Second)
		_, d, err := s.take(60)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "60 of 100 are in use, by one instance, and nobody else has written")
	})
}

// What is admitted alone after a reset stays, be it that a swap from before has no
// answer.
func (by way) TestAResetWhileASwapIsUnderWay(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(50)
		s.store.next(func(func() (counters.State, bool, error)) (counters.State, bool, error) {
			require.NoError(t, s.l.(interface {
				Reset(context.Context, string, time.Time) error
			}).Reset(t.Context(), "c", s.now))
			return counters.State{}, false, &counters.Unanswered{Err: counters.ErrTimeout, Await: func(tell func(error)) {}}
		})
		_, _, err := s.take(1)
		require.ErrorIs(t, err, counters.ErrTimeout)
		s.now = s.now.Add(10 * time.Second)
		for range 3 {
			require.True(t, s.alone(s.request(20), counters.ErrTimeout).Allowed)
		}
		s.flush()
		assert.Greater(t, s.used(), int64(55), "60 were admitted alone long after the reset")
	})
}

// A bucket that has become empty can be read.
func (by way) TestAnEmptyBucketCanBeRead(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		_, d, err := s.take(101) // can't be admitted; the process knows the client now
		require.NoError(t, err)
		require.False(t, d.Allowed)
		late := s.store.late(false)
		_, _, err = s.take(1)
		require.ErrorIs(t, err, counters.ErrTimeout) // it stays refused
		late.tell(counters.ErrNotSent)
		s.flush()
		assert.Zero(t, s.used())
		assert.Zero(t, s.foreign)
	})
}

// A refund that is told late to be done hasn't failed.
func (by way) TestARefundThatIsToldLateHasNotFailed(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		r, d := s.takes(50)
		late := s.store.late(true)
		_ = s.l.Refund(unhurried, r, d)
		late.tell(nil)
		s.takes(1)
		s.flush()
		assert.EqualValues(t, 2, s.used())
		assert.Zero(t, s.failed)
	})
}

// A refund whose swap came second, behind another instance's, and is told so late, is
// done then.
func (by way) TestARefundThatCameSecondIsDone(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		r, d := s.takes(50)
		late := s.store.late(false) // it loses the race against what others write
		_ = s.l.Refund(unhurried, r, d)
		taken, err := s.see.Take(unhurried, s.request(1)) // another instance
		require.NoError(t, err)
		require.True(t, taken.Allowed)
		late.tell(counters.ErrNotSent) // the store's answer EXISTS comes late
		s.takes(1)
		s.flush()
		assert.EqualValues(t, 3, s.used(), "what surely wasn't given back is given back")
	})
}

// A bucket that takes longer than 146 years to drain stays one that can be read.
func TestARefundToABucketThatDrainsForever(t *testing.T) {
	cfg := testConfig(10)
	foreign := 0
	cfg.Foreign = func() { foreign++ }
	store := memory.New(nil)
	l, err := NewTokenBucket(store, 24*time.Hour, 1_000_000, cfg)
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 60_000, Limit: 1, Now: time.Now()}
	d, err := l.Take(unhurried, r)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	r.Cost = 5
	d, err = l.Take(unhurried, r)
	require.NoError(t, err)
	require.NoError(t, l.Refund(unhurried, r, d))
	other, err := NewTokenBucket(store, 24*time.Hour, 1_000_000, cfg)
	require.NoError(t, err)
	d, err = other.Peek(unhurried, r)
	require.NoError(t, err)
	assert.EqualValues(t, 1_000_000-60_000, d.Remaining)
	assert.Zero(t, foreign)
}

// Another instance resets the client. This one doesn't know, admits 60 alone ten seconds
// later, and tells so in a swap that has no answer, and can't be done: what it would
// replace is gone. What was admitted after the reset stays in use.
func (by way) TestAnothersResetAndAFlight(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(30)
		require.NoError(t, s.see.(interface {
			Reset(context.Context, string, time.Time) error
		}).Reset(t.Context(), "c", s.now))
		s.now = s.now.Add(10 * time.Second)
		for range 3 {
			require.True(t, s.alone(s.request(20), counters.ErrTimeout).Allowed)
		}
		s.store.late(false)     // and is never told
		_, _, err := s.take(90) // denied, but what is due is told
		require.ErrorIs(t, err, counters.ErrTimeout)
		s.flush()
		assert.Greater(t, s.used(), int64(55), "60 were admitted alone long after the reset")
	})
}

// What was admitted alone is taken for consumed, as others have written over it. The client is
// reset, and then the store tells that it wasn't consumed: it is from before the reset.
func (by way) TestWhatIsToldAfterAResetIsFromBeforeIt(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		late := s.store.late(false)
		r, _, err := s.take(50)
		require.ErrorIs(t, err, counters.ErrTimeout)
		require.True(t, s.alone(r, err).Allowed)
		taken, err := s.see.Take(unhurried, s.request(1))
		require.NoError(t, err)
		require.True(t, taken.Allowed)
		s.takes(1)
		require.NoError(t, s.see.(interface {
			Reset(context.Context, string, time.Time) error
		}).Reset(t.Context(), "c", s.now))
		s.now = s.now.Add(time.Second)
		s.takes(1)
		late.tell(counters.ErrNotSent)
		s.flush()
		assert.EqualValues(t, 1, s.used(), "of what was admitted after the reset")
	})
}

// An instance that doesn't know of a reset puts back what it remembers, as the store has lost
// all of it. It isn't what another one has, that knows of the reset.
func (by way) TestWhatIsPutBackFromBeforeAResetIsForgotten(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(90)
		require.NoError(t, s.see.(interface {
			Reset(context.Context, string, time.Time) error
		}).Reset(t.Context(), "c", s.now))
		s.now = s.now.Add(time.Second)
		s.lose()
		s.takes(1)
		taken, err := s.see.Take(unhurried, s.request(50))
		require.NoError(t, err)
		assert.True(t, taken.Allowed, "90 are from before the reset")
		s.takes(20)
	})
}

// The store has lost that a client was reset. What an instance whose clock is behind, and which
// doesn't know, has admitted after that isn't from before the reset.
func (by way) TestWhatIsAdmittedBehindALostResetStays(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(10)
		require.NoError(t, s.l.(interface {
			Reset(context.Context, string, time.Time) error
		}).Reset(t.Context(), "c", s.now))
		s.lose()
		r := s.request(70)
		r.Now = r.Now.Add(-10 * time.Millisecond)
		d, err := s.see.Take(unhurried, r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		_, d, err = s.take(50)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "70 of 100 are in use")
	})
}

// A swap is done, and before its answer is written another instance resets the client. What was
// admitted alone meanwhile is from before the reset.
func (by way) TestAResetBehindASwap(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.takes(1)
		s.store.next(func(do func() (counters.State, bool, error)) (counters.State, bool, error) {
			_, swapped, err := do()
			require.NoError(t, err)
			require.True(t, s.alone(s.request(50), counters.ErrTimeout).Allowed)
			s.reset()
			now, _, err := do() // too late: it says what is there
			return now, swapped, err
		})
		s.takes(1)
		s.now = s.now.Add(time.Second)
		s.takes(1)
		s.flush()
		assert.EqualValues(t, 1, s.used(), "of what was admitted after the reset")
	})
}

// What others are thought to have admitted beside what this process has alone is forgotten with
// that, when the client is reset.
func (by way) TestAResetForgetsWhatOthersMayTell(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		for range 9 { // the process has a small share of the client
			s.takes(1)
			for range 5 {
				_, err := s.see.Take(unhurried, s.request(1))
				require.NoError(t, err)
			}
		}
		for range 3 {
			require.True(t, s.alone(s.request(1), counters.ErrTimeout).Allowed)
		}
		s.reset()
		s.now = s.now.Add(time.Second)
		_, d, err := s.take(95)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "nothing is in use, nor still to be told")
	})
}
