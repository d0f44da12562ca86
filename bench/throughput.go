package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// sliceCount is how many times a row goes back and forth between weir and what it
// is compared with, so that what else the machine does hits both alike.
const sliceCount = 3

// throughputConfig is what the flags of throughput say.
type throughputConfig struct {
	duration    time.Duration // per row and side
	warmUp      time.Duration // per row and side, at least
	connections int
	rows        *regexp.Regexp
	dir         string // of the figures and the plots
}

// parseThroughput reads the flags of throughput; on -help it prints them to out.
func parseThroughput(args []string, out io.Writer) (throughputConfig, error) {
	cfg := throughputConfig{warmUp: time.Second, rows: regexp.MustCompile("")}
	flags := flag.NewFlagSet("throughput", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "all rows in well under a minute, too short to compare versions")
	flags.DurationVar(&cfg.duration, "duration", 5*time.Second, "how long each row measures weir, and as long again what it is compared with")
	flags.IntVar(&cfg.connections, "connections", 256, "concurrent connections")
	flags.Func("rows", "measure only the rows that this `regexp` matches", func(s string) (err error) {
		cfg.rows, err = regexp.Compile(s)
		return err
	})
	outFlag(flags, &cfg.dir)
	if err := parseFlags(flags, args, out); err != nil {
		return cfg, err
	}
	if *quick {
		cfg.duration, cfg.warmUp = 300*time.Millisecond, 100*time.Millisecond
	}
	if cfg.duration <= 0 || cfg.connections <= 0 {
		return cfg, errors.New("throughput: -duration and -connections must be more than 0")
	}
	return cfg, nil
}

// throughput measures all rows and prints them as tables.
func throughput(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parseThroughput(args, out)
	if err != nil {
		return err
	}
	r, err := measureThroughput(ctx, cfg)
	say("")
	if err != nil {
		return err
	}
	return publish(out, cfg.dir, "throughput", r)
}

// measureThroughput measures the rows that cfg selects.
func measureThroughput(ctx context.Context, cfg throughputConfig) (*throughputReport, error) {
	checks, stores := selected(workloads(), cfg.rows), selected(storeWorkloads(), cfg.rows)
	limits := selected(ceilingRows(), cfg.rows)
	if len(checks)+len(stores)+len(limits) == 0 {
		return nil, fmt.Errorf("throughput: no row matches %q", cfg.rows)
	}
	version, err := memcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	r := &throughputReport{Machine: thisMachine(version), Connections: cfg.connections, Duration: cfg.duration}
	if len(checks)+len(limits) > 0 {
		if err := r.measureChecks(ctx, cfg, checks, limits); err != nil {
			return nil, err
		}
	}
	for _, w := range stores {
		say("%s", w)
		row, err := measureStore(ctx, cfg, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
		r.Store = append(r.Store, row)
	}
	return r, nil
}

// selected returns the rows whose names match.
func selected[R fmt.Stringer](rows []R, pattern *regexp.Regexp) []R {
	var matching []R
	for _, row := range rows {
		if pattern.MatchString(row.String()) {
			matching = append(matching, row)
		}
	}
	return matching
}

// measureChecks measures what goes over HTTP.
func (r *throughputReport) measureChecks(ctx context.Context, cfg throughputConfig, rows []workload, ceilings []ceilingRow) error {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bed{policyFile: filepath.Join(dir, "policies.yaml")}
	if err := os.WriteFile(b.policyFile, []byte(policyFile(workloads())), 0o600); err != nil {
		return err
	}
	say("building weir")
	if b.binary, err = buildWeir(ctx, dir); err != nil {
		return err
	}
	for _, w := range rows {
		say("%s", w)
		row, err := b.measure(ctx, cfg, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w, err)
		}
		r.Checks = append(r.Checks, row)
	}
	for _, c := range ceilings {
		say("%s", c)
		row, err := b.ceiling(ctx, cfg, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		r.Ceilings = append(r.Ceilings, row)
	}
	return nil
}

// A bed is what all rows run on.
type bed struct{ binary, policyFile string }

// A side is a server under load.
type side struct {
	*server
	clients []*client
	turn    *turn
}

func newSide(ctx context.Context, s *server, w workload, connections int) (*side, error) {
	clients, err := dialClients(ctx, s.addr, w.request(), connections)
	if err != nil {
		return nil, err
	}
	return &side{server: s, clients: clients, turn: &turn{clients: w.clients}}, nil
}

// warm loads the side for at least a while, and until each client has been
// checked once.
func (s *side) warm(ctx context.Context, while time.Duration) error {
	if _, err := drive(ctx, s.clients, &turn{clients: s.turn.clients, last: s.turn.clients}, 0); err != nil {
		return err
	}
	_, err := drive(ctx, s.clients, s.turn, while)
	return err
}

func (s *side) drive(ctx context.Context, d time.Duration) (tally, error) {
	return drive(ctx, s.clients, s.turn, d)
}

// measure runs a row on a memcached and a weir of its own, so that rows don't
// influence each other.
func (b *bed) measure(ctx context.Context, cfg throughputConfig, w workload) (checkRow, error) {
	m, err := startMemcached(ctx, 1024)
	if err != nil {
		return checkRow{}, err
	}
	defer m.stop()
	weirServer, err := startWeir(ctx, b.binary, b.policyFile, m.addr)
	if err != nil {
		return checkRow{}, err
	}
	defer weirServer.stop()
	if w.limit == never {
		if err := m.fill(w, time.Now()); err != nil {
			return checkRow{}, err
		}
	}
	start := time.Now()
	answer, err := captureReply(ctx, weirServer.addr, w.body(0), w.status(), 2*low+1)
	if err != nil {
		return checkRow{}, err
	}
	noopServer, err := startNoop(ctx, answer)
	if err != nil {
		return checkRow{}, err
	}
	defer noopServer.stop()

	weir, err := newSide(ctx, weirServer, w, cfg.connections)
	if err != nil {
		return checkRow{}, err
	}
	defer closeClients(weir.clients)
	noop, err := newSide(ctx, noopServer, w, cfg.connections)
	if err != nil {
		return checkRow{}, err
	}
	defer closeClients(noop.clients)
	p, store, err := compare(ctx, cfg, m, weir, noop)
	if err != nil {
		return checkRow{}, err
	}
	if err := w.verify(p.weir, time.Since(start)); err != nil {
		return checkRow{}, err
	}
	if store.evictions > 0 {
		return checkRow{}, fmt.Errorf("memcached evicted %d counters", store.evictions)
	}
	keysPerGet, err := m.keysPerGet(func() error {
		// Logging a key costs memcached a system call per letter.
		_, err := drive(ctx, weir.clients[:min(16, cfg.connections)], &turn{clients: w.clients, last: 1000}, cfg.warmUp/2)
		return err
	})
	if err != nil {
		return checkRow{}, err
	}
	row := newCheckRow(w, p, store, keysPerGet)
	row.Allocations, err = extraAllocations(ctx, weir, noop, cfg.warmUp)
	return row, err
}

// compare loads the no-op server and weir in turn, after a warm-up, and returns
// what memcached did for weir meanwhile.
func compare(ctx context.Context, cfg throughputConfig, m *memcached, weir, noop *side) (*pair, storeStats, error) {
	for _, s := range []*side{noop, weir} {
		if err := s.warm(ctx, cfg.warmUp); err != nil {
			return nil, storeStats{}, err
		}
	}
	p := newPair()
	// The no-op server leaves memcached alone, so its slices needn't be left out.
	before, err := m.stats()
	if err != nil {
		return nil, storeStats{}, err
	}
	servers := []*server{weir.server, m.server, noop.server}
	var used [3]time.Duration
	for i, s := range servers {
		if used[i], err = s.cpu(); err != nil {
			return nil, storeStats{}, err
		}
	}
	for range sliceCount {
		err := p.slice(
			func() (tally, error) { return noop.drive(ctx, cfg.duration/sliceCount) },
			func() (tally, error) { return weir.drive(ctx, cfg.duration/sliceCount) },
		)
		if err != nil {
			return nil, storeStats{}, err
		}
	}
	for i, s := range servers {
		now, err := s.cpu()
		if err != nil {
			return nil, storeStats{}, err
		}
		used[i] = now - used[i]
	}
	p.weirCPU, p.memcachedCPU, p.otherCPU = used[0], used[1], used[2]
	after, err := m.stats()
	return p, after.minus(before), err
}

// extraAllocations returns how many objects weir allocates for a check beyond
// those of the no-op handler, that is net/http's and echo's own.
func extraAllocations(ctx context.Context, weir, noop *side, d time.Duration) (float64, error) {
	var perCheck [2]float64
	for i, s := range []*side{weir, noop} {
		// Asking allocates too, so it is asked twice to know how much.
		first, err := mallocs(ctx, s.addr)
		if err != nil {
			return 0, err
		}
		before, err := mallocs(ctx, s.addr)
		if err != nil {
			return 0, err
		}
		t, err := s.drive(ctx, d)
		if err != nil {
			return 0, err
		}
		after, err := mallocs(ctx, s.addr)
		if err != nil {
			return 0, err
		}
		perCheck[i] = (after - before - (before - first)) / float64(t.checks())
	}
	return perCheck[0] - perCheck[1], nil
}

// A pair is a measurement of weir and of what it is compared with, in slices
// that took turns.
type pair struct {
	weir, other tally
	ratios      []float64 // per slice, weir's rate to the other's

	// What the processes used of the processors, if they were measured.
	weirCPU, memcachedCPU, otherCPU time.Duration
}

func newPair() *pair { return &pair{weir: newTally(), other: newTally()} }

// slice measures the other once and then weir.
func (p *pair) slice(other, weir func() (tally, error)) error {
	o, err := other()
	if err != nil {
		return err
	}
	w, err := weir()
	if err != nil {
		return err
	}
	p.other.add(o)
	p.weir.add(w)
	p.ratios = append(p.ratios, w.rate()/o.rate())
	return nil
}
