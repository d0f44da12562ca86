package cas

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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
)

// A store whose answers come about when callers give up, or later: some leave,
// some are answered, and some had their request consumed without knowing. The
// process admits no more than the limit, and all of it if nobody was contended.
func (by way) TestSlowAnswers(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	for name, newLimiter := range by.makers() {
		for _, delay := range []time.Duration{30 * time.Millisecond, 45 * time.Millisecond, 60 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " ", delay), func(t *testing.T) {
				t.Parallel()
				for seed := range racetest.Some(150) {
					synctest.Test(t, func(t *testing.T) {
						random := rand.New(rand.NewPCG(seed, 0))
						store := &limitertest.SlowStore{Store: memory.New(nil)}
						cfg := testConfig(10)
						cfg.StoreTimeout = timeout
						l, err := newLimiter(store, cfg)
						require.NoError(t, err)
						begin := time.Now()
						var mu sync.Mutex
						admitted, contended := 0, 0
						check := func() {
							now := time.Now()
							// A thousand times as slow, so that nothing drains.
							r := counters.Request{Client: "c", Cost: 1, Limit: 20, Now: clock(t, "12:00:01").Add(now.Sub(begin) / 1000)}
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
							if d.Contended {
								contended++
							}
						}
						for range 10 {
							check()
						}
						store.SetDelay(delay)
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
						require.LessOrEqual(t, admitted, 20, "seed %d", seed)
						require.GreaterOrEqual(t, admitted, 20-contended, "seed %d", seed)
					})
				}
			})
		}
	}
}

// A scriptedStore takes its time for the next operations, and does what it says
// of them.
type scriptedStore struct {
	limitertest.Store
	takes    []time.Duration
	outcomes []error
}

func (s *scriptedStore) next() (err error) {
	if len(s.takes) > 0 {
		time.Sleep(s.takes[0])
		s.takes = s.takes[1:]
	}
	if len(s.outcomes) > 0 {
		err, s.outcomes = s.outcomes[0], s.outcomes[1:]
	}
	return err
}

func (s *scriptedStore) Load(ctx context.Context, key string) (counters.State, error) {
	if err := s.next(); err != nil {
		return counters.State{}, err
	}
	return s.Store.Load(ctx, key)
}

func (s *scriptedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	err := s.next()
	if err == limitertest.ErrUnanswered {
		_, _, _ = s.Store.Swap(ctx, key, old, value, ttl) // nobody hears of it
	}
	if err != nil {
		return counters.State{}, false, err
	}
	return s.Store.Swap(ctx, key, old, value, ttl)
}

// A caller whose time is over while its leader works is answered by the process
// alone: what it is admitted is consumed once, whatever the leader does then.
func (by way) TestWhoLeavesIsConsumedOnce(t *testing.T) {
	t.Parallel()
	const during, after = 45 * time.Millisecond, 90 * time.Millisecond
	for _, test := range []struct {
		name    string
		owed    int64         // of the 2 that are used up before
		decided time.Duration // when the process answers
		outcome error         // of what the leader asks first
		others  int64         // that another instance takes meanwhile
	}{
		{"while it is consumed with a debt", 1, during, nil, 0},
		{"after it was consumed with a debt", 1, after, nil, 0},
		{"while it is consumed", 0, during, nil, 0},
		{"after it was consumed", 0, after, nil, 0},
		{"while it can't be consumed", 0, during, limitertest.ErrUnsent, 0},
		{"after it couldn't be consumed", 0, after, limitertest.ErrUnsent, 0},
		{"while it is consumed and nobody hears of it", 0, during, limitertest.ErrUnanswered, 0},
		{"after it was consumed and nobody heard of it", 0, after, limitertest.ErrUnanswered, 0},
		{"while nobody hears that it isn't consumed", 0, during, limitertest.ErrUnheard, 0},
		{"after nobody heard that it wasn't consumed", 0, after, limitertest.ErrUnheard, 0},
		{"while another takes the last place", 0, during, nil, 1},
		{"after another took the last place", 0, after, nil, 1},
	} {
		for name, newLimiter := range by.makers() {
			for _, leaders := range []int64{1, 2} {
				t.Run(fmt.Sprint(test.name, name, leaders), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						inner := memory.New(nil)
						store := &scriptedStore{
							Store: inner, takes: []time.Duration{0, 20 * time.Millisecond, 50 * time.Millisecond}, outcomes: []error{nil, nil, test.outcome},
						}
						cfg := testConfig(10)
						cfg.StoreTimeout = 10 * time.Millisecond
						l, err := newLimiter(store, cfg)
						require.NoError(t, err)
						there, err := newLimiter(inner, cfg)
						require.NoError(t, err)
						begin := time.Now()
						r := counters.Request{Client: "c", Limit: 10, Now: clock(t, "12:00:01")}
						var mu sync.Mutex
						admitted := test.others + test.owed
						check := func(cost int64, timeout, decided time.Duration) {
							r := r
							r.Cost = cost
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
						callers.Go(func() { check(1, 40*time.Millisecond, test.decided) })
						synctest.Wait()
						callers.Go(func() { check(leaders, time.Second, 0) }) // leads both from then on
						synctest.Wait()
						if test.owed > 0 {
							r := r
							r.Cost = test.owed
							d, err := l.TakeLocal(r, limitertest.ErrUnsent)
							require.NoError(t, err)
							require.True(t, d.Allowed)
						}
						time.Sleep(30 * time.Millisecond)
						if test.others > 0 {
							r := r
							r.Cost = test.others
							d, err := there.Take(unhurried, r)
							require.NoError(t, err)
							require.True(t, d.Allowed)
						}
						callers.Wait()
						check(1, time.Minute, 0)
						check(1, time.Minute, 0)
						want := int64(10)
						if test.others > 0 && test.decided == during {
							want += test.others // nobody knows of the other instance
						}
						assert.Equal(t, want, admitted)
						d, err := there.Peek(unhurried, r)
						require.NoError(t, err)
						assert.Zero(t, d.Remaining)
					})
				})
			}
		}
	}
}

// Who is decided alone while another's cost is under way gets nothing of that,
// and what is admitted so is consumed besides it, be there a debt or not.
func (by way) TestWhatIsUnderWayIsInUse(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, owed := range []int64{0, 1} {
			t.Run(fmt.Sprint(name, owed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					inner := memory.New(nil)
					store := &scriptedStore{Store: inner, takes: []time.Duration{0, 20 * time.Millisecond}}
					cfg := testConfig(10)
					cfg.StoreTimeout = time.Millisecond
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					there, err := newLimiter(inner, cfg)
					require.NoError(t, err)
					r := counters.Request{Client: "c", Limit: 10, Now: clock(t, "12:00:01")}
					check := func(cost int64, timeout time.Duration, allowed bool) {
						r := r
						r.Cost = cost
						d, err := l.Take(&counters.Deadline{At: time.Now().Add(timeout)}, r)
						if err != nil {
							d, err = l.TakeLocal(r, err)
						}
						assert.NoError(t, err)
						assert.Equal(t, allowed, d.Allowed)
					}
					check(2-owed, time.Second, true)
					if owed > 0 {
						r := r
						r.Cost = owed
						_, err := l.TakeLocal(r, limitertest.ErrUnsent)
						require.NoError(t, err)
					}
					var leader sync.WaitGroup
					leader.Go(func() { check(5, time.Second, true) })
					synctest.Wait()
					check(1, 10*time.Millisecond, true)
					check(3, 5*time.Millisecond, false)
					leader.Wait()
					check(1, time.Second, true)
					d, err := there.Peek(unhurried, r)
					require.NoError(t, err)
					assert.Equal(t, int64(1), d.Remaining)
				})
			})
		}
	}
}

// A heldStore holds each swap until it is let go.
type heldStore struct {
	limitertest.Store
	err  error
	hold chan struct{}
}

func (s *heldStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if s.hold != nil {
		<-s.hold
	}
	if s.err != nil {
		return counters.State{}, false, s.err
	}
	return s.Store.Swap(ctx, key, old, value, ttl)
}

// What another limit has denied is given back after the store has consumed it,
// be it in a state that others have begun. While the store is about to, what
// can't be given back is counted.
func (by way) TestWhatIsGivenBackWhileItIsRepaid(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, test := range []struct {
			name          string
			others, after bool
		}{{"while", false, false}, {"while, others before", true, false}, {"after", false, true}, {"after, others before", true, true}} {
			t.Run(name+" "+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner := memory.New(nil)
					store := &heldStore{Store: inner, err: limitertest.ErrUnsent}
					failed := 0
					cfg := testConfig(10)
					cfg.StoreTimeout, cfg.RefundFailed = time.Second, func() { failed++ }
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					there, err := newLimiter(inner, testConfig(10))
					require.NoError(t, err)
					now := clock(t, "12:00:01.5")
					request := func(cost int64) counters.Request {
						return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
					}
					used := int64(1)
					if test.others {
						now = now.Add(-time.Millisecond)
						d, err := there.Take(unhurried, request(1))
						now = now.Add(time.Millisecond)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						used++
					}
					_, err = l.Take(unhurried, request(2))
					require.Error(t, err)
					local, err := l.TakeLocal(request(2), err)
					require.NoError(t, err)
					require.True(t, local.Allowed)

					store.err, store.hold = nil, make(chan struct{})
					done := make(chan bool)
					go func() {
						d, err := l.Take(unhurried, request(1))
						done <- err == nil && d.Allowed
					}()
					synctest.Wait()
					if !test.after {
						require.NoError(t, l.Refund(unhurried, request(2), local))
					}
					close(store.hold)
					require.True(t, <-done)
					if test.after {
						require.NoError(t, l.Refund(unhurried, request(2), local))
					}
					l.(interface{ Flush() }).Flush()
					l.(interface{ Flush() }).Flush()
					fresh, err := newLimiter(inner, testConfig(10))
					require.NoError(t, err)
					d, err := fresh.Peek(unhurried, request(1))
					require.NoError(t, err)
					if test.after {
						assert.EqualValues(t, 10-used, d.Remaining)
						assert.Zero(t, failed)
					} else {
						assert.LessOrEqual(t, 10-used-d.Remaining, int64(2*failed))
						assert.LessOrEqual(t, d.Remaining, 10-used)
					}
				})
			})
		}
	}
}

// What was admitted alone before a reset, be it by a clock that is ahead of the
// reset's, isn't given back to what was consumed after it.
func (by way) TestNothingFromBeforeAResetIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			broken := &limitertest.BrokenStore{Store: inner, Err: limitertest.ErrUnsent}
			cfg := testConfig(10)
			cfg.ClockSkew = 50 * time.Millisecond
			l, err := newLimiter(broken, cfg)
			require.NoError(t, err)
			there, err := newLimiter(inner, cfg)
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64, now time.Time) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
			}
			taken := request(4, now)
			_, err = l.Take(unhurried, taken)
			require.Error(t, err)
			local, err := l.TakeLocal(taken, err)
			require.NoError(t, err)
			require.True(t, local.Allowed)

			slow := -cfg.ClockSkew / 2
			require.NoError(t, there.Reset(t.Context(), "c", now.Add(slow)))
			_, err = there.Take(unhurried, request(5, now.Add(slow)))
			require.NoError(t, err)
			broken.Fail(nil)
			_, err = l.Take(unhurried, request(1, now))
			require.NoError(t, err)
			require.NoError(t, l.Refund(unhurried, taken, local))
			d, err := there.Peek(unhurried, request(1, now))
			require.NoError(t, err)
			assert.EqualValues(t, 10-5-1, d.Remaining)
		})
	}
}

// What was admitted alone when nothing was left is given back once, from what there was
// no room for.
func (by way) TestWhatABucketHasNoRoomForIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			broken := &limitertest.BrokenStore{Store: inner}
			failed := 0
			cfg := testConfig(10)
			cfg.CountDenied, cfg.RefundFailed = true, func() { failed++ }
			l, err := newLimiter(broken, cfg)
			require.NoError(t, err)
			there, err := newLimiter(inner, cfg)
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 3, Now: now}
			}
			broken.Fail(limitertest.ErrUnsent)
			_, err = l.Take(unhurried, request(1))
			require.Error(t, err)
			local, err := l.TakeLocal(request(1), err)
			require.NoError(t, err)
			require.True(t, local.Allowed)

			d, err := there.Take(unhurried, request(3))
			require.NoError(t, err)
			require.True(t, d.Allowed)
			broken.Fail(nil)
			d, err = l.Take(unhurried, request(1))
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.NoError(t, l.Refund(unhurried, request(1), local))
			d, err = there.Peek(unhurried, request(1))
			require.NoError(t, err)
			assert.Zero(t, failed)
			assert.Zero(t, d.Remaining)
			if strings.HasSuffix(name, "bucket") {
				assert.Equal(t, 40*time.Second, d.RetryAfter, "4 are in use: 3, and the 1 that was denied")
			}
		})
	}
}

// What is given back while the store is told to consume it, without an answer,
// doesn't stand for what is admitted alone after it.
func (by way) TestWhatIsGivenBackIsNotSetOffAgainstWhatComesLater(t *testing.T) {
	t.Parallel()
	for _, outcome := range []error{limitertest.ErrUnanswered, limitertest.ErrUnheard} {
		t.Run(outcome.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &heldStore{Store: &scriptedStore{Store: memory.New(nil), outcomes: []error{outcome}}, hold: make(chan struct{})}
				cfg := testConfig(10)
				cfg.StoreTimeout = time.Second
				l, err := by.makers()["sliding log"](store, cfg)
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				request := func(cost int64) counters.Request {
					now = now.Add(time.Millisecond)
					return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
				}
				first := request(2)
				taken, err := l.TakeLocal(first, limitertest.ErrUnsent)
				require.NoError(t, err)
				_, err = l.TakeLocal(request(1), limitertest.ErrUnsent)
				require.NoError(t, err)
				r, failed := request(1), make(chan error)
				go func() {
					_, err := l.Take(unhurried, r)
					failed <- err
				}()
				synctest.Wait()
				require.NoError(t, l.Refund(unhurried, first, taken))
				close(store.hold)
				err = <-failed
				require.Error(t, err)
				d, err := l.TakeLocal(r, err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				_, err = l.TakeLocal(request(1), limitertest.ErrUnsent)
				require.NoError(t, err)
				l.(interface{ Flush() }).Flush()

				now = first.Now.Add(time.Minute - time.Millisecond)
				d, err = l.Take(unhurried, request(7))
				require.NoError(t, err)
				assert.True(t, d.Allowed)
				assert.Zero(t, d.Remaining, "1, 1 and 1 are in use")
			})
		})
	}
}

// Who has left a leader decides alone while that panics: calls of others, which are used
// again from then on, aren't looked at.
func TestWhoHasLeftDecidesAloneWhileTheLeaderPanics(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			inner := memory.New(nil)
			rigged := &riggedStore{StateStore: inner}
			l, err := NewTokenBucket(rigged, time.Minute, 0, testConfig(10))
			require.NoError(t, err)
			other, err := NewTokenBucket(inner, time.Minute, 0, testConfig(10))
			require.NoError(t, err)
			take := func(l *Limiter, within time.Duration) (counters.Request, error) {
				r := counters.Request{Client: "c", Cost: 1, Limit: 100, Now: time.Now()}
				_, err := l.Take(&counters.Deadline{At: time.Now().Add(within)}, r)
				return r, err
			}
			begun := time.Now()
			rigged.beforeSwap = func() {
				if rigged.swaps == 1 { // those who come now are part of the next
					_, err := take(other, time.Second)
					assert.NoError(t, err)
					for range 3 {
						go func() {
							_, err := take(l, time.Second)
							assert.ErrorIs(t, err, combiner.ErrLeaderFailed)
						}()
					}
					go func() {
						r, err := take(l, 10*time.Millisecond)
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						time.Sleep(time.Until(begun.Add(20 * time.Millisecond)))
						d, err := l.TakeLocal(r, err)
						assert.NoError(t, err)
						assert.True(t, d.Allowed)
					}()
					synctest.Wait()
					return
				}
				time.Sleep(time.Until(begun.Add(20 * time.Millisecond)))
				panic("a bug")
			}
			assert.PanicsWithValue(t, "a bug", func() { _, _ = take(l, time.Second) })
		})
	}
}
