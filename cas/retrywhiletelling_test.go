package cas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A sharer is one of two processes that have shared a client, and have admitted alone
// what is left of its limit of 100.
type sharer struct {
	*limitertest.Processes
	i   int
	now *time.Time
}

func (p *sharer) take(cost int64) counters.Decision {
	*p.now = p.now.Add(time.Microsecond)
	return p.Take(p.i, counters.Request{Client: "c", Cost: cost, Limit: 100, Now: *p.now})
}

// afterAnOutage runs a test with two processes by each algorithm, of which the first, or
// the second, has written last, and the first of which has its store again.
func afterAnOutage(t *testing.T, test func(t *testing.T, first, second *sharer)) {
	t.Parallel()
	for name, newLimiter := range (way{}).makers() {
		for last := range 2 {
			t.Run(fmt.Sprint(name, " ", last), func(t *testing.T) {
				now := clock(t, "12:00:01.5")
				p := limitertest.NewProcesses(t, 2, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
					return newLimiter(s, aSecond())
				})
				both := [2]*sharer{{p, 0, &now}, {p, 1, &now}}
				for range 20 {
					both[1-last].take(1)
					both[last].take(1)
				}
				p.Fail(limitertest.ErrUnsent)
				for range 100 {
					both[0].take(1)
					both[1].take(1)
				}
				p.Stores[0].Fail(nil)
				test(t, both[0], both[1])
			})
		}
	}
}

// A process that has its store again leaves room for what others have still to tell, from
// its first check on.
func TestTheFirstCheckLeavesRoomForWhatOthersHaveToTell(t *testing.T) {
	afterAnOutage(t, func(t *testing.T, first, _ *sharer) {
		assert.False(t, first.take(25).Allowed, "others have admitted about 30 of the 60 that were left")
	})
}

// What others have admitted longer ago than the limit remembers isn't expected of them any
// more, and who is denied for what is is admitted when it has waited as long as it was told.
func TestWhoWaitsForWhatOthersHaveToTellIsAdmitted(t *testing.T) {
	afterAnOutage(t, func(t *testing.T, first, _ *sharer) {
		first.Stores[0].Fail(limitertest.ErrUnsent)
		for range 3 {
			*first.now = first.now.Add(2 * time.Minute) // all has left
			for first.take(1).Allowed {
			}
		}
		*first.now = first.now.Add(2 * time.Minute)
		first.Stores[0].Fail(nil)
		d := first.take(1)
		assert.True(t, d.Allowed, "nothing is in use: %+v", d)
		if !d.Allowed {
			*first.now = first.now.Add(d.RetryAfter)
			again := first.take(1)
			assert.True(t, again.Allowed, "after %v: %+v", d.RetryAfter, again)
		}
	})
}
