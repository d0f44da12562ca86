// Package faults breaks what weir stands on while callers ask it, and holds
// what they are answered against what weir promises: Memcached stalls, dies,
// forgets and evicts; the network delays, trickles, cuts and swallows. All are
// real processes.
//
// Run is the command. The trials are in trials.go, and those of random faults, one
// after another, in random.go.
package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

// Run measures all trials and prints them as tables. The error says what
// didn't hold.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{rounds: 3, callers: 256, pause: 200 * time.Millisecond, patience: 20 * time.Second, gap: 11 * time.Second, parallel: 1}
	flags := report.NewFlags("faults")
	quick := flags.Quick("all rows in less than a minute, several at a time")
	flags.DurationVar(&cfg.timeout, "store-timeout", counters.DefaultTimeout, "weir's")
	flags.DurationVar(&cfg.length, "duration", 10*time.Second, "how long a fault lasts, or random ones follow each other")
	flags.Uint64Var(&cfg.seed, "seed", 1, "of random faults")
	flags.Rows(&cfg.rows)
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.length, cfg.rounds, cfg.callers, cfg.gap, cfg.parallel = time.Second, 1, 64, 0, 4
	}
	if cfg.length < settleAfter || cfg.timeout <= 0 {
		return flags.Errorf("-duration must be at least %v, and -store-timeout more than 0", settleAfter)
	}
	r, err := measureAll(ctx, cfg)
	return flags.Publish(out, "faults", r, err)
}

func measureAll(ctx context.Context, cfg config) (*Report, error) {
	selected := report.Selected(trials, cfg.rows)
	if len(selected) == 0 {
		return nil, fmt.Errorf("faults: no row matches %q", cfg.rows)
	}
	version, err := testbed.MemcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := measureRows(ctx, cfg, selected)
	return &Report{Machine: report.ThisMachine(version), Timeout: cfg.timeout, Length: cfg.length, Rows: rows}, err
}

func measureRows(ctx context.Context, cfg config, selected []trial) ([]row, error) {
	build, err := testbed.BuildWeir(ctx, policyFile, "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	rows, errs := make([]row, len(selected)), make([]error, len(selected))
	running := make(chan struct{}, cfg.parallel)
	var all sync.WaitGroup
	for i, t := range selected {
		running <- struct{}{}
		report.Progress("%s", t)
		all.Go(func() {
			rows[i], errs[i] = t.measure(ctx, cfg, build)
			<-running
		})
	}
	all.Wait()
	return rows, errors.Join(errs...)
}
