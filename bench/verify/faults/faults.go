// Package faults breaks what weir stands on while callers ask it, and holds
// what they are answered against what weir promises: Memcached stalls, dies,
// forgets and evicts; the network delays, trickles, cuts and swallows. All are
// real processes. Share trials measure what many instances admit together without
// their store; those are limiters in this process, on a real Memcached.
//
// Run is the command. The trials are in trials.go and share.go, and those of random
// faults, one after another, in random.go.
package faults

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

// Run measures all trials and prints them as tables. The error says what
// didn't hold.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{rounds: 3, callers: 256, pause: 200 * time.Millisecond, patience: 20 * time.Second, gap: 11 * time.Second, parallel: 1,
		warming: 3 * time.Second, clients: 9, stalls: 3, kinds: 1}
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
		cfg.warming, cfg.clients, cfg.stalls, cfg.kinds = 300*time.Millisecond, 1, 1, 2
	}
	if cfg.length < settleAfter || cfg.timeout <= 0 {
		return flags.Errorf("-duration must be at least %v, and -store-timeout more than 0", settleAfter)
	}
	r, err := measureAll(ctx, cfg)
	return flags.Publish(out, "faults", r, err)
}

func measureAll(ctx context.Context, cfg config) (*Report, error) {
	selected, shares := report.Selected(trials, cfg.rows), report.Selected(shareTrials, cfg.rows)
	if len(selected)+len(shares) == 0 {
		return nil, fmt.Errorf("faults: no row matches %q", cfg.rows)
	}
	var err error
	r := &Report{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx)), Timeout: cfg.timeout, Length: cfg.length}
	if len(selected) > 0 {
		if r.Rows, err = measureRows(ctx, cfg, selected); err != nil {
			return nil, err
		}
	}
	r.Shares, err = measureShares(ctx, cfg, shares)
	return r, err
}

func measureRows(ctx context.Context, cfg config, selected []trial) ([]row, error) {
	build, err := testbed.BuildWeir(ctx, policyFile, "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	rows := make([]row, len(selected))
	return rows, testbed.Parallel(len(selected), cfg.parallel, func(i int) (err error) {
		report.Progress("%s", selected[i])
		rows[i], err = selected[i].measure(ctx, cfg, build)
		return err
	})
}

// measure plays a trial on a memcached of its own, and for a stall on several.
// What goes wrong is missed like a bound; the error is that of ctx.
func (t shareTrial) measure(ctx context.Context, cfg config, stalls sync.Locker) (shareRow, error) {
	beds, each := 1, cfg
	if t.stall > 0 {
		beds = cfg.stalls
		each.clients = max(1, cfg.clients/beds)
	}
	played := make([]*shareBed, beds)
	err := testbed.Parallel(beds, beds, func(i int) error {
		b, err := openShareBed(ctx, each, t.instances)
		defer b.close()
		if err != nil {
			return err
		}
		played[i] = b
		return b.play(ctx, t.clients, t.breaks(b.server, cfg, stalls))
	})
	r := t.row(slices.DeleteFunc(played, func(b *shareBed) bool { return b == nil }))
	if err != nil {
		r.must(false, "%v", err)
	}
	return r, ctx.Err()
}

// measureShares measures trials, of which outages come first: those all at once,
// and then stalls, some of which begin or end while another is stalled.
func measureShares(ctx context.Context, cfg config, trials []shareTrial) ([]shareRow, error) {
	rows := make([]shareRow, len(trials))
	outages := 0
	for outages < len(trials) && trials[outages].stall == 0 {
		outages++
	}
	var stalls sync.Mutex
	measure := func(from, to, atATime int) error {
		return testbed.Parallel(to-from, atATime, func(i int) (err error) {
			report.Progress("%s", trials[from+i])
			rows[from+i], err = trials[from+i].measure(ctx, cfg, &stalls)
			return err
		})
	}
	return rows, testbed.Parallel(2, cfg.kinds, func(i int) error {
		if i == 0 {
			return measure(0, outages, outages)
		}
		return measure(outages, len(trials), stallsAtATime/cfg.stalls)
	})
}
