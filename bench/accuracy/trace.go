package accuracy

import (
	"context"
	"time"

	"weir/bench/traffic"
)

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

// An Estimate is what an algorithm takes to be in use at the times of its Trace.
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

// Traces returns a trace of each workload with the documents' limit and demand 1.
func Traces(ctx context.Context, seed uint64, algorithms []Algorithm) ([]Trace, error) {
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

func (w Workload) trace(ctx context.Context, seed uint64, algorithms []Algorithm) (Trace, error) {
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
	var log recent
	var err error
	t.True, err = t.sample(arrivals, func(at time.Duration) error {
		log.count(at)
		log.add(at)
		return nil
	}, func(at time.Duration) (int64, error) {
		return log.count(at), nil
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

const oneClient = "client"

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
