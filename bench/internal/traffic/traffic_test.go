package traffic

import (
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// histogram counts arrivals per part of a cycle.
func histogram(arrivals iter.Seq[time.Duration], cycle, part time.Duration) []float64 {
	counts := make([]float64, cycle/part)
	for a := range arrivals {
		counts[a%cycle/part]++
	}
	return counts
}

// assertCount checks a Poisson count of the given mean: within 5 standard
// deviations, which one in a million exceeds, and never for this seed.
func assertCount(t *testing.T, mean, count float64, msg ...any) {
	t.Helper()
	assert.InDelta(t, mean, count, 5*math.Sqrt(mean), msg...)
}

func TestSteadyIsEvenlySpaced(t *testing.T) {
	t.Parallel()
	arrivals := slices.Collect(Steady.Generate(1, 4, time.Second))
	const ms = time.Millisecond
	assert.Equal(t, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms}, arrivals)
}

func TestPoisson(t *testing.T) {
	t.Parallel()
	const rate, length = 10, 1000 * time.Second
	p := Poisson
	assertCount(t, 10_000, float64(len(slices.Collect(p.Generate(1, rate, length)))))
	// Independent arrivals: the counts of the seconds vary by their mean, and
	// of the gaps, exponential, a share of 1/e is longer than their mean.
	var squares float64
	for _, n := range histogram(p.Generate(1, rate, length), length, time.Second) {
		squares += (n - rate) * (n - rate)
	}
	assert.InDelta(t, rate, squares/1000, 2)
	var long, last float64
	for a := range p.Generate(1, rate, length) {
		if a.Seconds()-last > 1.0/rate {
			long++
		}
		last = a.Seconds()
	}
	assert.InDelta(t, 1/math.E, long/10_000, 0.02)
}

// assertIndependent checks that the gaps between arrivals at a constant rate per
// second are exponential: a share of 1/e is longer than their mean, and of e^-2
// longer than twice that.
func assertIndependent(t *testing.T, rate float64, gaps []time.Duration) {
	t.Helper()
	longer := func(means float64) float64 {
		n := 0.0
		for _, gap := range gaps {
			if gap.Seconds() > means/rate {
				n++
			}
		}
		return n / float64(len(gaps))
	}
	assert.InDelta(t, math.Exp(-1), longer(1), 0.02)
	assert.InDelta(t, math.Exp(-2), longer(2), 0.02)
}

func TestArrivalsInBurstsAreIndependent(t *testing.T) {
	t.Parallel()
	// 370 in a burst of 7 s, so that what is left out at its ends matters little.
	var gaps []time.Duration
	var last time.Duration
	for a := range Bursty.Generate(1, 10, 3700*time.Second) {
		if gap := a - last; gap < 5*time.Second {
			gaps = append(gaps, gap)
		}
		last = a
	}
	assertIndependent(t, 370.0/7, gaps)
}

func TestDaysArrivalsAreIndependent(t *testing.T) {
	t.Parallel()
	// About noon and midnight of ten days, where the rate hardly changes.
	var noon, midnight []time.Duration
	var last time.Duration
	for a := range Daily.Generate(1, 20, 40*Day) {
		switch hour := a % Day / Minute; hour {
		case 6:
			noon = append(noon, a-last)
		case 18:
			midnight = append(midnight, a-last)
		}
		last = a
	}
	assertIndependent(t, 1.8*20, noon)
	assertIndependent(t, 0.2*20, midnight)
}

func TestAtOnce(t *testing.T) {
	t.Parallel()
	// 10 a minute, one each 0.1 s, in bursts 59.5 to 60.5 s apart.
	var starts []time.Duration
	arrivals := slices.Collect(AtOnce.Generate(1, 10/Minute.Seconds(), 100*Minute))
	for i, a := range arrivals {
		if i%10 == 0 {
			starts = append(starts, a)
			continue
		}
		assert.Equal(t, 100*time.Millisecond, a-arrivals[i-1])
	}
	shortest, longest := time.Hour, time.Duration(0)
	for i, start := range starts[1:] {
		shortest, longest = min(shortest, start-starts[i]), max(longest, start-starts[i])
	}
	assert.InDelta(t, 59.5, shortest.Seconds(), 0.1)
	assert.InDelta(t, 60.5, longest.Seconds(), 0.1)

	// The first comes anywhere in a minute.
	var tens [6]int
	for seed := range uint64(600) {
		for a := range AtOnce.Generate(seed, 10/Minute.Seconds(), 2*Minute) {
			tens[a/(10*time.Second)]++
			break
		}
	}
	for _, n := range tens {
		assert.InDelta(t, 100, n, 50)
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	// A page a minute, so that few overlap: 1/2.3 of them have one request, and
	// 1/2.3 * (1 - 1/2.3) two.
	const pages = 20_000
	sizes := make(map[int]float64)
	size, n := 0, 0.0
	last := -time.Hour
	for a := range Pages.Generate(1, 2.3/60, pages*Minute) {
		n++
		switch gap := a - last; {
		case gap == 300*time.Millisecond:
			size++
		default:
			sizes[size]++
			size = 1
		}
		last = a
	}
	delete(sizes, 0)
	assert.InDelta(t, 2.3*pages, n, 1500)
	assert.InDelta(t, pages/2.3, sizes[1], 400)
	assert.InDelta(t, pages/2.3*(1-1/2.3), sizes[2], 400)

	// Pages begin independently: of busy ones the counts of the seconds vary by
	// E[size^2] / E[size] = 2*2.3 - 1 times their mean where pages are short.
	var squares, mean float64
	counts := histogram(Pages.Generate(1, 5, 20_000*time.Second), 20_000*time.Second, 20*time.Second)
	for _, c := range counts {
		mean += c / float64(len(counts))
	}
	for _, c := range counts {
		squares += (c - mean) * (c - mean) / float64(len(counts))
	}
	assert.InDelta(t, 100, mean, 3)
	assert.InDelta(t, 3.6, squares/mean, 0.5)
}

func TestFewArrivalsPerCycleAreNotLost(t *testing.T) {
	t.Parallel()
	// One in ten minutes: nearly all waits go on beyond the end of a cycle, and
	// 9 of 10 arrivals still come in the first 10 s of one.
	const minutes = 100_000
	p := FrontLoaded
	counts := histogram(p.Generate(1, 0.1/60, minutes*Minute), Minute, 10*time.Second)
	assertCount(t, 9000, counts[0])
	assertCount(t, 1000, counts[1]+counts[2]+counts[3]+counts[4]+counts[5])
}

func TestBurstyIsSilentBetweenBursts(t *testing.T) {
	t.Parallel()
	// At 10 a second, 370 arrivals fall on average into each burst of 7 s, and
	// a burst begins 17 to 57 s after the one before, 37 on average: about 1000
	// in the run. Silences under 10 s are those in a burst, and a second of it
	// has an arrival but for a probability of e^-52.
	var first, last time.Duration
	var bursts, longest, shortest, n float64
	shortest = math.MaxFloat64
	for a := range Bursty.Generate(1, 10, 37_000*time.Second) {
		if gap := a - last; gap > time.Second {
			require.Less(t, last-first, 7*time.Second)
			require.Greater(t, last-first, 5*time.Second)
			require.Greater(t, gap, 10*time.Second)
			require.Less(t, gap, 52*time.Second)
			longest, shortest = max(longest, gap.Seconds()), min(shortest, gap.Seconds())
			first = a
			bursts++
		}
		last = a
		n++
	}
	assert.Less(t, shortest, 11.0)
	assert.Greater(t, longest, 49.0)
	// The number of bursts has a standard deviation of 1000 * 40/sqrt(12) / 37
	// / sqrt(1000), 10.
	assert.InDelta(t, 1000, bursts, 50)
	assertCount(t, 370*(bursts+1), n)
}

func TestFrontAndBackLoadedMinutes(t *testing.T) {
	t.Parallel()
	// 100 minutes at 10 a second: 60,000 arrivals, of which 54,000 fall into
	// the 10 s and 6,000 into the other 50.
	front := histogram(FrontLoaded.Generate(1, 10, 100*Minute), Minute, 10*time.Second)
	back := histogram(BackLoaded.Generate(1, 10, 100*Minute), Minute, 10*time.Second)
	assertCount(t, 54_000, front[0])
	assertCount(t, 54_000, back[5])
	for i := range 5 {
		assertCount(t, 1200, front[i+1], i)
		assertCount(t, 1200, back[i], i)
	}
}

func TestDayRisesAndFalls(t *testing.T) {
	t.Parallel()
	// 10 days at 10 a second: 14,400 arrivals a day, 600 an hour on average.
	// Hour h has 600 * (1 + 0.8 * (cos(2 pi h/24) - cos(2 pi (h+1)/24)) / (2
	// pi/24)).
	counts := histogram(Daily.Generate(1, 10, 10*Day), Day, time.Minute)
	for hour, n := range counts {
		angle := 2 * math.Pi / 24
		mean := 1 + 0.8*(math.Cos(angle*float64(hour))-math.Cos(angle*float64(hour+1)))/angle
		assertCount(t, 6000*mean, n, hour)
	}
	assert.Greater(t, counts[6], 8*counts[18])
}

func TestBoundaryAttacker(t *testing.T) {
	t.Parallel()
	// 2 a minute: bursts of 2 before and after minutes 1 and 3.
	const ms = time.Millisecond
	arrivals := slices.Collect(Boundary.Generate(1, 2/Minute.Seconds(), 4*Minute))
	assert.Equal(t, []time.Duration{
		Minute - 10*ms, Minute - 5*ms, Minute, Minute + 5*ms,
		3*Minute - 10*ms, 3*Minute - 5*ms, 3 * Minute, 3*Minute + 5*ms,
	}, arrivals)
	assert.Empty(t, slices.Collect(Boundary.Generate(1, 0.001, time.Hour)), "less than a request a minute is none")
}

func TestSeedsDecideArrivals(t *testing.T) {
	t.Parallel()
	generators := make(map[string]func(seed uint64) iter.Seq[time.Duration])
	for _, p := range append(slices.Clone(Patterns), AtOnce, Pages) {
		generators[p.Name] = func(seed uint64) iter.Seq[time.Duration] { return p.Generate(seed, 10, 4*Minute) }
	}
	for name, generate := range generators {
		once := generate(1)
		first := slices.Collect(once)
		assert.Equal(t, first, slices.Collect(once), "%s: ranged over again", name)
		assert.Equal(t, first, slices.Collect(generate(1)), "%s: same seed", name)
		if name != "steady" && name != "boundary" {
			var of [9][]time.Duration
			for seed := range of {
				of[seed] = slices.Collect(generate(uint64(seed)))
				for other := range seed {
					assert.NotEqual(t, of[other], of[seed], "%s: seeds %d and %d", name, other, seed)
				}
			}
		}
	}
}

func TestArrivalsAreInOrderAndWithinTheRun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(append(slices.Clone(Patterns), AtOnce, Pages)).Draw(t, "pattern")
		rate := rapid.Float64Range(0.001, 50).Draw(t, "rate")
		length := time.Duration(rapid.Int64Range(1, int64(5*Minute)).Draw(t, "length"))
		most := rapid.IntRange(1, 2000).Draw(t, "most")
		last, n := time.Duration(0), 0
		for a := range p.Generate(rapid.Uint64().Draw(t, "seed"), rate, length) {
			if a < last || a >= length {
				t.Fatalf("%v after %v in a run of %v", a, last, length)
			}
			last = a
			if n++; n == most {
				break
			}
		}
	})
}
