// Package load puts a server under an open loop: checks are sent when they are
// due, at a constant rate, or at rates that search for the highest whose p99 stays
// under a bound. Latency counts from when a check was due. The server is a weir, of
// the bench's own or another.
//
// Run is the command; loadgen's open loop is what sends and reads.
package load

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// Run loads a server, prints what it saw as tables. The error says
// what went wrong other than slowness.
func Run(ctx context.Context, args []string, out io.Writer) error {
	flags := report.NewFlags("load")
	cfg, err := parse(flags, args, out)
	if err != nil {
		return err
	}
	r, err := measureAll(ctx, cfg)
	return flags.Publish(out, "load", r, err)
}

// A loader loads a weir by policy after policy.
type loader struct {
	config
	zipf  loadgen.Zipf
	addr  string
	store *testbed.MemcachedConn // nil if the weir isn't the bench's own
	sides []*side
}

// A side is a policy under load, on connections of its own.
type side struct {
	policy      string
	connections loadgen.Connections // none when it needs new ones
}

// stats returns what the memcached has done, if it is known.
func (l *loader) stats() (testbed.StoreStats, error) {
	if l.store == nil {
		return testbed.StoreStats{}, nil
	}
	return l.store.Stats()
}

// measureAll starts a weir if need be and loads it.
func measureAll(ctx context.Context, cfg config) (*Report, error) {
	r := &Report{Machine: report.ThisMachine(""), Target: cfg.target, Connections: cfg.connections, Duration: cfg.duration}
	l := &loader{config: cfg, zipf: loadgen.NewZipf(clients, exponent), addr: cfg.target}
	if l.addr == "" {
		version, err := testbed.MemcachedVersion(ctx)
		if err != nil {
			return nil, err
		}
		build, err := testbed.BuildWeir(ctx, "", "")
		if err != nil {
			return nil, err
		}
		defer build.Remove()
		m, weir, stop, err := build.StartOn(ctx, 1024)
		if err != nil {
			return nil, err
		}
		defer stop()
		r.Machine.Memcached = version
		l.addr, l.store = weir.Addr, m.MemcachedConn
	}
	for _, policy := range cfg.policies {
		s := &side{policy: policy}
		defer s.disconnect()
		l.sides = append(l.sides, s)
	}
	rate := cfg.rate
	if err := l.warm(ctx, cmp.Or(rate, firstRate)); err != nil {
		return nil, err
	}
	var err error
	if rate == 0 {
		r.Bound = cfg.bound
		if r.Searches, err = l.search(ctx); err != nil {
			return nil, err
		}
		lowest := slices.MinFunc(r.Searches, func(a, b searchRow) int { return cmp.Compare(a.Highest, b.Highest) })
		if rate = lowest.Highest / 2; rate == 0 {
			return r, nil
		}
	}
	r.Rows, err = l.measure(ctx, rate)
	return r, err
}

func (s *side) disconnect() {
	s.connections.Close()
	s.connections = nil
}

// warm checks once by each policy, and then at a rate, so that the samples
// don't see what is only so in the beginning.
func (l *loader) warm(ctx context.Context, rate float64) error {
	for _, s := range l.sides {
		if err := l.connect(ctx, s); err != nil {
			return err
		}
		first := s.connections[0]
		within, cancel := context.WithTimeout(ctx, loadgen.Patience)
		stop := context.AfterFunc(within, first.Expire)
		status, body, err := loadgen.Ask(first, 0)
		stop()
		cancel()
		if err == nil && loadgen.Unexpected(status) {
			err = fmt.Errorf("the first check was answered with status %d: %s", status, loadgen.Readable(body))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.policy, err)
		}
		report.Progress("%s: warming up", s.policy)
		// What goes wrong here goes wrong in the samples too.
		if _, _, err := l.sample(ctx, s, loadgen.Constant(max(rate, leastRate), l.warmUp), warmUpNumber, stepPatience); err != nil {
			return err
		}
	}
	return nil
}

// connect gives the side connections if it has none.
func (l *loader) connect(ctx context.Context, s *side) (err error) {
	if s.connections == nil {
		s.connections, err = loadgen.Dial(ctx, l.addr, loadgen.Check(s.policy, 0), l.connections)
	}
	return err
}

// sample loads a side for the length of a pace, and returns what memcached did
// meanwhile. The number stands for the arrivals and clients: with the same
// number they are the same for each side.
func (l *loader) sample(ctx context.Context, s *side, p loadgen.Pace, number uint64, patience time.Duration) (*loadgen.Sample, testbed.StoreStats, error) {
	if err := l.connect(ctx, s); err != nil {
		return nil, testbed.StoreStats{}, err
	}
	before, err := l.stats()
	if err != nil {
		return nil, testbed.StoreStats{}, err
	}
	gaps, random := rand.New(rand.NewPCG(1, 2*number)), rand.New(rand.NewPCG(1, 2*number+1))
	client := func() int64 { return l.zipf.Client(random.Float64()) }
	seen := loadgen.NewOpenLoop(s.connections).Run(ctx, loadgen.NewArrivals(p, gaps), client, patience)
	if err := ctx.Err(); err != nil {
		return nil, testbed.StoreStats{}, err
	}
	if seen.Err != nil || seen.Unanswered() > 0 {
		s.disconnect()
	}
	after, err := l.stats()
	return seen, after.Minus(before), err
}

// search finds the highest rate under the bound for each policy; the policies
// take turns.
func (l *loader) search(ctx context.Context) ([]searchRow, error) {
	rows := make([]searchRow, len(l.sides))
	searches := make([]*search, len(l.sides))
	for i, s := range l.sides {
		rows[i].Policy = s.policy
		searches[i] = newSearch(firstRate, l.resolution)
	}
	for try := uint64(firstTry); slices.ContainsFunc(searches, func(s *search) bool { return s.rate > 0 }); try++ {
		for i, s := range l.sides {
			rate := searches[i].rate
			if rate == 0 {
				continue
			}
			report.Progress("%s: %.0f checks/s", s.policy, rate)
			seen, _, err := l.sample(ctx, s, loadgen.Constant(rate, l.step), try, stepPatience)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.policy, err)
			}
			step := newSearchStep(seen, l.bound)
			rows[i].Steps = append(rows[i].Steps, step)
			searches[i].vote(step.Failed == "")
		}
	}
	for i, s := range searches {
		rows[i].Highest, rows[i].Lowest = s.low, s.high
	}
	return rows, nil
}

// measure loads each policy at a rate, in slices that take turns. The policy
// that is first changes.
func (l *loader) measure(ctx context.Context, rate float64) ([]policyRow, error) {
	totals := make([]*loadgen.Sample, len(l.sides))
	stores := make([]testbed.StoreStats, len(l.sides))
	rows := make([]policyRow, len(l.sides))
	for i := range totals {
		totals[i] = loadgen.NewSample(loadgen.Constant(rate, l.duration))
	}
	for part := range sliceCount {
		for turn := range l.sides {
			i := (part + turn) % len(l.sides)
			s := l.sides[i]
			report.Progress("%s: %.0f checks/s, %d of %d", s.policy, rate, part+1, sliceCount)
			seen, store, err := l.sample(ctx, s, loadgen.Constant(rate, l.duration/sliceCount), uint64(part), loadgen.Patience)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.policy, err)
			}
			totals[i].Add(seen)
			stores[i] = stores[i].Plus(store)
		}
	}
	for i, s := range l.sides {
		rows[i] = newRow(s.policy, totals[i])
		if l.store != nil {
			cost := stores[i].Per(max(1, totals[i].Sent))
			rows[i].Store = &cost
		}
	}
	return rows, nil
}
