package subwindow_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// A lateStore doesn't answer additions in time while it is late. What becomes
// of them is what the test says.
type lateStore struct {
	counters.Store
	late  atomic.Bool
	tell  []func(done bool, err error)
	after func() // each addition that is done in time, before that is answered; or nil
	first func() // before the next reading, or nil
}

func (s *lateStore) Read(ctx context.Context, keys []string, counts []int64) error {
	if first := s.first; first != nil {
		s.first = nil
		first()
	}
	return s.Store.Read(ctx, keys, counts)
}

func (s *lateStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if !s.late.Load() {
		n, err := s.Store.Add(ctx, a)
		if s.after != nil {
			s.after()
		}
		return n, err
	}
	return 0, &counters.Unanswered{Err: fmt.Errorf("%w: late", counters.ErrTimeout), Await: func(f func(err error)) {
		s.tell = append(s.tell, func(done bool, err error) {
			if done {
				a.Read, a.Counts = nil, nil // nobody reads its answer
				_, _ = s.Store.Add(ctx, a)  // memory never fails
			}
			if f != nil {
				f(err)
			}
			f = nil
		})
	}}
}

// outcomes are those of an addition: whether it was done, and what is told.
var (
	done   = func(tell func(bool, error)) { tell(true, nil) }
	undone = func(tell func(bool, error)) { tell(false, counters.ErrNotSent) }
	lost   = func(tell func(bool, error)) { tell(true, counters.ErrUnavailable) }
)

// A check that was refused for want of an answer is refunded when the answer
// comes.
func (by way) TestRefusedChecksAreRefunded(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for _, w := range []subwindow.Window{fixed, newWindow(t, time.Minute, 60, true)} {
		for _, test := range []struct {
			outcome func(tell func(bool, error))
			taken   int64
		}{{done, 0}, {undone, 0}, {lost, 30}} {
			store := &lateStore{Store: memory.New(nil)}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			require.True(t, take(t, l, now, 1, 100).Allowed)
			store.late.Store(true)
			for range 30 {
				_, err := l.Take(t.Context(), request(now, 1, 100))
				require.ErrorIs(t, err, counters.ErrTimeout)
			}
			store.late.Store(false)
			for _, tell := range store.tell {
				test.outcome(tell)
			}
			l.Flush()
			assert.Equal(t, 99-test.taken, take(t, l, now, 0, 100).Remaining)
		}
	}
}

// What others have counted may be taken for what had no answer. When that turns out to be done,
// later, all is read again before anything is judged.
func (by way) TestWhatComesAfterOthersIsCountedBesideThem(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &lateStore{Store: memory.New(nil)}
		options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
		l, other := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, store.Store, w, options)
		now := at("12:00:01")
		require.True(t, take(t, l, now, 1, 5).Allowed)
		store.late.Store(true)
		_, err := l.Take(t.Context(), request(now, 1, 5))
		require.ErrorIs(t, err, counters.ErrTimeout)
		store.late.Store(false)
		require.True(t, take(t, other, now, 2, 5).Allowed)
		store.after = func() {
			store.after = nil
			done(store.tell[0])
		}
		last := take(t, l, now, 2, 5)
		assert.True(t, last.Allowed, name)
		assert.Zero(t, last.Remaining, name)
		l.Flush()
		assert.Zero(t, take(t, other, now, 0, 5).Remaining, name)
	}
}

// What turns out to be done while all is read is in what was read, and isn't counted beside it.
func (by way) TestWhatComesBeforeAReadingIsCountedOnce(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &lateStore{Store: memory.New(nil)}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
		now := at("12:00:01")
		require.True(t, take(t, l, now, 1, 10).Allowed)
		store.late.Store(true)
		_, err := l.Take(t.Context(), request(now, 2, 10))
		require.ErrorIs(t, err, counters.ErrTimeout)
		store.late.Store(false)
		require.EqualValues(t, 9, take(t, l, now, 0, 10).Remaining, name)
		store.first = func() {
			done(store.tell[0])
		}
		d, err := l.Peek(t.Context(), request(now, 1, 10))
		require.NoError(t, err)
		assert.EqualValues(t, 9, d.Remaining, name) // it was refused, and is given back
		l.Flush()
		assert.EqualValues(t, 9, take(t, l, now, 0, 10).Remaining, name)
	}
}

// What the process has admitted alone and given back, as another limit has
// denied it, is given back there too if it turns out to be counted.
func (by way) TestWhatIsGivenBackIsNotCountedLate(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for _, test := range []struct {
			outcome func(tell func(bool, error))
			settled bool // the store was asked again before it tells
			used    int64
		}{{done, false, 3}, {done, true, 3}, {undone, false, 3}, {undone, true, 3}} {
			store := &lateStore{Store: memory.New(nil)}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			require.True(t, take(t, l, now, 1, 100).Allowed)
			store.late.Store(true)
			for cost, back := range map[int64]bool{2: false, 4: true, 8: true} {
				_, err := l.Take(t.Context(), request(now, cost, 100))
				taken, err := l.TakeLocal(request(now, cost, 100), err)
				require.NoError(t, err)
				if back {
					require.NoError(t, l.Refund(t.Context(), request(now, cost, 100), taken))
				}
			}
			store.late.Store(false)
			if test.settled {
				take(t, l, now, 0, 100)
				test.used++
				require.True(t, take(t, l, now, 1, 100).Allowed)
			}
			for _, tell := range store.tell {
				test.outcome(tell)
			}
			l.Flush()
			require.True(t, take(t, l, now, 1, 100).Allowed)
			assert.Equal(t, 100-test.used-1, take(t, l, now, 0, 100).Remaining, "%s %+v", name, test)
		}
	}
}

// The store does what it was asked late, and tells, while it answers what it was
// asked since: that answer doesn't include it.
func (by way) TestLateAnswersBeforeEarlierOnes(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for _, alone := range []bool{true, false} {
			store := &lateStore{Store: memory.New(nil)}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			require.True(t, take(t, l, now, 1, 100).Allowed)
			store.late.Store(true)
			_, err := l.Take(t.Context(), request(now, 9, 100))
			used := int64(1)
			if alone {
				_, err = l.TakeLocal(request(now, 9, 100), err)
				require.NoError(t, err)
				used += 9
			}
			store.late.Store(false)
			store.after = func() {
				store.after = nil
				done(store.tell[0])
			}
			require.True(t, take(t, l, now, 2, 100).Allowed)
			l.Flush()
			require.True(t, take(t, l, now, 1, 100).Allowed)
			assert.Equal(t, 100-used-3, take(t, l, now, 0, 100).Remaining, "%s, alone %v", name, alone)
		}
	}
}

// What was admitted alone, and may be counted late, isn't told until its outcome is:
// what would be told twice might never be given back.
func (by way) TestWhatMayBeCountedLateIsNotToldTwice(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for i, outcome := range []func(func(bool, error)){done, undone} {
			inner := memory.New(nil)
			store := &lateStore{Store: inner}
			options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
			l, other := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, inner, w, options)
			now := at("12:00:01")
			require.True(t, take(t, l, now, 1, 100).Allowed)
			store.late.Store(true)
			_, err := l.Take(t.Context(), request(now, 9, 100))
			_, err = l.TakeLocal(request(now, 9, 100), err)
			require.NoError(t, err)
			store.late.Store(false)
			assert.Equal(t, int64(88), take(t, l, now, 2, 100).Remaining, "%s %d", name, i)
			assert.Equal(t, int64(97), take(t, other, now, 0, 100).Remaining, "%s %d", name, i)
			outcome(store.tell[0])
			l.Flush()
			assert.Equal(t, int64(88), take(t, other, now, 0, 100).Remaining, "%s %d", name, i)
			assert.Equal(t, int64(87), take(t, l, now, 1, 100).Remaining, "%s %d", name, i)
		}
	}
}

// A refund of what was answered late goes by the generation that it was counted
// in.
func (by way) TestRefusedChecksAreNotRefundedAfterAReset(t *testing.T) {
	t.Parallel()
	store := &lateStore{Store: memory.New(nil)}
	store.late.Store(true)
	w := newWindow(t, time.Minute, 60, true)
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
	_, err := l.Take(t.Context(), request(at("12:00:01"), 7, 100))
	require.Error(t, err)
	store.late.Store(false)
	require.NoError(t, l.Reset(t.Context(), "c", at("12:00:02")))
	require.True(t, take(t, l, at("12:00:02"), 9, 100).Allowed)
	store.tell[0](false, nil) // the reset has come after it
	assert.Equal(t, int64(91), take(t, l, at("12:00:02"), 0, 100).Remaining)
}

// slowAdds returns a store whose additions take 50 ms.
func slowAdds(store counters.Store) *faultyStore {
	return &faultyStore{Store: store, fault: func(operation, _ string) error {
		if operation == "add" {
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	}}
}

// Of a batch whose answer is late, what was refused is refunded, and what the
// process has admitted alone is counted once.
func (by way) TestABatchIsRefundedInPart(t *testing.T) {
	t.Parallel()
	for _, outcome := range []func(tell func(bool, error)){done, undone} {
		synctest.Test(t, func(t *testing.T) {
			store := &lateStore{Store: memory.New(nil)}
			slow := slowAdds(store)
			l := by.newLimiterWith(t, slow, newWindow(t, time.Minute, 4, true), counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			var callers sync.WaitGroup
			for i, cost := range []int64{1, 8, 2, 4} {
				callers.Go(func() {
					r := request(now, cost, 100)
					_, err := l.Take(t.Context(), r)
					if err != nil && i%2 == 0 {
						_, err = l.TakeLocal(r, err)
						assert.NoError(t, err)
					}
				})
				synctest.Wait() // the first leads alone, then the last all
			}
			time.Sleep(75 * time.Millisecond)
			store.late.Store(true)
			callers.Wait()
			require.Len(t, store.tell, 1)
			store.late.Store(false)
			outcome(store.tell[0])
			require.True(t, take(t, l, now, 16, 100).Allowed)
			assert.Equal(t, int64(100-1-2-16), take(t, l, now, 0, 100).Remaining)
		})
	}
}

// Of a batch that may stand on both sides of a reset nothing is refunded: what
// was counted may be gone.
func (by way) TestABatchOnBothSidesOfAResetIsNotRefunded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &lateStore{Store: memory.New(nil)}
		slow := slowAdds(store)
		l := by.newLimiterWith(t, slow, newWindow(t, time.Minute, 4, true), counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
		var callers sync.WaitGroup
		for _, clock := range []string{"12:00:01", "12:00:02", "12:00:04"} {
			callers.Go(func() { _, _ = l.Take(t.Context(), request(at(clock), 4, 100)) })
			synctest.Wait() // the first leads alone, then the last both
		}
		time.Sleep(75 * time.Millisecond)
		store.late.Store(true)
		callers.Wait()
		require.Len(t, store.tell, 1)
		store.late.Store(false)
		require.NoError(t, l.Reset(t.Context(), "c", at("12:00:03")))
		require.True(t, take(t, l, at("12:00:05"), 9, 100).Allowed)
		store.tell[0](false, nil)
		assert.Equal(t, int64(91), take(t, l, at("12:00:05"), 0, 100).Remaining)
	})
}

// An instance that limits alone counts in the store what it has admitted, once,
// whenever it learns what the store has counted already, and whatever others
// count meanwhile.
func (by way) TestWhatIsAdmittedAloneCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 60, true)
	now := at("12:00:01")
	for name, play := range map[string]func(tell func(bool, error), others, check func()){
		"told before the store is asked":       func(tell func(bool, error), others, check func()) { tell(true, nil); others(); check() },
		"told after it was counted anew":       func(tell func(bool, error), others, check func()) { check(); others(); tell(true, nil) },
		"others count first":                   func(tell func(bool, error), others, check func()) { others(); tell(true, nil); check() },
		"told after the first of many of them": func(tell func(bool, error), others, check func()) { check(); tell(true, nil); others(); check() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			store := &lateStore{Store: inner}
			options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
			l, there := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, inner, w, options)
			admitted := int64(0)
			check := func() {
				if takeAnyway(t, l, request(now, 1, 100)) {
					admitted++
				}
			}
			check()
			store.late.Store(true)
			r := request(now, 5, 100)
			_, err := l.Take(t.Context(), r)
			require.Error(t, err)
			d, err := l.TakeLocal(r, err)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			admitted += 5
			store.late.Store(false)
			play(store.tell[0], func() { admitted += 20; take(t, there, now, 20, 100) }, check)
			check()
			assert.Equal(t, 100-admitted, take(t, there, now, 0, 100).Remaining)
			assert.Equal(t, 100-admitted, take(t, l, now, 0, 100).Remaining)
		})
	}
}

// What is repaid without an answer counts once, whether it was counted then or
// not.
func (by way) TestWhatIsRepaidUnheardCountsOnce(t *testing.T) {
	t.Parallel()
	for _, outage := range []error{limitertest.ErrUnanswered, limitertest.ErrUnheard} {
		for name, w := range minuteWindows(t) {
			t.Run(name+" "+outage.Error(), func(t *testing.T) {
				t.Parallel()
				inner := memory.New(nil)
				var err error
				store := &faultyStore{Store: inner}
				store.fault = func(operation, key string) error {
					if err == limitertest.ErrUnanswered && operation == "add" {
						_, _ = inner.Add(t.Context(), counters.Addition{Key: key, Delta: 3}) // memory never fails
					}
					return err
				}
				l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
				now := at("12:00:01")
				require.True(t, takeAnyway(t, l, request(now, 1, 10)))
				err = limitertest.ErrUnsent
				require.True(t, takeAnyway(t, l, request(now, 3, 10)))
				err = outage
				require.True(t, takeAnyway(t, l, request(now, 2, 10)))
				err = nil
				require.True(t, takeAnyway(t, l, request(now, 1, 10)))
				assert.Equal(t, int64(3), take(t, there, now, 0, 10).Remaining)
				assert.Equal(t, int64(3), take(t, l, now, 0, 10).Remaining)
			})
		}
	}
}

// A caller that leaves before its leader has the answer is refused, and is
// refunded.
func (by way) TestWhoLeavesIsRefunded(t *testing.T) {
	t.Parallel()
	{
		synctest.Test(t, func(t *testing.T) {
			store := &faultyStore{Store: memory.New(nil), fault: func(operation, _ string) error {
				if operation == "add" {
					time.Sleep(50 * time.Millisecond)
				}
				return nil
			}}
			l := by.newLimiterWith(t, store, newWindow(t, time.Minute, 60, true), counters.Options{
				ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second,
			})
			r := request(at("12:00:01"), 1, 100)
			var callers sync.WaitGroup
			for _, timeout := range []time.Duration{time.Second, 60 * time.Millisecond, time.Second} {
				callers.Go(func() {
					_, err := l.Take(&counters.Deadline{At: time.Now().Add(timeout)}, r)
					assert.Equal(t, timeout < time.Second, err != nil)
				})
				synctest.Wait() // the first leads alone, then the last both
			}
			callers.Wait()
			l.Flush()
			assert.Equal(t, int64(98), take(t, l, r.Now, 0, 100).Remaining)
		})
	}
}

// What a check has read before the store was told to count it, without an
// answer, says nothing of that.
func (by way) TestWhatWasReadBeforeTellsNothing(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for outcome, told := range map[string]func(tell func(bool, error)){
			"counted, as is told":       done,
			"not counted, as is told":   undone,
			"counted, as nobody tells":  func(tell func(bool, error)) { tell(true, counters.ErrUnavailable) },
			"not counted, nobody tells": func(tell func(bool, error)) { tell(false, counters.ErrUnavailable) },
		} {
			t.Run(name+" "+outcome, func(t *testing.T) {
				inner := memory.New(nil)
				store := &lateStore{Store: inner}
				options := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
				l, there := by.newLimiterWith(t, store, w, options), by.newLimiterWith(t, inner, w, options)
				now := at("12:00:01")
				taken := take(t, there, now, 5, 10)
				require.True(t, takeAnyway(t, l, request(now, 5, 10)))
				require.NoError(t, there.Refund(t.Context(), request(now, 5, 10), taken))

				now = now.Add(2 * time.Second) // what is known is old, and leaves no room
				store.late.Store(true)
				require.True(t, takeAnyway(t, l, request(now, 4, 10)))
				store.late.Store(false)
				told(store.tell[0])
				assert.True(t, takeAnyway(t, l, request(now, 1, 10)))
				assert.False(t, takeAnyway(t, l, request(now, 1, 10)))
				assert.Zero(t, take(t, there, now, 0, 10).Remaining)
			})
		}
	}
}

// What is refunded and was never seen to be counted leaves what the process
// remembers as it was: no less is put back when the store loses that.
func (by way) TestARefundOfWhatWasNeverSeenForgetsNothing(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for _, seen := range []bool{false, true} {
			store := &lateStore{Store: memory.New(nil)}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			require.True(t, take(t, l, now, 5, 100).Allowed)
			store.late.Store(true)
			_, err := l.Take(t.Context(), request(now, 2, 100))
			require.ErrorIs(t, err, counters.ErrTimeout)
			store.late.Store(false)
			used := int64(5)
			if seen {
				_, _ = store.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: 2, TTL: time.Minute})
				require.True(t, take(t, l, now, 1, 100).Allowed)
				store.tell[0](false, nil) // it was counted before
				used++
			} else {
				store.tell[0](true, nil)
			}
			l.Flush()
			counts := []int64{0}
			require.NoError(t, store.Read(t.Context(), []string{key(w, now)}, counts))
			require.Equal(t, used, counts[0])
			require.NoError(t, store.Delete(t.Context(), []string{key(w, now)}))
			require.True(t, take(t, l, now, 1, 100).Allowed)
			assert.Equal(t, 100-used-1, take(t, l, now, 0, 100).Remaining, "%s, seen: %v", name, seen)
		}
	}
}

// An outcome that is known at once is one of a leader whom a refund would wait
// for: it answers without it.
func (by way) TestOutcomeThatIsKnownAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fixed, err := subwindow.NewFixedWindow(time.Minute)
		require.NoError(t, err)
		background := new(counters.Goroutines)
		store := &knownStore{Store: memory.New(nil)}
		l := by.newLimiterWith(t, store, fixed, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second, Background: background})
		now := at("12:00:01")
		require.True(t, take(t, l, now, 1, 100).Allowed)
		store.late.Store(true)
		r := request(now, 1, 100)
		began := time.Now()
		_, err = l.Take(t.Context(), r)
		require.ErrorIs(t, err, counters.ErrTimeout)
		assert.Zero(t, time.Since(began))
		background.Wait()
		store.late.Store(false)
		assert.EqualValues(t, 98, take(t, l, now, 1, 100).Remaining)
	})
}

// A knownStore does additions, says while it is late that it hasn't answered, and
// knows at once that it was done.
type knownStore struct {
	counters.Store
	late atomic.Bool
}

func (s *knownStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.Store.Add(ctx, a)
	if err != nil || !s.late.Load() {
		return n, err
	}
	return 0, &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(err error)) { f(nil) }}
}

// What was admitted alone, and is counted when others rely on the slot already, they read anew,
// also if the connection was cut and nobody is told that it is counted.
func (by way) TestOthersSeeWhatIsCountedLateAndNeverTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 50 * time.Millisecond
		store := &lateStore{Store: memory.New(nil)}
		w := newWindow(t, time.Minute, 60, true)
		o := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: timeout}
		here, there := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, store.Store, w, o)
		time.Sleep(980 * time.Millisecond)
		require.True(t, take(t, here, time.Now(), 1, 10).Allowed)
		store.late.Store(true)
		require.True(t, takeAnyway(t, here, request(time.Now(), 2, 10))) // alone
		store.late.Store(false)
		time.Sleep(2 * timeout)
		require.EqualValues(t, 8, take(t, there, time.Now(), 1, 10).Remaining)
		lost(store.tell[0])
		require.EqualValues(t, 5, take(t, here, time.Now(), 1, 10).Remaining)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 4, take(t, there, time.Now(), 1, 10).Remaining)
	})
}
