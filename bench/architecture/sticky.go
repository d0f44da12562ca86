package architecture

import (
	"time"

	"weir/bench/traffic"
)

// Sticky sessions: the balancer binds each client to one instance, which limits
// alone. Nothing has to be shared, until the number of instances changes.
type Sticky struct {
	limit     Limit
	scale     ScaleOut
	rebinds   bool
	instances map[int]int // when each client came, for clients that stay
	logs      map[binding]*recent
}

type binding struct{ client, instance int }

// NewSticky returns sticky sessions through a scale-out. A balancer that
// rebinds sends client c to instance c modulo the number of instances; one that
// doesn't goes on sending it to the instance that it was sent to first.
func NewSticky(limit Limit, scale ScaleOut, rebinds bool) *Sticky {
	return &Sticky{limit: limit, scale: scale, rebinds: rebinds, instances: make(map[int]int), logs: make(map[binding]*recent)}
}

// Take implements Architecture.
func (s *Sticky) Take(a traffic.Arrival) (Outcome, error) {
	b := binding{a.Client, s.Instance(a)}
	log, ok := s.logs[b]
	if !ok {
		log = &recent{length: s.limit.Window}
		s.logs[b] = log
	}
	if log.count(a.At) >= s.limit.Requests {
		return Outcome{}, nil
	}
	log.add(a.At)
	return Outcome{Admitted: true}, nil
}

// Instance returns the instance that a request is sent to.
func (s *Sticky) Instance(a traffic.Arrival) int {
	if s.rebinds {
		return a.Client % s.scale.Instances(a.At)
	}
	instances, ok := s.instances[a.Client]
	if !ok {
		instances = s.scale.Instances(a.At)
		s.instances[a.Client] = instances
	}
	return a.Client % instances
}

// Bounds implements Architecture, for a client that each step moves to an
// instance where it hasn't been, as they do the one whose number is ScaleOut.To-1,
// and steps that all fall in one window: it gets its whole limit on each
// instance.
func (s *Sticky) Bounds(float64) (least, most float64) {
	instances := 1
	if s.rebinds {
		instances += s.scale.steps()
	}
	all := float64(instances * s.limit.Requests)
	return all, all
}

// A ScaleOut doubles the instances from one to To, a power of two: first at
// Start, and again each time that Every has passed.
type ScaleOut struct {
	To           int
	Start, Every time.Duration
}

// Instances returns how many there are at a time since the start of the run.
func (s ScaleOut) Instances(at time.Duration) int {
	instances := 1
	for next := s.Start; instances < s.To && next <= at; next += s.Every {
		instances *= 2
	}
	return instances
}

func (s ScaleOut) steps() int {
	steps := 0
	for instances := 1; instances < s.To; instances *= 2 {
		steps++
	}
	return steps
}
