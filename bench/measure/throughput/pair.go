package throughput

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

type config struct {
	duration    time.Duration // per row and side
	warmUp      time.Duration // per row and side, at least
	connections int
	clients     int64 // of a row, at most
	rows        *regexp.Regexp
	profiles    string // a directory, or ""
}

// A pair is a measurement of weir and of what it is compared with: their rates in
// slices that took turns, and what a check takes while both are loaded.
type pair struct {
	weir, other loadgen.Tally
	ratios      []float64 // per slice, weir's rate to the other's

	// What memcached did meanwhile, and processor times, if they were measured.
	store testbed.StoreStats
	cpuTimes
}

// measure measures each side for d in all. The other begins.
func (p *pair) measure(d time.Duration, other, weir func(time.Duration) (loadgen.Tally, error)) error {
	totals, rates, err := loadgen.TakeTurns(2, d, func(side int, d time.Duration) (loadgen.Tally, error) {
		return []func(time.Duration) (loadgen.Tally, error){other, weir}[side](d)
	})
	if err != nil {
		return err
	}
	p.other, p.weir = totals[0], totals[1]
	for i, rate := range rates[1] {
		p.ratios = append(p.ratios, rate/rates[0][i])
	}
	return nil
}

// A comparison is how the two sides of a pair did.
type comparison struct {
	Rate               float64 `json:"rate"` // per second
	report.Percentiles         // of weir
	Other              float64 `json:"other_rate"` // per second
	Ratio              float64 `json:"ratio"`      // of Rate to Other
	// The smallest and the largest ratio of two neighbouring slices.
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
}

func (p *pair) comparison() comparison {
	return comparison{
		Rate: p.weir.Rate(), Percentiles: report.NewPercentiles(p.weir.Latency),
		Other: p.other.Rate(), Ratio: p.weir.Rate() / p.other.Rate(),
		RatioMin: slices.Min(p.ratios), RatioMax: slices.Max(p.ratios),
	}
}

// cpuTimes are what a check takes of a processor.
type cpuTimes struct {
	Weir      time.Duration `json:"cpu_ns"`
	Memcached time.Duration `json:"memcached_cpu_ns"`
	Other     time.Duration `json:"other_cpu_ns"` // in what weir is compared with
}

// perCheck returns the times per check of what the processes have used in all.
func (used cpuTimes) perCheck(weir, other loadgen.Tally) cpuTimes {
	checks := time.Duration(weir.Checks())
	return cpuTimes{used.Weir / checks, used.Memcached / checks, used.Other / time.Duration(other.Checks())}
}

// halfLoad is how long answers take at half of the rate that was measured.
type halfLoad struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

const halfHeader = "p50 half\tp99 half\t"

// cells returns the cells of a table, which are empty if it wasn't measured.
func (h halfLoad) cells() string {
	if h == (halfLoad{}) {
		return "-\t-\t"
	}
	return report.Milliseconds(h.P50) + "\t" + report.Milliseconds(h.P99) + "\t"
}

// A side is a server under load.
type side struct {
	*testbed.Process
	connections loadgen.Connections
	turn        *loadgen.Turn
	size        int64 // checks of an operation
}

// dial returns a side that is sent checks of the workload, one by one.
func dial(ctx context.Context, p *testbed.Process, w loadgen.Workload, connections int) (*side, error) {
	all, err := loadgen.Dial(ctx, p.Addr, w.Request(), connections)
	return &side{p, all, &loadgen.Turn{Clients: w.Clients}, 1}, err
}

// load counts checks.
func (s *side) load(ctx context.Context, d time.Duration) (loadgen.Tally, error) {
	t, err := s.connections.Drive(ctx, s.turn, d)
	t.Admitted *= s.size
	return t, err
}

// warm checks each client once, unless weir would have forgotten the first by the
// last, and goes on for a while.
func (s *side) warm(ctx context.Context, d time.Duration) error {
	if s.turn.Clients*s.size <= counters.DefaultClients {
		if _, err := s.connections.Drive(ctx, &loadgen.Turn{Clients: s.turn.Clients, Last: s.turn.Clients}, 0); err != nil {
			return err
		}
	}
	_, err := s.load(ctx, d)
	return err
}

// compare loads both sides after a warm-up: in turn, for their rates, and then at
// the same moment, for their processor times.
func compare(ctx context.Context, cfg config, m *testbed.Memcached, weir, other *side) (*pair, error) {
	for _, s := range []*side{other, weir} {
		if err := s.warm(ctx, cfg.warmUp); err != nil {
			return nil, err
		}
	}
	p := new(pair)
	var err error
	p.store, err = m.During(func() error {
		return p.measure(cfg.duration,
			func(d time.Duration) (loadgen.Tally, error) { return other.load(ctx, d) },
			func(d time.Duration) (loadgen.Tally, error) { return weir.load(ctx, d) })
	})
	if err == nil {
		p.cpuTimes, err = atOnce(ctx, cfg.duration, m, weir, other)
	}
	return p, err
}

// atOnce loads both sides at the same moment, so that what else the machine does
// hits both alike, each by half of its connections: together they wait for the
// machine no longer than one does in its turn. Only weir asks m.
func atOnce(ctx context.Context, d time.Duration, m *testbed.Memcached, weir, other *side) (cpuTimes, error) {
	var used cpuTimes
	var tallies [2]loadgen.Tally
	add := func(sign time.Duration) error {
		for process, into := range map[*testbed.Process]*time.Duration{weir.Process: &used.Weir, m.Process: &used.Memcached, other.Process: &used.Other} {
			cpu, err := process.CPU()
			if err != nil {
				return err
			}
			*into += sign * cpu
		}
		return nil
	}
	if err := add(-1); err != nil {
		return used, err
	}
	err := testbed.Parallel(2, 2, func(i int) (err error) {
		half := *[]*side{weir, other}[i]
		half.connections = half.connections[:max(1, len(half.connections)/2)]
		tallies[i], err = half.load(ctx, d)
		return err
	})
	if err := cmp.Or(err, add(+1)); err != nil {
		return used, err
	}
	return used.perCheck(tallies[0], tallies[1]), nil
}

// half sends, for d, half of the rate in checks per second, for clients in turn.
func (s *side) half(ctx context.Context, rate float64, d time.Duration) (halfLoad, error) {
	pace := loadgen.Pace{Rate: rate / float64(2*s.size), Length: d, Seed: 1}
	sample := loadgen.NewOpenLoop(s.connections).Run(ctx, pace, func() int64 { n, _ := s.turn.Next(); return n }, loadgen.Patience)
	p := report.NewPercentiles(sample.Latency)
	return halfLoad{p.P50, p.P99}, cmp.Or(ctx.Err(), sample.Fault())
}

// mallocsMetric is the name that Prometheus's Go collector gives to the number
// of objects allocated.
const mallocsMetric = "go_memstats_mallocs_total"

// muchMore is how many times as many objects as asking for their number
// allocates the load has to: that varies.
const muchMore = 10

// allocations returns how many objects the server at addr allocates for a check
// of the load, which is repeated until they are many.
func allocations(ctx context.Context, addr string, load func() (loadgen.Tally, error)) (float64, error) {
	for times := 1; ; times *= 2 {
		before, err1 := loadgen.Metric(ctx, addr, mallocsMetric)
		between, err2 := loadgen.Metric(ctx, addr, mallocsMetric)
		if err := cmp.Or(err1, err2); err != nil {
			return 0, err
		}
		var checks int64
		for range times {
			t, err := load()
			if err != nil {
				return 0, err
			}
			checks += t.Checks()
		}
		after, err := loadgen.Metric(ctx, addr, mallocsMetric)
		if err != nil {
			return 0, err
		}
		asking := between - before
		if allocated := after - between - asking; allocated >= muchMore*asking {
			return allocated / float64(checks), nil
		}
	}
}
