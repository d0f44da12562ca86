package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"weir/api/policyfile"
	"weir/bench/internal/algorithms"
	"weir/cas"
	"weir/subwindow"
)

// A scenario is all that a seed decides before the world begins.
type scenario struct {
	seed        uint64
	algorithm   algorithms.Algorithm
	limit       int64
	burst       int64 // of a bucket
	window      time.Duration
	processes   int
	skew        time.Duration // between the clocks of two processes, at most
	timeout     time.Duration
	countDenied bool
	maxCost     int64
	calls       int
	sticky      bool // the client mostly stays with a process
	latecomer   bool // the first process is asked only at the end
	refuses     bool // checks that fail are refused for good
	charges     bool // costs are charged that weren't admitted
	faults      faults
}

// Faults are the kinds of trouble that a seed may have.
type faults struct {
	slow     bool // operations take until their deadline, and replies longer
	stalled  bool // operations are applied after their callers have left
	lost     bool // before or after they were applied
	crashes  bool // a process ends in the middle of its calls
	refunds  bool
	resets   bool
	jumps    bool // of clocks, within the skew
	evicts   bool // single keys
	flushes  bool // all keys
	restarts bool // all keys, and versions begin at 1 again
	outages  bool // nobody is answered for a while; processes limit alone then
	late     bool // operations take longer than their callers wait, who hear of them later
}

func (f faults) String() string {
	var names []string
	for field, on := range reflect.ValueOf(f).Fields() {
		if on.Bool() {
			names = append(names, field.Name)
		}
	}
	return strings.Join(names, " ")
}

// drawn are the algorithms; how many slots a window has is drawn after that.
var drawn = algorithms.Select(algorithms.Fixed,
	algorithms.Sliding10, algorithms.Sliding10, algorithms.Strict60, algorithms.Strict60,
	algorithms.Token, algorithms.Leaky, algorithms.Log)

func draw(seed uint64, r *rand.Rand) scenario {
	chance := func(of int) bool { return r.IntN(of) == 0 }
	s := scenario{
		seed:        seed,
		algorithm:   pick(r, drawn...),
		limit:       1 + r.Int64N(10),
		window:      pick[time.Duration](r, 200, 500, 1000, 2000, 5000) * time.Millisecond,
		processes:   2 + r.IntN(3),
		skew:        pick[time.Duration](r, 0, 10, 50, 100) * time.Millisecond,
		timeout:     pick[time.Duration](r, 20, 50, 50, 200, 1000) * time.Millisecond,
		countDenied: chance(5),
		maxCost:     pick[int64](r, 1, 1, 3),
		calls:       20 + r.IntN(50),
		sticky:      chance(2),
		latecomer:   chance(3),
		faults: faults{
			slow: chance(3), stalled: chance(8), lost: chance(5), crashes: chance(6), refunds: chance(3),
			resets: chance(5), jumps: chance(4), evicts: chance(12), flushes: chance(12), restarts: chance(6),
			outages: seed%4 == 3,
		},
	}
	switch a := &s.algorithm; {
	case a.Kind == algorithms.Bucket:
		s.burst = pick(r, s.limit, 1+r.Int64N(10))
		s.faults.refunds = chance(2)
		s.maxCost = pick(r, s.maxCost, s.burst) // all of it drains before it is refunded
	case a.Slots > 0:
		a.Slots = pick(r, 1, 2, 4, 5, 10)
	case s.fixed() && chance(4):
		s.timeout = 5 * time.Second // longer than a counter of a short window would live
	}
	if s.width() == 0 { // processes get into each other's way
		s.timeout = pick[time.Duration](r, 20, 20, 50, 200) * time.Millisecond
		s.sticky = chance(5)
	}
	// Not drawn, so that a seed's other numbers don't depend on it.
	s.algorithm.Capped = s.algorithm.Slots > 0 && !s.algorithm.Strict && seed/4%2 == 0
	if s.algorithm.Kind == algorithms.Times && seed/4%2 == 0 {
		s.algorithm = algorithms.Counting
		if seed/8%2 == 0 { // so that an entry counts several
			s.limit *= 5
			s.calls *= 2
		}
	}
	if seed/1024%4 == 1 && !s.faults.crashes { // the first thousand need several
		s.processes, s.latecomer = 1, false
	}
	s.maxCost = min(s.maxCost, s.capacity())
	s.faults.late = seed%5 >= 3
	s.refuses = s.faults.late && !s.faults.outages && !s.countDenied && seed/5%3 > 0
	return s
}

// drawAccounts draws the scenario of a world that tells afterwards what was in use: denied
// costs don't count, and no counts vanish but by a reset.
func drawAccounts(seed uint64, r *rand.Rand) scenario {
	s := draw(seed, r)
	s.countDenied, s.refuses, s.latecomer = false, false, false
	f := s.faults
	s.faults = faults{slow: f.slow, stalled: f.stalled, lost: f.lost, crashes: f.crashes, resets: f.resets, jumps: f.jumps, late: f.late}
	return s
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (s *scenario) String() string {
	what := s.algorithm.Name
	if slots := s.algorithm.Slots; slots > 0 {
		what = fmt.Sprintf("window of %d slots", slots)
	}
	if s.algorithm.Strict {
		what = "strict " + what
	}
	if s.algorithm.Capped {
		what = "capped " + what
	}
	if s.burst > 0 {
		what = fmt.Sprintf("%s with burst %d", what, s.burst)
	}
	if s.countDenied {
		what += ", denied ones count"
	}
	if s.refuses {
		what += ", those that fail are refused"
	}
	return fmt.Sprintf("seed %d: %s, %d per %v; %d processes, clocks within %v, timeout %v; faults: %v",
		s.seed, what, s.limit, s.window, s.processes, s.skew, s.timeout, s.faults)
}

// capacity returns the largest cost that can ever be admitted.
func (s *scenario) capacity() int64 { return cmp.Or(s.burst, s.limit) }

func (s *scenario) fixed() bool { return s.algorithm.Name == algorithms.Fixed }

// width returns the width of a slot, or 0 if there are none.
func (s *scenario) width() time.Duration {
	if s.algorithm.Kind != algorithms.Counters {
		return 0
	}
	return s.algorithm.Width(s.window)
}

// kept returns how much of the capacity a log that counts may have in use of
// what has left the window: of its oldest entry, of which the last is in the
// window, and the first doesn't count, unless they were refunded.
func (s *scenario) kept() int64 {
	if s.algorithm.Name != algorithms.Counting.Name {
		return 0
	}
	share := (s.limit + cas.MinLogEntries - 1) / cas.MinLogEntries
	if (s.faults.refunds || s.faults.late) && share > 1 {
		return share - 1
	}
	return max(0, share-2)
}

// lasts returns how long after its admission a cost can be in the way. Before it, a
// bucket's debt has to drain: what was denied and counted, charged, or admitted without the
// store. A lease is kept until it has ended by any clock.
func (s *scenario) lasts() time.Duration {
	if s.algorithm.Name == algorithms.Leases.Name {
		return s.window + s.window/16 + 2*s.skew
	}
	if s.burst > 0 {
		lasts := s.window * time.Duration(s.burst) / time.Duration(s.limit)
		if s.countDenied || s.charges || s.faults.outages {
			lasts += max(lasts, s.window)
		}
		return lasts
	}
	return s.window + 2*s.width()
}

const policy = "world"

type limiter = policyfile.Limiter

// bound returns how much the docs allow to be admitted within a span of true
// time in which refunds have left a bucket empty so many times. A fixed window
// isn't bound by spans, but by the calendar.
func (s *scenario) bound(span time.Duration, emptyings int) int64 {
	const none = 1 << 62
	switch a := s.algorithm; {
	case a.Strict:
		if span < s.window {
			return s.limit
		}
	case a.Kind == algorithms.Times:
		if span < s.window-s.skew {
			return s.limit
		}
	case a.Kind == algorithms.Bucket:
		// An empty one begins anew, be it for a request that was on its way.
		apart := s.skew + time.Duration(emptyings)*(s.skew+s.timeout)
		return s.burst + s.limit*int64(span+apart)/int64(s.window)
	case span < s.window-s.width()-s.skew:
		return s.limit
	case span < s.window-s.skew:
		return (&subwindow.Window{Slots: a.Slots, Capped: a.Capped}).Most(s.limit)
	}
	return none
}
