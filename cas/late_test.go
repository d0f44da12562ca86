package cas

import (
	"context"
	"fmt"
	"slices"
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
)

// A slowStore takes a while to swap. While late is set, that is what it answers
// instead, having swapped or not.
type slowStore struct {
	limitertest.Store
	late  atomic.Pointer[counters.Unanswered]
	swaps bool
	takes time.Duration
}

func (s *slowStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (now counters.State, swapped bool, err error) {
	time.Sleep(s.takes)
	late := s.late.Load()
	if late == nil || s.swaps {
		now, swapped, err = s.Store.Swap(ctx, key, old, value, ttl)
	}
	if late != nil {
		return counters.State{}, false, late
	}
	return now, swapped, err
}

// What is written, or not, although nobody got an answer is settled when the
// store tells.
func (by way) TestLateAnswers(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, test := range []struct {
			written             bool
			told                error
			alone, othersBefore bool
			used, failed        int64
		}{
			{written: true, used: 1},
			{told: counters.ErrNotSent, used: 1},
			{written: true, told: counters.ErrUnavailable, used: 1}, // as the state tells
			{written: true, told: counters.ErrUnavailable, othersBefore: true, used: 6, failed: 1},
			{told: counters.ErrUnavailable, othersBefore: true, used: 3, failed: 1},
			{written: true, used: 4, alone: true},
			{written: true, used: 6, alone: true, othersBefore: true},
			{told: counters.ErrNotSent, used: 4, alone: true},
			{told: counters.ErrNotSent, used: 6, alone: true, othersBefore: true},
		} {
			t.Run(fmt.Sprintf("%s %+v", name, test), func(t *testing.T) {
				inner := memory.New(nil)
				store := &slowStore{Store: inner, swaps: test.written}
				var failed atomic.Int64
				cfg := testConfig(10)
				cfg.StoreTimeout, cfg.RefundFailed = time.Second, func() { failed.Add(1) }
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				there, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				take := func(l counters.Limiter, cost int64) {
					t.Helper()
					d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now})
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				take(l, 1)
				var tell func(error)
				store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
				now = now.Add(1) // so that its state is no other's
				r := counters.Request{Client: "c", Cost: 3, Limit: 10, Now: now}
				_, err = l.Take(unhurried, r)
				require.ErrorIs(t, err, counters.ErrTimeout)
				if test.alone {
					d, err := l.TakeLocal(r, err)
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				store.late.Store(nil)
				if test.othersBefore {
					take(there, 2)
				}
				tell(test.told)
				take(l, 1)
				d, err := there.Peek(unhurried, counters.Request{Client: "c", Limit: 10, Now: now})
				require.NoError(t, err)
				assert.Equal(t, 10-test.used-1, d.Remaining)
				assert.Equal(t, test.failed, failed.Load())
			})
		}
	}
}

// An answer that comes when the leader has just given it up is refunded behind
// its batch: the refund needs the client that the leader still has.
func (by way) TestAnAnswerThatIsHardlyLateIsRefunded(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{Store: memory.New(nil), swaps: true}
				var failed atomic.Int64
				cfg := testConfig(10)
				cfg.StoreTimeout, cfg.RefundFailed, cfg.Background = time.Second, func() { failed.Add(1) }, new(counters.Goroutines)
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) {
					store.late.Store(nil)
					f(nil)
				}})
				begin := time.Now()
				r := counters.Request{Client: "c", Cost: 3, Limit: 10, Now: begin}
				_, err = l.Take(unhurried, r)
				require.ErrorIs(t, err, counters.ErrTimeout)
				assert.Zero(t, time.Since(begin), "nobody waits for the refund")
				cfg.Background.Wait()
				d, err := l.Peek(unhurried, counters.Request{Client: "c", Limit: 10, Now: begin})
				require.NoError(t, err)
				assert.EqualValues(t, 10, d.Remaining)
				assert.Zero(t, failed.Load())
			})
		})
	}
}

// What the store hasn't answered is taken for consumed by the next batch too,
// whose leader may be faster than the callers of the first, who are decided
// alone only while its state is on its way.
func (by way) TestTheNextBatchKnowsOfWhatIsUnanswered(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, answered := range []bool{true, false} {
			t.Run(fmt.Sprint(name, answered), func(t *testing.T) {
				inner := memory.New(nil)
				slow := &slowStore{Store: inner, swaps: true}
				store := &busyStore{Store: slow}
				cfg := testConfig(10)
				cfg.StoreTimeout = time.Second
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				there, err := newLimiter(inner, cfg)
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: clock(t, "12:00:01.5")}
				admitted := int64(0)
				decide := func(d counters.Decision, err error) {
					if err != nil {
						d, err = l.TakeLocal(r, err)
					}
					require.NoError(t, err)
					if d.Allowed {
						admitted++
					}
				}
				decide(l.Take(unhurried, r))
				slow.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(func(error)) {}})
				d, first := l.Take(unhurried, r)
				store.meanwhile = func() { decide(d, first) }
				var tell func(error)
				if slow.late.Store(nil); !answered {
					slow.swaps = false
					slow.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
				}
				decide(l.Take(unhurried, r))
				require.Nil(t, store.meanwhile)
				if !answered {
					tell(counters.ErrNotSent)
					slow.late.Store(nil)
				}
				decide(l.Take(unhurried, r))
				d, err = there.Peek(unhurried, r)
				require.NoError(t, err)
				assert.Equal(t, 10-admitted, d.Remaining)
				assert.GreaterOrEqual(t, admitted, int64(3))
			})
		}
	}
}

// A busyStore has something done while the next state is on its way.
type busyStore struct {
	limitertest.Store
	meanwhile func()
}

func (s *busyStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if do := s.meanwhile; do != nil {
		s.meanwhile = nil
		do()
	}
	return s.Store.Swap(ctx, key, old, value, ttl)
}

// That a swap wasn't done may be known only when the store has answered
// another: what it was to consume is owed all the same.
func (by way) TestAnAnswerThatComesAfterTheNext(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, test := range []struct {
			others int64
			during bool // the next swap, or after it
		}{{0, false}, {2, false}, {0, true}, {2, true}} {
			t.Run(fmt.Sprintf("%s %+v", name, test), func(t *testing.T) {
				inner := memory.New(nil)
				store := &slowStore{Store: inner}
				busy := &busyStore{Store: store}
				l, err := newLimiter(busy, testConfig(10))
				require.NoError(t, err)
				there, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: clock(t, "12:00:01.5")}
				_, err = l.Take(unhurried, r)
				require.NoError(t, err)
				var tell func(error)
				store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
				r.Cost = 3
				_, err = l.Take(unhurried, r)
				_, err = l.TakeLocal(r, err)
				require.NoError(t, err)
				store.late.Store(nil)
				if r.Cost = test.others; test.others > 0 {
					_, err = there.Take(unhurried, r)
					require.NoError(t, err)
				}
				if test.during {
					busy.meanwhile = func() { tell(counters.ErrNotSent) }
				}
				r.Cost = 1
				_, err = l.Take(unhurried, r)
				require.NoError(t, err)
				if !test.during {
					tell(counters.ErrNotSent)
				}
				_, err = l.Take(unhurried, r)
				require.NoError(t, err)
				d, err := there.Peek(unhurried, r)
				require.NoError(t, err)
				assert.Equal(t, 10-(1+3+test.others+2), d.Remaining)
			})
		}
	}
}

// A tardyStore doesn't answer swaps while it is tardy, and does the first of
// them just before it is told the next.
type tardyStore struct {
	limitertest.Store
	mu    sync.Mutex // as the process settles what is due by itself
	tardy bool
	first func()
}

func (s *tardyStore) be(tardy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tardy = tardy
}

func (s *tardyStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tardy {
		return s.Store.Swap(ctx, key, old, value, ttl)
	}
	if s.first != nil {
		s.first()
	} else {
		value := slices.Clone(value)
		s.first = func() { _, _, _ = s.Store.Swap(context.Background(), key, old, value, ttl) }
	}
	return counters.State{}, false, counters.ErrTimeout
}

// A swap that is done late keeps the next one from being done, though that has
// no answer either: what only that was to consume is owed, and what was refused is
// given back.
func (by way) TestASwapThatIsDoneLate(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, gone := range []bool{false, true} { // the first caller leaves it at the error
			t.Run(fmt.Sprint(name, gone), func(t *testing.T) {
				inner := memory.New(nil)
				store := &tardyStore{Store: inner}
				l, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				there, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				r := counters.Request{Client: "c", Limit: 10, Now: clock(t, "12:00:01.5")}
				alone := func(cost int64, err error) {
					t.Helper()
					r.Cost = cost
					d, err := l.TakeLocal(r, err)
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				take := func(cost int64) error {
					r.Cost, r.Now = cost, r.Now.Add(1) // so that its state is no other's
					_, err := l.Take(unhurried, r)
					return err
				}
				require.NoError(t, take(1))
				store.be(true)
				if err := take(2); !gone {
					alone(2, err)
				}
				alone(3, counters.ErrNotSent)
				alone(1, take(1))
				store.be(false)
				require.NoError(t, take(1))
				d, err := there.Peek(unhurried, r)
				require.NoError(t, err)
				used := int64(1 + 2 + 3 + 1 + 1)
				if gone {
					used -= 2 // it is given back
				}
				assert.EqualValues(t, 10-used, d.Remaining)
			})
		}
	}
}

// A swap that leaves the state as it is doesn't tell whether the next one is done.
func (by way) TestASwapThatChangesNothing(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			store := &slowStore{Store: memory.New(nil), swaps: true}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			r := counters.Request{Client: "c", Cost: 2, Limit: 10, Now: clock(t, "12:00:01.5")}
			_, err = l.Take(unhurried, r)
			require.NoError(t, err)
			store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(func(error)) {}})
			require.Error(t, l.Refund(unhurried, r, counters.Decision{Allowed: true, Receipt: counters.Receipt{Generation: 1}}))
			_, err = l.Take(unhurried, r)
			_, err = l.TakeLocal(r, err)
			require.NoError(t, err)
			store.late.Store(nil)
			d, err := l.Take(unhurried, r)
			require.NoError(t, err)
			assert.EqualValues(t, 10-3*2, d.Remaining)
		})
	}
}

// A caller that leaves before its leader has the answer is refused or
// contended, and is refunded.
func (by way) TestWhoLeavesIsRefunded(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{Store: memory.New(nil), takes: 50 * time.Millisecond}
				cfg := testConfig(10)
				cfg.StoreTimeout = time.Second
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: time.Now()}
				var callers sync.WaitGroup
				for _, timeout := range []time.Duration{time.Second, 60 * time.Millisecond, time.Second} {
					callers.Go(func() {
						d, err := l.Take(&counters.Deadline{At: time.Now().Add(timeout)}, r)
						assert.Equal(t, timeout == time.Second, err == nil && d.Allowed)
					})
					synctest.Wait() // the first leads alone, then the last both
				}
				callers.Wait()
				time.Sleep(time.Second)
				r.Cost = 0
				d, err := l.Take(unhurried, r)
				require.NoError(t, err)
				assert.EqualValues(t, 8, d.Remaining)
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// Of a batch whose answer is late, what was refused is refunded, and what the
// process has admitted alone is consumed once.
func (by way) TestABatchIsRefundedInPart(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, swaps := range []bool{true, false} {
			t.Run(fmt.Sprint(name, swaps), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &slowStore{Store: memory.New(nil), takes: 50 * time.Millisecond, swaps: swaps}
					cfg := testConfig(10)
					cfg.StoreTimeout = 10 * time.Millisecond
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					r := counters.Request{Client: "c", Limit: 20, Now: time.Now()}
					var callers sync.WaitGroup
					for _, test := range []struct {
						cost   int64
						refuse bool
					}{{1, false}, {8, true}, {2, false}, {4, true}} {
						r := r
						r.Cost = test.cost
						callers.Go(func() {
							_, err := l.Take(&counters.Deadline{At: time.Now().Add(75 * time.Millisecond)}, r)
							if err != nil && !test.refuse {
								_, err = l.TakeLocal(r, err)
								assert.NoError(t, err)
							}
						})
						synctest.Wait() // the first leads alone, then the last all
					}
					time.Sleep(60 * time.Millisecond)
					var tell func(error)
					store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
					callers.Wait()
					store.late.Store(nil)
					store.takes = 0
					if swaps {
						tell(nil)
					} else {
						tell(counters.ErrNotSent)
					}
					l.(interface{ Flush() }).Flush()
					r.Cost = 1
					_, err = l.Take(unhurried, r)
					require.NoError(t, err)
					r.Cost = 0
					d, err := l.Take(unhurried, r)
					require.NoError(t, err)
					assert.EqualValues(t, 20-1-2-1, d.Remaining)
				})
			})
		}
	}
}

// A caller that leaves is decided alone. When it turns out that its leader's swap was
// done, which nobody has answered, it is counted once.
func (by way) TestWhoLeavesAnUnansweredSwapIsRefunded(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{Store: memory.New(nil), takes: 50 * time.Millisecond, swaps: true}
				cfg := testConfig(10)
				cfg.StoreTimeout = time.Second
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: time.Now()}
				var callers sync.WaitGroup
				take := func(timeout time.Duration) *counters.Decision {
					d := new(counters.Decision)
					callers.Go(func() {
						var err error
						*d, err = l.Take(&counters.Deadline{At: time.Now().Add(timeout)}, r)
						if err != nil {
							*d, err = l.TakeLocal(r, err)
							assert.NoError(t, err)
						}
					})
					synctest.Wait()
					return d
				}
				first, left, leader := take(time.Second), take(60*time.Millisecond), take(time.Second)
				time.Sleep(55 * time.Millisecond)
				var tell func(error)
				store.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
				callers.Wait()
				assert.True(t, first.Allowed && left.Allowed && left.Local && leader.Allowed)
				store.late.Store(nil)
				tell(nil)
				l.(interface{ Flush() }).Flush()
				d, err := l.Peek(unhurried, r)
				require.NoError(t, err)
				assert.EqualValues(t, 7, d.Remaining)
			})
		})
	}
}

// What others have written over may never have been consumed, as long as the
// store hasn't told: then it isn't taken back from them, nor from what the
// process admits alone after it.
func (by way) TestWhatIsAssumedIsNotRefunded(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprint(name, early), func(t *testing.T) {
				inner := memory.New(nil)
				slow := &slowStore{Store: inner}
				store := &limitertest.BrokenStore{Store: slow}
				failed := 0
				cfg := testConfig(10)
				cfg.RefundFailed = func() { failed++ }
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				there, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				request := func(cost int64) counters.Request {
					now = now.Add(1)
					return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
				}
				alone := func(r counters.Request) counters.Decision {
					store.Fail(limitertest.ErrUnsent)
					_, err := l.Take(unhurried, r)
					d, err := l.TakeLocal(r, err)
					require.NoError(t, err)
					require.True(t, d.Allowed)
					store.Fail(nil)
					return d
				}
				first := request(3)
				taken := alone(first)
				var tell func(error)
				slow.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
				_, err = l.Take(unhurried, request(1)) // with what is owed; nobody will ever know
				require.ErrorIs(t, err, counters.ErrTimeout)
				slow.late.Store(nil)
				_, err = there.Take(unhurried, request(2))
				require.NoError(t, err)
				if early {
					require.NoError(t, l.Refund(unhurried, first, taken))
				}
				alone(request(1))
				_, err = l.Take(unhurried, request(1))
				require.NoError(t, err)
				if !early {
					require.NoError(t, l.Refund(unhurried, first, taken))
				}
				d, err := there.Peek(unhurried, request(1))
				require.NoError(t, err)
				assert.EqualValues(t, 10-(2+1+1), d.Remaining)
				tell(counters.ErrUnavailable)
				assert.Equal(t, 2, failed, "the refund, and the check that has failed")
			})
		}
	}
}
