package accuracy

import (
	"context"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
)

// A Trace is what algorithms believe of one client over time, beside what is
// true: the figures of a picture.
type Trace struct {
	Traffic     string  `json:"traffic"`
	Description string  `json:"description"`
	Limit       int64   `json:"limit"`
	Demand      float64 `json:"demand"`
	// Enforced says that only what is admitted counts; else every request does.
	Enforced bool          `json:"enforced"`
	From     time.Duration `json:"from_ns"`
	Every    time.Duration `json:"every_ns"`
	// True is the number of requests in the last Window, at From and then every
	// Every. Attacks are different for each algorithm, and so have none.
	True      []int64    `json:"true,omitempty"`
	Estimates []Estimate `json:"estimates"`
}

// An Estimate is what an algorithm takes to be in use at the times of its
// Trace, and if that is Enforced, how many of the requests in the last Window it
// has admitted.
type Estimate struct {
	Algorithm string  `json:"algorithm"`
	Values    []int64 `json:"values"`
	Admitted  []int64 `json:"admitted,omitempty"`
}

const (
	// By then each window has been full.
	traceFrom   = 2*time.Minute + 550*time.Millisecond
	tracePoints = 180
	// The tenth of a second takes it through all parts of slots in turn.
	traceEvery = 2100 * time.Millisecond

	// Half a minute before the boundary attacker is at work to half a minute
	// after it all has left the window, in its second cycle. What has just left
	// slots of a second is seen before it fades out.
	boundaryFrom   = 150*time.Second + 2*traffic.Edge
	boundaryPoints = 480
	boundaryEvery  = 250 * time.Millisecond

	curvesName   = "curves"
	curvesPoints = 330
	curvesFrom   = 50 * time.Millisecond
	curvesEvery  = 1100 * time.Millisecond

	// traceClient is the one of many clients that asks for about its limit.
	traceClient = 2

	attackPoints = 480
	attackEvery  = 250 * time.Millisecond
	// Just before slots end the most of what fades out has been admitted.
	attackFrom = attackEvery - time.Millisecond
)

// The algorithms of the traces.
var (
	believing = []string{algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding10, algorithms.Sliding60, algorithms.Strict60}
	enforcing = []string{algorithms.Fixed, algorithms.Sliding10, algorithms.Capped10, algorithms.Strict60, algorithms.Token, algorithms.Counting32}
	curved    = []string{algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding60}
	attacked  = []string{algorithms.Fixed, algorithms.Sliding10, algorithms.Sliding60, algorithms.Capped10, algorithms.Strict60, algorithms.Counting64}
)

// Traces returns two traces of each kind of traffic with the documents' limit:
// at the limit, every request counted, and enforced at twice the limit.
func Traces(ctx context.Context, seed uint64) ([]Trace, error) {
	var all []Trace
	for _, w := range Workloads(0) {
		if w.Limit != DocumentLimit {
			continue
		}
		enforced, names := w.Demand > 1, believing
		if enforced {
			names = enforcing
		}
		t, err := w.trace(ctx, seed, enforced, names...)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func (w Workload) trace(ctx context.Context, seed uint64, enforced bool, names ...string) (Trace, error) {
	t := Trace{Traffic: w.Name, Enforced: enforced, From: traceFrom, Every: traceEvery}
	points := tracePoints
	switch w.Name {
	case Day:
		t.Every = traffic.Day/tracePoints + traceEvery%time.Second
	case Boundary:
		t.From, t.Every, points = boundaryFrom, boundaryEvery, boundaryPoints
	}
	err := t.follow(ctx, w, seed, points, names...)
	return t, err
}

// curves returns the trace of random traffic at the limit from its first
// request on, every request counted.
func curves(ctx context.Context, seed uint64) (Trace, error) {
	w := single(traffic.Named(Poisson), Poisson, DocumentLimit, 1, 0)
	t := Trace{Traffic: curvesName, From: curvesFrom, Every: curvesEvery}
	err := t.follow(ctx, w, seed, curvesPoints, curved...)
	return t, err
}

// follow adds what is true of a workload, and what algorithms believe.
func (t *Trace) follow(ctx context.Context, w Workload, seed uint64, points int, names ...string) error {
	t.Description, t.Limit, t.Demand = w.Description, w.Limit, w.Demand
	var arrivals []time.Duration
	for r := range w.arrivals(seed, t.From+time.Duration(points)*t.Every) {
		if w.Clients == 1 || r.Client == traceClient {
			arrivals = append(arrivals, r.At)
		}
	}
	log := traffic.NewRecent(Window)
	// Nobody returns an error.
	_ = t.sample(points, arrivals, func(at time.Duration) error {
		log.Count(at)
		log.Add(at)
		return nil
	}, func(at time.Duration) error {
		t.True = append(t.True, log.Count(at))
		return nil
	})
	for _, name := range names {
		if err := t.estimate(ctx, name, points, arrivals); err != nil {
			return err
		}
	}
	return nil
}

// attackTraces returns a trace of the attacks that are written for algorithms.
func attackTraces(ctx context.Context) (Trace, error) {
	t := Trace{Traffic: "attack", Description: "the attack that is written for each", Limit: DocumentLimit, Enforced: true, From: attackFrom, Every: attackEvery}
	for _, name := range attacked {
		a := algorithm{algorithms.Named(name)}
		if err := t.estimate(ctx, name, attackPoints, a.attack(DocumentLimit).attempts(DocumentLimit)); err != nil {
			return Trace{}, err
		}
	}
	return t, nil
}

// estimate adds what an algorithm believes of the arrivals, at so many points.
func (t *Trace) estimate(ctx context.Context, name string, points int, arrivals []time.Duration) error {
	s, err := algorithm{algorithms.Named(name)}.subject(t.Limit, 1, t.Enforced)
	if err != nil {
		return err
	}
	e := Estimate{Algorithm: name}
	admitted := traffic.NewRecent(Window)
	err = t.sample(points, arrivals, func(at time.Duration) error {
		a, err := s.ask(ctx, oneClient, at)
		if admitted.Count(at); a.allowed {
			admitted.Add(at)
		}
		return err
	}, func(at time.Duration) error {
		v, err := s.peek(ctx, oneClient, at)
		e.Values = append(e.Values, v)
		if t.Enforced {
			e.Admitted = append(e.Admitted, admitted.Count(at))
		}
		return err
	})
	t.Estimates = append(t.Estimates, e)
	return err
}

// sample looks so many times, at the times of the trace, after each of the
// arrivals up to then has been told.
func (t *Trace) sample(points int, arrivals []time.Duration, tell, look func(time.Duration) error) error {
	for i := range points {
		at := t.From + time.Duration(i)*t.Every
		for len(arrivals) > 0 && arrivals[0] <= at {
			if err := tell(arrivals[0]); err != nil {
				return err
			}
			arrivals = arrivals[1:]
		}
		if err := look(at); err != nil {
			return err
		}
	}
	return nil
}
