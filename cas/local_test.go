package cas

import (
	"context"
	"fmt"
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

// makers make a limiter of ten a minute by each algorithm.
func (by way) makers() map[string]func(limitertest.Store, Config) (counters.Limiter, error) {
	return map[string]func(limitertest.Store, Config) (counters.Limiter, error){
		"token bucket": func(s limitertest.Store, cfg Config) (counters.Limiter, error) {
			return by.asks(NewTokenBucket(by.on(s), time.Minute, 0, cfg))
		},
		"leaky bucket": func(s limitertest.Store, cfg Config) (counters.Limiter, error) {
			return by.asks(NewLeakyBucket(by.on(s), time.Minute, 0, cfg))
		},
		"sliding log": func(s limitertest.Store, cfg Config) (counters.Limiter, error) {
			return by.asks(NewSlidingLog(by.on(s), time.Minute, 10, cfg))
		},
		"counting log": func(s limitertest.Store, cfg Config) (counters.Limiter, error) {
			return by.asks(NewCountingLog(by.on(s), time.Minute, MinLogEntries, cfg))
		},
	}
}

// What the store has lost is remembered, however long the process has only looked since.
func (by way) TestWhatIsLostIsRememberedWhileNobodyTakes(t *testing.T) {
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New(nil)
				l, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 90, Limit: 100, Now: time.Now()}
				_, err = l.Take(unhurried, r)
				require.NoError(t, err)
				for _, key := range []string{"token_bucket", "leaky_bucket", "sliding_log"} {
					require.NoError(t, store.Delete(t.Context(), []string{counters.StateNamespace("weir", "p", "l", key).StateKey("c")}))
				}
				for range 3 {
					time.Sleep(5 * time.Second)
					r.Now = time.Now()
					d, err := l.Peek(unhurried, r)
					require.NoError(t, err)
					assert.Less(t, d.Remaining, int64(10+30))
				}
			})
		})
	}
}

func (by way) TestLosses(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Loss(t, clock(t, "12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store, reseeded func(int)) counters.Limiter {
					cfg := testConfig(10)
					cfg.Reseeded = reseeded
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					return l
				})
		})
	}
}

func (by way) TestOutages(t *testing.T) { by.keeps(t, testConfig(10), limitertest.Outage) }

func (by way) TestLateAnswersInAnyOrder(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Late(t, clock(t, "12:00:01.5"), 1000, func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store, failed func()) counters.Limiter {
					cfg := testConfig(10)
					cfg.RefundFailed = failed
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					return l
				})
		})
	}
}

func (by way) TestLeaving(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Leaving(t, clock(t, "12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store, failed func()) counters.Limiter {
					cfg := testConfig(10)
					cfg.RefundFailed = failed
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					return l
				})
		})
	}
}

// A leakyStore loses a state that it has written before it reads it. Then does
// happens.
type leakyStore struct {
	limitertest.Store
	then func()
}

func (s *leakyStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	state, swapped, err := s.Store.Swap(ctx, key, old, value, ttl)
	if then := s.then; swapped && then != nil {
		s.then = nil
		if err := s.Delete(ctx, []string{key}); err != nil {
			return state, swapped, err
		}
		then()
		state, err = s.Load(ctx, key)
	}
	return state, swapped, err
}

// The store may lose a state, and others begin it anew, within the round trip
// in which it was written.
func (by way) TestAStateThatIsLostAsItIsWritten(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			store := &leakyStore{Store: inner}
			reseeded := 0
			start := func(s limitertest.Store) counters.Limiter {
				cfg := testConfig(10)
				cfg.Reseeded = func(n int) { reseeded += n }
				l, err := newLimiter(s, cfg)
				require.NoError(t, err)
				return l
			}
			here, there := start(store), start(inner)
			now := clock(t, "12:00:01.5")
			admits := func(l counters.Limiter, n int) (admitted int) {
				for range n {
					now = now.Add(time.Millisecond)
					d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 10, Now: now})
					require.NoError(t, err)
					if d.Allowed {
						admitted++
					}
				}
				return admitted
			}
			require.Equal(t, 3, admits(here, 3))
			store.then = func() {}
			require.Equal(t, 2, admits(here, 2))
			assert.Equal(t, 1, reseeded)
			store.then = func() { require.Equal(t, 1, admits(there, 1)) }
			require.Equal(t, 1, admits(here, 1))
			left := 4 // what was begun anew is less than what is known
			if strings.HasSuffix(name, "log") {
				left = 3 // which adds the two
			}
			assert.Equal(t, left, admits(here, 10))
			assert.Zero(t, admits(there, 3))
			assert.Equal(t, 2, reseeded)
		})
	}
}

// A request that has been under way for long may find in use what others that
// came before it don't. When the store has lost that, it is put back for both.
func (by way) TestWhatIsLostIsInUseForLateRequests(t *testing.T) {
	t.Parallel()
	const in, out = time.Minute - 30*time.Millisecond, time.Minute + time.Millisecond // of what is in use at 0
	for name, newLimiter := range by.makers() {
		begin := func(t *testing.T) (store *busyStore, lose func(), take func(cost int64, after time.Duration) bool) {
			inner := &limitertest.BrokenStore{Store: memory.New(nil)}
			store = &busyStore{Store: inner}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			return store, func() { inner.Store = memory.New(nil) }, func(cost int64, after time.Duration) bool {
				d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now.Add(after)})
				assert.NoError(t, err)
				return d.Allowed
			}
		}
		t.Run(name+", after another", func(t *testing.T) {
			_, lose, take := begin(t)
			require.True(t, take(10, 0))
			lose()
			require.False(t, take(11, out), "it never fits")
			assert.False(t, take(10, in))
			assert.True(t, take(10, out))
		})
		t.Run(name+", with another", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, lose, take := begin(t)
				var late, other bool
				var callers sync.WaitGroup
				store.meanwhile = func() {
					callers.Go(func() { late = take(10, in) })
					synctest.Wait()
					callers.Go(func() { other = take(10, out) })
					synctest.Wait()
					store.meanwhile = lose
				}
				require.True(t, take(10, 0))
				callers.Wait()
				assert.False(t, late)
				assert.True(t, other)
			})
		})
	}
}

// While a state is on its way, a late request is decided as of the time of that:
// what is in the way at its own time has passed. It is consumed all the same.
func (by way) TestALateRequestIsConsumed(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			store := &busyStore{Store: memory.New(nil)}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64, after time.Duration) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now.Add(after)}
			}
			_, err = l.Take(unhurried, request(10, -time.Millisecond/2))
			require.NoError(t, err)
			admitted := 1
			store.meanwhile = func() {
				for range 20 {
					d, err := l.TakeLocal(request(1, time.Minute-time.Millisecond), limitertest.ErrUnsent)
					require.NoError(t, err)
					if d.Allowed {
						admitted++
					}
				}
			}
			d, err := l.Take(unhurried, request(1, time.Minute))
			require.NoError(t, err)
			require.True(t, d.Allowed)
			assert.Equal(t, 10, admitted)
			d, err = l.Take(unhurried, request(1, time.Minute))
			require.NoError(t, err)
			assert.False(t, d.Allowed)
		})
	}
}

// A faster clock drops a reset first: that is no loss of it. What was
// put back since is not from before it, though a slower clock has begun it.
func (by way) TestAResetExpiresByEveryClock(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			const skew = 50 * time.Millisecond
			inner := memory.New(nil)
			leaky := &leakyStore{Store: inner}
			now := clock(t, "12:00:01.5")
			start := func(store limitertest.Store) func(after time.Duration, cost int64) bool {
				cfg := testConfig(10)
				cfg.ClockSkew = skew
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				return func(after time.Duration, cost int64) bool {
					if cost == 0 {
						require.NoError(t, l.Reset(t.Context(), "c", now.Add(after)))
						return true
					}
					d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now.Add(after)})
					require.NoError(t, err)
					return d.Allowed
				}
			}
			fast, slow := start(leaky), start(inner)
			fast(0, 0)
			require.True(t, slow(-10*time.Millisecond, 5))
			leaky.then = func() {}
			require.True(t, fast(20*time.Millisecond, 1))
			require.True(t, fast(30*time.Second, 4), "and puts back what was lost")
			fast(50*time.Second, 3) // there is room for that in a bucket
			last := time.Minute + counters.DefaultTimeout + skew + 10*time.Millisecond
			for fast(last, 1) {
			}
			assert.False(t, slow(last-skew, 1))
		})
	}
}

// What a process has given back alone, in a bucket, is not in front of what it
// has admitted before or after that: time has passed over as much of this.
func (by way) TestTimePassesOverWhatWasAdmittedAlone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"token bucket", "leaky bucket"} {
		for _, earlier := range []bool{true, false} { // than the refund of another
			t.Run(fmt.Sprint(name, earlier), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner := memory.New(nil)
					store := &limitertest.BrokenStore{Store: inner, Err: limitertest.ErrUnsent}
					l, err := by.makers()[name](store, testConfig(10))
					require.NoError(t, err)
					there, err := by.makers()[name](inner, testConfig(10))
					require.NoError(t, err)
					now := clock(t, "12:00:01.5")
					request := func(cost int64) counters.Request {
						return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
					}
					alone := func(cost int64) counters.Decision {
						d, err := l.TakeLocal(request(cost), limitertest.ErrUnsent)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						return d
					}
					take := func(l counters.Limiter, cost int64) {
						d, err := l.Take(unhurried, request(cost))
						require.NoError(t, err)
						require.True(t, d.Allowed)
					}
					alone(1)
					refunded := alone(4)
					var taken counters.Decision
					if earlier {
						taken = alone(4)
					}
					require.NoError(t, l.Refund(unhurried, request(4), refunded))
					if !earlier {
						taken = alone(4)
					}
					first := request(4)
					take(there, 1)
					store.Fail(nil)
					take(l, 1)
					now = now.Add(12 * time.Second) // 2 drain
					take(there, 5)
					require.NoError(t, l.Refund(unhurried, first, taken))
					d, err := there.Peek(unhurried, request(1))
					require.NoError(t, err)
					assert.EqualValues(t, 10-(1+4+1+1-2+5-2), d.Remaining)
				})
			})
		}
	}
}

// Others may tell the store of what they have admitted alone, and began earlier,
// between a take and its refund: the refund takes back all the same, be any of
// theirs still in use or not.
func (by way) TestARefundFindsItsOwnBesideADebt(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, later := range []time.Duration{6 * time.Second, 2 * time.Minute} {
			t.Run(fmt.Sprint(name, later), func(t *testing.T) {
				store := memory.New(nil)
				l, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				other, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				request := func(cost int64) counters.Request {
					return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
				}
				_, err = other.TakeLocal(request(2), limitertest.ErrUnsent)
				require.NoError(t, err)
				now = now.Add(later)
				taken, err := l.Take(unhurried, request(5))
				require.NoError(t, err)
				before, err := other.Take(unhurried, request(1))
				require.NoError(t, err)
				require.NoError(t, l.Refund(unhurried, request(5), taken))
				after, err := l.Peek(unhurried, request(1))
				require.NoError(t, err)
				assert.Equal(t, before.Remaining+5, after.Remaining)
			})
		}
	}
}

// What a process has admitted alone is given back when the store has consumed
// it, be it in a state that others began later. What was consumed before a reset
// is not in the state that began then.
func (by way) TestWhatWasOwedIsGivenBackFromALaterState(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			other, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
			}
			take := func(l counters.Limiter, cost int64) counters.Decision {
				d, err := l.Take(unhurried, request(cost))
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return d
			}
			alone := func(cost int64) (counters.Request, counters.Decision) {
				d, err := l.TakeLocal(request(cost), limitertest.ErrUnsent)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return request(cost), d
			}
			first, admitted := alone(4)
			now = now.Add(6 * time.Second) // in a bucket, 1 drains
			take(other, 3)
			before := take(l, 1)
			require.NoError(t, l.Refund(unhurried, first, admitted))
			after, err := other.Peek(unhurried, request(1))
			require.NoError(t, err)
			assert.GreaterOrEqual(t, after.Remaining, before.Remaining+3)
			assert.LessOrEqual(t, after.Remaining, before.Remaining+4)

			second, admitted := alone(1)
			take(l, 1)
			now = now.Add(30 * time.Second) // the second isn't in what begins then
			require.NoError(t, other.Reset(t.Context(), "c", now))
			now = now.Add(time.Second)
			alone(1)
			now = now.Add(time.Second)
			take(other, 5)
			before = take(l, 1)
			require.NoError(t, l.Refund(unhurried, second, admitted))
			after, err = other.Peek(unhurried, request(1))
			require.NoError(t, err)
			assert.Equal(t, before.Remaining, after.Remaining)
		})
	}
}

// What processes have admitted alone may be more than a bucket holds. All of it drains
// before anything else is admitted.
func (by way) TestABucketThatIsMoreThanFull(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"token bucket", "leaky bucket"} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			l, err := by.makers()[name](store, testConfig(10))
			require.NoError(t, err)
			there, err := by.makers()[name](store, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now}
			}
			take := func(l counters.Limiter, cost int64, allowed bool) {
				d, err := l.Take(unhurried, request(cost))
				require.NoError(t, err)
				require.Equal(t, allowed, d.Allowed)
			}
			for _, l := range []counters.Limiter{there, l} {
				d, err := l.TakeLocal(request(8), limitertest.ErrUnsent)
				require.NoError(t, err)
				require.True(t, d.Allowed)
			}
			take(there, 3, false)
			take(l, 3, false)
			l.(interface{ Flush() }).Flush() // or that writes, and not who asks
			now = now.Add(36 * time.Second)  // 6 drain, and 10 are left
			take(there, 1, false)
			take(l, 1, false)
			now = now.Add(6 * time.Second)
			take(l, 1, true)
			take(there, 1, false)
		})
	}
}

// A request that the store may have consumed is consumed once, be it older than one
// that is due: in a log it then stands where that does.
func (by way) TestWhatIsLateIsConsumedOnce(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			store := &limitertest.BrokenStore{Store: inner}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			there, err := newLimiter(inner, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(after time.Duration) counters.Request {
				return counters.Request{Client: "c", Cost: 1, Limit: 10, Now: now.Add(after)}
			}
			for _, check := range []struct {
				after time.Duration
				fails error
			}{{3, limitertest.ErrUnsent}, {1, limitertest.ErrUnanswered}, {2, limitertest.ErrUnsent}} {
				store.Fail(check.fails)
				_, err := l.Take(unhurried, request(check.after))
				require.Error(t, err)
				d, err := l.TakeLocal(request(check.after), err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
			}
			store.Fail(nil)
			_, err = there.Take(unhurried, request(0))
			require.NoError(t, err)
			d, err := l.Take(unhurried, request(4))
			require.NoError(t, err)
			assert.EqualValues(t, 10-5, d.Remaining, "each once")
		})
	}
}

// What the store was told without an answer may be the state that it had: it is
// no other's, and what it may have consumed after it is put back with it.
func (by way) TestAStateThatIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, outcome := range []error{limitertest.ErrUnanswered, limitertest.ErrUnheard, limitertest.ErrUnsent} {
			t.Run(name+" "+outcome.Error(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &scriptedStore{Store: memory.New(nil)}
					l, err := newLimiter(store, testConfig(10))
					require.NoError(t, err)
					r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: clock(t, "12:00:01.5")}
					admits := func(n int) (admitted int) {
						for range n {
							d, err := l.Take(unhurried, r)
							if err != nil {
								d, err = l.TakeLocal(r, err)
								require.NoError(t, err)
							}
							if d.Allowed {
								admitted++
							}
						}
						return admitted
					}
					require.Equal(t, 3, admits(3))
					store.outcomes = []error{limitertest.ErrUnanswered}
					gone := counters.Decision{Allowed: true, Receipt: counters.Receipt{Generation: 1}} // of another generation
					require.Error(t, l.Refund(unhurried, r, gone))
					synctest.Wait()
					r.Now = r.Now.Add(2 * time.Minute) // time has passed over it
					store.outcomes = []error{nil, outcome, outcome}
					require.Equal(t, 2, admits(2))
					synctest.Wait()
					store.Store, store.outcomes = memory.New(nil), nil
					assert.Equal(t, 8, admits(20))
				})
			})
		}
	}
}

// What is due of a client that is forgotten is never told.
func (by way) TestWhatIsForgottenIsNotTold(t *testing.T) {
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &limitertest.BrokenStore{Store: memory.New(nil)}
				l, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				r := counters.Request{Client: "c", Cost: 50, Limit: 100, Now: time.Now()}
				store.Fail(limitertest.ErrUnsent)
				_, err = l.Take(t.Context(), r)
				d, err := l.TakeLocal(r, err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				l.Forget("c")
				store.Fail(nil)
				l.(interface{ Flush() }).Flush()
				d, err = l.Peek(t.Context(), r)
				require.NoError(t, err)
				assert.EqualValues(t, 100, d.Remaining)
			})
		})
	}
}
