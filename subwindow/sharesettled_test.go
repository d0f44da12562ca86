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
	"weir/subwindow"
)

// Processes that have shared their clients evenly admit the limit together while the store
// is gone, also where checks reserve what they cost in the end; and no less where they
// reserve far more.
func (by way) TestTheShareOfWhatIsSettled(t *testing.T) {
	t.Parallel()
	const limit, clients, estimate = 10_000, 20, 100
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	for _, processes := range []int{1, 4, 8} {
		for _, cost := range []int64{100, 50, 5} {
			now := at("12:00:00")
			store := memory.New(func() time.Time { return now })
			broken, limiters := make([]*limitertest.BrokenStore, processes), make([]*limiter, processes)
			for i := range limiters {
				broken[i] = &limitertest.BrokenStore{Store: store}
				limiters[i] = by.newLimiter(t, broken[i], w, 50*time.Millisecond)
			}
			request := func(client int) counters.Request {
				return counters.Request{Client: fmt.Sprint("c", client), Cost: estimate, Limit: limit, Now: now, Reserved: true}
			}
			type reserved struct {
				counters.Request
				by int
			}
			var under []reserved
			used := int64(0)
			random := rand.New(rand.NewPCG(1, 1))
			for n := range 40 * clients {
				now = now.Add(time.Second / clients)
				r, i := request(n%clients), random.IntN(processes)
				d, err := limiters[i].Take(t.Context(), r)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				used += cost
				if under = append(under, reserved{r, i}); len(under) > 2*clients { // two seconds later
					settled := under[0]
					under = under[1:]
					if settled.Cost -= cost; settled.Cost > 0 {
						require.NoError(t, limiters[settled.by].Refund(t.Context(), settled.Request, counters.Decision{Allowed: true}))
					}
				}
			}
			for _, settled := range under {
				if settled.Cost -= cost; settled.Cost > 0 {
					require.NoError(t, limiters[settled.by].Refund(t.Context(), settled.Request, counters.Decision{Allowed: true}))
				}
			}
			for _, s := range broken {
				s.Fail(limitertest.ErrUnsent)
			}
			for n := range limit / estimate * processes * clients {
				i := n / clients % processes
				r := request(n % clients)
				_, err := limiters[i].Take(t.Context(), r)
				if d, _ := limiters[i].TakeLocal(r, err); d.Allowed {
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
