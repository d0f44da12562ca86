package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/accuracy"
)

// accuracyConfig is what the flags of accuracy say.
type accuracyConfig struct {
	scale    bool
	seed     uint64
	requests int64  // per workload, or of the crowd
	tries    int    // of the search for an attack
	dir      string // of the figures and the plots
}

const (
	fullRequests, quickRequests           = 400_000, 5_000
	fullCrowdRequests, quickCrowdRequests = accuracy.CrowdRequests, 300_000
	fullTries, quickTries                 = 400, 20
)

// parseAccuracy reads the flags of accuracy; on -help it prints them to out.
func parseAccuracy(args []string, out io.Writer) (accuracyConfig, error) {
	cfg := accuracyConfig{tries: fullTries}
	flags := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a few seconds instead of minutes, with too few requests to publish the figures")
	flags.BoolVar(&cfg.scale, "scale", false, "400 million requests from 270,000 clients instead")
	flags.Uint64Var(&cfg.seed, "seed", 1, "the same seed gives the same figures")
	flags.Int64Var(&cfg.requests, "requests", 0, "about so many `requests` per workload, or of a part of the crowd with -scale; 0 is the default")
	outFlag(flags, &cfg.dir)
	if err := parseFlags(flags, args, out); err != nil {
		return cfg, err
	}
	most := int64(100 * fullRequests)
	if cfg.scale {
		most = fullCrowdRequests
	}
	if cfg.requests < 0 || cfg.requests > most {
		return cfg, fmt.Errorf("accuracy: -requests must be from 1 to %d", most)
	}
	if *quick {
		cfg.tries = quickTries
	}
	if cfg.requests == 0 {
		switch {
		case cfg.scale && *quick:
			cfg.requests = quickCrowdRequests
		case cfg.scale:
			cfg.requests = fullCrowdRequests
		case *quick:
			cfg.requests = quickRequests
		default:
			cfg.requests = fullRequests
		}
	}
	return cfg, nil
}

// gcPercent spares the runs, which keep little and throw away much, most of the
// garbage collector's rounds.
const gcPercent = 1600

// accuracyCommand runs the simulations, prints what they measured as tables and
// draws it. The error says which expectation was broken; a speed that is missed is
// only printed.
func accuracyCommand(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parseAccuracy(args, out)
	if err != nil {
		return err
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	if cfg.scale {
		return accuracyAtScale(ctx, cfg, out)
	}
	r, err := measureAccuracy(ctx, cfg)
	say("")
	if err != nil {
		return err
	}
	return publish(out, cfg.dir, "accuracy", r)
}

// measureAccuracy runs everything but the crowd.
func measureAccuracy(ctx context.Context, cfg accuracyConfig) (*accuracyReport, error) {
	r := &accuracyReport{Machine: thisMachine(""), Seed: cfg.seed, Window: accuracy.Window, Workloads: accuracy.Workloads(int(cfg.requests))}
	algorithms := accuracy.Algorithms()
	for _, a := range algorithms {
		keys, err := a.KeysOfColdCheck(ctx)
		if err != nil {
			return nil, err
		}
		r.Costs = append(r.Costs, coldCheck{Algorithm: a.Name, Counters: a.Counters, Keys: keys})
	}

	runs := make([]*accuracy.Run, len(r.Workloads))
	if err := parallel(len(runs), func(i int) error {
		say("%s, demand %g", r.Workloads[i].Name, r.Workloads[i].Demand)
		runs[i] = accuracy.NewRun(r.Workloads[i], cfg.seed)
		return ctx.Err()
	}); err != nil {
		return nil, err
	}

	n := len(algorithms)
	r.Rows = make([]accuracy.Row, len(runs)*n)
	r.Speeds = make([]accuracy.Speed, n)
	var mu sync.Mutex
	if err := parallel(len(r.Rows), func(i int) error {
		run, a := runs[i/n], algorithms[i%n]
		say("%s, demand %g: %s", run.Name, run.Demand, a.Name)
		row, elapsed, err := run.Measure(ctx, a)
		r.Rows[i] = row
		mu.Lock()
		defer mu.Unlock()
		s := &r.Speeds[i%n]
		s.Algorithm = a.Name
		s.Decisions += row.Feedback.Requests + row.All.Requests
		s.Elapsed += elapsed
		return err
	}); err != nil {
		return nil, err
	}

	r.Attacks = make([]accuracy.AttackRow, n)
	if err := parallel(n, func(i int) (err error) {
		say("attacks: %s", algorithms[i].Name)
		r.Attacks[i], err = accuracy.AttackOn(ctx, algorithms[i], accuracy.DocumentLimit, cfg.tries, cfg.seed)
		return err
	}); err != nil {
		return nil, err
	}

	var pictured []accuracy.Algorithm
	for _, a := range algorithms {
		if _, ok := estimateColors[a.Name]; ok {
			pictured = append(pictured, a)
		}
	}
	var err error
	r.Traces, err = accuracy.Traces(ctx, cfg.seed, pictured)
	return r, err
}

// parallel calls f with 0 to n-1, on as many goroutines as there are cores, and
// returns all errors. After the first it starts no more.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, runtime.GOMAXPROCS(0))
	for worker := range errs {
		wait.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= n {
					return
				}
				if errs[worker] = f(i); errs[worker] != nil {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// accuracyAtScale measures a crowd.
func accuracyAtScale(ctx context.Context, cfg accuracyConfig, out io.Writer) error {
	start := time.Now()
	workers := runtime.GOMAXPROCS(0)
	figures, speeds, err := accuracy.MeasureCrowd(ctx, cfg.requests, cfg.seed, workers, func(decided int64) {
		say("%.1f of about %.0f million requests", float64(decided)/1e6, float64(cfg.requests)/1e6)
	})
	say("")
	if err != nil {
		return err
	}
	r := &scaleReport{Machine: thisMachine(""), Seed: cfg.seed, Elapsed: time.Since(start), CrowdFigures: figures, Speeds: speeds}
	return publish(out, cfg.dir, "accuracy-scale", r)
}
