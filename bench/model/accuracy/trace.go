package accuracy

import (
	"context"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
)

// A trace is the estimates of algorithms for a client over time, beside the true count:
// the figures of a picture.
type trace struct {
	Name  string        `json:"name"`
	Shows string        `json:"shows"`
	Limit int64         `json:"limit"`
	From  time.Duration `json:"from_ns"`
	Every time.Duration `json:"every_ns"`
	// True is the number of requests in the last window, at From and then every
	// Every. Attacks are different for each algorithm, and so have none.
	True      []int64         `json:"true,omitempty"`
	Estimates []traceEstimate `json:"estimates"`
}

// A traceEstimate is what an algorithm takes to be in use at the times of its
// trace, and if only what it admits counts, how many of the requests in the last
// window it has admitted.
type traceEstimate struct {
	Algorithm string  `json:"algorithm"`
	Values    []int64 `json:"values"`
	Admitted  []int64 `json:"admitted,omitempty"`
}

// A view is what a trace looks at: so many points from a time on. Above a demand
// of 1 only what is admitted counts.
type view struct {
	name        string
	traffic     traffic.Pattern
	demand      float64
	from, every time.Duration
	points      int
	algorithms  []string
}

// The algorithms of the traces.
var (
	curved    = []string{algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding60}
	believing = []string{
		algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding10, algorithms.Sliding60, algorithms.Strict60,
	}
	enforcing = []string{
		algorithms.Fixed, algorithms.Sliding10, algorithms.Capped10, algorithms.Strict60, algorithms.Token, algorithms.Counting32,
	}
	attacked = []string{
		algorithms.Fixed, algorithms.Sliding10, algorithms.Sliding60, algorithms.Capped10, algorithms.Strict60, algorithms.Counting64,
	}
)

const (
	// By then each window has been full.
	traceFrom   = 2*time.Minute + 550*time.Millisecond
	tracePoints = 180
	// The tenth of a second takes it through all parts of slots in turn.
	traceEvery = 2100 * time.Millisecond

	attackPoints = 480
	attackEvery  = 250 * time.Millisecond
)

// views are all but the attacks'. That of a day shows all of it, that of a
// boundary half a minute before it to half a minute after all has left the
// window.
var views = []view{
	{"curves", traffic.Poisson, 1, 50 * time.Millisecond, 1100 * time.Millisecond, 330, curved},
	{"poisson", traffic.Poisson, 1, traceFrom, traceEvery, tracePoints, believing},
	{"bursty", traffic.Bursty, 1, traceFrom, traceEvery, tracePoints, believing},
	{"front-loaded", traffic.FrontLoaded, 1, traceFrom, traceEvery, tracePoints, believing},
	{"back-loaded", traffic.BackLoaded, 1, traceFrom, traceEvery, tracePoints, believing},
	{"bursty-enforced", traffic.Bursty, 2, traceFrom, traceEvery, tracePoints, enforcing},
	{"front-loaded-enforced", traffic.FrontLoaded, 2, traceFrom, traceEvery, tracePoints, enforcing},
	{"day-enforced", traffic.Daily, 2, traceFrom, traffic.Day / tracePoints, tracePoints, enforcing},
	{"boundary-enforced", traffic.Boundary, 2, 150*time.Second + 2*traffic.Edge, attackEvery, attackPoints, enforcing},
}

// traces returns those of all views, and one of the attacks that are written for
// algorithms.
func traces(ctx context.Context, seed uint64) ([]trace, error) {
	var all []trace
	for _, v := range views {
		w := single(v.traffic, documentLimit, v.demand, 0)
		t, err := w.trace(ctx, seed, v)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	// Just before slots end the most of what fades out has been admitted.
	t := trace{
		Name: "attack", Shows: "what the attack written for each algorithm gets in a window, and what the algorithm believes",
		Limit: documentLimit, From: attackEvery - time.Millisecond, Every: attackEvery,
	}
	for _, name := range attacked {
		a := algorithms.Named(name)
		if err := t.estimate(ctx, a, true, attackPoints, attackFor(a, documentLimit).attempts(documentLimit)); err != nil {
			return nil, err
		}
	}
	return append(all, t), nil
}

// trace follows a workload.
func (w workload) trace(ctx context.Context, seed uint64, v view) (trace, error) {
	t := trace{
		Name: v.name, Shows: "what each believes of " + v.traffic.Name + " traffic while it denies nothing", Limit: w.Limit, From: v.from, Every: v.every,
	}
	enforced := v.demand > 1
	if enforced {
		t.Shows = "what each admits of " + v.traffic.Name + " traffic at twice the limit, and what it believes"
	}
	w.Length = v.from + time.Duration(v.points)*v.every
	times := newSimulation(w, seed).times
	for i := range v.points {
		at, n := v.from+time.Duration(i)*v.every, int64(0)
		for _, asked := range times {
			if at-window < asked && asked <= at {
				n++
			}
		}
		t.True = append(t.True, n)
	}
	for _, name := range v.algorithms {
		if err := t.estimate(ctx, algorithms.Named(name), enforced, v.points, times); err != nil {
			return t, err
		}
	}
	return t, nil
}

// estimate adds an algorithm's estimates of arrivals at these times, at so many points.
func (t *trace) estimate(ctx context.Context, a algorithms.Algorithm, enforced bool, points int, times []time.Duration) error {
	s, err := newSubject(a, t.Limit, enforced)
	if err != nil {
		return err
	}
	e := traceEstimate{Algorithm: a.Name}
	var admitted exactLog
	for i := range points {
		at := t.From + time.Duration(i)*t.Every
		for ; len(times) > 0 && times[0] <= at; times = times[1:] {
			answer, err := s.ask(ctx, times[0])
			if err != nil {
				return err
			}
			if admitted.sum(times[0]); answer.allowed {
				admitted.add(times[0], 1)
			}
		}
		v, err := s.peek(ctx, at)
		if err != nil {
			return err
		}
		if e.Values = append(e.Values, v); enforced {
			e.Admitted = append(e.Admitted, admitted.sum(at))
		}
	}
	t.Estimates = append(t.Estimates, e)
	return nil
}
