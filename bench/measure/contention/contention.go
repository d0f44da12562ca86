// Package contention measures many callers, in one process and in several, who
// all decide for one key: how fast, how fairly, and whether no more than the
// limit is admitted. Beside weir's limiters runs the compare-and-swap loop that one
// writes first.
//
// Run is the command, and shapes and farRuns have its rows; Share is the command of each
// of its processes.
package contention

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

type config struct {
	duration time.Duration // per row
	warmUp   time.Duration // per row
	rows     *regexp.Regexp
}

// Run measures all rows, prints them as tables. The error says
// which promise was broken.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{duration: 3 * time.Second, warmUp: 500 * time.Millisecond}
	flags := report.NewFlags("contention")
	quick := flags.Quick("all rows in well under a minute, too short to compare versions")
	flags.Rows(&cfg.rows)
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.duration, cfg.warmUp = 300*time.Millisecond, 100*time.Millisecond
	}
	r, err := measureAll(ctx, cfg)
	return flags.Publish(out, "contention", r, err)
}

// The rows.
var (
	shapes  = []shape{{1, 1}, {1, 4}, {1, 16}, {1, callersPerProcess}, {1, 64}, {1, 256}, {2, callersPerProcess}, {4, callersPerProcess}, {8, callersPerProcess}}
	farRuns = []farRun{
		{8, 0, false}, {8, 300 * time.Microsecond, false}, {8, time.Millisecond, false}, {8, 5 * time.Millisecond, false}, {8, time.Millisecond, true},
	}
)

// measureAll measures the rows that cfg selects.
func measureAll(ctx context.Context, cfg config) (*Report, error) {
	rates, far := report.Selected(shapes, cfg.rows), report.Selected(farRuns, cfg.rows)
	if len(rates)+len(far) == 0 {
		return nil, fmt.Errorf("contention: no row matches %q", cfg.rows)
	}
	r := &Report{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx)), Duration: cfg.duration}
	measured, err := report.Each(rates, func(s shape) ([]rateRow, error) { return measureRates(ctx, cfg, s) })
	if err != nil {
		return nil, err
	}
	r.Rates = slices.Concat(measured...)
	r.Far, err = report.Each(far, func(f farRun) (farRow, error) { return f.measure(ctx, cfg) })
	return r, err
}

// measureRates measures all loops on one memcached, in slices that take turns.
// Nothing is denied, so that each decision has to be written.
func measureRates(ctx context.Context, cfg config, s shape) ([]rateRow, error) {
	m, err := testbed.StartMemcached(ctx, 64)
	if err != nil {
		return nil, err
	}
	defer m.Stop()
	all, outcomes := make([]processes, len(loops)), make([]outcome, len(loops))
	for i, loop := range loops {
		outcomes[i] = newOutcome()
		all[i], err = startProcesses(ctx, share{Loop: loop, Memcached: m.Addr, Callers: s.callers, Limit: counters.MaxLimit}, s.processes)
		if err != nil {
			return nil, err
		}
		defer all[i].stop()
	}
	for _, p := range all {
		if _, err := p.run(cfg.warmUp); err != nil {
			return nil, err
		}
	}
	for i, d := range loadgen.TakeTurns(len(all), cfg.duration) {
		o, err := all[i].run(d)
		if err != nil {
			return nil, err
		}
		outcomes[i].add(o)
	}
	rows := make([]rateRow, len(loops))
	for i, loop := range loops {
		o := outcomes[i]
		if o.Denied > 0 {
			return nil, fmt.Errorf("%s: %d of %d requests were denied, and none should be", loop, o.Denied, o.decisions())
		}
		rows[i] = newRateRow(loop, s, o, outcomes[0].rate())
	}
	return rows, nil
}

func newRateRow(loop string, s shape, o outcome, plain float64) rateRow {
	return rateRow{
		Loop: loop, Processes: s.processes, Callers: s.callers, Rate: o.rate(), Ratio: o.rate() / plain,
		Percentiles: report.NewPercentiles(o.Latency.Histogram),
		Errors:      o.Errors, FirstError: o.FirstError, Unluckiest: o.unluckiest(),
	}
}

func (f farRun) measure(ctx context.Context, cfg config) (farRow, error) {
	m, err := testbed.StartMemcached(ctx, 64)
	if err != nil {
		return farRow{}, err
	}
	defer m.Stop()
	s := share{Loop: combinedCAS, Memcached: m.Addr, Callers: callersPerProcess, Limit: counters.MaxLimit, AsServed: true}
	if f.limited {
		s.Limit, s.CountDenied = farLimit, true
	}
	if f.roundTrip > 0 {
		proxy, err := testbed.StartProxy(m.Addr, testbed.Fault{RoundTrip: f.roundTrip})
		if err != nil {
			return farRow{}, err
		}
		defer proxy.Stop()
		s.Memcached = proxy.Addr
	}
	p, err := startProcesses(ctx, s, f.processes)
	if err != nil {
		return farRow{}, err
	}
	defer p.stop()
	// What a limit admits is counted from its first request on.
	if !f.limited {
		if _, err := p.run(cfg.warmUp); err != nil {
			return farRow{}, err
		}
	}
	seen, err := watchRoundTrips(ctx, s.Memcached)
	if err != nil {
		return farRow{}, err
	}
	o, err := p.run(cfg.duration)
	roundTrips := seen()
	if err != nil {
		return farRow{}, err
	}
	if !f.limited && o.Denied > o.Contended {
		return farRow{}, fmt.Errorf("%d of %d requests were denied, and none should be", o.Denied-o.Contended, o.decisions())
	}
	return newFarRow(f, o, roundTrips), nil
}

func newFarRow(f farRun, o outcome, roundTrips *hdrhistogram.Histogram) farRow {
	requests := float64(max(1, o.decisions()+o.Errors))
	row := farRow{
		Processes: f.processes, Callers: callersPerProcess, RoundTrip: f.roundTrip, Rate: o.rate(),
		RoundTripP50: loadgen.Percentile(roundTrips, 50), RoundTripP99: loadgen.Percentile(roundTrips, 99),
		Percentiles: report.NewPercentiles(o.Latency.Histogram),
		Degraded:    float64(o.Errors) / requests, Contended: float64(o.Contended) / requests,
		FirstError: o.FirstError, Admitted: o.Admitted,
	}
	if f.limited {
		// A bucket holds its limit, and fills with it meanwhile.
		row.Most = farLimit * (1 + time.Duration(o.Last-o.First).Seconds()/refill.Seconds())
	}
	return row
}

// watchRoundTrips measures a round trip to memcached now and then, until the
// function that it returns is called.
func watchRoundTrips(ctx context.Context, addr string) (seen func() *hdrhistogram.Histogram, err error) {
	conn, err := testbed.DialMemcached(ctx, addr)
	if err != nil {
		return nil, err
	}
	h := loadgen.NewHistogram()
	stop := testbed.Every(2*time.Millisecond, func(time.Time) {
		start := time.Now()
		if _, err := conn.Do("version", "VERSION"); err == nil {
			loadgen.Record(h, time.Since(start))
		}
	})
	return func() *hdrhistogram.Histogram {
		stop()
		conn.Conn.Close()
		return h
	}, nil
}
