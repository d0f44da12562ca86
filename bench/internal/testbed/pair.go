package testbed

import (
	"context"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/counters"
)

// A Side is a server under load: weir, or what it is compared with.
type Side struct {
	*Process
	Memcached   *Memcached // its own; nil if it has none
	Connections loadgen.Connections
	Turn        *loadgen.Turn
	Size        int64 // checks of an operation
}

// Load counts checks.
func (s *Side) Load(ctx context.Context, d time.Duration) (loadgen.Tally, error) {
	t, err := s.Connections.Drive(ctx, s.Turn, d)
	t.Admitted *= s.Size
	return t, err
}

// warm checks each client once, unless weir would have forgotten the first by the
// last, and goes on for a while.
func (s *Side) warm(ctx context.Context, d time.Duration) error {
	if s.Turn.Clients*s.Size <= counters.DefaultClients {
		if _, err := s.Connections.Drive(ctx, &loadgen.Turn{Clients: s.Turn.Clients, Last: s.Turn.Clients}, 0); err != nil {
			return err
		}
	}
	_, err := s.Load(ctx, d)
	return err
}

// A Pair is a measurement of weir and of what it is compared with: their rates in
// slices that took turns, and what a check takes while both are loaded.
type Pair struct {
	Weir, Other loadgen.Tally
	Ratios      []float64  // per slice, weir's rate to the other's
	Store       StoreStats // what weir's memcached did during the turns
	CPU         CPUTimes
}

// Compare loads both sides after a warm-up of each, at least so long: in turn, for
// their rates, and then at the same moment, for their processor times.
func Compare(ctx context.Context, warmUp, d time.Duration, weir, other *Side) (*Pair, error) {
	for _, s := range []*Side{other, weir} {
		if err := s.warm(ctx, warmUp); err != nil {
			return nil, err
		}
	}
	p := new(Pair)
	var err error
	p.Store, err = weir.Memcached.During(func() error {
		return p.measure(d, func(side int, d time.Duration) (loadgen.Tally, error) { return []*Side{other, weir}[side].Load(ctx, d) })
	})
	if err == nil {
		p.CPU, err = atOnce(ctx, d, weir, other)
	}
	return p, err
}

// measure loads each side for d in all: the other, which is side 0, and then weir.
func (p *Pair) measure(d time.Duration, load func(side int, d time.Duration) (loadgen.Tally, error)) error {
	p.Other, p.Weir = loadgen.NewTally(), loadgen.NewTally()
	totals, rates := []*loadgen.Tally{&p.Other, &p.Weir}, []float64{0, 0}
	for side, d := range loadgen.TakeTurns(2, d) {
		t, err := load(side, d)
		if err != nil {
			return err
		}
		totals[side].Add(t)
		if rates[side] = t.Rate(); side == 1 {
			p.Ratios = append(p.Ratios, rates[1]/rates[0])
		}
	}
	return nil
}

// A Comparison is how the two sides of a pair did.
type Comparison struct {
	Rate               float64 `json:"rate"` // per second
	report.Percentiles         // of weir
	Other              float64 `json:"other_rate"` // per second
	Ratio              float64 `json:"ratio"`      // of Rate to Other
	// The smallest and the largest ratio of two neighbouring slices.
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
}

// Comparison returns the rates of both.
func (p *Pair) Comparison() Comparison {
	return Comparison{
		Rate: p.Weir.Rate(), Percentiles: report.NewPercentiles(p.Weir.Latency),
		Other: p.Other.Rate(), Ratio: p.Weir.Rate() / p.Other.Rate(),
		RatioMin: slices.Min(p.Ratios), RatioMax: slices.Max(p.Ratios),
	}
}

// CPUTimes are what a check takes of a processor.
type CPUTimes struct {
	Weir      time.Duration `json:"cpu_ns"`
	Memcached time.Duration `json:"memcached_cpu_ns"` // weir's
	Other     time.Duration `json:"other_cpu_ns"`     // in what weir is compared with
	// That of the other; 0 if it has none.
	OtherMemcached time.Duration `json:"other_memcached_cpu_ns,omitempty"`
}

// perCheck returns the times per check of what the processes have used in all.
func (used CPUTimes) perCheck(weir, other loadgen.Tally) CPUTimes {
	own, others := time.Duration(weir.Checks()), time.Duration(other.Checks())
	return CPUTimes{used.Weir / own, used.Memcached / own, used.Other / others, used.OtherMemcached / others}
}

// atOnce loads both sides at the same moment, so that what else the machine does
// hits both alike, each by half of its connections: together they wait for the
// machine no longer than one does in its turn.
func atOnce(ctx context.Context, d time.Duration, weir, other *Side) (CPUTimes, error) {
	var used CPUTimes
	var tallies [2]loadgen.Tally
	clocks := Clocks{&used.Weir: weir.CPU, &used.Memcached: weir.Memcached.CPU, &used.Other: other.CPU}
	if other.Memcached != nil {
		clocks[&used.OtherMemcached] = other.Memcached.CPU
	}
	err := clocks.During(func() error {
		return Parallel(2, 2, func(i int) (err error) {
			half := *[]*Side{weir, other}[i]
			half.Connections = half.Connections[:max(1, len(half.Connections)/2)]
			tallies[i], err = half.Load(ctx, d)
			return err
		})
	})
	if err != nil {
		return used, err
	}
	return used.perCheck(tallies[0], tallies[1]), nil
}
