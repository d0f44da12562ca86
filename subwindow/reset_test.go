package subwindow_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A deletingStore does something before and after the deletes of a reset.
type deletingStore struct {
	counters.Store
	before, after func()
}

func (s *deletingStore) Delete(ctx context.Context, keys []string) error {
	if s.before != nil {
		s.before()
	}
	err := s.Store.Delete(ctx, keys)
	if s.after != nil {
		s.after()
	}
	return err
}

// A refund while a reset is under way takes nothing from what is counted after
// the deletes.
func (by way) TestARefundDuringAResetTakesNothing(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, false)
	here := by.newLimiter(t, inner, w, 50*time.Millisecond)
	store := &deletingStore{Store: inner}
	there := by.newLimiter(t, store, w, 50*time.Millisecond)
	early := at("12:00:01.03") // by a clock that is ahead of the reset's
	require.True(t, take(t, here, early, 6, 10).Allowed)
	store.after = func() {
		require.True(t, take(t, there, at("12:00:01.01"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(early, 6, 10), counters.Decision{Allowed: true}))
	}
	require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01")))
	assert.Equal(t, int64(10), used(t, inner, w, early))
}

// A reset that takes long was over when it was over: what was counted before
// its deletes isn't refunded from what comes after them.
func (by way) TestARefundAfterASlowResetTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 4, false)
		here := by.newLimiter(t, inner, w, sameClock)
		there := by.newLimiter(t, &deletingStore{Store: inner, before: func() {
			time.Sleep(30 * time.Millisecond)
			require.True(t, take(t, here, at("12:00:01.03"), 6, 10).Allowed)
		}}, w, sameClock)
		require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01")))
		require.True(t, take(t, there, at("12:00:01.04"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(at("12:00:01.03"), 6, 10), counters.Decision{Allowed: true}))
		assert.Equal(t, int64(10), used(t, inner, w, at("12:00:01")))
	})
}

// An instance that knows the client from between a reset's first step and its deletes, and
// finds it gone before the reset is over, puts back no more than what it has admitted itself.
func (by way) TestAResetUnderWayTakesWhatOthersHadForGood(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			store := &deletingStore{Store: inner}
			here, others, resets := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			require.Equal(t, int64(6), admits(t, others, now, 20, 6))
			store.before = func() { require.Equal(t, int64(1), admits(t, here, now, 20, 1)) }
			store.after = store.before
			require.NoError(t, resets.Reset(t.Context(), "c", now))
			assert.LessOrEqual(t, used(t, inner, w, now), int64(2), "the 6 of others are from before the reset")
		})
	}
}

// A heardStore does something before its first addition is answered.
type heardStore struct {
	counters.Store
	before func()
}

func (s *heardStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.Store.Add(ctx, a)
	if before := s.before; before != nil {
		s.before = nil
		before()
	}
	return n, err
}

// A process that has reset a client before it hears what it had counted just then puts nothing
// back that others had before the reset.
func (by way) TestACountThatIsHeardAfterAResetIsForgotten(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			inner, now := memory.New(nil), at("12:00:01.5")
			require.Equal(t, int64(6), admits(t, by.newLimiter(t, inner, w, sameClock), now, 10, 6))
			store := &heardStore{Store: inner}
			l := by.newLimiter(t, store, w, sameClock)
			store.before = func() { require.NoError(t, l.Reset(t.Context(), "c", now)) }
			require.True(t, take(t, l, now, 1, 10).Allowed)
			assert.Equal(t, int64(10), admits(t, l, now.Add(5*time.Second), 10, 10))
		})
	}
}

// Of two resets at a time neither makes the other seem to be over, or earlier
// than it was.
func (by way) TestARefundDuringTwoResetsTakesNothing(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, false)
	early := at("12:00:01.945")
	here := by.newLimiter(t, inner, w, sameClock)
	require.True(t, take(t, here, early, 6, 10).Allowed)
	second := by.newLimiter(t, &deletingStore{Store: inner, after: func() {
		require.True(t, take(t, by.newLimiter(t, inner, w, sameClock), at("12:00:01.97"), 10, 10).Allowed)
		require.NoError(t, here.Refund(t.Context(), request(early, 6, 10), counters.Decision{Allowed: true}))
		assert.Equal(t, int64(10), used(t, inner, w, early))
	}}, w, sameClock)
	first := by.newLimiter(t, &deletingStore{Store: inner, before: func() {
		require.NoError(t, second.Reset(t.Context(), "c", at("12:00:01.96")))
	}}, w, sameClock)
	require.NoError(t, first.Reset(t.Context(), "c", at("12:00:01.95")))
}

// A refund may come as late as two tries after its check, and still finds the
// mark of a reset.
func (by way) TestALateRefundFindsTheReset(t *testing.T) {
	t.Parallel()
	clock := &clock{now: at("12:00:00")}
	store := memory.New(clock.Now)
	w := newWindow(t, time.Minute, 4, false)
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: 5 * time.Second})
	require.True(t, take(t, l, clock.now, 6, 10).Allowed)
	clock.now = at("12:00:08")
	require.NoError(t, l.Reset(t.Context(), "c", clock.now))
	require.True(t, take(t, l, clock.now, 10, 10).Allowed)
	clock.now = at("12:00:10")
	require.NoError(t, l.Refund(t.Context(), request(at("12:00:00"), 6, 10), counters.Decision{Allowed: true}))
	assert.Equal(t, int64(10), used(t, store, w, at("12:00:00")))
}

// A reset also deletes what faster clocks have counted in slots that are still
// to come.
func (by way) TestAResetReachesFastClocks(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, 10*time.Second, 10, true)
	fast, slow := by.newLimiter(t, store, w, 5*time.Second), by.newLimiter(t, store, w, 5*time.Second)
	require.True(t, take(t, fast, at("12:00:10"), 10, 10).Allowed)
	require.NoError(t, slow.Reset(t.Context(), "c", at("12:00:05")))
	assert.True(t, take(t, slow, at("12:00:05"), 10, 10).Allowed)
}

// An instance that has settled a slot hears of a refund there within a second.
func (by way) TestARefundReachesEveryInstanceWithinASecond(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	require.True(t, take(t, here, at("12:00:00.9"), 6, 11).Allowed)
	require.Equal(t, int64(4), take(t, there, at("12:00:02"), 1, 11).Remaining, "the slot of 12:00:00 is settled")
	refund := &counters.Deadline{At: at("12:00:02.1")}
	require.NoError(t, here.Refund(refund, request(at("12:00:00.9"), 6, 11), counters.Decision{Allowed: true}))
	assert.Equal(t, int64(9), take(t, there, at("12:00:03"), 1, 11).Remaining)
}

// A counter of a strict window lives for as long as the slowest clock looks at
// it.
func (by way) TestStrictCountersLiveForTheSlowestClock(t *testing.T) {
	t.Parallel()
	const skew = 5 * time.Second
	clock := &clock{now: at("12:00:00")}
	store := memory.New(clock.Now) // by the fast clock
	w := newWindow(t, 10*time.Second, 10, true)
	fast, slow := by.newLimiter(t, store, w, skew), by.newLimiter(t, store, w, skew)
	require.True(t, take(t, fast, clock.now, 10, 10).Allowed)
	clock.now = at("12:00:20.5")
	d := take(t, slow, clock.now.Add(-skew), 1, 10)
	assert.False(t, d.Allowed)
	assert.Equal(t, 500*time.Millisecond, d.RetryAfter)
}

// A refund whose turn does not come in time is done later.
func (by way) TestARefundWithoutATurnIsDoneLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		failed := 0
		l := by.newLimiterWith(t, store, newWindow(t, time.Minute, 4, true), counters.Options{
			ClockSkew: sameClock, StoreTimeout: 50 * time.Millisecond, RefundFailed: func() { failed++ },
		})
		go func() { take(t, l, at("12:00:01"), 1, 20) }()
		synctest.Wait() // it is at the gate
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Refund(ctx, request(at("12:00:00"), 10, 20), counters.Decision{Allowed: true}), context.DeadlineExceeded)
		l.Flush()
		close(store.gate)
		synctest.Wait()
		l.Flush()
		assert.Zero(t, failed)
		assert.Zero(t, l.Owing())
	})
}

// The process learns of a reset, and then can't read what is counted since. It
// doesn't take what it remembers for that.
func (by way) TestWhatAResetEndedIsNotRememberedWhenTheReadAfterItFails(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 60, false)
	failures := 0
	store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
		if operation == "read" && failures > 0 {
			failures--
			return counters.ErrTimeout
		}
		return nil
	}}
	here, there := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.True(t, take(t, there, at("12:00:01"), 10, 10).Allowed)
	require.False(t, take(t, there, at("12:00:05"), 1, 10).Allowed)
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:05")))
	failures = 1
	_, err := there.Take(t.Context(), request(at("12:00:07"), 1, 100))
	require.ErrorIs(t, err, counters.ErrTimeout)
	assert.True(t, take(t, there, at("12:00:07"), 9, 10).Allowed, "at most the 1 that failed is counted")
}

// A noSubtract can't subtract while it is down.
type noSubtract struct {
	counters.Store
	down bool
}

func (s *noSubtract) Subtract(ctx context.Context, key string, n int64) error {
	if s.down {
		return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
	}
	return s.Store.Subtract(ctx, key, n)
}

// What couldn't be given back isn't after a reset by another process: it would be
// from what was counted since.
func (by way) TestARefundFromBeforeAResetIsNotDoneAfterIt(t *testing.T) {
	for _, what := range []string{"refunded", "denied"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &noSubtract{Store: inner}
				w := newWindow(t, time.Minute, 10, false)
				o := counters.Options{Clients: 10, StoreTimeout: time.Second}
				l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
				now := time.Now()
				d, err := l.Limiter.Take(t.Context(), request(now, 5, 10))
				require.NoError(t, err)
				store.down = true
				if what == "refunded" {
					require.Error(t, l.Refund(t.Context(), request(now, 5, 10), d))
				} else {
					d, err = other.Limiter.Take(t.Context(), request(now, 3, 10))
					require.NoError(t, err)
					require.True(t, d.Allowed)
					d, err = l.Limiter.Take(t.Context(), request(now, 5, 10)) // it knows of 5 of 8
					require.NoError(t, err)
					require.False(t, d.Allowed)
				}
				l.Flush() // it can't be done now either
				time.Sleep(10 * time.Millisecond)
				require.NoError(t, other.Reset(t.Context(), "c", time.Now()))
				time.Sleep(200 * time.Millisecond) // longer than skew
				d, err = other.Limiter.Take(t.Context(), request(time.Now(), 10, 10))
				require.NoError(t, err)
				require.True(t, d.Allowed)

				store.down = false
				l.Flush()
				d, err = l.Limiter.Take(t.Context(), request(time.Now(), 5, 10))
				require.NoError(t, err)
				assert.False(t, d.Allowed, "15 of 10 after the reset")
			})
		})
	}
}

// A noAdd can't add while it is down.
type noAdd struct {
	counters.Store
	down bool
}

func (s *noAdd) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.down {
		return 0, fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
	}
	return s.Store.Add(ctx, a)
}

// What was admitted alone before a reset isn't counted after it, also if the store
// has answered a look before the reset, and no addition.
func (by way) TestWhatWasAdmittedAloneBeforeAResetIsNotCounted(t *testing.T) {
	synctest.Test(t, by.testWhatWasAdmittedAloneBeforeAResetIsNotCounted)
}

func (by way) testWhatWasAdmittedAloneBeforeAResetIsNotCounted(t *testing.T) {
	inner := memory.New(nil)
	store := &noAdd{Store: inner, down: true}
	w := newWindow(t, time.Minute, 10, false)
	o := counters.Options{Clients: 10, StoreTimeout: time.Second}
	l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
	r := request(time.Now(), 10, 10)
	_, err := l.Limiter.Take(t.Context(), r)
	require.Error(t, err)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	l.Flush() // a look is answered, the addition isn't sent
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, other.Reset(t.Context(), "c", time.Now()))
	store.down = false
	l.Flush()
	d, err = other.Limiter.Take(t.Context(), request(time.Now().Add(time.Second), 1, 10))
	require.NoError(t, err)
	assert.True(t, d.Allowed, "%+v", d)
}

// A hookedStore does something before operations.
type hookedStore struct {
	counters.Store
	before func(operation string)
}

func (s *hookedStore) Delete(ctx context.Context, keys []string) error {
	s.before("delete")
	err := s.Store.Delete(ctx, keys)
	s.before("deleted")
	return err
}

func (s *hookedStore) Raise(ctx context.Context, floors []counters.Floor) error {
	s.before("raise")
	return s.Store.Raise(ctx, floors)
}

func (s *hookedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.before("read " + strings.Join(keys, " "))
	err := s.Store.Read(ctx, keys, counts)
	return err
}

// A count comes between a reset's first generation and its delete: it is gone, and
// is taken for a loss. Until it is put back, the reset is over and another instance
// has admitted the limit: nothing was put back, and nothing is given back.
func (by way) TestNothingIsGivenBackAfterAReset(t *testing.T) {
	for _, window := range []string{"4", "strict"} {
		w := newWindow(t, 60e9, 4, window == "strict")
		const limit = 10
		now := at("12:00:01.5")
		inner := memory.New(nil)
		hereStore := &hookedStore{Store: inner, before: func(string) {}}
		resetStore := &hookedStore{Store: inner, before: func(string) {}}
		here := by.newLimiterWith(t, hereStore, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		resets := by.newLimiterWith(t, resetStore, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		others := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		require.True(t, take(t, others, now, 2, limit).Allowed)
		now = at("12:00:03.5")

		counted, deleted, goOn, over := make(chan bool), make(chan bool), make(chan bool), make(chan bool)
		resetStore.before = func(operation string) {
			if operation == "delete" { // the generation is raised, the counts are still there
				close(goOn)
				<-counted
			}
			if operation == "deleted" { // the generation isn't raised again yet
				close(deleted)
				<-over
			}
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			assert.NoError(t, resets.Reset(t.Context(), "c", now))
		}()
		<-goOn
		stage := 0
		admitted := int64(0)
		hereStore.before = func(operation string) {
			switch stage++; {
			case stage == 1: // it has counted, and reads anew
				require.True(t, strings.HasPrefix(operation, "read"), operation)
				close(counted)
				<-deleted
			case operation == "raise" && admitted == 0:
				close(over)
				<-done
				for range 2 * limit { // after the reset
					if take(t, others, now.Add(2e9), 1, limit).Allowed {
						admitted++
					}
				}
			}
		}
		d := take(t, here, now, 3, limit)
		t.Logf("here: %v, admitted %d, used %d", d.Allowed, admitted, used(t, inner, w, now))
		hereStore.before = func(string) {}
		here.Flush()
		later := now.Add(4e9)
		third := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		for range 2 * limit {
			if take(t, third, later, 1, limit).Allowed {
				admitted++
			}
		}
		assert.LessOrEqual(t, admitted, int64(limit), "of those that came after the reset")
	}
}

// A client was reset before this process saw it first, by another or before it was
// restarted. When the store loses the counter, what was counted since is put back.
func (by way) TestLossAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			store := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			before, l := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 100 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			require.NoError(t, store.Delete(t.Context(), []string{key(w, at("12:00:00"))})) // it is evicted
			admitted := 0
			for i := range 150 {
				if take(t, l, at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100).Allowed {
					admitted++
				}
			}
			assert.Zero(t, admitted, "beyond the 100 of the day, by one instance")
		})
	}
}

// And if the store fails then, the process decides by all that it has counted.
func (by way) TestOutageAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			inner := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			reads := 0
			down := false
			store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
				if down {
					if operation == "read" {
						if reads++; reads == 1 {
							return nil
						}
					}
					return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
				}
				return nil
			}}
			before, l := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 99 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			// One fails; then the store answers one read, and fails again.
			down, reads = true, 1
			admitted := 0
			for i := range 150 {
				r := request(at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100)
				d, err := l.Take(t.Context(), r)
				if err != nil {
					d, err = l.TakeLocal(r, err)
					require.NoError(t, err)
				}
				if d.Allowed {
					admitted++
				}
				if i == 0 {
					reads = 0 // the next read is answered
				}
			}
			assert.Equal(t, 1, admitted)
		})
	}
}

// And it knows that what is counted is its own.
func (by way) TestShareAfterAnOldReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprint("reset ", reset), func(t *testing.T) {
			inner := memory.New(nil)
			w, err := subwindow.NewFixedWindow(24 * time.Hour)
			require.NoError(t, err)
			down := false
			store := &faultyStore{Store: inner, fault: func(string, string) error {
				if down {
					return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
				}
				return nil
			}}
			before, l := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			if reset {
				require.NoError(t, before.Reset(t.Context(), "c", at("09:00:00")))
			}
			for i := range 60 {
				require.True(t, take(t, l, at("10:00:00").Add(time.Duration(i)*time.Minute), 1, 100).Allowed)
			}
			_, err = l.Peek(t.Context(), request(at("11:30:00"), 1, 100))
			require.NoError(t, err)
			down = true
			admitted := 0
			for i := range 150 {
				r := request(at("12:00:00").Add(time.Duration(i)*time.Second), 1, 100)
				_, err := l.Take(t.Context(), r)
				require.Error(t, err)
				d, err := l.TakeLocal(r, err)
				require.NoError(t, err)
				if d.Allowed {
					admitted++
				}
			}
			assert.Equal(t, 40, admitted)
		})
	}
}

// An addition that is on its way while its process resets the client is from before that,
// whatever becomes of it: nobody puts back what the reset has deleted.
func (by way) TestAnAdditionUnderWayDuringAReset(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{0, 1} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				w := subwindow.Window{Strict: slots == 0, Width: time.Hour, Slots: slots}
				var tell func(error)
				var late atomic.Bool
				store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
					if operation != "add" || !late.CompareAndSwap(true, false) {
						return nil
					}
					time.Sleep(50 * time.Millisecond)
					return &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }}
				}}
				reseeded := 0
				l := by.newLimiterWith(t, store, w, counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond, Reseeded: func(n int) { reseeded += n }})
				require.True(t, take(t, l, time.Now(), 1, 10).Allowed)
				time.Sleep(100 * time.Millisecond)
				late.Store(true)
				counted := make(chan struct{})
				go func() {
					_, err := l.Take(t.Context(), request(time.Now(), 8, 10))
					assert.Error(t, err)
					close(counted)
				}()
				time.Sleep(10 * time.Millisecond)
				// It is counted, and deleted again.
				_, err := inner.Add(t.Context(), counters.Addition{Key: key(w, time.Now()), Delta: 8, TTL: time.Hour})
				require.NoError(t, err)
				require.NoError(t, l.Reset(t.Context(), "c", time.Now()))
				<-counted
				tell(nil)
				time.Sleep(2 * time.Second)
				l.Flush()
				assert.True(t, take(t, l, time.Now(), 10, 10).Allowed)
				assert.Zero(t, reseeded)
			})
		})
	}
}

// An instance may see a reset of a fixed window late, as nothing is missing: another has
// admitted more than it had. When that is given back, what it counted before the reset
// isn't put back.
func (by way) TestWhatWasCountedBeforeAResetIsNotPutBackAfterAGiveBack(t *testing.T) {
	t.Parallel()
	store, w := memory.New(nil), subwindow.Window{Strict: true, Width: time.Hour}
	resets, counted, gives := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	now := at("12:00:00")
	require.True(t, take(t, counted, now, 40, 100).Allowed)
	require.True(t, take(t, gives, now, 50, 100).Allowed)
	now = now.Add(2 * time.Second)
	require.NoError(t, resets.Reset(t.Context(), "c", now))
	now = now.Add(100 * time.Millisecond)
	taken := take(t, gives, now, 50, 100)
	require.True(t, taken.Allowed)
	require.True(t, take(t, counted, now, 1, 100).Allowed)
	require.NoError(t, gives.Refund(t.Context(), request(now, 50, 100), taken))
	for range 3 {
		now = now.Add(time.Second)
		require.True(t, take(t, counted, now, 1, 100).Allowed)
	}
	assert.Equal(t, int64(95), take(t, resets, now.Add(time.Second), 1, 100).Remaining, "five since the reset")
}

// A losingStore loses a client's generation once, before it adds to it, and gets it back before
// it deletes.
type losingStore struct {
	counters.Store
	key  string
	lost int64
}

func (s *losingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if a.Key == s.key && s.lost == 0 {
		var counts [1]int64
		_ = s.Read(ctx, []string{s.key}, counts[:])
		s.lost = counts[0]
		_ = s.Store.Delete(ctx, []string{s.key})
	}
	return s.Store.Add(ctx, a)
}

func (s *losingStore) Delete(ctx context.Context, keys []string) error {
	_ = s.Raise(ctx, []counters.Floor{{Key: s.key, Count: s.lost, TTL: time.Minute}})
	return s.Store.Delete(ctx, keys)
}

// The store loses what a reset has left, and another instance puts it back, before the reset is
// over: it isn't one of years ahead, whose generation no other reset would renew.
func (by way) TestAResetThatTheStoreForgetsIsOfNow(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 4, true)
	prefix := counters.CounterNamespace("weir", "p", "l", w.Width).Client("c")
	store := &losingStore{Store: memory.New(nil), key: counters.GenerationKey(prefix)}
	l := by.newLimiter(t, store, w, 50*time.Millisecond)
	now := at("12:00:01")
	require.NoError(t, l.Reset(t.Context(), "c", now))
	var generation [1]int64
	require.NoError(t, store.Read(t.Context(), []string{store.key}, generation[:]))
	const unit = 1 << 20 // a millisecond
	assert.InDelta(t, now.UnixMilli(), generation[0]/unit, float64(time.Minute.Milliseconds()))
}
