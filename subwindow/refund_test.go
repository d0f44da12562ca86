package subwindow_test

import (
	"context"
	"errors"
	"fmt"
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

// failingStore fails what it is told to.
type failingStore struct {
	counters.Store
	subtracts int
	subtract  func(n int) error // for the n-th Subtract, from 1; nil does it
	deleteErr error
}

func (s *failingStore) Delete(ctx context.Context, keys []string) error {
	if s.deleteErr != nil {
		return s.deleteErr
	}
	return s.Store.Delete(ctx, keys)
}

func (s *failingStore) Subtract(ctx context.Context, key string, delta int64) error {
	s.subtracts++
	if s.subtract != nil {
		if err := s.subtract(s.subtracts); err != nil {
			return err
		}
	}
	return s.Store.Subtract(ctx, key, delta)
}

func request(moment time.Time, cost, limit int64) counters.Request {
	return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: moment}
}

// admittedAt returns the decision on what was admitted then.
func admittedAt(clock string) counters.Decision {
	return counters.Decision{Allowed: true, Receipt: counters.Receipt{At: at(clock).UnixNano()}}
}

// used returns what the store has counted at a moment.
func used(t *testing.T, store counters.Store, w subwindow.Window, moment time.Time) int64 {
	t.Helper()
	var counts [1]int64
	require.NoError(t, store.Read(t.Context(), []string{key(w, moment)}, counts[:]))
	return counts[0]
}

// A slot that a refund touches after it was settled is read again: what others
// count and refund there is seen.
func (by way) TestARefundUnsettlesItsSlot(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	require.True(t, take(t, here, at("12:00:00.9"), 6, 11).Allowed)
	require.Equal(t, int64(4), take(t, here, at("12:00:02"), 1, 11).Remaining, "the slot of 12:00:00 is settled")
	_, err := store.Add(t.Context(), counters.Addition{Key: key(w, at("12:00:00")), Delta: 3, TTL: time.Minute})
	require.NoError(t, err, "another instance's count that comes late")
	require.Equal(t, int64(3), take(t, here, at("12:00:02.1"), 1, 11).Remaining, "isn't seen in a settled slot")

	require.NoError(t, here.Refund(t.Context(), request(at("12:00:00.9"), 6, 11), counters.Decision{Allowed: true}))
	assert.Equal(t, int64(5), take(t, here, at("12:00:02.2"), 1, 11).Remaining, "3, 1, 1 and 1 are in use")
	assert.Equal(t, int64(4), take(t, there, at("12:00:02.3"), 1, 11).Remaining)
}

// A refund waits for the check that is under way, so that neither overwrites
// what the other has learned.
func (by way) TestARefundComesInItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 4, true)
		store := &gatedStore{Store: inner, gate: make(chan struct{})}
		l := by.newLimiter(t, store, w, sameClock)
		go func() { store.gate <- struct{}{} }()
		require.True(t, take(t, l, at("12:00:01"), 10, 20).Allowed)

		go take(t, l, at("12:00:01.1"), 5, 20)
		synctest.Wait() // it is at the gate
		refunded := false
		go func() {
			assert.NoError(t, l.Refund(t.Context(), request(at("12:00:01"), 10, 20), counters.Decision{Allowed: true}))
			refunded = true
		}()
		synctest.Wait()
		assert.False(t, refunded)
		close(store.gate)
		synctest.Wait()
		assert.True(t, refunded)
		d, ok := l.PeekLocal(request(at("12:00:01.2"), 1, 20))
		assert.True(t, ok)
		assert.Equal(t, int64(15), d.Remaining)
		assert.Equal(t, int64(5), used(t, inner, w, at("12:00:01")))
	})
}

// A client is reset between a check and its refund: the refund takes nothing
// from what has been counted since.
func (by way) TestARefundFromBeforeAResetTakesNothing(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{"fixed": fixed, "sliding": newWindow(t, time.Minute, 4, false)} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
			require.True(t, take(t, here, at("12:00:02.01"), 6, 10).Allowed)
			require.NoError(t, there.Reset(t.Context(), "c", at("12:00:01.97")), "by a clock that is behind")
			require.True(t, take(t, there, at("12:00:03.6"), 10, 10).Allowed)
			require.NoError(t, here.Refund(t.Context(), request(at("12:00:02.01"), 6, 10), counters.Decision{Allowed: true}))
			assert.Equal(t, int64(10), used(t, store, w, at("12:00:03.6")))

			require.NoError(t, there.Refund(t.Context(), request(at("12:00:03.6"), 10, 10), counters.Decision{Allowed: true}))
			assert.True(t, take(t, there, at("12:00:04.7"), 10, 10).Allowed, "one from after the reset is done")
		})
	}
}

// A refund whose caller has no time left is done all the same.
func (by way) TestARefundHasABudgetOfItsOwn(t *testing.T) {
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 4, true)
	gate := &gatedStore{Store: store, gate: make(chan struct{})}
	l := by.newLimiter(t, gate, w, sameClock)
	go func() { gate.gate <- struct{}{} }()
	require.True(t, take(t, l, at("12:00:01"), 10, 20).Allowed)

	var taking = make(chan struct{})
	// Holds the client's turn.
	go func() { take(t, l, at("12:00:01.1"), 1, 20); close(taking) }()
	require.Eventually(t, func() bool { return gate.waiting.Load() == 1 }, 10*time.Second, time.Millisecond)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	assert.ErrorIs(t, l.Refund(ctx, request(at("12:00:01"), 10, 20), counters.Decision{Allowed: true}), context.DeadlineExceeded)
	close(gate.gate)
	<-taking
	l.Flush()
	assert.Equal(t, int64(1), used(t, store, w, at("12:00:01")))
}

func (by way) TestARefundThatWasNotSentIsTriedAgainOnce(t *testing.T) {
	t.Parallel()
	notSent := errors.Join(counters.ErrUnavailable, counters.ErrNotSent)
	for _, test := range []struct {
		name         string
		errs         []error
		tries, fails int
		used         int64
	}{
		{"done at once", nil, 1, 0, 0},
		{"done the second time", []error{notSent}, 2, 0, 0},
		{"not sent twice", []error{notSent, notSent}, 3, 0, 0},
		{"perhaps done already", []error{counters.ErrTimeout}, 1, 1, 5},
		{"perhaps done the second time", []error{notSent, counters.ErrTimeout}, 2, 1, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, denied := range []bool{false, true} {
				inner := memory.New(nil)
				store := &failingStore{Store: inner, subtract: func(n int) error {
					if n > len(test.errs) {
						return nil
					}
					return test.errs[n-1]
				}}
				w := newWindow(t, time.Minute, 4, true)
				failed := 0
				l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, RefundFailed: func() { failed++ }})
				if denied {
					// Another instance fills the limit behind this one's back,
					// so that its check is counted before it is denied.
					require.True(t, take(t, l, at("12:00:01"), 1, 10).Allowed)
					_, err := inner.Add(t.Context(), counters.Addition{Key: key(w, at("12:00:01")), Delta: 9, TTL: time.Minute})
					require.NoError(t, err)
					assert.False(t, take(t, l, at("12:00:01.1"), 5, 10).Allowed)
					l.Flush()
					l.Flush()
					assert.Equal(t, 10+test.used, used(t, inner, w, at("12:00:01")), "denied")
				} else {
					require.True(t, take(t, l, at("12:00:01"), 5, 10).Allowed)
					err := l.Refund(t.Context(), request(at("12:00:01"), 5, 10), counters.Decision{Allowed: true})
					l.Flush()
					assert.Equal(t, len(test.errs) == 0, err == nil)
					assert.Equal(t, test.used, used(t, inner, w, at("12:00:01")), "refunded")
				}
				assert.Equal(t, test.tries, store.subtracts)
				assert.Equal(t, test.fails, failed)
			}
		})
	}
}

// With costs that differ, a denial is promised only by the store: another
// instance may have admitted a smaller cost, which leaves the window later.
func (by way) TestRetryAfterIsTrueWithMixedCosts(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, 4*time.Second, 4, true)
	a, b := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.True(t, take(t, a, at("12:00:00.2"), 95, 100).Allowed)
	require.False(t, take(t, a, at("12:00:01.5"), 7, 100).Allowed)
	require.True(t, take(t, b, at("12:00:01.6"), 4, 100).Allowed)
	d := take(t, a, at("12:00:01.7"), 97, 100)
	require.False(t, d.Allowed)
	assert.True(t, take(t, a, at("12:00:01.7").Add(d.RetryAfter), 97, 100).Allowed)
}

// What was counted although another limit denied it has to fit again.
func (by way) TestFitsAfterAnAdmission(t *testing.T) {
	t.Parallel()
	l := by.newLimiterWith(t, memory.New(nil), newWindow(t, time.Hour, 1, true), counters.Options{ClockSkew: sameClock, CountDenied: true})
	d, err := l.Take(t.Context(), request(at("12:00:02"), 1, 2))
	require.NoError(t, err)
	assert.Zero(t, d.FitsAfter)
	d, err = l.Take(t.Context(), request(at("12:00:02"), 1, 2))
	require.NoError(t, err)
	assert.Equal(t, counters.Decision{Allowed: true, ResetAfter: 2*time.Hour - 2*time.Second, FitsAfter: 2*time.Hour - 2*time.Second}, d)
}

// interruptedStore does something between the reads of a multi-get, as
// Memcached serves the keys of a get one after the other.
type interruptedStore struct {
	counters.Store
	between func()
}

func (s *interruptedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	for i := range keys {
		if i == 1 && s.between != nil {
			between := s.between
			s.between = nil
			between()
		}
		if err := s.Store.Read(ctx, keys[i:i+1], counts[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (s *interruptedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.Store.Add(ctx, counters.Addition{Key: a.Key, Delta: a.Delta, TTL: a.TTL})
	if err != nil {
		return 0, err
	}
	return n, s.Read(ctx, a.Read, a.Counts)
}

// A reset in the midst of a read leaves no counts of before it among those of
// the new generation.
func (by way) TestAResetInTheMidstOfARead(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, true)
	here, there := by.newLimiter(t, inner, w, sameClock), &interruptedStore{Store: inner}
	l := by.newLimiter(t, there, w, sameClock)
	require.True(t, take(t, here, at("12:00:00"), 90, 100).Allowed)
	there.between = func() { require.NoError(t, here.Reset(t.Context(), "c", at("12:00:16"))) }
	take(t, l, at("12:00:16"), 1, 100)
	assert.True(t, take(t, l, at("12:00:17"), 90, 100).Allowed)
}

// A faultyStore fails an operation on a key when fault says so.
type faultyStore struct {
	counters.Store
	fault func(operation, key string) error
}

func (s *faultyStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if err := s.fault("add", a.Key); err != nil {
		return 0, err
	}
	return s.Store.Add(ctx, a)
}

func (s *faultyStore) Read(ctx context.Context, keys []string, counts []int64) error {
	if err := s.fault("read", keys[0]); err != nil {
		return err
	}
	return s.Store.Read(ctx, keys, counts)
}

// A refund has two steps where its slot may be settled elsewhere: it takes the
// cost back, and raises the generation. If the second can't be sent, the first
// isn't done again.
func (by way) TestARefundWhoseGenerationCannotBeRaisedIsDoneOnce(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	generation := counters.GenerationKey(counters.CounterNamespace("weir", "p", "l", w.Width).Client("c"))
	lost := 0
	l := by.newLimiter(t, &faultyStore{Store: inner, fault: func(operation, key string) error {
		if operation == "add" && key == generation && lost == 0 {
			lost++
			return errors.Join(counters.ErrUnavailable, counters.ErrNotSent)
		}
		return nil
	}}, w, sameClock)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.True(t, take(t, l, at("12:00:01"), 5, 10).Allowed)
	require.True(t, take(t, l, at("12:00:01.1"), 5, 10).Allowed)
	_ = l.Refund(ctx, request(at("12:00:01"), 5, 10), counters.Decision{Allowed: true})
	l.Flush()
	require.Equal(t, 1, lost)
	assert.Equal(t, int64(5), used(t, inner, w, at("12:00:01")), "5 of the 10 admitted were given back")
}

// What was denied has been taken back even if others couldn't be told of that:
// the process doesn't hold it against the client.
func (by way) TestADenialWhoseGenerationCannotBeRaisedIsTakenBack(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	generation := counters.GenerationKey(counters.CounterNamespace("weir", "p", "l", w.Width).Client("c"))
	there := by.newLimiter(t, inner, w, sameClock)
	here := by.newLimiter(t, &faultyStore{Store: inner, fault: func(operation, key string) error {
		if operation == "add" && key == generation {
			return errors.Join(counters.ErrTimeout, counters.ErrNotSent)
		}
		return nil
	}}, w, sameClock)
	require.True(t, take(t, there, at("12:00:01"), 7, 10).Allowed)
	require.False(t, take(t, here, at("12:00:01.1"), 5, 10).Allowed)
	require.Equal(t, int64(7), used(t, inner, w, at("12:00:01")))
	assert.True(t, take(t, here, at("12:00:01.2"), 3, 10).Allowed)
}

// A refund first asks for resets. If that isn't answered, nothing has been
// taken back, and it is tried again.
func (by way) TestARefundThatCannotAskForResetsIsTriedAgain(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, true)
	armed, timeouts, failed := false, 0, 0
	l := by.newLimiterWith(t, &faultyStore{Store: inner, fault: func(operation, _ string) error {
		if operation == "read" && armed && timeouts == 0 {
			timeouts++
			return counters.ErrTimeout
		}
		return nil
	}}, w, counters.Options{ClockSkew: sameClock, RefundFailed: func() { failed++ }})
	require.True(t, take(t, l, at("12:00:01"), 5, 10).Allowed)
	armed = true
	require.ErrorIs(t, l.Refund(t.Context(), request(at("12:00:01"), 5, 10), counters.Decision{Allowed: true}), counters.ErrTimeout)
	l.Flush()
	assert.Equal(t, 1, timeouts)
	assert.Zero(t, failed)
	assert.Zero(t, used(t, inner, w, at("12:00:01")))
}

// A refund says that it has changed a settled slot, whatever time its context
// leaves.
func (by way) TestARefundWithoutADeadlineIsSeenByOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		w := newWindow(t, 10*time.Second, 10, true)
		o := counters.Options{StoreTimeout: 50 * time.Millisecond}
		here, there := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, store, w, o)
		ask := func(l *limiter, r counters.Request) counters.Decision {
			d, err := l.Take(t.Context(), r)
			require.NoError(t, err)
			return d
		}
		refunded := request(time.Now(), 10, 10)
		taken := ask(here, refunded)
		require.True(t, taken.Allowed)
		time.Sleep(2 * time.Second)
		require.False(t, ask(there, request(time.Now(), 1, 10)).Allowed, "it has read the slot, which is settled")
		require.NoError(t, here.Refund(t.Context(), refunded, taken))
		time.Sleep(time.Second)
		assert.True(t, ask(there, request(time.Now(), 10, 10)).Allowed)
	})
}

// Whoever flushes needn't keep others from asking meanwhile.
func (by way) TestAFlushWhileRefundsBegin(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	w := newWindow(t, time.Minute, 4, true)
	var failed atomic.Int64
	l := by.newLimiterWith(t, &failingStore{Store: inner, subtract: func(n int) error {
		if n%2 == 1 { // so it is tried again, which nobody waits for
			return errors.Join(counters.ErrUnavailable, counters.ErrNotSent)
		}
		return nil
	}}, w, counters.Options{ClockSkew: sameClock, RefundFailed: func() { failed.Add(1) }})
	const refunds = 2000
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := request(at("12:00:01"), 1, refunds)
		for range refunds {
			d, err := l.Take(t.Context(), r)
			if assert.NoError(t, err) {
				_ = l.Refund(t.Context(), r, d)
			}
		}
	}()
	for flushing := true; flushing; {
		l.Flush()
		select {
		case <-done:
			flushing = false
		default:
		}
	}
	l.Flush()
	assert.Equal(t, failed.Load(), used(t, inner, w, at("12:00:01")))
}

// When the check that a refund takes back was made, an older counter hadn't expired, which
// has when it is given back. Nobody takes that for lost.
func (by way) TestAnOldRefundPutsNothingBack(t *testing.T) {
	inner := memory.New(nil)
	w := newWindow(t, 2*time.Second, 1, true)
	l, other := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, inner, w, sameClock)
	require.True(t, take(t, l, at("12:00:01"), 4, 10).Allowed)
	require.True(t, take(t, l, at("12:00:03"), 1, 10).Allowed)
	require.True(t, take(t, other, at("12:00:03"), 1, 10).Allowed)
	require.NoError(t, inner.Delete(t.Context(), []string{key(w, at("12:00:01"))})) // it expires
	for _, l := range []*limiter{other, l} {                                        // each tells others, as the slot may be final to them
		require.NoError(t, l.Refund(&counters.Deadline{At: at("12:00:06")}, request(at("12:00:05.9"), 1, 10), admittedAt("12:00:03")))
	}
	assert.EqualValues(t, counters.Absent, used(t, inner, w, at("12:00:01")))
}

// A refund of a request that has left every window gives nothing back, and isn't taken
// for a clock that was set back: what is known of the client stays, while it is told and
// while it is told again.
func (by way) TestARefundOfAnOldRequestForgetsNothing(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{0, 1, 10} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			w := subwindow.Window{Strict: true, Width: time.Minute, Slots: slots}
			if slots > 0 {
				w.Width /= time.Duration(slots)
			}
			background := new(counters.Goroutines)
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Background: background})
			first := at("10:00:30")
			old := take(t, l, first, 5, 5)
			require.True(t, old.Allowed)
			now := first.Add(15 * time.Minute)
			require.True(t, take(t, l, now, 5, 5).Allowed)
			store.Fail(limitertest.ErrUnsent)
			old.Receipt.At = first.UnixNano()
			_ = l.Refund(t.Context(), request(now, 5, 5), old)
			background.Wait()
			d, err := l.TakeLocal(request(now.Add(time.Second), 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "all of the limit was admitted a second ago")
		})
	}
}

// A dueStore does additions while it is late, answers them too late, and tells in the end.
type dueStore struct {
	counters.Store
	unsent, late atomic.Bool
	tell         []func(error)
}

func (s *dueStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.unsent.Load() {
		return 0, limitertest.ErrUnsent
	}
	n, err := s.Store.Add(ctx, a)
	if !s.late.Load() || err != nil {
		return n, err
	}
	return 0, &counters.Unanswered{Err: limitertest.ErrUnheard, Await: func(f func(error)) { s.tell = append(s.tell, f) }}
}

// What was admitted alone is refunded while its settlement has no answer: it is
// given back once, and isn't taken for a loss when the settlement turns out to be done.
func (by way) TestWhatIsGivenBackIsNotTakenForALoss(t *testing.T) {
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		store := &dueStore{Store: inner}
		reseeded := 0
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second, Reseeded: func(n int) { reseeded += n }})
		now := at("12:00:01")
		store.unsent.Store(true)
		_, err := l.Take(t.Context(), request(now, 3, 10))
		require.Error(t, err)
		local, err := l.TakeLocal(request(now, 3, 10), err)
		require.NoError(t, err)
		require.True(t, local.Allowed)
		store.unsent.Store(false)
		store.late.Store(true)
		_, err = l.Take(t.Context(), request(now, 1, 10)) // settles the 3, unanswered
		require.Error(t, err)
		store.late.Store(false)
		require.NoError(t, l.Refund(t.Context(), request(now, 3, 10), local))
		require.True(t, take(t, l, now, 2, 10).Allowed)
		require.Len(t, store.tell, 1)
		store.tell[0](nil) // it was done
		l.Flush()
		require.Equal(t, int64(2), used(t, inner, w, now), name)
		require.True(t, take(t, l, now, 1, 10).Allowed)
		l.Flush()
		assert.Equal(t, int64(3), used(t, inner, w, now), "%s: 2 and 1 are admitted, nothing was lost", name)
		assert.Zero(t, reseeded, name)
	}
}
