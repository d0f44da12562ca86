// Package simulate is a world in which weir's limiters meet everything that
// they promise to withstand, and in which every run can be replayed.
//
// One to four processes limit one client with the real limiters over a model of
// one Memcached. Time is simulated (testing/synctest), so that a run takes
// about a millisecond. A seed decides everything: the algorithm and its
// numbers, the traffic, how far the clocks of the processes are apart, and when
// each operation is applied and answered, so that operations interleave in any
// order. It also decides which faults there are: see faults. It doesn't decide
// whether a refund or a debt that goes on without a call comes before others
// that wait for the same leader: to see that again may take several runs.
//
// Oracles judge what happens:
//
//   - bound: an exact log of the admissions keeps the bound that the docs state
//     for the algorithm: of those that the store has decided, and of all of a
//     process, with the store and without, as far as it could know of them. It
//     is judged between two moments at which the server loses counts: by a
//     reset, an eviction, a flush or a restart; for a process that has the
//     client to itself, over those losses too.
//   - debts: when the server answers again, it has all that was surely owed to
//     it, and nothing twice.
//   - counts: each counter is what was admitted in its slot, if it is known of
//     all operations whether they were done, and nothing was lost.
//   - view: a process never knows of less than there is in the store, nor of
//     more if nothing was taken back late. Not judged if the server lost counts
//     without a reset, or applied operations after their deadline.
//   - reason: nobody is denied when little enough can be in use, nor, by a
//     process alone, when it can't know of more; and what was refunded is free
//     everywhere a second later.
//   - retry-after: a lone client that comes back when told to is admitted, by
//     any process if all know the same, else by the one that told it. A clock
//     that was wrong makes nobody wait for longer than a state can last.
//   - reset: a second after a reset the whole limit is free everywhere.
//   - timeout: no call takes longer than its timeout, and no goroutine goes on
//     when all processes have ended.
//   - errors: a call fails only if the store did.
//
// An addition or a swap that its caller has given up may be answered late: see
// late. What that tells is true, and from then on it isn't of unknown outcome.
// What was done of a check that was refused is given back, and what wasn't of one
// that its process has admitted alone is counted.
//
// A seed has two worlds more, one of settlements and one of leases, with oracles of their
// own: see simulateSettlements and simulateLeases.
//
// Beside the worlds the tests have plots: a few checks and a reset by one, two or
// three processes, on a server that forgets everything, or one key, at any
// moment. Every course of them is explored, not a random one: each order of the
// steps that the server does, and each moment of a loss. See plot, judge and, for
// what bounds them, plots. No operation fails, and clocks agree; that is for
// worlds. In some plots the answer to one operation is late: see letter.
//
// Run prints the timeline of the first seed in which one of them objects, and
// go run ./bench simulate -seed N that of seed N.
package simulate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// simulate runs the world of a seed and returns what was violated. It writes
// the timeline to trace, unless that is nil.
func simulate(seed uint64, broken mutation, trace io.Writer) []violation {
	return happen(seed, draw, (*world).checks, broken, trace)
}

// A kind of world: simulate's, or one of settlements or of leases.
type worlds func(seed uint64, broken mutation, trace io.Writer) []violation

var allWorlds = []worlds{simulate, simulateSettlements, simulateLeases}

// checks are made, and some taken back, until all is quiet.
func (w *world) checks() {
	w.after(0, func() { w.traffic(w.scenario.calls) })
	w.run()
	w.endFaults()
	w.judgeRefused()
	w.judgeCounts()
	w.judgeDebts()
	w.judgeOutage()
	w.judgeQuiet()
	w.judgeAdmissions()
}

// Run runs the worlds of many seeds, or with -seed that of one, whose timeline
// it prints. The error names the first seed in which something was violated,
// after its timeline.
func Run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	seeds := flags.Uint64("seeds", 10_000, "how many seeds to run")
	first := flags.Uint64("first", 1, "the first of them")
	one := flags.Uint64("seed", 0, "run only this one and print its timeline")
	if err := report.ParseFlags(flags, args, out); err != nil {
		return err
	}
	if *one != 0 {
		return replay(*one, mutation{}, out)
	}
	begun := time.Now()
	failed := search(ctx, *first, *seeds, violatesAny)
	if err := ctx.Err(); err != nil {
		return err
	}
	if failed != 0 {
		return cmp.Or(replay(failed, mutation{}, out), fmt.Errorf("seed %d violated something, but not again: see -seed", failed))
	}
	took := time.Since(begun)
	fmt.Fprintf(out, "%d seeds from %d on: nothing was violated (%.1f s, %.0f seeds/s)\n",
		*seeds, *first, took.Seconds(), float64(*seeds)/took.Seconds())
	return nil
}

// violatesAny reports whether something is violated in any world of a seed.
func violatesAny(seed uint64) bool {
	return slices.ContainsFunc(allWorlds, func(w worlds) bool { return len(w(seed, mutation{}, nil)) > 0 })
}

// replay prints the timelines of a seed up to the first in which something was
// violated, and returns that as an error.
func replay(seed uint64, broken mutation, out io.Writer) error {
	for _, run := range allWorlds {
		var timeline bytes.Buffer
		violations := run(seed, broken, &timeline)
		if _, err := timeline.WriteTo(out); err != nil {
			return err
		}
		if len(violations) > 0 {
			return fmt.Errorf("seed %d violates %v", seed, violations[0])
		}
	}
	return nil
}

// search returns the lowest of the seeds for which bad is true, or 0 if there
// is none. It calls bad from several goroutines.
func search(ctx context.Context, first, seeds uint64, bad func(seed uint64) bool) (found uint64) {
	var mu sync.Mutex
	// All seeds below one that is bad have begun, and come to their end.
	_ = testbed.Parallel(int(seeds), runtime.GOMAXPROCS(0), func(i int) error {
		seed := first + uint64(i)
		if err := ctx.Err(); err != nil || !bad(seed) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if found == 0 || seed < found {
			found = seed
		}
		return errBad
	})
	return found
}

var errBad = errors.New("a seed is bad")
