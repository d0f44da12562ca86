package accuracy

import (
	"encoding/binary"
	"hash/fnv"
	"iter"
	"math"
	"time"

	"weir/bench/internal/traffic"
)

// A workload is requests of a client with a limit per window.
type workload struct {
	Name        string `json:"traffic"`
	Description string `json:"description"`
	Limit       int64  `json:"limit"`
	// Demand is what the client asks for, as a multiple of the limit.
	Demand float64       `json:"demand"`
	Length time.Duration `json:"length_ns"`

	arrivals func(seed uint64, length time.Duration) iter.Seq[time.Duration]
}

const (
	// largeLimit makes rounding to whole requests small beside chance.
	largeLimit = 1000

	// largeRun is how many times more requests the runs of a large limit have, so
	// that it counts for little that a bucket is full in the beginning.
	largeRun = 4
)

// demands are those of the workloads: what is just about the limit,
// and far above.
var demands = []float64{1, 2}

// documentWorkloads returns the workloads of the documentLimit, each of about so
// many requests, but no shorter than shortestRun.
func documentWorkloads(requests int) []workload {
	var all []workload
	for _, p := range traffic.Patterns {
		for _, demand := range demands {
			all = append(all, single(p, documentLimit, demand, requests))
		}
	}
	return all
}

// largeWorkloads returns the workloads of a large limit, on which all but an
// exact log lose something.
func largeWorkloads(requests int) []workload {
	var all []workload
	for _, w := range []struct {
		pattern traffic.Pattern
		demand  float64
	}{
		{traffic.Steady, 1.5}, {traffic.Poisson, 2}, {traffic.Bursty, 2},
		{traffic.FrontLoaded, 2}, {traffic.AtOnce, 1},
	} {
		all = append(all, single(w.pattern, largeLimit, w.demand, requests))
	}
	return all
}

// seeds returns how many of so many seeds make a difference.
func (w workload) seeds(n int) int {
	if w.Name == traffic.Steady.Name || w.Name == traffic.Boundary.Name {
		return 1
	}
	return n
}

// single returns a workload of traffic of that pattern.
func single(p traffic.Pattern, limit int64, demand float64, requests int) workload {
	cycle := 2 * traffic.Minute
	if p.Name == traffic.Daily.Name {
		cycle = traffic.Day
	}
	rate := demand * float64(limit) / window.Seconds()
	return workload{
		Name: p.Name, Description: p.Description, Limit: limit, Demand: demand, Length: runLength(requests, rate, cycle),
		arrivals: func(seed uint64, length time.Duration) iter.Seq[time.Duration] {
			return p.Generate(ownSeed(seed, p.Name), rate, length)
		},
	}
}

// ownSeed returns the seed of a kind of traffic. With the same one, minutes that
// are loaded in different ways would hold the same numbers of arrivals, and a
// fixed window's figures would all be the same.
func ownSeed(seed uint64, name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64([]byte(name), seed)) // never fails
	return h.Sum64()
}

// shortestRun is two windows, and a multiple of all cycles but the day's.
const shortestRun = 2 * time.Minute

// runLength returns the whole cycles in which about so many requests arrive at
// the given rate per second, but at least shortestRun.
func runLength(requests int, rate float64, cycle time.Duration) time.Duration {
	cycles := math.Round(float64(requests) / (rate * cycle.Seconds()))
	return max(shortestRun, time.Duration(max(1, cycles))*cycle)
}
