package cas

import (
	"fmt"
	"math/rand/v2"
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

// Processes that have shared their clients evenly admit about the limit together
// while the store is gone, and one that has had all for itself admits all of it.
func TestAloneAProcessTakesItsShare(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit = 100 // and none of the 30 clients makes room for another
	for name, newLimiter := range map[string]func(s limitertest.Store) (counters.Limiter, error){
		"token bucket": func(s limitertest.Store) (counters.Limiter, error) {
			return NewTokenBucket(s, time.Minute, 0, testConfig(10_000))
		},
		"sliding log": func(s limitertest.Store) (counters.Limiter, error) {
			return NewSlidingLog(s, time.Minute, limit, testConfig(10_000))
		},
		"counting log": func(s limitertest.Store) (counters.Limiter, error) {
			return NewCountingLog(s, time.Minute, DefaultLogEntries, testConfig(10_000))
		},
	} {
		for _, processes := range []int{1, 2, 4, 8} {
			for _, used := range []int{0, 40} {
				t.Run(fmt.Sprint(name, " ", processes, " ", used), func(t *testing.T) {
					now := clock(t, "12:00:01.5")
					p := limitertest.NewProcesses(t, processes, memory.New(nil), newLimiter)
					take := func(i int, client string) bool {
						now = now.Add(time.Microsecond)
						return p.Take(i, counters.Request{Client: client, Cost: 1, Limit: limit, Now: now}).Allowed
					}
					random := rand.New(rand.NewPCG(1, 1))
					for n := range 20 * 40 {
						take(random.IntN(processes), fmt.Sprint("warm", n/40))
					}
					const clients = 10
					for n := range used * clients {
						take(random.IntN(processes), fmt.Sprint("c", n%clients))
					}
					p.Fail(limitertest.ErrUnsent)
					admitted := used * clients
					for n := range processes * limit {
						for c := range clients {
							if take(n%processes, fmt.Sprint("c", c)) {
								admitted++
							}
						}
					}
					most := 10.0
					if used == 0 { // it has the share of all clients, of which it knows less
						most = 25
					}
					assert.InDelta(t, limit, float64(admitted)/clients, most)
				})
			}
		}
	}
}

// Four processes have admitted a part of the limit alone as their store answers again. Each
// is asked for a whole limit at once, before most have told what they have admitted.
func TestTogetherAgainProcessesTakeTheirShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTogetherAgainProcessesTakeTheirShare)
}

func testTogetherAgainProcessesTakeTheirShare(t *testing.T) {
	const processes, limit, before, alone = 4, 100, 10, 8
	now := clock(t, "12:00:00")
	p := limitertest.NewProcesses(t, processes, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
		return NewTokenBucket(s, 24*time.Hour, 0, testConfig(100))
	})
	admitted := 0
	each := func(times int) {
		for i := range processes {
			for range times {
				now = now.Add(time.Microsecond)
				if p.Take(i, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}).Allowed {
					admitted++
				}
			}
		}
	}
	for range before {
		each(1)
	}
	p.Fail(limitertest.ErrUnsent)
	each(alone)
	require.Equal(t, processes*(before+alone), admitted)
	p.Fail(nil)
	each(limit)
	assert.InDelta(t, limit, admitted, 10)
}

// Of a client whose bucket has expired at each visit, a process sees only what it admits itself: that
// says nothing of its share, and without the store the client has that of all clients.
func TestABucketThatHasExpiredTellsNothingOfTheShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes, limit = 2, 100
		p := limitertest.NewProcesses(t, processes, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
			return NewTokenBucket(s, time.Minute, 0, testConfig(100))
		})
		admitted := 0
		each := func(client string, times int, every time.Duration) {
			for range times {
				for i := range processes {
					time.Sleep(every)
					if p.Take(i, counters.Request{Client: client, Cost: 1, Limit: limit, Now: time.Now()}).Allowed {
						admitted++
					}
				}
			}
		}
		each("busy", 40, time.Millisecond)
		each("seldom", 40, time.Minute)
		p.Fail(limitertest.ErrUnsent)
		admitted = 0
		each("seldom", limit, time.Microsecond)
		assert.InDelta(t, limit, admitted, 10)
	})
}

// keeps runs a test that limiters of all algorithms have to pass, with limiters of that
// configuration.
func (by way) keeps(t *testing.T, cfg Config, test func(*testing.T, time.Time, func() limitertest.Store, func(*testing.T, limitertest.Store) counters.Limiter)) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			test(t, clock(t, "12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store) counters.Limiter {
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					return l
				})
		})
	}
}

// aSecond is a configuration by which a check has a second.
func aSecond() Config {
	cfg := testConfig(100)
	cfg.StoreTimeout = time.Second
	return cfg
}

func (by way) TestWhatProcessesAdmitAlone(t *testing.T) {
	racetest.Sequential(t)
	by.keeps(t, testConfig(1000), limitertest.Alone)
}

func (by way) TestCallersWhoLeaveTakeTheirShare(t *testing.T) {
	by.keeps(t, aSecond(), limitertest.LeavingTogether)
}

// While others have to tell what they may have admitted meanwhile, a denial says until when, as one
// by the store does.
func (by way) TestADenialAheadWaitsForOthersToTell(t *testing.T) {
	const limit = 8
	both := limitertest.NewProcesses(t, 2, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
		return by.makers()["sliding log"](s, aSecond())
	})
	take := func(i int, at string, cost int64) counters.Decision {
		return both.Take(i, counters.Request{Client: "c", Cost: cost, Limit: limit, Now: clock(t, at)})
	}
	for i := range limit {
		require.True(t, take(i%2, fmt.Sprintf("12:00:00.%d", i), 1).Allowed)
	}
	both.Stores[0].Fail(limitertest.ErrUnsent)
	require.True(t, take(0, "12:01:01", 1).Allowed)
	require.True(t, take(1, "12:02:00.5", 3).Allowed)
	both.Stores[0].Fail(nil)
	require.True(t, take(0, "12:03:00.4", 5).Allowed)
	now := clock(t, "12:03:00.45")
	r := counters.Request{Client: "c", Cost: 3, Limit: limit, Now: now}
	d := both.Take(0, r)
	require.False(t, d.Allowed)
	r.Now = now.Add(d.RetryAfter)
	assert.True(t, both.Take(0, r).Allowed, "after %v", d.RetryAfter)
}

func (by way) TestOthersHaveToTell(t *testing.T) {
	racetest.Sequential(t)
	by.keeps(t, aSecond(), limitertest.Telling)
}

func (by way) TestMoreClientsThanAreRememberedInAnOutage(t *testing.T) {
	by.keeps(t, testConfig(64), limitertest.Crowd)
}

// A client asks all the time, of any process, for more than its limit. So it goes on while
// the store is gone: minute for minute it is admitted about as much, although its bucket
// is full whenever a process looks.
func TestABusyClientHasItsLimitAlone(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit = 100
	for _, burst := range []int64{0, 20} {
		for _, processes := range []int{1, 2, 4, 8} {
			for _, times := range []int{2, 5, 20} {
				t.Run(fmt.Sprintf("burst %d, %d processes, %d times", burst, processes, times), func(t *testing.T) {
					now := clock(t, "12:00:00")
					p := limitertest.NewProcesses(t, processes, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
						return NewTokenBucket(s, time.Minute, burst, testConfig(100))
					})
					random := rand.New(rand.NewPCG(1, 2))
					minute := func() (admitted int) {
						for range limit * times {
							now = now.Add(time.Minute / time.Duration(limit*times))
							if p.Take(random.IntN(processes), counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}).Allowed {
								admitted++
							}
						}
						return admitted
					}
					minute()
					assert.InDelta(t, limit, minute(), 2)
					p.Fail(limitertest.ErrUnsent)
					for m := range 5 {
						assert.InDelta(t, limit, minute(), limit*3/10, "minute %d alone", m)
					}
				})
			}
		}
	}
}
