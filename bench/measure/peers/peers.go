// Package peers runs weir beside envoyproxy/ratelimit, whose place it can take:
// both over gRPC, with the same file, on one Memcached, in turns. It measures
// rates, latency at a rate, how many of a limit's requests are admitted when
// many callers race for them, and what callers see when Memcached stalls. Its tests
// compare what they answer to the same requests by the same files.
//
// Over HTTP it measures rates and processor times, beside envoyproxy/ratelimit and a
// service of Node's.
//
// The user brings the other programs. Without them weir runs alone.
//
// Run is the command. measureGRPC has its rows, and measureHTTP those over HTTP.
package peers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	racesEach = 10              // requests
	pacedRate = 4000            // per second, at which latency is measured, or half of what the slowest answers
	recovery  = 3 * time.Second // after a stall
)

// Run measures weir, and the other products that there are, and prints tables. The error
// says if weir didn't admit exactly the limit.
func Run(ctx context.Context, args []string, out io.Writer) error {
	flags := report.NewFlags("peers")
	cfg := config{duration: 9 * time.Second, stall: 3 * time.Second, races: 10, warmUp: time.Second}
	flags.StringVar(&cfg.ratelimit, "ratelimit", "", "the `program` of envoyproxy/ratelimit, such as go install github.com/envoyproxy/ratelimit/src/service_cmd@latest "+
		"makes; its environment is the bench's, so that MEMCACHE_MAX_IDLE_CONNS or "+localCache+" can be set (default: weir alone)")
	flags.StringVar(&cfg.node, "node", "", "the `folder` in which npm install rate-limiter-flexible memcached was run, whose service node runs (default: without it)")
	quick := flags.Quick("a few seconds in all, too short to compare")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.duration, cfg.stall, cfg.races, cfg.warmUp = 200*time.Millisecond, 200*time.Millisecond, 2, 50*time.Millisecond
	}
	if cfg.ratelimit == "" || cfg.node == "" {
		flags.Guest() // a part of it isn't there
	}
	r, err := measure(ctx, cfg)
	return flags.Publish(out, "peers", r, err)
}

// measure starts all and measures it.
func measure(ctx context.Context, cfg config) (*Report, error) {
	build, err := testbed.BuildWeir(ctx, policies, "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	root, err := os.MkdirTemp("", "weir-peers")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	limits := filepath.Join(root, "ratelimit", "config", "peers.yaml")
	if err := os.MkdirAll(filepath.Dir(limits), 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(limits, []byte(file), 0o644); err != nil {
		return nil, err
	}
	r := &Report{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx)), Callers: callersEach, Duration: cfg.duration, LocalCache: os.Getenv(localCache)}
	if r.HTTP, err = measureHTTP(ctx, cfg, build, root); err != nil {
		return nil, err
	}
	return r, measureGRPC(ctx, cfg, build, root, r)
}

// measureGRPC measures weir and envoyproxy/ratelimit on one Memcached.
func measureGRPC(ctx context.Context, cfg config, build *testbed.Build, root string, r *Report) (err error) {
	m, err := testbed.StartMemcached(ctx, memcachedMB)
	if err != nil {
		return err
	}
	defer m.Stop()
	weir, err := build.StartAsRatelimit(ctx, m.Addr, root)
	if err != nil {
		return err
	}
	defer weir.Stop()
	b := &bench{cfg, []product{{weirName, weir, overGRPC(weir.GRPC), m}}}
	if cfg.ratelimit != "" {
		peer, err := testbed.StartRatelimit(ctx, cfg.ratelimit, m.Addr, root, callersEach)
		if err != nil {
			return err
		}
		defer peer.Stop()
		b.products = append(b.products, product{ratelimitName, peer, overGRPC(peer.GRPC), m})
	}
	if err := b.warm(ctx); err != nil {
		return err
	}
	for _, t := range []loadgen.Traffic{loadgen.Distinct, loadgen.Hot} {
		rows, err := b.rates(ctx, t)
		if err != nil {
			return err
		}
		r.Rates = append(r.Rates, rows...)
	}
	slowest := slices.MinFunc(r.Rates, func(x, y rateRow) int { return int(x.Rate - y.Rate) }).Rate
	if r.HalfLoad, err = b.halfLoad(ctx, min(pacedRate, slowest/2)); err != nil {
		return err
	}
	if r.Races, err = report.Each(b.products, func(p product) (raceRow, error) { return b.race(ctx, p) }); err != nil {
		return err
	}
	r.Stalls, err = report.Each(b.products, func(p product) (stallRow, error) { return b.stallUnder(ctx, p) })
	return err
}

// A bench is what is measured over gRPC.
type bench struct {
	config
	products []product
}

// drive lets callers of a product ask about a key, for clients in turn.
func (b *bench) drive(ctx context.Context, p product, key string, clients int64, d time.Duration) (tally loadgen.Tally, err error) {
	callers, err := p.dial(ctx, key, callersEach)
	if err != nil {
		return tally, err
	}
	defer callers.Close()
	if tally, err = callers.Drive(ctx, &loadgen.Turn{Clients: clients}, d); err != nil {
		err = fmt.Errorf("%s: %w: %s", p.name, err, p.Log)
	}
	return tally, err
}

// warm makes sure that each product has the limits, and lets it get going.
func (b *bench) warm(ctx context.Context) error {
	for _, p := range b.products {
		report.Progress("%s: warming up", p.name)
		if err := p.awaitLimit(ctx); err != nil {
			return err
		}
		if _, err := b.drive(ctx, p, never, loadgen.Distinct.Clients, b.warmUp); err != nil {
			return err
		}
	}
	return nil
}

// rates lets the products take turns under as many requests as they answer.
func (b *bench) rates(ctx context.Context, t loadgen.Traffic) (rows []rateRow, err error) {
	tallies := make([]loadgen.Tally, len(b.products))
	for i, p := range b.products {
		rows, tallies[i] = append(rows, rateRow{Product: p.name, Traffic: t.Name}), loadgen.NewTally()
	}
	for i, d := range loadgen.TakeTurns(len(b.products), b.duration) {
		p, row := b.products[i], &rows[i]
		report.Progress("%s: %s", p.name, t.Name)
		if err := (testbed.Clocks{&row.CPU: p.CPU}).During(func() error {
			tally, err := b.drive(ctx, p, never, t.Clients, d)
			if err == nil {
				tallies[i].Add(tally)
				row.Slices = append(row.Slices, tally.Rate())
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	for i, tally := range tallies {
		rows[i].Rate, rows[i].Percentiles = tally.Rate(), report.NewPercentiles(tally.Latency)
		rows[i].CPU /= time.Duration(max(1, tally.Checks()))
	}
	return rows, nil
}

// halfLoad measures latency at a rate, which is the same for all.
func (b *bench) halfLoad(ctx context.Context, rate float64) (rows []latencyRow, err error) {
	totals := make([]*hdrhistogram.Histogram, len(b.products))
	for i := range totals {
		totals[i] = loadgen.NewHistogram()
	}
	for i, d := range loadgen.TakeTurns(len(b.products), b.duration) {
		p := b.products[i]
		report.Progress("%s: %.0f a second", p.name, rate)
		callers, err := p.dial(ctx, never, callersEach)
		if err != nil {
			return nil, err
		}
		turn := &loadgen.Turn{Clients: loadgen.Distinct.Clients}
		seen := callers.OpenLoop(ctx, loadgen.Pace{Rate: rate, Length: d}, turn.Client)
		callers.Close()
		if err := cmp.Or(ctx.Err(), seen.Fault()); err != nil {
			return nil, fmt.Errorf("%s at half load: %w", p.name, err)
		}
		totals[i].Merge(seen.Latency)
	}
	for i, p := range b.products {
		rows = append(rows, latencyRow{p.name, rate, report.NewPercentiles(totals[i])})
	}
	return rows, nil
}

// race lets callers ask for more than the limit admits, all at once, each time
// for another client.
func (b *bench) race(ctx context.Context, p product) (raceRow, error) {
	row := raceRow{Product: p.name}
	for client := range b.races {
		callers, err := p.dial(ctx, hundred, racers)
		if err != nil {
			return row, err
		}
		tally, err := callers.Drive(ctx, &loadgen.Turn{First: int64(client), Clients: 1, Last: racers * racesEach}, 0)
		callers.Close()
		if err != nil {
			return row, fmt.Errorf("race %d: %w", client+1, err)
		}
		row.Admitted = append(row.Admitted, tally.Admitted)
	}
	return row, nil
}

// stallUnder stops Memcached for a while under a product.
func (b *bench) stallUnder(ctx context.Context, p product) (stallRow, error) {
	callers, err := p.dial(ctx, never, callersEach)
	if err != nil {
		return stallRow{}, err
	}
	defer callers.Close()
	defer context.AfterFunc(ctx, callers.Expire)()
	var mu sync.Mutex
	var failed []error
	all := callers.Operations()
	for i, ask := range all {
		all[i] = func(n int64) (bool, error) {
			admitted, err := ask(n)
			if err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
			return admitted, nil
		}
	}
	if err := p.memcached.Signal(syscall.SIGSTOP); err != nil {
		return stallRow{}, err
	}
	tally, err := loadgen.Repeat(ctx, all, &loadgen.Turn{Clients: loadgen.Distinct.Clients}, b.stall)
	if err := p.memcached.Signal(syscall.SIGCONT); err != nil {
		return stallRow{}, err
	}
	if err != nil {
		return stallRow{}, err
	}
	if err := testbed.Sleep(ctx, min(recovery, b.stall)); err != nil { // the next one finds Memcached as this one did
		return stallRow{}, err
	}
	row := stallRow{latencyRow{p.name, tally.Rate(), report.NewPercentiles(tally.Latency)}, int64(len(failed)), ""}
	if row.Failed > 0 {
		row.Failure = fmt.Sprintf("%.*s", mostErrorText, failed[0])
	}
	return row, nil
}
