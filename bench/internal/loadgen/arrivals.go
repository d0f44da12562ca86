package loadgen

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Pace is a rate of arrivals that changes evenly from one value to another,
// both per second and not negative.
type Pace struct {
	From, To float64
	Length   time.Duration
}

// Constant returns a pace that doesn't change.
func Constant(rate float64, length time.Duration) Pace { return Pace{rate, rate, length} }

// due returns how many arrivals the pace makes in all: the integral of the
// rate.
func (p Pace) due() float64 { return (p.From + p.To) / 2 * p.Length.Seconds() }

// at returns when the integral of the rate reaches n, which is at most due.
func (p Pace) at(n float64) time.Duration {
	if n == 0 {
		return 0
	}
	// The root of from*t + growth*t*t/2 = n, in the form that holds without
	// growth too.
	growth := (p.To - p.From) / p.Length.Seconds()
	seconds := 2 * n / (p.From + math.Sqrt(max(0, p.From*p.From+2*growth*n)))
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// Part returns the piece with number i, from 0, of the pace cut into n pieces
// of the same length.
func (p Pace) Part(i, n int) Pace {
	growth := (p.To - p.From) / float64(n)
	return Pace{p.From + float64(i)*growth, p.From + float64(i+1)*growth, p.Length / time.Duration(n)}
}

// Arrivals are the times at which the checks of a pace are due. It is not safe
// for concurrent use.
type Arrivals struct {
	Pace
	random *rand.Rand // nil for even spacing
	n      float64
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
	if a.n >= a.due() {
		return 0, false
	}
	at = a.at(a.n)
	gap := 1.0
	if a.random != nil {
		// A Poisson process whose rate changes is one of rate 1 in the time
		// that the integral of the rate tells.
		gap = a.random.ExpFloat64()
	}
	a.n += gap
	return at, true
}
