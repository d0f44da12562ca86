// Package traffic generates arrivals: who asks when.
package traffic

import (
	"iter"
	"math"
	"math/rand/v2"
	"time"
)

// A Pattern is a kind of traffic of one client.
type Pattern struct {
	Name        string
	Description string
	// Generate yields the times of arrivals from 0 to just before length, which
	// never go back, and of which there are rate per second on average (more than 0) over whole cycles of the
	// pattern. They depend on the arguments only, can be ranged over again, and
	// take constant memory.
	Generate func(seed uint64, rate float64, length time.Duration) iter.Seq[time.Duration]
}

// The cycles of the patterns begin at 0.
const (
	// Minute is the cycle of front-loaded and back-loaded minutes. Two of them
	// are the boundary attacker's.
	Minute = time.Minute
	// loaded is the part of a minute that has loadedShare of its arrivals.
	loaded      = 10 * time.Second
	loadedShare = 0.9
	// A silence follows each burst: of silenceMean, more or less by up to
	// silenceSpread, so that what came a minute before a burst is anything.
	burst         = 7 * time.Second
	silenceMean   = 30 * time.Second
	silenceSpread = 20 * time.Second
	// Day is a day in which an hour lasts a minute.
	Day = 24 * time.Minute
	// daySwing is by how much of the mean the rate rises and falls.
	daySwing = 0.8
	// pageSize is the mean number of a page's requests, pageGap how far apart
	// they are.
	pageSize = 2.3
	pageGap  = 300 * time.Millisecond
	// Edge is how long before and after a boundary the attacker is at work.
	Edge = 10 * time.Millisecond
)

// The patterns of one client.
var (
	Steady  = Pattern{"steady", "evenly spaced", generate(steady)}
	Poisson = Pattern{"poisson", "independent arrivals at a constant rate", piecewise(segment{Minute, 1})}
	Bursty  = Pattern{"bursty", "independent arrivals for 7 s, then 10 to 50 s of silence", generate(bursty)}
	Daily   = Pattern{"day", "independent arrivals whose rate follows a sine, 0.2 to 1.8 of the mean, over a day of 24 minutes", generate(day)}

	FrontLoaded = Pattern{"front-loaded", "90% of each minute's arrivals in its first 10 s",
		piecewise(segment{loaded, loadedShare}, segment{Minute - loaded, 1 - loadedShare})}
	BackLoaded = Pattern{"back-loaded", "90% of each minute's arrivals in its last 10 s",
		piecewise(segment{Minute - loaded, 1 - loadedShare}, segment{loaded, loadedShare})}
	Boundary = Pattern{"boundary", "every other minute, a minute's arrivals in the 10 ms before the boundary and as many in the 10 ms after it", generate(boundary)}

	Patterns = []Pattern{Steady, Poisson, Bursty, Daily, FrontLoaded, BackLoaded, Boundary}
)

// AtOnce is a pattern that isn't one of Patterns: a client that uses up its
// minute within a second, and comes again when the minute is over, or a little
// sooner or later.
var AtOnce = Pattern{"at once", "a minute's arrivals evenly in a second, 59.5 to 60.5 s after those before", generate(atOnce)}

// Pages is another: people who look at pages.
var Pages = Pattern{"pages", "pages at independent times, each of 1 request or more, 2.3 on average, 0.3 s apart", generate(pages)}

// generate makes a Generate of what calls arrive with the times, one after the other, until
// that is false.
func generate(all func(random *rand.Rand, rate float64, arrive func(at time.Duration) bool)) func(uint64, float64, time.Duration) iter.Seq[time.Duration] {
	return func(seed uint64, rate float64, length time.Duration) iter.Seq[time.Duration] {
		return func(yield func(time.Duration) bool) {
			all(rand.New(rand.NewPCG(seed, 0)), rate, func(at time.Duration) bool { return at < length && yield(at) })
		}
	}
}

// steady has arrival n at n/rate.
func steady(_ *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	for n := 0.0; arrive(seconds(n / rate)); n++ {
	}
}

// A segment is a part of a cycle in which the rate is constant.
type segment struct {
	length time.Duration
	share  float64 // of the cycle's arrivals
}

// piecewise returns a Generate of independent arrivals whose rate is constant
// in each of the segments, over and over.
func piecewise(cycle ...segment) func(uint64, float64, time.Duration) iter.Seq[time.Duration] {
	var period time.Duration
	for _, s := range cycle {
		period += s.length
	}
	return generate(func(random *rand.Rand, rate float64, arrive func(time.Duration) bool) {
		perCycle := rate * period.Seconds()
		wait := random.ExpFloat64() // until the next arrival, in arrivals
		for start := time.Duration(0); ; {
			for _, s := range cycle {
				// An exponential wait doesn't remember how long it has
				// lasted: what is left of it goes on at the next segment's
				// rate.
				expected := s.share * perCycle
				passed := 0.0 // of expected
				for wait < expected-passed {
					passed += wait
					if !arrive(start + time.Duration(passed/expected*float64(s.length))) {
						return
					}
					wait = random.ExpFloat64()
				}
				wait -= expected - passed
				start += s.length
			}
		}
	})
}

// bursty has bursts, with silence between; the first begins at 0.
func bursty(random *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	inBurst := rate * (burst + silenceMean).Seconds() / burst.Seconds()
	for start := time.Duration(0); ; {
		for t := random.ExpFloat64() / inBurst; t < burst.Seconds(); t += random.ExpFloat64() / inBurst {
			if !arrive(start + seconds(t)) {
				return
			}
		}
		start += burst + silenceMean - silenceSpread + time.Duration(random.Int64N(int64(2*silenceSpread)))
	}
}

// day has a sine over Day that begins at its mean and rises. It draws arrivals at
// the highest rate and keeps the share that the rate is.
func day(random *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	const highest = 1 + daySwing
	for t := 0.0; ; {
		t += random.ExpFloat64() / (rate * highest)
		now := 1 + daySwing*math.Sin(2*math.Pi*t/Day.Seconds())
		if random.Float64()*highest < now && !arrive(seconds(t)) {
			return
		}
	}
}

// boundary has a minute's arrivals in the Edge before minutes 1, 3, 5 and so on
// begin, and as many in the Edge after that, evenly spaced.
func boundary(_ *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	burst := int(math.Round(rate * Minute.Seconds()))
	for middle := Minute; burst > 0; middle += 2 * Minute {
		for n := range 2 * burst {
			if !arrive(middle - Edge + time.Duration(n)*Edge/time.Duration(burst)) {
				return
			}
		}
	}
}

// atOnce has the first arrivals at any time of the first minute.
func atOnce(random *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	burst := max(1, int(math.Round(rate*Minute.Seconds())))
	for start := time.Duration(random.Int64N(int64(Minute))); ; start += Minute - time.Second/2 + time.Duration(random.Int64N(int64(time.Second))) {
		for n := range burst {
			if !arrive(start + time.Duration(n)*time.Second/time.Duration(burst)) {
				return
			}
		}
	}
}

// pages has pages of a geometric number of requests.
func pages(random *rand.Rand, rate float64, arrive func(time.Duration) bool) {
	page := seconds(random.ExpFloat64() * pageSize / rate) // when the next begins
	var further []time.Duration                            // requests of those before, in order
	for {
		at := page
		if len(further) > 0 && further[0] < page {
			at, further = further[0], further[1:]
		} else {
			page += seconds(random.ExpFloat64() * pageSize / rate)
		}
		if !arrive(at) {
			return
		}
		if random.Float64() < 1-1/pageSize {
			further = append(further, at+pageGap)
		}
	}
}

// seconds returns s seconds, rounded to whole nanoseconds. Beyond the longest
// duration it returns that.
func seconds(s float64) time.Duration {
	ns := math.Round(s * 1e9)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}
