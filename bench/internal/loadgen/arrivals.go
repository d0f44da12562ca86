package loadgen

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Pace is a constant rate of arrivals, per second.
type Pace struct {
	Rate   float64
	Length time.Duration
}

// Arrivals are the times at which the checks of a pace are due. It is not safe
// for concurrent use.
type Arrivals struct {
	Pace
	random *rand.Rand // nil for even spacing
	n      float64    // of the next one
}

// NewArrivals returns arrivals that are evenly spaced, the first at once, or,
// with random, a Poisson process.
func NewArrivals(p Pace, random *rand.Rand) *Arrivals {
	a := &Arrivals{Pace: p, random: random}
	if random != nil {
		a.n = random.ExpFloat64()
	}
	return a
}

// Next returns the next arrival's time since the start, until there is none.
func (a *Arrivals) Next() (at time.Duration, ok bool) {
	if a.n >= a.Rate*a.Length.Seconds() {
		return 0, false
	}
	at = time.Duration(math.Round(a.n / a.Rate * float64(time.Second)))
	if a.random == nil {
		a.n++
	} else {
		a.n += a.random.ExpFloat64()
	}
	return at, true
}
