package subwindow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// Who tells what is due has more time than a check, and may lead one. What it has counted of that
// when others rely on the slot they read anew, though its caller has left and was admitted alone.
func (by way) TestOthersSeeWhatIsCountedLateForWhoHasLeft(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} { // the check before: then what is due is told by the next leader
		synctest.Test(t, func(t *testing.T) { by.testOthersSeeWhatIsCountedLateForWhoHasLeft(t, fails) })
	}
}

func (by way) testOthersSeeWhatIsCountedLateForWhoHasLeft(t *testing.T, fails bool) {
	const timeout = 50 * time.Millisecond
	inner, before := memory.New(nil), func() error { return nil }
	store := &faultyStore{Store: inner, fault: func(operation, key string) error {
		if operation == "add" && !strings.HasSuffix(key, "_reset") {
			return before()
		}
		return nil
	}}
	w := newWindow(t, time.Minute, 60, true)
	o := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: timeout}
	here, there := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
	time.Sleep(980 * time.Millisecond)
	held := make(chan struct{})
	before = func() error {
		if <-held; fails {
			return counters.ErrNotSent
		}
		return nil
	}
	go func() { // others wait for it
		_, err := here.Take(t.Context(), request(time.Now(), 1, 10))
		assert.Equal(t, fails, err != nil)
	}()
	synctest.Wait()
	r := request(time.Now(), 2, 10)
	go func() {
		_, err := here.Limiter.Take(t.Context(), r)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = here.TakeLocal(r, err)
		assert.NoError(t, err)
	}()
	_, err := here.TakeLocal(r, counters.ErrNotSent)
	require.NoError(t, err)
	go here.Flush()
	synctest.Wait()
	told := false
	before = func() error {
		if told {
			time.Sleep(3 * timeout)
		}
		told = true
		return nil
	}
	close(held)
	time.Sleep(80 * time.Millisecond)
	left := int64(7)
	if !fails {
		left--
	}
	require.EqualValues(t, left, take(t, there, time.Now(), 1, 10).Remaining)
	time.Sleep(counters.MaxStaleness + time.Millisecond)
	assert.EqualValues(t, left-3, take(t, there, time.Now(), 1, 10).Remaining)
}

// A caller whose time is over while its leader works is answered by the process
// alone: what it is admitted counts once, whatever the leader does then.
func (by way) TestWhoLeavesIsCountedOnce(t *testing.T) {
	t.Parallel()
	const during, after = 45 * time.Millisecond, 90 * time.Millisecond
	for _, test := range []struct {
		name    string
		owed    int64         // of the 2 that are used up before
		decided time.Duration // when the process answers
		outcome []error       // of what the leader asks
		others  int64         // that another instance takes meanwhile
	}{
		{"while a debt is repaid", 1, during, nil, 0},
		{"while a debt can't be repaid", 1, during, []error{limitertest.ErrUnsent}, 0},
		{"after a debt couldn't be repaid", 1, after, []error{limitertest.ErrUnsent}, 0},
		{"while it is counted", 0, during, nil, 0},
		{"after it was counted", 0, after, nil, 0},
		{"while it can't be counted", 0, during, []error{limitertest.ErrUnsent}, 0},
		{"after it couldn't be counted", 0, after, []error{limitertest.ErrUnsent}, 0},
		{"while it is counted and nobody hears of it", 0, during, []error{limitertest.ErrUnanswered}, 0},
		{"while its slot is lost", 0, during, []error{counters.ErrLost}, 0},
		{"while its slot is lost and can't be put back", 0, during, []error{counters.ErrLost, limitertest.ErrUnsent}, 0},
		{"after its slot was lost", 0, after, []error{counters.ErrLost}, 0},
		{"while another takes the last place", 0, during, nil, 1},
		{"after another took the last place", 0, after, nil, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for name, w := range minuteWindows(t) {
				for _, leaders := range []int64{1, 2} {
					synctest.Test(t, func(t *testing.T) {
						inner := memory.New(nil)
						outcomes := slices.Concat([]error{nil, nil}, test.outcome)
						slow := []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond} // answers
						store := &faultyStore{Store: inner}
						store.fault = func(operation, key string) (err error) {
							if len(slow) > 0 {
								time.Sleep(slow[0])
								slow = slow[1:]
							}
							if len(outcomes) > 0 {
								err, outcomes = outcomes[0], outcomes[1:]
							}
							if err == limitertest.ErrUnanswered {
								_, _ = inner.Add(t.Context(), counters.Addition{Key: key, Delta: 1}) // memory never fails
							}
							return err
						}
						l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
						begin := time.Now()
						var mu sync.Mutex
						admitted := test.others + test.owed
						check := func(cost int64, timeout, decided time.Duration) {
							r := request(at("12:00:01"), cost, 10)
							d, err := l.Take(&counters.Deadline{At: begin.Add(timeout)}, r)
							if err != nil {
								time.Sleep(decided - time.Since(begin))
								d, err = l.TakeLocal(r, err)
							}
							assert.NoError(t, err)
							mu.Lock()
							defer mu.Unlock()
							if d.Allowed {
								admitted += cost
							}
						}
						check(2-test.owed, time.Second, 0)
						var callers sync.WaitGroup
						callers.Go(func() { check(7, time.Second, 0) }) // leads until 20 ms
						synctest.Wait()
						if test.owed > 0 {
							_, err := l.TakeLocal(request(at("12:00:01"), test.owed, 10), limitertest.ErrUnsent)
							require.NoError(t, err)
						}
						callers.Go(func() { check(1, 40*time.Millisecond, test.decided) })
						synctest.Wait()
						callers.Go(func() { check(leaders, time.Second, 0) }) // leads both from then on
						time.Sleep(30 * time.Millisecond)
						if test.others > 0 {
							require.True(t, take(t, there, at("12:00:01"), test.others, 10).Allowed)
						}
						callers.Wait()
						check(1, time.Minute, 0)
						check(1, time.Minute, 0)
						want := int64(10)
						if test.others > 0 && test.decided == during {
							want += test.others // nobody knows of the other instance
						}
						assert.Equal(t, want, admitted, name)
						assert.Equal(t, 100-want, take(t, there, at("12:00:01"), 0, 100).Remaining, name)
					})
				}
			}
		})
	}
}

// together has callers ask l for costs of 10, one after the other, so that the
// first leads and the others are led by the second. A cost is to be admitted or
// not. One that isn't answered in time is decided alone.
func together(t *testing.T, l *limiter, meanwhile func(), checks ...check) {
	t.Helper()
	begin := time.Now()
	var callers sync.WaitGroup
	for _, c := range checks {
		callers.Go(func() {
			r := request(at("12:00:01"), c.cost, 10)
			d, err := l.Take(&counters.Deadline{At: begin.Add(c.timeout)}, r)
			if err != nil {
				d, err = l.TakeLocal(r, err)
			}
			assert.NoError(t, err)
			assert.Equal(t, c.allowed, d.Allowed, "cost %d", c.cost)
		})
		synctest.Wait()
	}
	meanwhile()
	callers.Wait()
	l.Flush()
}

type check struct {
	cost    int64
	timeout time.Duration
	allowed bool
}

// Who was denied alone isn't counted either, even if there is room by then.
func (by way) TestWhoLeavesDeniedIsNotCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		store := &faultyStore{Store: inner, fault: func(string, string) error { time.Sleep(20 * time.Millisecond); return nil }}
		w := newWindow(t, time.Minute, 60, true)
		l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
		require.True(t, take(t, there, at("12:00:01"), 7, 10).Allowed)
		require.True(t, take(t, l, at("12:00:01"), 1, 10).Allowed)
		together(t, l, func() {
			time.Sleep(25 * time.Millisecond)
			require.NoError(t, there.Refund(t.Context(), request(at("12:00:01"), 7, 10), counters.Decision{Allowed: true}))
		},
			check{1, time.Second, true}, // until 20 ms
			check{2, 30 * time.Millisecond, false},
			check{2, time.Second, true}, // reads the slots until 40 ms
		)
		assert.Equal(t, int64(6), take(t, there, at("12:00:01"), 0, 10).Remaining)
	})
}

// A caller that is decided alone while another leads gets nothing of what that
// one is counting, or has counted.
func (by way) TestWhatIsBeingCountedIsReserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
			if operation == "add" {
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		}}
		w := newWindow(t, time.Minute, 60, true)
		l, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
		require.True(t, take(t, l, at("12:00:01"), 2, 10).Allowed)
		together(t, l, func() {
			time.Sleep(30 * time.Millisecond)
			require.True(t, take(t, there, at("12:00:01"), 3, 10).Allowed)
			together(t, l, func() {}, check{4, 15 * time.Millisecond, false}, check{3, 20 * time.Millisecond, false})
		},
			check{1, time.Second, true},  // until 20 ms
			check{5, time.Second, false}, // until 40 ms, when the other instance has taken its place
			check{1, time.Second, true},
			check{3, time.Second, true}, // until 60 ms
		)
	})
}

// A store whose answers come about when callers give up: with each of them some
// leave, some are answered, and some had their request counted without knowing.
// The process admits no more than the limit, and less only where it can't know:
// an addition that wasn't answered in time may be taken for missing, and counted
// again.
func (by way) TestSlowAnswers(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range racetest.Some(300) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					store := &limitertest.SlowStore{Store: memory.New(nil)}
					l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: timeout})
					var mu sync.Mutex
					admitted := 0
					check := func() {
						now := time.Now()
						r := request(now, 1, 20)
						d, err := l.Take(&counters.Deadline{At: now.Add(timeout)}, r)
						if err != nil {
							d, err = l.TakeLocal(r, err)
						}
						assert.NoError(t, err)
						mu.Lock()
						defer mu.Unlock()
						if d.Allowed {
							admitted++
						}
					}
					for range 10 {
						check()
					}
					store.SetDelay(30 * time.Millisecond)
					var callers sync.WaitGroup
					for range 5 + random.IntN(12) {
						callers.Go(func() {
							time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
							check()
						})
						synctest.Wait()
					}
					callers.Wait()
					store.SetDelay(0)
					time.Sleep(time.Second)
					for range 20 {
						check()
					}
					l.Flush()
					require.LessOrEqual(t, admitted, 20, "seed %d", seed)
					require.GreaterOrEqual(t, admitted, 20-store.LateAdditions, "seed %d", seed)
				})
			}
		})
	}
}

// A heldStore holds each addition until it is let go.
type heldStore struct {
	counters.Store
	err  error
	hold chan struct{}
}

func (s *heldStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.hold != nil {
		<-s.hold
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.Store.Add(ctx, a)
}

// What another limit has denied is given back while the store is counting it.
func (by way) TestWhatIsGivenBackWhileItIsRepaid(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &heldStore{Store: inner, err: limitertest.ErrUnsent}
				failed := 0
				l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second, RefundFailed: func() { failed++ }})
				now := at("12:00:01.5")
				_, err := l.Take(t.Context(), request(now, 2, 10))
				require.Error(t, err)
				local, err := l.TakeLocal(request(now, 2, 10), err)
				require.NoError(t, err)
				require.True(t, local.Allowed)

				store.err, store.hold = nil, make(chan struct{})
				done := make(chan bool)
				go func() {
					d, err := l.Take(t.Context(), request(now, 1, 10))
					done <- err == nil && d.Allowed
				}()
				synctest.Wait() // it is repaying
				require.NoError(t, l.Refund(t.Context(), request(now, 2, 10), local))
				close(store.hold)
				require.True(t, <-done)
				l.Flush()
				l.Flush()
				d, err := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock}).Peek(t.Context(), request(now, 1, 10))
				require.NoError(t, err)
				assert.EqualValues(t, 9, d.Remaining)
				assert.Zero(t, failed)
			})
		})
	}
}

// Of two that leave a leader and are admitted alone one is given back, as another limit has
// denied it. What the leader asked turns out to have no answer, and isn't done.
func (by way) TestWhatIsGivenBackOfAFlightThatIsNeverDone(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &heldStore{Store: inner, hold: make(chan struct{})}
				failed := 0
				l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second, RefundFailed: func() { failed++ }})
				now := at("12:00:01.5")
				leave := func(cost int64, within time.Duration) (alone chan counters.Decision) {
					alone = make(chan counters.Decision, 1)
					go func() {
						d, err := l.Take(&counters.Deadline{At: time.Now().Add(within)}, request(now, cost, 100))
						if err != nil {
							d, err = l.TakeLocal(request(now, cost, 100), err)
						}
						assert.NoError(t, err)
						alone <- d
					}()
					synctest.Wait()
					return alone
				}
				first := leave(1, time.Second) // by itself
				leader := leave(1, time.Second)
				refunded, stays := leave(5, 100*time.Millisecond), leave(10, 150*time.Millisecond)
				store.hold <- struct{}{}
				<-first
				synctest.Wait()
				require.NoError(t, l.Refund(t.Context(), request(now, 5, 100), <-refunded))
				require.True(t, (<-stays).Allowed)
				_, err := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock}).Take(t.Context(), request(now, 60, 100))
				require.NoError(t, err)

				store.err = limitertest.ErrUnheard
				store.hold <- struct{}{}
				<-leader
				synctest.Wait()
				store.err, store.hold = nil, nil
				_, err = l.Take(t.Context(), request(now, 1, 100)) // it sees what is counted
				require.NoError(t, err)
				l.Flush()
				assert.EqualValues(t, 1+60+1, used(t, inner, w, now), "what was asked may be among it, and nothing is taken of others'")
				assert.Equal(t, 1, failed, "nobody knows that it wasn't counted")
			})
		})
	}
}

// A refund of a batch that fails is counted.
func (by way) TestARefundOfABatchThatFailsIsCounted(t *testing.T) {
	t.Parallel()
	w := minuteWindows(t)["fixed"]
	synctest.Test(t, func(t *testing.T) {
		store := &lateStore{Store: memory.New(nil)}
		failing := &noRefunds{heldStore{Store: store, hold: make(chan struct{})}}
		failed := 0
		l := by.newLimiterWith(t, failing, w, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second, RefundFailed: func() { failed++ }})
		now := at("12:00:01.5")
		for range 31 {
			go func() {
				_, _ = l.Take(t.Context(), request(now, 1, 100))
			}()
			synctest.Wait()
		}
		failing.hold <- struct{}{} // the first leads alone
		synctest.Wait()
		store.late.Store(true)
		failing.hold <- struct{}{}
		synctest.Wait()
		store.late.Store(false)
		require.Len(t, store.tell, 1)
		done(store.tell[0])
		synctest.Wait()
		assert.Equal(t, int64(31), used(t, store.Store, w, now), "nobody knows")
		assert.Equal(t, 1, failed)
	})
}

// Its Subtract fails.
type noRefunds struct{ heldStore }

func (s *noRefunds) Subtract(context.Context, string, int64) error { return limitertest.ErrUnheard }

// A client whose view has made room for another's is not given back what was
// never counted.
func (by way) TestWhatIsGivenBackIsForgottenBefore(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		store := &heldStore{Store: inner}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, StoreTimeout: time.Second, Clients: 1})
		there := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock})
		now := at("12:00:01.5")
		require.True(t, take(t, there, now, 10, 10).Allowed)
		store.err = limitertest.ErrUnsent
		_, err := l.Take(t.Context(), request(now, 2, 10))
		require.Error(t, err)
		local, err := l.TakeLocal(request(now, 2, 10), err)
		require.NoError(t, err)
		require.True(t, local.Allowed)
		store.err = nil
		for i := range 1000 {
			other := request(now, 1, 10)
			other.Client = fmt.Sprint("other", i)
			_, err := l.Take(t.Context(), other)
			require.NoError(t, err)
		}
		require.NoError(t, l.Refund(t.Context(), request(now, 2, 10), local))
		d, err := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock}).Peek(t.Context(), request(now, 1, 10))
		require.NoError(t, err)
		assert.Zero(t, d.Remaining, name)
	}
}
