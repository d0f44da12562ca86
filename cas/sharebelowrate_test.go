package cas

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// Processes that have shared their clients evenly admit about the limit together while the
// store is gone, also where the clients ask for less than drains, so that what others
// have consumed has drained when a process looks again.
func TestAloneAProcessTakesItsShareOfWhatHasDrained(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit, clients, minutes = 100, 20, 5
	for name, newLimiter := range map[string]func(s limitertest.Store) (counters.Limiter, error){
		"token bucket": func(s limitertest.Store) (counters.Limiter, error) {
			return NewTokenBucket(s, time.Minute, 0, testConfig(10_000))
		},
		"leaky bucket": func(s limitertest.Store) (counters.Limiter, error) {
			return NewLeakyBucket(s, time.Minute, 0, testConfig(10_000))
		},
		"sliding log": func(s limitertest.Store) (counters.Limiter, error) {
			return NewSlidingLog(s, time.Minute, limit, testConfig(10_000))
		},
	} {
		for _, processes := range []int{1, 2, 4, 8} {
			for _, rate := range []int{40, 80} { // requests of a client in a minute
				t.Run(fmt.Sprint(name, " ", processes, " ", rate), func(t *testing.T) {
					now := clock(t, "12:00:01.5")
					p := limitertest.NewProcesses(t, processes, memory.New(nil), newLimiter)
					take := func(i int, client string) bool {
						return p.Take(i, counters.Request{Client: client, Cost: 1, Limit: limit, Now: now}).Allowed
					}
					random := rand.New(rand.NewPCG(1, 1))
					for range rate * minutes {
						for c := range clients {
							now = now.Add(time.Minute / time.Duration(rate*clients))
							require.True(t, take(random.IntN(processes), fmt.Sprint("c", c)))
						}
					}
					p.Fail(limitertest.ErrUnsent)
					admitted := 0
					for n := range processes * limit {
						for c := range clients {
							now = now.Add(time.Microsecond)
							if take(n%processes, fmt.Sprint("c", c)) {
								admitted++
							}
						}
					}
					assert.LessOrEqual(t, float64(admitted)/clients, 1.25*limit, "at once, of a bucket that holds %d", limit)
				})
			}
		}
	}
}
