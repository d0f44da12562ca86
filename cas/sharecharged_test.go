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

// What a process has charged is its own as well as what it has admitted: processes that
// have shared their clients evenly admit about what is left together while the store is
// gone, and not next to nothing.
func TestAloneAProcessTakesItsShareOfWhatItHasCharged(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit, clients, cost = 10_000, 20, 50
	for name, newLimiter := range (way{}).makers() {
		for _, processes := range []int{1, 4} {
			t.Run(fmt.Sprint(name, " ", processes), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // no take is late, however busy the machine is
					now := clock(t, "12:00:01.5")
					p := limitertest.NewProcesses(t, processes, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
						return newLimiter(s, testConfig(10_000))
					})
					random := rand.New(rand.NewPCG(1, 1))
					for n := range 80 * clients { // 40%
						now = now.Add(time.Microsecond)
						r, l := counters.Request{Client: fmt.Sprint("c", n%clients), Cost: 1, Limit: limit, Now: now}, p.Limiters[random.IntN(processes)]
						d, err := l.Take(unhurried, r)
						require.NoError(t, err)
						require.True(t, d.Allowed)
						r.Cost = cost - 1
						require.NoError(t, l.Charge(unhurried, r))
					}
					p.Fail(limitertest.ErrUnsent)
					used := 80 * clients * cost
					for n := range limit / cost * processes * clients {
						now = now.Add(time.Microsecond)
						r := counters.Request{Client: fmt.Sprint("c", n%clients), Cost: cost, Limit: limit, Now: now}
						if p.Take(n/clients%processes, r).Allowed {
							used += cost
						}
					}
					assert.InDelta(t, limit, float64(used)/clients, limit/10)
				})
			})
		}
	}
}
