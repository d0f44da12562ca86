package main

import (
	"math"
	"math/rand/v2"
	"time"
)

// A pace is a rate of arrivals that changes evenly from one value to another,
// both per second and not negative.
type pace struct {
	from, to float64
	length   time.Duration
}

// due returns how many arrivals the pace makes in all: the integral of the rate.
func (p pace) due() float64 { return (p.from + p.to) / 2 * p.length.Seconds() }

// at returns when the integral of the rate reaches n, which is at most due.
func (p pace) at(n float64) time.Duration {
	if n == 0 {
		return 0
	}
	// The root of from*t + growth*t*t/2 = n, in the form that holds without
	// growth too.
	growth := (p.to - p.from) / p.length.Seconds()
	seconds := 2 * n / (p.from + math.Sqrt(max(0, p.from*p.from+2*growth*n)))
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// part returns the piece with number i, from 0, of the pace cut into n pieces of
// the same length.
func (p pace) part(i, n int) pace {
	growth := (p.to - p.from) / float64(n)
	return pace{p.from + float64(i)*growth, p.from + float64(i+1)*growth, p.length / time.Duration(n)}
}

// arrivals are the times at which the checks of a pace are due. It is not safe
// for concurrent use.
type arrivals struct {
	pace
	random *rand.Rand // nil for even spacing
	n      float64
}

// newArrivals returns arrivals that are evenly spaced, the first at once, or, with
// random, a Poisson process.
func newArrivals(p pace, random *rand.Rand) *arrivals {
	a := &arrivals{pace: p, random: random}
	if random != nil {
		a.n = random.ExpFloat64()
	}
	return a
}

// next returns the next arrival's time since the start, until there is none.
func (a *arrivals) next() (at time.Duration, ok bool) {
	if a.n >= a.due() {
		return 0, false
	}
	at = a.at(a.n)
	gap := 1.0
	if a.random != nil {
		// A Poisson process whose rate changes is one of rate 1 in the time that
		// the integral of the rate tells.
		gap = a.random.ExpFloat64()
	}
	a.n += gap
	return at, true
}
