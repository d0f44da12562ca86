// Package peers runs weir beside envoyproxy/ratelimit, whose place it can take:
// both over gRPC, with the same file, on one Memcached, in turns. It measures
// rates, latency at half load, how many of a limit's requests are admitted when
// many callers race for them, and what callers see when Memcached stalls.
//
// The user brings the other program. Without it weir runs alone.
package peers

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

const (
	domain  = "peers"
	never   = "never"   // the key of a limit that nobody reaches
	hundred = "hundred" // and of one that everybody does

	racesEach   = 10 // requests
	memcachedMB = 1024
	recovery    = 3 * time.Second // after a stall
)

// file has the limits, in the form that both read.
var file = fmt.Sprintf(`domain: %s
descriptors:
  - key: %s
    rate_limit: {unit: hour, requests_per_unit: %d}
  - key: %s
    rate_limit: {unit: day, requests_per_unit: %d}
`, domain, never, loadgen.Never, hundred, limit)

type config struct {
	ratelimit string
	callers   int
	duration  time.Duration // per row
	stall     time.Duration
	races     int
	warmUp    time.Duration
}

// Run measures weir, and envoyproxy/ratelimit where there is one, and prints
// tables. The error says if weir didn't admit exactly the limit.
func Run(ctx context.Context, args []string, out io.Writer) error {
	flags := report.NewFlags("peers")
	cfg := config{warmUp: time.Second}
	flags.StringVar(&cfg.ratelimit, "ratelimit", "", "the `program` of envoyproxy/ratelimit, such as go install github.com/envoyproxy/ratelimit/src/service_cmd@latest "+
		"makes; its environment is the bench's, so that MEMCACHE_MAX_IDLE_CONNS or LOCAL_CACHE_SIZE_IN_BYTES can be set (default: weir alone)")
	flags.IntVar(&cfg.callers, "callers", 256, fmt.Sprintf("callers, of whom %d share a connection", loadgen.CallersPerConnection))
	flags.DurationVar(&cfg.duration, "duration", 9*time.Second, "how long each row is measured")
	flags.DurationVar(&cfg.stall, "stall", 3*time.Second, "how long Memcached is stopped")
	flags.IntVar(&cfg.races, "races", 10, "how often the callers race for a limit")
	quick := flags.Quick("a few seconds in all, too short to compare")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.duration, cfg.stall, cfg.races, cfg.warmUp = 600*time.Millisecond, 600*time.Millisecond, 2, 200*time.Millisecond
	}
	if cfg.callers < 1 || cfg.duration <= 0 || cfg.stall <= 0 || cfg.races < 1 {
		return flags.Errorf("-callers, -duration, -stall and -races must be more than 0")
	}
	if cfg.ratelimit == "" {
		flags.Guest() // half of it isn't there
	}
	r, err := measure(ctx, cfg)
	return flags.Publish(out, "peers", r, err)
}

// A product is a program under test.
type product struct {
	name string
	*testbed.Process
	grpc string // its address
}

// measure starts all and measures it.
func measure(ctx context.Context, cfg config) (*Report, error) {
	version, err := testbed.MemcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	build, err := testbed.BuildWeir(ctx, "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	m, err := testbed.StartMemcached(ctx, memcachedMB)
	if err != nil {
		return nil, err
	}
	defer m.Stop()
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
	// weir's own default, which stalls are about, and not that of a Build.
	timeout := cmp.Or(os.Getenv("WEIR_STORE_TIMEOUT"), counters.DefaultTimeout.String())
	weir, grpc, err := build.StartRLS(ctx, m.Addr, limits, "-store-timeout", timeout)
	if err != nil {
		return nil, err
	}
	defer weir.Stop()
	b := &bench{config: cfg, memcached: m, products: []product{{weirName, weir, grpc}}}
	if cfg.ratelimit != "" {
		peer, err := testbed.StartRatelimit(ctx, cfg.ratelimit, m.Addr, root, cfg.callers)
		if err != nil {
			return nil, err
		}
		defer peer.Stop()
		b.products = append(b.products, product{ratelimitName, peer, peer.Addr})
	}
	r := &Report{Machine: report.ThisMachine(version), Callers: cfg.callers, Duration: cfg.duration}
	return r, b.run(ctx, r)
}

// A bench is what is measured.
type bench struct {
	config
	memcached *testbed.Memcached
	products  []product
}

// run measures all rows.
func (b *bench) run(ctx context.Context, r *Report) (err error) {
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
	if r.HalfLoad, err = b.halfLoad(ctx, slowest/2); err != nil {
		return err
	}
	if r.Races, err = b.race(ctx); err != nil {
		return err
	}
	r.Stalls, err = b.stalls(ctx)
	return err
}

// dial returns callers of a product about a key, and what closes them. They
// fail when ctx ends.
func (p product) dial(ctx context.Context, key string, n int) (callers []*loadgen.GRPCClient, closeAll func(), err error) {
	if callers, err = loadgen.DialGRPC(p.grpc, domain, key, n); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range callers {
			c.Expire()
		}
	})
	return callers, func() {
		stop()
		for _, c := range callers {
			c.Close()
		}
	}, nil
}

// operations are the checks of callers. Nothing may fail, unless failed is
// there to be told.
func operations(callers []*loadgen.GRPCClient, failed func(error)) []loadgen.Operation {
	all := make([]loadgen.Operation, len(callers))
	for i, c := range callers {
		all[i] = func(n int64) (bool, error) {
			status, _, err := c.Check(n)
			if err != nil && failed != nil {
				failed(err)
				err = nil
			}
			return status == http.StatusOK, err
		}
	}
	return all
}

// warm makes sure that each product has the limits, and lets it get going.
func (b *bench) warm(ctx context.Context) error {
	for _, p := range b.products {
		report.Progress("%s: warming up", p.name)
		callers, closeAll, err := p.dial(ctx, never, b.callers)
		if err != nil {
			return err
		}
		defer closeAll()
		if err := awaitLimit(ctx, callers[0]); err != nil {
			return fmt.Errorf("%s: %w: %s", p.name, err, p.Log)
		}
		if _, err := loadgen.Repeat(ctx, operations(callers, nil), &loadgen.Turn{Clients: loadgen.Distinct.Clients}, b.warmUp); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// awaitLimit asks until the answer is by a limit: a server that listens may not
// have read its files yet.
func awaitLimit(ctx context.Context, c *loadgen.GRPCClient) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, body, err := c.Check(0)
		if err == nil && loadgen.HasLimit(body) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it doesn't answer by the limit of its file: %w", cmp.Or(err, ctx.Err()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// rates lets the products take turns under as many requests as they answer.
func (b *bench) rates(ctx context.Context, t loadgen.Traffic) ([]rateRow, error) {
	tallies := make([]loadgen.Tally, len(b.products))
	rows := make([]rateRow, len(b.products))
	var used []time.Duration
	for i, p := range b.products {
		tallies[i] = loadgen.NewTally()
		rows[i] = rateRow{Product: p.name, Traffic: t.Name}
		used = append(used, 0)
	}
	for range loadgen.SliceCount {
		for i, p := range b.products {
			report.Progress("%s: %s", p.name, t.Name)
			callers, closeAll, err := p.dial(ctx, never, b.callers)
			if err != nil {
				return nil, err
			}
			before, err := p.CPU()
			if err != nil {
				return nil, err
			}
			tally, err := loadgen.Repeat(ctx, operations(callers, nil), &loadgen.Turn{Clients: t.Clients}, b.duration/loadgen.SliceCount)
			closeAll()
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", p.name, t.Name, err)
			}
			after, err := p.CPU()
			if err != nil {
				return nil, err
			}
			used[i] += after - before
			tallies[i].Add(tally)
			rows[i].Slices = append(rows[i].Slices, tally.Rate())
		}
	}
	for i, tally := range tallies {
		rows[i].Rate = tally.Rate()
		rows[i].CPU = used[i] / time.Duration(max(1, tally.Checks()))
		rows[i].Percentiles = report.NewPercentiles(tally.Latency)
	}
	return rows, nil
}

// halfLoad measures latency at a rate, which is the same for all.
func (b *bench) halfLoad(ctx context.Context, rate float64) ([]latencyRow, error) {
	tallies := make([]loadgen.Tally, len(b.products))
	for i := range tallies {
		tallies[i] = loadgen.NewTally()
	}
	for range loadgen.SliceCount {
		for i, p := range b.products {
			report.Progress("%s: %.0f a second", p.name, rate)
			callers, closeAll, err := p.dial(ctx, never, b.callers)
			if err != nil {
				return nil, err
			}
			due := loadgen.NewArrivals(loadgen.Constant(rate, b.duration/loadgen.SliceCount), nil)
			tally, err := loadgen.RepeatAt(ctx, operations(callers, nil), &loadgen.Turn{Clients: loadgen.Distinct.Clients}, due)
			closeAll()
			if err != nil {
				return nil, fmt.Errorf("%s at half load: %w", p.name, err)
			}
			tallies[i].Add(tally)
		}
	}
	var rows []latencyRow
	for i, p := range b.products {
		rows = append(rows, latencyRow{Product: p.name, Rate: rate, Percentiles: report.NewPercentiles(tallies[i].Latency)})
	}
	return rows, nil
}

// race lets callers ask for more than the limit admits, all at once, each time
// for another client.
func (b *bench) race(ctx context.Context) ([]raceRow, error) {
	var rows []raceRow
	for _, p := range b.products {
		rows = append(rows, raceRow{Product: p.name})
	}
	for n := range b.races {
		for i, p := range b.products {
			report.Progress("%s: race %d", p.name, n+1)
			callers, closeAll, err := p.dial(ctx, hundred, racers)
			if err != nil {
				return nil, err
			}
			all := operations(callers, nil)
			for i, ask := range all {
				all[i] = func(int64) (bool, error) { return ask(int64(n)) }
			}
			tally, err := loadgen.Repeat(ctx, all, &loadgen.Turn{Clients: 1, Last: racers * racesEach}, 0)
			closeAll()
			if err != nil {
				return nil, fmt.Errorf("%s, race %d: %w", p.name, n+1, err)
			}
			rows[i].Admitted = append(rows[i].Admitted, tally.Admitted)
		}
	}
	return rows, nil
}

// stalls stops Memcached for a while under each product.
func (b *bench) stalls(ctx context.Context) ([]stallRow, error) {
	var rows []stallRow
	for _, p := range b.products {
		report.Progress("%s: Memcached stalls", p.name)
		row, err := b.stallUnder(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("%s while Memcached stalls: %w", p.name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (b *bench) stallUnder(ctx context.Context, p product) (stallRow, error) {
	callers, closeAll, err := p.dial(ctx, never, b.callers)
	if err != nil {
		return stallRow{}, err
	}
	defer closeAll()
	failures := new(failures)
	if err := b.memcached.Signal(syscall.SIGSTOP); err != nil {
		return stallRow{}, err
	}
	tally, err := loadgen.Repeat(ctx, operations(callers, failures.add), &loadgen.Turn{Clients: loadgen.Distinct.Clients}, b.stall)
	if err := b.memcached.Signal(syscall.SIGCONT); err != nil {
		return stallRow{}, err
	}
	if err != nil {
		return stallRow{}, err
	}
	select { // so that the next one finds Memcached as this one did
	case <-time.After(min(recovery, b.stall)):
	case <-ctx.Done():
		return stallRow{}, ctx.Err()
	}
	return stallRow{
		Product: p.name, Rate: tally.Rate(), Percentiles: report.NewPercentiles(tally.Latency),
		Failed: failures.n, Failure: failures.first,
	}, nil
}
