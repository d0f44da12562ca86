package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"time"

	"weir/counters"
)

// contentionConfig is what the flags of contention say.
type contentionConfig struct {
	duration time.Duration // per row
	warmUp   time.Duration // per row
	exact    time.Duration // per row of the runs that count what is admitted
	rows     *regexp.Regexp
	dir      string // of the figures and the plots
}

// parseContention reads the flags of contention; on -help it prints them to out.
func parseContention(args []string, out io.Writer) (contentionConfig, error) {
	cfg := contentionConfig{warmUp: 500 * time.Millisecond, rows: regexp.MustCompile("")}
	flags := flag.NewFlagSet("contention", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "all rows in well under a minute, too short to compare versions")
	flags.DurationVar(&cfg.duration, "duration", 3*time.Second, "how long each row of rates is measured")
	flags.DurationVar(&cfg.exact, "exact", 10*time.Second, "how long each row runs that counts what is admitted")
	flags.Func("rows", "measure only the rows that this `regexp` matches", func(s string) (err error) {
		cfg.rows, err = regexp.Compile(s)
		return err
	})
	outFlag(flags, &cfg.dir)
	if err := parseFlags(flags, args, out); err != nil {
		return cfg, err
	}
	if *quick {
		cfg.duration, cfg.warmUp, cfg.exact = 300*time.Millisecond, 100*time.Millisecond, 2*time.Second
	}
	if cfg.duration <= 0 || cfg.exact <= 0 {
		return cfg, errors.New("contention: -duration and -exact must be more than 0")
	}
	return cfg, nil
}

// contention measures all rows, prints them as tables and draws them. The error
// says which promise was broken; a speed that is missed is only printed.
func contention(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parseContention(args, out)
	if err != nil {
		return err
	}
	r, err := measureContention(ctx, cfg)
	say("")
	if err != nil {
		return err
	}
	return publish(out, cfg.dir, "contention", r)
}

// A shape is who decides: so many processes with so many callers each.
type shape struct{ processes, callers int }

func (s shape) String() string { return fmt.Sprintf("rate, %d x %d callers", s.processes, s.callers) }

// callersPerProcess is the same in all rows that several processes share.
const callersPerProcess = 32

func shapes() []shape {
	return []shape{{1, 1}, {1, 4}, {1, 16}, {1, callersPerProcess}, {1, 64}, {1, 256}, {2, callersPerProcess}, {4, callersPerProcess}, {8, callersPerProcess}}
}

// measureContention measures the rows that cfg selects.
func measureContention(ctx context.Context, cfg contentionConfig) (*contentionReport, error) {
	rates, exacts := selected(shapes(), cfg.rows), selected(exactRuns(), cfg.rows)
	if len(rates)+len(exacts) == 0 {
		return nil, fmt.Errorf("contention: no row matches %q", cfg.rows)
	}
	version, err := memcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	r := &contentionReport{Machine: thisMachine(version), Duration: cfg.duration, Exact: cfg.exact}
	for _, s := range rates {
		say("%s", s)
		rows, err := measureRates(ctx, cfg, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		r.Rates = append(r.Rates, rows...)
	}
	for _, e := range exacts {
		say("%s", e)
		o, err := e.measure(ctx, cfg.exact)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e, err)
		}
		if e.loop == logCAS {
			r.Logs = append(r.Logs, newLogRow(e, o))
		} else {
			r.Buckets = append(r.Buckets, newBucketRow(e, o))
		}
	}
	return r, nil
}

// measureRates measures all loops on one memcached, in slices that take turns.
// Nothing is denied, so that each decision has to be written.
func measureRates(ctx context.Context, cfg contentionConfig, s shape) ([]rateRow, error) {
	m, err := startMemcached(ctx, 64)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	crowds := make([]crowd, len(loops))
	for i, loop := range loops {
		crowds[i], err = startCrowd(ctx, share{Loop: loop, Memcached: m.addr, Callers: s.callers, Limit: counters.MaxLimit}, s.processes)
		if err != nil {
			return nil, err
		}
		defer crowds[i].stop()
	}
	for _, c := range crowds {
		if _, err := c.run(cfg.warmUp); err != nil {
			return nil, err
		}
	}
	outcomes := make([]outcome, len(loops))
	for i := range outcomes {
		outcomes[i] = newOutcome()
	}
	for range sliceCount {
		for i, c := range crowds {
			o, err := c.run(cfg.duration / sliceCount)
			if err != nil {
				return nil, err
			}
			outcomes[i].add(o)
		}
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
