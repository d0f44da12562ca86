package accuracy

import (
	"iter"
	"math"
	"time"

	"weir/bench/traffic"
)

// A Workload is requests with a limit per Window for each client.
type Workload struct {
	Name        string `json:"traffic"`
	Description string `json:"description"`
	Limit       int64  `json:"limit"`
	// Demand is what a client asks for, as a multiple of the limit; with many
	// clients, what all together ask for as a multiple of ZipfDemand limits.
	Demand  float64       `json:"demand"`
	Clients int           `json:"clients"`
	Length  time.Duration `json:"length_ns"`

	arrivals func(seed uint64, length time.Duration) iter.Seq[traffic.Arrival]
}

const (
	// DocumentLimit is the limit of the documents that weir follows.
	DocumentLimit = 100
	// largeLimit makes rounding to whole requests small beside chance.
	largeLimit = 1000

	zipfClients  = 1000
	zipfExponent = 1.1
	// ZipfDemand puts the three busiest clients of many above the limit when
	// demand is 1, and seven when it is 2.
	ZipfDemand = 20
)

// Demands returns the demands of the workloads: what is just about the limit,
// and far above.
func Demands() []float64 { return []float64{1, 2} }

// Workloads returns all workloads, each of about so many requests, but no shorter
// than shortestRun.
func Workloads(requests int) []Workload {
	var all []Workload
	for _, p := range traffic.Patterns() {
		all = append(all, single(p, p.Name, DocumentLimit, requests)...)
		if p.Name == Poisson {
			all = append(all, single(p, p.Name+" of 1000", largeLimit, requests)...)
		}
	}
	for _, demand := range Demands() {
		rate := demand * ZipfDemand * DocumentLimit / Window.Seconds()
		w := Workload{
			Name: "zipf", Description: "independent arrivals from 1000 clients, whose shares follow Zipf's law with exponent 1.1",
			Limit: DocumentLimit, Demand: demand, Clients: zipfClients, Length: runLength(requests, rate, traffic.Minute),
		}
		w.arrivals = func(seed uint64, length time.Duration) iter.Seq[traffic.Arrival] {
			return traffic.Zipf(seed, zipfClients, zipfExponent, rate, length)
		}
		all = append(all, w)
	}
	return all
}

// Names of traffic that expectations are about.
const (
	Poisson     = "poisson"
	Day         = "day"
	Bursty      = "bursty"
	FrontLoaded = "front-loaded"
	BackLoaded  = "back-loaded"
	Boundary    = "boundary"
)

// single returns the workloads of one client.
func single(p traffic.Pattern, name string, limit int64, requests int) []Workload {
	cycle := 2 * traffic.Minute
	if p.Name == Day {
		cycle = traffic.Day
	}
	var all []Workload
	for _, demand := range Demands() {
		rate := demand * float64(limit) / Window.Seconds()
		w := Workload{Name: name, Description: p.Description, Limit: limit, Demand: demand, Clients: 1, Length: runLength(requests, rate, cycle)}
		w.arrivals = func(seed uint64, length time.Duration) iter.Seq[traffic.Arrival] {
			return p.Generate(seed, rate, length)
		}
		all = append(all, w)
	}
	return all
}

// shortestRun is a multiple of all cycles but the day's.
const shortestRun = 12 * time.Minute

// runLength returns the whole cycles in which about so many requests arrive at
// the given rate per second, but at least shortestRun.
func runLength(requests int, rate float64, cycle time.Duration) time.Duration {
	cycles := math.Round(float64(requests) / (rate * cycle.Seconds()))
	return max(shortestRun, time.Duration(max(1, cycles))*cycle)
}
