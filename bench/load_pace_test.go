package main

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestPaceAt(t *testing.T) {
	for _, tt := range []struct {
		name string
		pace pace
		due  float64
		at   map[float64]time.Duration
	}{
		{"constant", pace{100, 100, 2 * time.Second}, 200, map[float64]time.Duration{0: 0, 1: 10 * time.Millisecond, 150: 1500 * time.Millisecond}},
		// 1000 t + 500 t²
		{"growing", pace{1000, 3000, 2 * time.Second}, 4000, map[float64]time.Duration{0: 0, 625: 500 * time.Millisecond, 1500: time.Second, 4000: 2 * time.Second}},
		// 3000 t - 500 t²
		{"falling", pace{3000, 1000, 2 * time.Second}, 4000, map[float64]time.Duration{0: 0, 2500: time.Second, 4000: 2 * time.Second}},
		// 1000 t²
		{"from nothing", pace{0, 2000, time.Second}, 1000, map[float64]time.Duration{0: 0, 10: 100 * time.Millisecond, 250: 500 * time.Millisecond}},
		// 2000 t - 1000 t²
		{"to nothing", pace{2000, 0, time.Second}, 1000, map[float64]time.Duration{750: 500 * time.Millisecond, 1000: time.Second}},
	} {
		assert.InDelta(t, tt.due, tt.pace.due(), 1e-9, tt.name)
		for n, at := range tt.at {
			assert.Equal(t, at, tt.pace.at(n), "%s, %g", tt.name, n)
		}
	}
}

func TestPaceIsMadeOfItsParts(t *testing.T) {
	p := pace{1000, 3000, 2 * time.Second}
	assert.Equal(t, pace{1000, 1500, 500 * time.Millisecond}, p.part(0, 4))
	assert.Equal(t, pace{1500, 2000, 500 * time.Millisecond}, p.part(1, 4))
	assert.Equal(t, pace{2500, 3000, 500 * time.Millisecond}, p.part(3, 4))
	assert.InDelta(t, 625.0, p.part(0, 4).due(), 1e-9)
}

func TestPaceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.Float64Range(0, 100_000)
		p := pace{rate.Draw(t, "from"), rate.Draw(t, "to") + 1, time.Duration(rapid.Int64Range(1e6, 1e12).Draw(t, "length"))}
		share := rapid.Float64Range(0, 1).Draw(t, "share")
		// The integral at that time is known without solving anything.
		seconds := share * p.length.Seconds()
		n := p.from*seconds + (p.to-p.from)*seconds*seconds/(2*p.length.Seconds())
		tolerance := 1e-6*p.length.Seconds() + 1e-8
		if p.from < 1 {
			tolerance += 1e-3 * p.length.Seconds() // the root is steep there
		}
		assert.InDelta(t, seconds, p.at(max(0, n)).Seconds(), tolerance)
	})
}

func all(a *arrivals) []time.Duration {
	var times []time.Duration
	for at, ok := a.next(); ok; at, ok = a.next() {
		times = append(times, at)
	}
	return times
}

func TestEvenArrivals(t *testing.T) {
	ms := time.Millisecond
	assert.Equal(t, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms}, all(newArrivals(pace{4, 4, time.Second}, nil)))
	// 10 t²: at the roots of 0, 0.1, ... 0.9.
	growing := all(newArrivals(pace{0, 20, time.Second}, nil))
	assert.Len(t, growing, 10)
	assert.Equal(t, time.Duration(0), growing[0])
	assert.InDelta(t, 0.316228, growing[1].Seconds(), 1e-6)
	assert.InDelta(t, 0.632456, growing[4].Seconds(), 1e-6)
	assert.InDelta(t, 0.948683, growing[9].Seconds(), 1e-6)
	assert.Empty(t, all(newArrivals(pace{0, 0, time.Second}, nil)))
}

func TestPoissonArrivals(t *testing.T) {
	const rate, seconds = 1000, 100
	times := all(newArrivals(pace{rate, rate, seconds * time.Second}, rand.New(rand.NewPCG(1, 2))))
	deviation := math.Sqrt(rate * seconds)
	assert.InDelta(t, rate*seconds, len(times), 4*deviation)
	longer, last := 0, time.Duration(0)
	for _, at := range times {
		if at-last > time.Second/rate {
			longer++
		}
		last = at
	}
	assert.InDelta(t, math.Exp(-1), float64(longer)/float64(len(times)), 0.01, "gaps longer than the mean")
	assert.Less(t, last, seconds*time.Second)
	assert.Equal(t, times, all(newArrivals(pace{rate, rate, seconds * time.Second}, rand.New(rand.NewPCG(1, 2)))), "the seed tells all")
}

func TestPoissonRamp(t *testing.T) {
	times := all(newArrivals(pace{0, 2000, 50 * time.Second}, rand.New(rand.NewPCG(3, 4))))
	firstHalf := 0
	for _, at := range times {
		if at < 25*time.Second {
			firstHalf++
		}
	}
	assert.InDelta(t, 50_000, len(times), 1000)
	assert.InDelta(t, 12_500, firstHalf, 500, "a quarter")
}
