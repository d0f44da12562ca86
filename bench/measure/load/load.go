// Package load puts a server under an open loop: checks are sent when they are
// due, at a constant rate, and latency counts from then. The server is a weir, of
// the bench's own or another.
//
// Run is the command; loadgen's open loop is what sends and reads.
package load

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	mostRate = 1_000_000 // that can be asked for
	// warmUpNumber is that of a sample, as those of the slices are: no two have the
	// same arrivals and clients.
	warmUpNumber = 1_000_000
)

// config is what the flags say.
type config struct {
	target      string // host:port; "" for a weir of the bench's own
	policies    []string
	rate        float64
	duration    time.Duration // per policy
	connections int
	warmUp      time.Duration
}

// Run loads a server, and prints what it saw as tables. The error says what went
// wrong other than slowness.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{warmUp: time.Second}
	flags := report.NewFlags("load")
	quick := flags.Quick("a few seconds in all, too short to compare versions")
	flags.Func("target", "load the weir at this `address`, host:port (default: one that is started for the run)", func(s string) error {
		cfg.target = s
		flags.Guest()
		_, _, err := net.SplitHostPort(s)
		return err
	})
	policies := flags.String("policies", "fixed,sliding-1s,token", "comma-separated `names` of the policies to load in turn")
	flags.Float64Var(&cfg.rate, "rate", 5000, "checks per second")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each policy is loaded")
	flags.IntVar(&cfg.connections, "connections", 256, "connections for each policy")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	cfg.policies = strings.Split(*policies, ",")
	if *quick {
		cfg.duration, cfg.warmUp = time.Second, 100*time.Millisecond
	}
	switch once := slices.Compact(slices.Sorted(slices.Values(cfg.policies))); {
	case slices.Contains(once, "") || len(once) < len(cfg.policies):
		return flags.Errorf("-policies must be names, each once")
	case !(cfg.rate > 0 && cfg.rate <= mostRate):
		return flags.Errorf("-rate must be more than 0, and at most %d", mostRate)
	case cfg.duration <= 0 || cfg.connections <= 0:
		return flags.Errorf("-duration and -connections must be more than 0")
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
	seen        *loadgen.Sample
	store       testbed.StoreStats // what memcached did meanwhile
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
		s := &side{policy: policy, seen: loadgen.NewSample(loadgen.Pace{Rate: cfg.rate, Length: cfg.duration})}
		defer s.disconnect()
		l.sides = append(l.sides, s)
	}
	if err := l.warm(ctx); err != nil {
		return nil, err
	}
	if err := l.measure(ctx); err != nil {
		return nil, err
	}
	for _, s := range l.sides {
		row := newRow(s.policy, s.seen)
		if l.store != nil {
			cost := s.store.Per(max(1, s.seen.Sent))
			row.Store = &cost
		}
		r.Rows = append(r.Rows, row)
	}
	return r, nil
}

func (s *side) disconnect() {
	s.connections.Close()
	s.connections = nil
}

// warm checks once by each policy, and then at the rate, so that the samples
// don't see what is only so in the beginning.
func (l *loader) warm(ctx context.Context) error {
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
		if _, _, err := l.sample(ctx, s, l.warmUp, warmUpNumber); err != nil {
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

// sample loads a side for a while, and returns what memcached did meanwhile. The
// number stands for the arrivals and clients: with the same number they are the
// same for each side.
func (l *loader) sample(ctx context.Context, s *side, d time.Duration, number uint64) (seen *loadgen.Sample, store testbed.StoreStats, err error) {
	if err := l.connect(ctx, s); err != nil {
		return nil, store, err
	}
	gaps, random := rand.New(rand.NewPCG(1, 2*number)), rand.New(rand.NewPCG(1, 2*number+1))
	run := func() error {
		due := loadgen.NewArrivals(loadgen.Pace{Rate: l.rate, Length: d}, gaps)
		seen = loadgen.NewOpenLoop(s.connections).Run(ctx, due, func() int64 { return l.zipf.Client(random.Float64()) }, loadgen.Patience)
		return ctx.Err()
	}
	if l.store == nil {
		err = run()
	} else {
		store, err = l.store.During(run)
	}
	if err == nil && (seen.Err != nil || seen.Unanswered() > 0) {
		s.disconnect()
	}
	return seen, store, err
}

// measure loads each policy in slices that take turns. The policy that is first
// changes.
func (l *loader) measure(ctx context.Context) error {
	for part := range sliceCount {
		for turn := range l.sides {
			s := l.sides[(part+turn)%len(l.sides)]
			report.Progress("%s: %.0f checks/s, %d of %d", s.policy, l.rate, part+1, sliceCount)
			seen, store, err := l.sample(ctx, s, l.duration/sliceCount, uint64(part))
			if err != nil {
				return fmt.Errorf("%s: %w", s.policy, err)
			}
			s.seen.Add(seen)
			s.store = s.store.Plus(store)
		}
	}
	return nil
}
