package cas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// Processes that have shared their clients evenly admit about the limit together
// while the store is gone, and one that has had all for itself admits all of it.
func TestAloneAProcessTakesItsShare(t *testing.T) {
	t.Parallel()
	const limit = 100
	for name, newLimiter := range map[string]func(s limitertest.Store) (limitertest.Limiter, error){
		"token bucket": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewTokenBucket(s, time.Minute, 0, testConfig(100))
		},
		"sliding log": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewSlidingLog(s, time.Minute, limit, testConfig(100))
		},
		"counting log": func(s limitertest.Store) (limitertest.Limiter, error) {
			return NewCountingLog(s, time.Minute, DefaultLogEntries, testConfig(100))
		},
	} {
		for _, processes := range []int{1, 2, 4, 8} {
			for _, used := range []int{0, 40} {
				t.Run(fmt.Sprint(name, " ", processes, " ", used), func(t *testing.T) {
					now := clock(t, "12:00:01.5")
					store := memory.New(nil)
					broken := make([]*limitertest.BrokenStore, processes)
					limiters := make([]limitertest.Limiter, processes)
					for i := range limiters {
						var err error
						broken[i] = &limitertest.BrokenStore{Store: store}
						limiters[i], err = newLimiter(broken[i])
						require.NoError(t, err)
					}
					take := func(i int, client string) bool {
						now = now.Add(time.Microsecond)
						r := counters.Request{Client: client, Cost: 1, Limit: limit, Now: now}
						d, err := limiters[i].Take(t.Context(), r)
						if err != nil {
							d, err = limiters[i].TakeLocal(r, err)
						}
						require.NoError(t, err)
						return d.Allowed
					}
					for n := range 20 * 40 {
						take(n%processes, fmt.Sprint("warm", n/40))
					}
					for n := range used {
						take(n%processes, "c")
					}
					for _, s := range broken {
						s.Fail(limitertest.ErrUnsent)
					}
					admitted := used
					for n := range processes * limit {
						if take(n%processes, "c") {
							admitted++
						}
					}
					assert.InDelta(t, limit, admitted, 15)
				})
			}
		}
	}
}
