// Package throughput measures checks per second, latency and what a check
// costs, over HTTP with closed loops, beside a no-op server that reads the same
// request and sends the same response. All other ways in (net/http, batches, the Go
// client, gRPC) are measured beside single checks.
//
// Run is the command. The rows are in workloads.go and ways.go; testbed.Pair has what is
// compared, and Report the figures.
package throughput

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// Run measures all rows and prints them as tables.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{warmUp: time.Second, clients: math.MaxInt64}
	flags := report.NewFlags("throughput")
	quick := flags.Quick("all rows in well under a minute, too short and with too few clients to compare versions")
	flags.DurationVar(&cfg.duration, "duration", 5*time.Second, "how long each row measures weir, as long again what it is compared with, and both at once")
	flags.IntVar(&cfg.connections, "connections", 256, "concurrent connections")
	flags.Rows(&cfg.rows)
	flags.Profiles(&cfg.profiles)
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.duration, cfg.warmUp, cfg.clients = 100*time.Millisecond, 30*time.Millisecond, 1000
	}
	if cfg.duration <= 0 || cfg.connections <= 0 {
		return flags.Errorf("-duration and -connections must be more than 0")
	}
	r, err := measure(ctx, cfg)
	return flags.Publish(out, "throughput", r, err)
}

// measure measures the rows that cfg selects.
func measure(ctx context.Context, cfg config) (*Report, error) {
	checks, ways := report.Selected(workloads(), cfg.rows), report.Selected(ways(), cfg.rows)
	if len(checks)+len(ways) == 0 {
		return nil, fmt.Errorf("throughput: no row matches %q", cfg.rows)
	}
	r := &Report{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx)), Connections: cfg.connections, Duration: cfg.duration}
	build, err := testbed.BuildWeir(ctx, loadgen.PolicyFile(policies()), cfg.profiles)
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	if r.Checks, err = report.Each(checks, func(w loadgen.Workload) (checkRow, error) { return measureChecks(ctx, cfg, build, w) }); err != nil {
		return nil, err
	}
	r.Ways, err = report.Each(ways, func(w way) (wayRow, error) { return w.measure(ctx, cfg, build) })
	return r, err
}

// Noop serves the reply that it reads from stdin, in JSON, at the address in args: an
// echo handler that reads each request and does nothing, without middleware and without
// the timeouts of a real service.
func Noop(_ context.Context, args []string, _ io.Writer) error {
	var r loadgen.Reply
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("the reply on stdin: %w", err)
	}
	if len(args) != 1 {
		return fmt.Errorf("%s needs an address to listen on", testbed.NoopCommand)
	}
	return http.ListenAndServe(args[0], loadgen.NoopHandler(r))
}

// measureChecks runs a row on a memcached and a weir of its own, so that rows
// don't influence each other.
func measureChecks(ctx context.Context, cfg config, build *testbed.Build, w loadgen.Workload) (checkRow, error) {
	weir, err := way{}.start(ctx, cfg, build, w)
	defer weir.stop()
	if err != nil {
		return checkRow{}, err
	}
	start := time.Now()
	answer, err := loadgen.CaptureReply(ctx, weir.Addr, w.Request().Body, w.Status(), 2*loadgen.Low+1)
	if err != nil {
		return checkRow{}, err
	}
	noop, err := testbed.StartNoop(ctx, answer)
	if err != nil {
		return checkRow{}, err
	}
	defer noop.Stop()
	other := &testbed.Side{Process: noop, Turn: &loadgen.Turn{Clients: w.Clients}, Size: 1}
	if other.Connections, err = loadgen.Dial(ctx, noop.Addr, w.Request(), cfg.connections); err != nil {
		return checkRow{}, err
	}
	defer other.Connections.Close()
	p, err := testbed.Compare(ctx, cfg.warmUp, cfg.duration, &weir.Side, other)
	if err != nil {
		return checkRow{}, err
	}
	if err := w.Verify(p.Weir, time.Since(start)); err != nil {
		return checkRow{}, err
	}
	if p.Store.Evictions > 0 {
		return checkRow{}, fmt.Errorf("memcached evicted %d counters", p.Store.Evictions)
	}
	keysPerGet, err := weir.Memcached.KeysPerGet(ctx, func() error {
		// Logging a key costs memcached a system call per letter.
		next := weir.Turn.Taken.Load()
		turn := &loadgen.Turn{Clients: w.Clients, Last: next + 1000}
		turn.Taken.Store(next)
		_, err := weir.Connections[:min(16, cfg.connections)].Drive(ctx, turn, cfg.warmUp/2)
		return err
	})
	if err != nil {
		return checkRow{}, err
	}
	row := newCheckRow(w, p, keysPerGet)
	if row.Half, err = half(ctx, &weir.Side, row.Rate, cfg.duration); err != nil {
		return row, err
	}
	row.Allocations, err = allocations(ctx, weir.Addr, func() (loadgen.Tally, error) { return weir.Load(ctx, cfg.warmUp) })
	return row, err
}
