package subwindow_test

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
	"weir/subwindow"
)

// Processes that have shared their clients evenly admit the limit together while the store
// is gone, also where checks reserve what they cost in the end; and no less where they
// reserve far more.
func (by way) TestTheShareOfWhatIsSettled(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit, clients, estimate = 10_000, 20, 100
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	for _, processes := range []int{1, 4, 8} {
		for _, cost := range []int64{100, 50, 5} {
			now := at("12:00:00")
			p := limitertest.NewProcesses(t, processes, memory.New(func() time.Time { return now }), func(s limitertest.Store) (counters.Limiter, error) {
				return by.newLimiter(t, s, w, 50*time.Millisecond), nil
			})
			request := func(client int) counters.Request {
				return counters.Request{Client: fmt.Sprint("c", client), Cost: estimate, Limit: limit, Now: now, Reserved: true}
			}
			type reserved struct {
				counters.Request
				by int
			}
			var under []reserved
			settle := func(r reserved) {
				if r.Cost -= cost; r.Cost > 0 {
					require.NoError(t, p.Limiters[r.by].Refund(t.Context(), r.Request, counters.Decision{Allowed: true}))
				}
			}
			used := int64(0)
			random := rand.New(rand.NewPCG(1, 1))
			for n := range 40 * clients {
				now = now.Add(time.Second / clients)
				r, i := request(n%clients), random.IntN(processes)
				require.True(t, p.Take(i, r).Allowed)
				used += cost
				if under = append(under, reserved{r, i}); len(under) > 2*clients { // two seconds later
					settle(under[0])
					under = under[1:]
				}
			}
			for _, r := range under {
				settle(r)
			}
			p.Fail(limitertest.ErrUnsent)
			for n := range limit / estimate * processes * clients {
				if p.Take(n/clients%processes, request(n%clients)).Allowed {
					used += estimate
				}
			}
			admitted := float64(used) / clients
			assert.GreaterOrEqual(t, admitted, 0.75*limit, "%d processes, %d of %d reserved", processes, cost, estimate)
			if cost == estimate {
				assert.LessOrEqual(t, admitted, 1.25*limit, "%d processes", processes)
			}
		}
	}
}
