package subwindow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/combiner"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// minuteWindows returns windows of a minute.
func minuteWindows(t *testing.T) map[string]subwindow.Window {
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	capped := newWindow(t, time.Minute, 10, false)
	capped.Capped = true
	return map[string]subwindow.Window{
		"fixed":    fixed,
		"weighted": newWindow(t, time.Minute, 4, false),
		"capped":   capped,
		"strict":   newWindow(t, time.Minute, 60, true),
	}
}

func newMemory() limitertest.Store { return memory.New(nil) }

// keeps has windows of a minute pass a test of every limiter.
func (by way) keeps(t *testing.T, o counters.Options, test func(*testing.T, time.Time, func() limitertest.Store, func(*testing.T, limitertest.Store) counters.Limiter)) {
	t.Parallel()
	for name, window := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, at("12:00:01.5"), newMemory, func(t *testing.T, store limitertest.Store) counters.Limiter {
				return by.newLimiterWith(t, store, window, o)
			})
		})
	}
}

func (by way) TestLosses(t *testing.T) {
	t.Parallel()
	for name, window := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Loss(t, at("12:00:01.5"), newMemory, func(t *testing.T, store limitertest.Store, reseeded func(int)) counters.Limiter {
				return by.newLimiterWith(t, store, window, counters.Options{ClockSkew: sameClock, Clients: 1000, Reseeded: reseeded})
			})
		})
	}
}

func (by way) TestOutages(t *testing.T) {
	by.keeps(t, counters.Options{ClockSkew: sameClock, Clients: 1000}, limitertest.Outage)
}

func (by way) TestLateAnswersInAnyOrder(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for name, window := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Late(t, at("12:00:01.5"), 1000, newMemory, func(t *testing.T, store limitertest.Store, failed func()) counters.Limiter {
				return by.newLimiterWith(t, store, window, counters.Options{ClockSkew: sameClock, Clients: 10, RefundFailed: failed})
			})
		})
	}
}

func (by way) TestOthersHaveToTell(t *testing.T) {
	racetest.Sequential(t)
	by.keeps(t, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}, limitertest.Telling)
}

func (by way) TestWhatProcessesAdmitAlone(t *testing.T) {
	racetest.Sequential(t)
	by.keeps(t, counters.Options{ClockSkew: sameClock, Clients: 1000}, limitertest.Alone)
}

// A client that asks for far more than its limit, of four processes evenly, is given about
// the limit in each minute without the store too: what a process has counted and given
// back is no part of its share.
func (by way) TestAloneABusyClientHasTheLimitOfAWindow(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit, processes = 100, 4
	for _, slots := range []int{1, 4, 10} {
		t.Run(fmt.Sprint("N=", slots), func(t *testing.T) {
			t.Parallel()
			window := newWindow(t, time.Minute, slots, false)
			now, random := at("12:00:00"), rand.New(rand.NewPCG(1, 2))
			p := limitertest.NewProcesses(t, processes, newMemory(), func(s limitertest.Store) (counters.Limiter, error) {
				return by.newLimiterWith(t, s, window, counters.Options{ClockSkew: sameClock, Clients: 1000}), nil
			})
			for minute := range 8 {
				admitted := 0
				for range 10 * limit {
					now = now.Add(time.Minute / (10 * limit))
					if p.Take(random.IntN(processes), request(now, 1, limit)).Allowed {
						admitted++
					}
				}
				if minute == 3 {
					p.Fail(limitertest.ErrUnsent)
				}
				if minute > 3 {
					assert.InDelta(t, limit, admitted, 15, "in minute %d", minute)
				}
			}
		})
	}
}

func (by way) TestCallersWhoLeaveTakeTheirShare(t *testing.T) {
	by.keeps(t, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}, limitertest.LeavingTogether)
}

func (by way) TestMoreClientsThanAreRememberedInAnOutage(t *testing.T) {
	by.keeps(t, counters.Options{ClockSkew: sameClock, Clients: 64}, limitertest.Crowd)
}

func (by way) TestLeaving(t *testing.T) {
	t.Parallel()
	for name, window := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Leaving(t, at("12:00:01.5"), newMemory, func(t *testing.T, store limitertest.Store, failed func()) counters.Limiter {
				return by.newLimiterWith(t, store, window, counters.Options{ClockSkew: sameClock, RefundFailed: failed})
			})
		})
	}
}

// takeAnyway asks l, by itself if the store fails.
func takeAnyway(t *testing.T, l *limiter, r counters.Request) bool {
	t.Helper()
	d, err := l.Take(&counters.Deadline{At: r.Now}, r)
	for errors.Is(err, combiner.ErrWithdrawn) { // what is due is being told, and the deadline leaves no time to wait
		d, err = l.Take(&counters.Deadline{At: r.Now}, r)
	}
	if err != nil {
		d, err = l.TakeLocal(r, err)
		require.NoError(t, err)
	}
	return d.Allowed
}

// The store counts what was admitted without it, and fails again before the
// process has read that.
func (by way) TestWhatIsRepaidIsRemembered(t *testing.T) {
	t.Parallel()
	for name, seconds := range map[string]string{"in the same slot": "05", "in another": "20"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := 1
			store := &faultyStore{Store: memory.New(nil), fault: func(string, string) error {
				if answers--; answers < 0 {
					return limitertest.ErrUnsent
				}
				return nil
			}}
			l := by.newLimiter(t, store, newWindow(t, time.Minute, 4, true), sameClock)
			require.True(t, takeAnyway(t, l, request(at("12:00:01"), 4, 10)))
			require.True(t, takeAnyway(t, l, request(at("12:00:02"), 3, 10)))
			answers = 1
			require.False(t, takeAnyway(t, l, request(at("12:00:"+seconds), 4, 10)))
			assert.False(t, takeAnyway(t, l, request(at("12:00:"+seconds), 4, 10)))
			assert.True(t, takeAnyway(t, l, request(at("12:00:"+seconds), 3, 10)))
		})
	}
}

// While the store is gone, of a client that two instances have shared evenly, whoever waits as
// long as it is told is admitted, though another slot has begun by then.
func (by way) TestRetryAfterIsTrueAlone(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		for _, countDenied := range []bool{false, true} {
			for _, limit := range []int64{10, 20, 37} {
				inner := memory.New(nil)
				store := &limitertest.BrokenStore{Store: inner}
				here := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, CountDenied: countDenied})
				there := by.newLimiter(t, inner, w, sameClock)
				now := at("12:00:00")
				for range 30 {
					require.True(t, take(t, here, now, 1, 100).Allowed)
					require.True(t, take(t, there, now, 1, 100).Allowed)
					now = now.Add(time.Second)
				}
				now = now.Add(10 * time.Minute)
				store.Fail(limitertest.ErrUnsent)
				for range 100 {
					d, err := here.TakeLocal(request(now, 1, limit), limitertest.ErrUnsent)
					require.NoError(t, err)
					now = now.Add(700 * time.Millisecond)
					if wait := d.RetryAfter + d.FitsAfter; wait > 0 {
						now = now.Add(wait - 700*time.Millisecond)
						d, err = here.TakeLocal(request(now, 1, limit), limitertest.ErrUnsent)
						require.NoError(t, err)
						require.True(t, d.Allowed, "%s, limit %d, denials count: %v; after %v", name, limit, countDenied, wait)
					}
				}
			}
		}
	}
}

// A process whose clock was an hour ahead when the store answered again, and is set back, leaves
// room no longer for what others have still to tell.
func (by way) TestOthersHaveNothingToTellAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	const limit = 100
	for name, w := range minuteWindows(t) {
		store := &limitertest.BrokenStore{Store: newMemory()}
		here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store.Store, w, sameClock)
		for range 20 {
			require.True(t, takeAnyway(t, here, request(at("13:00:01"), 1, limit)))
			require.True(t, takeAnyway(t, there, request(at("13:00:01"), 1, limit)))
		}
		store.Fail(limitertest.ErrUnsent)
		require.True(t, takeAnyway(t, here, request(at("13:00:02"), 10, limit)))
		store.Fail(nil)
		require.True(t, takeAnyway(t, here, request(at("13:00:02"), 1, limit)))
		require.True(t, takeAnyway(t, here, request(at("12:00:30"), 1, limit)))
		d := take(t, here, at("12:00:30"), 60, limit)
		assert.True(t, d.Allowed, "%s: %+v", name, d)
	}
}

// Instances that may have settled a slot are told that it has changed, even if
// that fails at first.
func (by way) TestOthersAreToldOfWhatIsRepaid(t *testing.T) {
	t.Parallel()
	for _, outage := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard} {
		t.Run(outage.Error(), func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			fails := func(string) error { return nil }
			store := &faultyStore{Store: inner, fault: func(_, key string) error { return fails(key) }}
			w := newWindow(t, time.Minute, 60, true)
			l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
			require.True(t, takeAnyway(t, l, request(at("12:00:01"), 4, 10)))
			fails = func(string) error { return outage }
			require.True(t, takeAnyway(t, l, request(at("12:00:01"), 3, 10)))
			require.Equal(t, int64(5), take(t, there, at("12:00:04"), 1, 10).Remaining, "the slot of 12:00:01 is settled")
			fails = func(key string) error {
				if strings.HasSuffix(key, counters.GenerationKey("")) {
					return limitertest.ErrUnsent
				}
				return nil
			}
			require.True(t, takeAnyway(t, l, request(at("12:00:04"), 1, 10)))
			fails = func(string) error { return nil }
			require.True(t, takeAnyway(t, l, request(at("12:00:04"), 1, 10)))
			assert.Zero(t, take(t, there, at("12:00:05"), 1, 10).Remaining)
		})
	}
}

// The store counts a check, and can't be sent the read after that: the check
// isn't counted again.
func (by way) TestWhatIsCountedIsNotOwed(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	var reads atomic.Bool
	store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
		if operation == "read" && !reads.Load() {
			return limitertest.ErrUnsent
		}
		return nil
	}}
	w := newWindow(t, time.Minute, 60, true)
	l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
	require.True(t, take(t, l, at("12:00:01"), 4, 10).Allowed)
	require.True(t, take(t, l, at("12:00:04"), 1, 10).Allowed)
	require.NoError(t, there.Reset(t.Context(), "c", at("12:00:04")))
	r := request(at("12:00:06"), 3, 10)
	_, err := l.Take(t.Context(), r)
	require.Error(t, err)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	reads.Store(true)
	assert.Equal(t, int64(6), take(t, l, at("12:00:07"), 1, 10).Remaining)
}

// A request that was on its way for long doesn't make the process forget what
// it has admitted in a later slot.
func (by way) TestALateRequestIsNotAllThatIsRemembered(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{
		"fixed": fixed, "narrow slots": newWindow(t, 100*time.Millisecond, 10, false),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fault error
			store := &faultyStore{Store: memory.New(nil), fault: func(string, string) error { return fault }}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second})
			require.True(t, take(t, l, at("12:01:00.5"), 8, 10).Allowed)
			require.True(t, take(t, l, at("12:00:59.6"), 1, 10).Allowed)
			fault = limitertest.ErrUnsent
			assert.False(t, takeAnyway(t, l, request(at("12:01:00.51"), 3, 10)))
			assert.True(t, takeAnyway(t, l, request(at("12:01:00.51"), 2, 10)))
		})
	}
}

// What a late request finds in slots that had left the process's memory are no others'
// counts: alone, the process takes all of the limit.
func (by way) TestALateRequestTakesNothingForOthers(t *testing.T) {
	t.Parallel()
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l := by.newLimiterWith(t, store, newWindow(t, time.Second, 10, false), counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second})
	require.True(t, take(t, l, at("12:00:00.05"), 8, 10).Allowed)
	require.True(t, take(t, l, at("12:00:04.05"), 1, 10).Allowed)
	require.True(t, take(t, l, at("12:00:00.95"), 1, 10).Allowed)
	store.Fail(limitertest.ErrUnsent)
	assert.True(t, takeAnyway(t, l, request(at("12:00:06"), 1, 10)))
	assert.True(t, takeAnyway(t, l, request(at("12:00:06"), 9, 10)))
}

// What is decided alone just after the next window has begun finds what its own
// window had: as it was read, admitted alone, and read again late.
func (by way) TestALateRequestFindsTheWindowBefore(t *testing.T) {
	t.Parallel()
	// The others reach over the boundary.
	l := by.newLimiterWith(t, memory.New(nil), minuteWindows(t)["fixed"], counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second})
	alone := func(now time.Time, cost int64) bool {
		d, err := l.TakeLocal(counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}, limitertest.ErrUnsent)
		require.NoError(t, err)
		return d.Allowed
	}
	before, after := at("12:00:59.9"), at("12:01:00.1")
	require.True(t, take(t, l, before, 4, 10).Allowed)
	require.True(t, alone(before, 2))
	require.True(t, take(t, l, after, 1, 10).Allowed) // repays, too
	require.True(t, take(t, l, after, 1, 10).Allowed)
	assert.False(t, alone(before, 5), "6 are in use")
	assert.True(t, alone(before, 1))
	require.True(t, take(t, l, before, 1, 10).Allowed)
	assert.False(t, alone(before, 3), "8 are in use")
	assert.True(t, alone(before, 2))
	assert.False(t, alone(after, 9), "2 are in use")
	assert.True(t, alone(after, 8))
	require.NoError(t, l.Reset(t.Context(), "c", after))
	assert.True(t, alone(before, 1))
}

func (by way) TestALateRequestRepays(t *testing.T) {
	t.Parallel()
	for _, debt := range []string{"12:00:01", "12:00:35"} {
		t.Run(debt, func(t *testing.T) {
			t.Parallel()
			var fault error
			store := &faultyStore{Store: memory.New(nil), fault: func(string, string) error { return fault }}
			l := by.newLimiter(t, store, newWindow(t, time.Minute, 4, true), sameClock)
			require.True(t, take(t, l, at("12:00:35"), 1, 10).Allowed)
			fault = limitertest.ErrUnsent
			require.True(t, takeAnyway(t, l, request(at(debt), 7, 10)))
			fault = nil
			require.True(t, take(t, l, at("12:00:20"), 1, 10).Allowed)
			fault = limitertest.ErrUnsent
			assert.False(t, takeAnyway(t, l, request(at("12:00:36"), 2, 10)))
			assert.True(t, takeAnyway(t, l, request(at("12:00:36"), 1, 10)))
		})
	}
}

// A request that was made in a slot is decided by what is owed there, though
// another has come in the next.
func (by way) TestDebtsOutliveTheirSlotForLateRequests(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	store := &faultyStore{Store: memory.New(nil), fault: func(string, string) error { return limitertest.ErrUnsent }}
	l := by.newLimiterWith(t, store, fixed, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second})
	require.True(t, takeAnyway(t, l, request(at("12:00:59.5"), 8, 10)))
	require.True(t, takeAnyway(t, l, request(at("12:01:00.1"), 1, 10)))
	assert.False(t, takeAnyway(t, l, request(at("12:00:59.6"), 3, 10)))
	assert.True(t, takeAnyway(t, l, request(at("12:00:59.6"), 2, 10)))
}

// A ttlStore notes the shortest life that a counter is given.
type ttlStore struct {
	faultyStore
	shortest time.Duration
}

func (s *ttlStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.faultyStore.Add(ctx, a)
	if err == nil && !strings.HasSuffix(a.Key, counters.GenerationKey("")) {
		s.shortest = min(s.shortest, a.TTL)
	}
	return n, err
}

// Whenever a debt is repaid, its counter expires some time: a TTL of no whole
// second would be for ever.
func (by way) TestCountersOfDebtsExpire(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 4, true)
	for after := range 90 * time.Second / (500 * time.Millisecond) {
		var fault error
		store := &ttlStore{faultyStore{memory.New(nil), func(string, string) error { return fault }}, time.Hour}
		l := by.newLimiter(t, store, w, 50*time.Millisecond)
		fault = limitertest.ErrUnsent
		now := at("12:00:00")
		require.True(t, takeAnyway(t, l, request(now, 1, 10)))
		fault = nil
		now = now.Add(after * 500 * time.Millisecond)
		require.True(t, takeAnyway(t, l, request(now, 1, 10)))
		assert.Positive(t, store.shortest, now)
	}
}

// A caller that gives up while its leader is busy with refunds is counted by
// that leader, and not as a debt as well.
func (by way) TestACallerThatGivesUpIsCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		gate := make(chan struct{})
		var gated, first atomic.Bool
		store := &faultyStore{Store: inner, fault: func(operation, key string) error {
			if operation == "read" && gated.Load() && strings.Contains(key, counters.GenerationKey("")) {
				<-gate // a refund looks for resets
			}
			if operation == "add" && first.CompareAndSwap(true, false) {
				<-gate
				return limitertest.ErrUnheard
			}
			return nil
		}}
		w := newWindow(t, time.Minute, 4, true)
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: 5 * time.Second})
		now := time.Now()
		within := func(d time.Duration) context.Context { return &counters.Deadline{At: now.Add(d)} }
		r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: now}
		taken, err := l.Take(within(time.Second), r)
		require.NoError(t, err)
		alone := func(d time.Duration) {
			_, err := l.Take(within(d), r)
			assert.Error(t, err)
			_, err = l.TakeLocal(r, err)
			assert.NoError(t, err)
		}
		first.Store(true)
		go alone(time.Minute)
		synctest.Wait() // it leads, and the others wait for it
		gated.Store(true)
		go func() { _ = l.Refund(within(time.Minute), r, taken) }()
		synctest.Wait()
		go alone(time.Second)
		synctest.Wait()
		gate <- struct{}{} // nobody hears the leader, and the refund leads
		time.Sleep(2 * time.Second)
		gated.Store(false)
		close(gate)
		synctest.Wait()
		l.Flush()
		assert.Equal(t, int64(2), used(t, inner, w, now), "of three, one is refunded")
	})
}

// Of what may have been counted, the count before that tells less once the
// process has repaid other debts there.
func (by way) TestWhatIsRepaidIsNotTakenForWhatHadNoAnswer(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			store := &addingStore{Store: memory.New(nil)}
			now := at("12:00:01")
			l := by.newLimiter(t, store, w, sameClock)
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			store.fails(func(int64) error { return limitertest.ErrUnheard })
			require.True(t, takeAnyway(t, l, request(now, 3, 20)))
			store.fails(func(int64) error { return limitertest.ErrUnsent })
			require.True(t, takeAnyway(t, l, request(now, 5, 20)))
			store.fails(func(sum int64) error { // of what is repaid, the 3 aren't sent
				if sum == 3 {
					return limitertest.ErrUnsent
				}
				return nil
			})
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			store.fails(nil)
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			l.Flush()
			assert.Equal(t, int64(11), used(t, store.Store, w, now))
		})
	}
}

// An addingStore fails to add what fail has an error for, or to read, which is
// a sum of 0.
type addingStore struct {
	counters.Store
	mu   sync.Mutex
	fail func(sum int64) error
}

func (s *addingStore) fails(fail func(sum int64) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *addingStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(0); err != nil {
			return err
		}
	}
	return s.Store.Read(ctx, keys, counts)
}

func (s *addingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(a.Delta); err != nil {
			return 0, err
		}
	}
	return s.Store.Add(ctx, a)
}

// The slot of a debt may be lost between the read that shows it counted and the
// addition of another.
func (by way) TestALossWhileDebtsAreRepaid(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			store := &addingStore{Store: memory.New(nil)}
			now := at("12:00:01")
			l := by.newLimiter(t, store, w, sameClock)
			store.fails(func(sum int64) error { // it is counted all the same
				if sum == 0 {
					return nil
				}
				_, err := store.Store.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: sum, New: true, TTL: time.Minute})
				require.NoError(t, err)
				return limitertest.ErrUnanswered
			})
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			store.fails(func(int64) error { return limitertest.ErrUnsent })
			require.True(t, takeAnyway(t, l, request(now, 3, 20)))
			store.fails(func(sum int64) error {
				if sum > 0 {
					store.fail, store.Store = nil, memory.New(nil)
				}
				return nil
			})
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			require.True(t, takeAnyway(t, l, request(now, 1, 20)))
			l.Flush()
			assert.Equal(t, int64(6), used(t, store.Store, w, now))
		})
	}
}

// A refund that gives up while its leader repays is done by that leader, and
// not once more.
func (by way) TestARefundThatGivesUpIsDoneOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		gate := make(chan struct{})
		var gated atomic.Bool
		store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
			if operation == "add" && gated.Load() {
				<-gate
			}
			return nil
		}}
		w := newWindow(t, time.Minute, 4, true)
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: 5 * time.Second})
		now := time.Now()
		within := func(d time.Duration) context.Context { return &counters.Deadline{At: now.Add(d)} }
		r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: now}
		for range 3 {
			_, err := l.Take(within(time.Second), r)
			require.NoError(t, err)
		}
		gated.Store(true)
		go func() { _, _ = l.Take(within(4*time.Second), r) }()
		synctest.Wait() // it leads, and the others wait for it
		_, err := l.TakeLocal(r, counters.ErrNotSent)
		require.NoError(t, err)
		go func() { _, _ = l.Take(within(4*time.Second), r) }()
		synctest.Wait()
		go func() {
			assert.NoError(t, l.Refund(within(time.Second), r, counters.Decision{Allowed: true}), "less is due")
		}()
		synctest.Wait()
		gate <- struct{}{} // the second take leads, and repays
		time.Sleep(2 * time.Second)
		close(gate)
		synctest.Wait()
		l.Flush()
		assert.Equal(t, int64(5), used(t, inner, w, now), "of six, one is refunded")
	})
}

// A store that is far away takes several round trips to count what was admitted
// without it, more than a check has time for.
func (by way) TestAFarStoreCountsWhatIsOwed(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		synctest.Test(t, func(t *testing.T) {
			inner := memory.New(nil)
			store := &limitertest.SlowStore{Store: inner}
			store.SetDelay(30 * time.Millisecond)
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: 50 * time.Millisecond})
			_, err := l.TakeLocal(request(time.Now(), 7, 10), limitertest.ErrUnsent)
			require.NoError(t, err)
			time.Sleep(5 * time.Second)
			l.Flush()
			assert.Zero(t, l.Owing())
			assert.Equal(t, int64(3), take(t, by.newLimiter(t, inner, w, sameClock), time.Now(), 0, 10).Remaining, name)
		})
	}
}

// While the store is asked about a slot, others decide alone in one that is so much
// later that the first is forgotten.
func (by way) TestAnAnswerComesWhenItsSlotIsForgotten(t *testing.T) {
	for name, w := range minuteWindows(t) {
		now := at("12:00:01")
		late := &lateStore{Store: memory.New(nil)}
		l := by.newLimiter(t, late, w, sameClock)
		late.after = func() {
			late.after = nil
			d, err := l.TakeLocal(request(now.Add(time.Hour), 1, 10), limitertest.ErrUnsent)
			assert.NoError(t, err)
			assert.True(t, d.Allowed)
		}
		require.True(t, take(t, l, now, 1, 10).Allowed, name)
		require.EqualValues(t, 8, take(t, l, now.Add(time.Hour), 1, 10).Remaining, name)
	}
}

// A denial names the time at which the check fits: beside what others have still to tell, as what
// it stands for until they have, or after that.
func (by way) TestADenialForOthersWaitsForRoomOfASlotToo(t *testing.T) {
	const limit = 13
	w, now := newWindow(t, time.Minute, 4, true), at("12:00:01")
	both := limitertest.NewProcesses(t, 2, newMemory(), func(s limitertest.Store) (counters.Limiter, error) {
		return by.newLimiterWith(t, s, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}), nil
	})
	for n := range 8 {
		require.True(t, both.Take(n%2, request(now, 1, limit)).Allowed)
	}
	now = at("12:01:15.2") // the first slot leaves soon
	both.Fail(limitertest.ErrUnsent)
	for both.Take(0, request(now, 1, limit)).Allowed {
	}
	both.Stores[0].Fail(nil)
	d := both.Take(0, request(now, 5, limit))
	require.False(t, d.Allowed)
	assert.True(t, both.Take(0, request(now.Add(d.RetryAfter), 5, limit)).Allowed, "after %v", d.RetryAfter)
}
