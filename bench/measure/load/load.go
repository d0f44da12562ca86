// Package load puts a server under an open loop: checks are sent when they are
// due, at a constant rate, and latency counts from then. The server is a weir, of
// the bench's own or another.
//
// Run is the command, whose -policies are the rows; loadgen's open loop is what sends and reads.
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
	addr  string
	store *testbed.MemcachedConn // nil if the weir isn't the bench's own
}

// measureAll starts a weir if need be and loads it.
func measureAll(ctx context.Context, cfg config) (*Report, error) {
	r := &Report{Machine: report.ThisMachine(""), Target: cfg.target, Connections: cfg.connections, Duration: cfg.duration}
	l := &loader{config: cfg, addr: cfg.target}
	if l.addr == "" {
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
		r.Machine.Memcached = testbed.MemcachedVersion(ctx)
		l.addr, l.store = weir.Addr, m.MemcachedConn
	}
	for _, policy := range cfg.policies {
		if err := l.warm(ctx, policy); err != nil {
			return nil, fmt.Errorf("%s: %w", policy, err)
		}
	}
	var err error
	r.Rows, err = l.measure(ctx)
	return r, err
}

// warm checks once by a policy, and then at the rate, so that the samples don't
// see what is only so in the beginning.
func (l *loader) warm(ctx context.Context, policy string) error {
	report.Progress("%s: warming up", policy)
	first, err := loadgen.Dial(ctx, l.addr, loadgen.Check(policy, 0), 1)
	if err != nil {
		return err
	}
	defer first.Close()
	within, cancel := context.WithTimeout(ctx, loadgen.Patience)
	defer cancel()
	if _, err := first.Drive(within, &loadgen.Turn{Clients: 1, Last: 1}, 0); err != nil {
		return fmt.Errorf("the first check: %w", err)
	}
	// What goes wrong here goes wrong in the samples too.
	_, _, err = l.sample(ctx, policy, l.warmUp, warmUpNumber)
	return err
}

// sample loads a policy for a while, and returns what memcached did meanwhile. The
// number stands for the arrivals and clients: with the same number they are the
// same for each policy.
func (l *loader) sample(ctx context.Context, policy string, d time.Duration, number uint64) (seen *loadgen.Sample, store testbed.StoreStats, err error) {
	connections, err := loadgen.Dial(ctx, l.addr, loadgen.Check(policy, 0), l.connections)
	if err != nil {
		return nil, store, err
	}
	defer connections.Close()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, number)), exponent, 1, clients-1)
	run := func() error {
		pace := loadgen.Pace{Rate: l.rate, Length: d, Seed: 1 + number}
		seen = connections.OpenLoop(ctx, pace, func() int64 { return int64(zipf.Uint64()) })
		return ctx.Err()
	}
	if l.store == nil {
		err = run()
		return seen, store, err
	}
	store, err = l.store.During(run)
	return seen, store, err
}

// measure loads each policy in slices that take turns. The policy that is first
// changes.
func (l *loader) measure(ctx context.Context) (rows []policyRow, err error) {
	samples, stores := make([]*loadgen.Sample, len(l.policies)), make([]testbed.StoreStats, len(l.policies))
	for i := range samples {
		samples[i] = loadgen.NewSample(loadgen.Pace{Rate: l.rate, Length: l.duration})
	}
	for part := range sliceCount {
		for turn := range l.policies {
			i := (part + turn) % len(l.policies)
			report.Progress("%s: %.0f checks/s, %d of %d", l.policies[i], l.rate, part+1, sliceCount)
			seen, store, err := l.sample(ctx, l.policies[i], l.duration/sliceCount, uint64(part))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.policies[i], err)
			}
			samples[i].Add(seen)
			stores[i] = stores[i].Plus(store)
		}
	}
	for i, policy := range l.policies {
		row := newRow(policy, samples[i])
		if l.store != nil {
			row.Store = new(stores[i].Per(max(1, samples[i].Sent)))
		}
		rows = append(rows, row)
	}
	return rows, nil
}
