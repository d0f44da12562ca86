package throughput

import (
	"cmp"
	"context"
	"math/rand/v2"
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
	rows        *regexp.Regexp
	profiles    string // a directory, or ""
}

// A pair is a measurement of weir and of what it is compared with, in slices
// that took turns.
type pair struct {
	weir, other loadgen.Tally
	ratios      []float64 // per slice, weir's rate to the other's

	// What memcached did, and what the processes used of the processors, if
	// that was measured.
	store                           testbed.StoreStats
	weirCPU, memcachedCPU, otherCPU time.Duration
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
	Noop      time.Duration `json:"noop_cpu_ns"`
}

func (p *pair) cpuTimes() cpuTimes {
	checks := time.Duration(p.weir.Checks())
	return cpuTimes{Weir: p.weirCPU / checks, Memcached: p.memcachedCPU / checks, Noop: p.otherCPU / time.Duration(p.other.Checks())}
}

// halfLoad is how long answers take at half of the rate that was measured.
type halfLoad struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

// measureHalf sends, for d, half of the rate in requests per second, for clients in
// turn.
func measureHalf(ctx context.Context, rate float64, d time.Duration, connections loadgen.Connections, turn *loadgen.Turn) (halfLoad, error) {
	due := loadgen.NewArrivals(loadgen.Constant(rate/2, d), rand.New(rand.NewPCG(1, 1)))
	s := loadgen.NewOpenLoop(connections).Run(ctx, due, func() int64 { n, _ := turn.Next(); return n }, loadgen.Patience)
	p := report.NewPercentiles(s.Latency)
	return halfLoad{p.P50, p.P99}, cmp.Or(ctx.Err(), s.Fault())
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
	clients loadgen.Connections
	turn    *loadgen.Turn
}

func (s *side) load(ctx context.Context, d time.Duration) (loadgen.Tally, error) {
	return s.clients.Drive(ctx, s.turn, d)
}

// meet checks each client once, unless weir would have forgotten the first by the
// last.
func (s *side) meet(ctx context.Context) error {
	if s.turn.Clients > counters.DefaultClients {
		return nil
	}
	_, err := s.clients.Drive(ctx, &loadgen.Turn{Clients: s.turn.Clients, Last: s.turn.Clients}, 0)
	return err
}

// servers are weir and the no-op server, under the same load, and weir's
// memcached.
type servers struct {
	memcached  *testbed.Memcached
	weir, noop *side
}

func dial(ctx context.Context, m *testbed.Memcached, weir, noop *testbed.Process, w loadgen.Workload, connections int) (*servers, error) {
	s := &servers{m, &side{Process: weir}, &side{Process: noop}}
	for _, side := range []*side{s.weir, s.noop} {
		var err error
		if side.clients, err = loadgen.Dial(ctx, side.Addr, w.Request(), connections); err != nil {
			s.close()
			return nil, err
		}
		side.turn = &loadgen.Turn{Clients: w.Clients}
	}
	return s, nil
}

func (s *servers) close() {
	s.weir.clients.Close()
	s.noop.clients.Close()
}

// compare loads both in turn, after a warm-up in which each client is checked
// at least once.
func (s *servers) compare(ctx context.Context, cfg config) (*pair, error) {
	for _, s := range []*side{s.noop, s.weir} {
		if err := s.meet(ctx); err != nil {
			return nil, err
		}
		if _, err := s.load(ctx, cfg.warmUp); err != nil {
			return nil, err
		}
	}
	p := new(pair)
	// The no-op server leaves memcached alone, so its slices needn't be left
	// out.
	err := (cpuUse{s.weir.Process: &p.weirCPU, s.memcached.Process: &p.memcachedCPU, s.noop.Process: &p.otherCPU}).during(func() (err error) {
		p.store, err = s.memcached.During(func() error {
			return p.measure(cfg.duration,
				func(d time.Duration) (loadgen.Tally, error) { return s.noop.load(ctx, d) },
				func(d time.Duration) (loadgen.Tally, error) { return s.weir.load(ctx, d) })
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// cpuUse is where the processor time of processes is added up.
type cpuUse map[*testbed.Process]*time.Duration

// during adds what they use while f runs.
func (u cpuUse) during(f func() error) error {
	add := func(sign time.Duration) error {
		for process, used := range u {
			cpu, err := process.CPU()
			if err != nil {
				return err
			}
			*used += sign * cpu
		}
		return nil
	}
	if err := add(-1); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return add(+1)
}

// extraAllocations returns how many objects weir allocates for a check beyond
// those of the no-op handler, that is net/http's and echo's own.
func (s *servers) extraAllocations(ctx context.Context, d time.Duration) (float64, error) {
	var perCheck [2]float64
	for i, s := range []*side{s.weir, s.noop} {
		var err error
		if perCheck[i], err = allocations(ctx, s.Addr, func() (loadgen.Tally, error) { return s.load(ctx, d) }); err != nil {
			return 0, err
		}
	}
	return perCheck[0] - perCheck[1], nil
}

// muchMore is how many times as many objects as asking for their number
// allocates the load has to: that varies.
const muchMore = 10

// allocations returns how many objects the server at addr allocates for a check
// of the load, which is repeated until they are many.
func allocations(ctx context.Context, addr string, load func() (loadgen.Tally, error)) (float64, error) {
	var counts [5]float64
	for i := range counts {
		var err error
		if counts[i], err = loadgen.Mallocs(ctx, addr); err != nil {
			return 0, err
		}
	}
	before := counts[len(counts)-1]
	var asking []float64
	for i, count := range counts[1:] {
		asking = append(asking, count-counts[i])
	}
	for times := 1; ; times *= 2 {
		var checks int64
		for range times {
			t, err := load()
			if err != nil {
				return 0, err
			}
			checks += t.Checks()
		}
		after, err := loadgen.Mallocs(ctx, addr)
		if err != nil {
			return 0, err
		}
		if allocated := after - before - slices.Min(asking); allocated >= muchMore*slices.Max(asking) {
			return allocated / float64(checks), nil
		}
		before = after
	}
}
