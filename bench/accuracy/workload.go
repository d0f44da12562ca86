package accuracy

import (
	"context"
	"iter"
	"math"
	"time"

	"weir/bench/internal/traffic"
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

// Workloads returns all workloads, each of about so many requests, but no
// shorter than shortestRun.
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

// shortestRun is two windows, and a multiple of all cycles but the day's.
const shortestRun = 2 * time.Minute

// runLength returns the whole cycles in which about so many requests arrive at
// the given rate per second, but at least shortestRun.
func runLength(requests int, rate float64, cycle time.Duration) time.Duration {
	cycles := math.Round(float64(requests) / (rate * cycle.Seconds()))
	return max(shortestRun, time.Duration(max(1, cycles))*cycle)
}

// A Trace is what algorithms believe of one client's traffic over time, every
// request counted, beside what is true: the figures of a picture.
type Trace struct {
	Traffic     string        `json:"traffic"`
	Description string        `json:"description"`
	Limit       int64         `json:"limit"`
	From        time.Duration `json:"from_ns"`
	Every       time.Duration `json:"every_ns"`
	// True is the number of requests in the last Window, at From and then every
	// Every.
	True      []int64    `json:"true"`
	Estimates []Estimate `json:"estimates"`
}

// An Estimate is what an algorithm takes to be in use at the times of its
// Trace.
type Estimate struct {
	Algorithm string  `json:"algorithm"`
	Values    []int64 `json:"values"`
}

const (
	traceFrom   = 2 * time.Minute // by then each window has been full
	tracePoints = 180
	// traceClient is the one of many clients that asks for about its limit.
	traceClient = 2
)

// Traces returns a trace of each workload with the documents' limit and demand
// 1.
func Traces(ctx context.Context, seed uint64, algorithms []algorithm) ([]Trace, error) {
	var all []Trace
	for _, w := range Workloads(0) {
		if w.Demand != 1 || w.Limit != DocumentLimit {
			continue
		}
		t, err := w.trace(ctx, seed, algorithms)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func (w Workload) trace(ctx context.Context, seed uint64, algorithms []algorithm) (Trace, error) {
	t := Trace{Traffic: w.Name, Description: w.Description, Limit: w.Limit, From: traceFrom, Every: 2 * time.Second}
	if w.Name == Day {
		t.Every = traffic.Day / tracePoints
	}
	var arrivals []time.Duration
	for r := range w.arrivals(seed, t.From+tracePoints*t.Every) {
		if w.Clients == 1 || r.Client == traceClient {
			arrivals = append(arrivals, r.At)
		}
	}
	log := traffic.NewRecent(Window)
	var err error
	t.True, err = t.sample(arrivals, func(at time.Duration) error {
		log.Count(at)
		log.Add(at)
		return nil
	}, func(at time.Duration) (int64, error) {
		return log.Count(at), nil
	})
	for _, a := range algorithms {
		if err != nil {
			break
		}
		s, failed := a.subject(w.Limit, 1, false)
		if failed != nil {
			return Trace{}, failed
		}
		e := Estimate{Algorithm: a.Name}
		e.Values, err = t.sample(arrivals, func(at time.Duration) error {
			_, err := s.ask(ctx, oneClient, at)
			return err
		}, func(at time.Duration) (int64, error) {
			return s.peek(ctx, oneClient, at)
		})
		t.Estimates = append(t.Estimates, e)
	}
	return t, err
}

// sample returns what look says at the times of the trace, after each of the
// arrivals up to then has been told.
func (t Trace) sample(arrivals []time.Duration, tell func(time.Duration) error, look func(time.Duration) (int64, error)) ([]int64, error) {
	values := make([]int64, tracePoints)
	for i := range values {
		at := t.From + time.Duration(i)*t.Every
		for len(arrivals) > 0 && arrivals[0] <= at {
			if err := tell(arrivals[0]); err != nil {
				return nil, err
			}
			arrivals = arrivals[1:]
		}
		var err error
		if values[i], err = look(at); err != nil {
			return nil, err
		}
	}
	return values, nil
}
