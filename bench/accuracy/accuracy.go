// Package accuracy runs weir's own limiters on the embedded store in virtual
// time, beside an exact log of the same requests, and measures how far what
// they believe is from what is true, how much they admit in any window, and
// what the best attack gets.
//
// Run is the command. measure.go decides and compares requests of a workload,
// attack.go plays the attacks, trace.go follows one client for the pictures, and
// population.go is what -scale measures.
package accuracy

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/internal/report"
)

type config struct {
	scale    bool
	like     string // "" or cloudflare
	seed     uint64
	requests int64 // per workload, or of the population
	tries    int   // of the search for an attack
}

const (
	fullRequests, quickRequests = 400_000, 5_000
	quickPopulationRequests     = 300_000
	fullTries, quickTries       = 400, 20
)

const likeCloudflare = "cloudflare"

// gcPercent spares the runs, which keep little and throw away much, most of the
// garbage collector's rounds.
const gcPercent = 1600

// Run runs the simulations, prints what they measured as tables and draws it.
// The error says which expectation was broken; a speed that is missed is only
// printed.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{tries: fullTries}
	flags := report.NewFlags("accuracy")
	quick := flags.Quick("a few seconds instead of minutes, with too few requests to publish the figures")
	flags.BoolVar(&cfg.scale, "scale", false, "400 million requests from 270,000 clients instead")
	flags.StringVar(&cfg.like, "like", "", "with -scale, `whose` traffic theirs is like: cloudflare; else it is a harder one")
	flags.Uint64Var(&cfg.seed, "seed", 1, "the same seed gives the same figures")
	flags.Int64Var(&cfg.requests, "requests", 0, "about so many `requests` per workload, or of a part of the clients with -scale; 0 is the default")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if cfg.like != "" && (cfg.like != likeCloudflare || !cfg.scale) {
		return flags.Errorf("-like must be %s, and needs -scale", likeCloudflare)
	}
	most, usual := int64(100*fullRequests), int64(fullRequests)
	if cfg.scale {
		most, usual = PopulationRequests, PopulationRequests
	}
	if cfg.requests < 0 || cfg.requests > most {
		return flags.Errorf("-requests must be from 1 to %d", most)
	}
	if *quick {
		cfg.tries, usual = quickTries, quickRequests
		if cfg.scale {
			usual = quickPopulationRequests
		}
	}
	if cfg.requests == 0 {
		cfg.requests = usual
	}
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	if cfg.scale {
		r, err := measureAtScale(ctx, cfg)
		return flags.Publish(out, scaleFile(cfg.like), r, err)
	}
	r, err := measureAll(ctx, cfg, Workloads(int(cfg.requests)))
	return flags.Publish(out, "accuracy", r, err)
}

// measureAll runs everything but the population.
func measureAll(ctx context.Context, cfg config, workloads []Workload) (*Report, error) {
	r := &Report{Machine: report.ThisMachine(""), Seed: cfg.seed, Window: Window, Workloads: workloads}
	measured := all()
	for _, a := range measured {
		keys, err := a.keysOfColdCheck(ctx)
		if err != nil {
			return nil, err
		}
		bytes, err := a.Bytes(Window, largeLimit)
		if err != nil {
			return nil, err
		}
		r.Costs = append(r.Costs, coldCheck{Algorithm: a.Name, Counters: a.counters(), Keys: keys, Bytes: bytes})
	}

	runs, err := simulations(ctx, r.Workloads, cfg.seed)
	if err != nil {
		return nil, err
	}
	n := len(measured)
	r.Rows = make([]Row, len(runs)*n)
	r.Speeds = make([]Speed, n)
	var mu sync.Mutex
	if err := parallel(len(r.Rows), func(i int) error {
		run, a := runs[i/n], measured[i%n]
		report.Progress("%s, demand %g: %s", run.Name, run.Demand, a.Name)
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
	if r.Large, err = measureLarge(ctx, cfg, measured); err != nil {
		return nil, err
	}

	r.Attacks = make([]AttackRow, 2*n)
	if err := parallel(2*n, func(i int) (err error) {
		report.Progress("attacks: %s", measured[i%n].Name)
		if i < n {
			r.Attacks[i], err = attackOn(ctx, measured[i], DocumentLimit, cfg.tries, cfg.seed)
			return err
		}
		a := measured[i-n]
		r.Attacks[i] = AttackRow{Algorithm: a.Name, Limit: largeLimit, Bound: a.Bound(largeLimit)}
		r.Attacks[i].Written, err = a.run(ctx, a.attack(largeLimit), largeLimit)
		return err
	}); err != nil {
		return nil, err
	}

	if r.Traces, err = Traces(ctx, cfg.seed); err != nil {
		return nil, err
	}
	r.Attacked, err = attackTraces(ctx)
	return r, err
}

// simulations returns the runs of the workloads.
func simulations(ctx context.Context, workloads []Workload, seed uint64) ([]*simulation, error) {
	runs := make([]*simulation, len(workloads))
	return runs, parallel(len(runs), func(i int) error {
		report.Progress("%s, demand %g", workloads[i].Name, workloads[i].Demand)
		runs[i] = newSimulation(workloads[i], seed)
		return ctx.Err()
	})
}

// measureLarge measures the workloads of a large limit with feedback.
func measureLarge(ctx context.Context, cfg config, measured []algorithm) ([]Row, error) {
	runs, err := simulations(ctx, largeWorkloads(int(cfg.requests)), cfg.seed)
	if err != nil {
		return nil, err
	}
	n := len(measured)
	rows := make([]Row, len(runs)*n)
	return rows, parallel(len(rows), func(i int) (err error) {
		run, a := runs[i/n], measured[i%n]
		report.Progress("%s, limit %d: %s", run.Name, run.Limit, a.Name)
		rows[i], err = run.enforce(ctx, a)
		return err
	})
}

// parallel calls f with 0 to n-1, on as many goroutines as there are cores, and
// returns all errors. After the first it starts no more.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, runtime.GOMAXPROCS(0))
	for worker := range errs {
		wait.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
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

// measureAtScale measures the population.
func measureAtScale(ctx context.Context, cfg config) (*ScaleReport, error) {
	began, before := time.Now(), processorTime()
	c := newPopulation(cfg.like != "", cfg.requests, cfg.seed)
	figures, err := measurePopulation(ctx, c, populated(), runtime.GOMAXPROCS(0), func(decided int64) {
		report.Progress("%.1f of about %.0f million requests", float64(decided)/1e6, float64(cfg.requests)/1e6)
	})
	return &ScaleReport{
		Machine: report.ThisMachine(""), Seed: cfg.seed, Like: cfg.like, Elapsed: time.Since(began), Worked: processorTime() - before, PopulationFigures: figures,
	}, err
}
