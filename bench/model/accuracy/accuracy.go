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

	"weir/bench/internal/report"
)

type config struct {
	scale    bool
	like     string // "" or cloudflare
	seed     uint64
	seeds    int   // how many, from seed on, workloads are measured with
	requests int64 // per workload and seed, or of the population
	tries    int   // of the search for an attack
}

const (
	fullRequests, quickRequests = 100_000, 5_000
	fullSeeds, quickSeeds       = 12, 2
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
	cfg := config{tries: fullTries, seeds: fullSeeds}
	flags := report.NewFlags("accuracy")
	quick := flags.Quick("a few seconds instead of minutes, with too few requests to publish the figures")
	flags.BoolVar(&cfg.scale, "scale", false, "400 million requests from 270,000 clients instead")
	flags.StringVar(&cfg.like, "like", "", "with -scale, `whose` traffic theirs is like: cloudflare; else it is a harder one")
	flags.Uint64Var(&cfg.seed, "seed", 1, "the same seed gives the same figures; random workloads are measured with it and those that follow, 12 in all")
	flags.Int64Var(&cfg.requests, "requests", 0, "about so many `requests` per workload and seed, or of a part of the clients with -scale; 0 is the default")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if cfg.like != "" && (cfg.like != likeCloudflare || !cfg.scale) {
		return flags.Errorf("-like must be %s, and needs -scale", likeCloudflare)
	}
	most, usual := int64(400*fullRequests), int64(fullRequests)
	if cfg.scale {
		most, usual = PopulationRequests, PopulationRequests
	}
	if cfg.requests < 0 || cfg.requests > most {
		return flags.Errorf("-requests must be from 1 to %d", most)
	}
	if *quick {
		cfg.tries, cfg.seeds, usual = quickTries, quickSeeds, quickRequests
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
	r := &Report{Machine: report.ThisMachine(""), Seed: cfg.seed, Seeds: cfg.seeds, Window: Window, Workloads: workloads}
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

	n := len(measured)
	r.Speeds = make([]Speed, n)
	var mu sync.Mutex
	var err error
	if r.Rows, err = measureRows(ctx, cfg, r.Workloads, measured, func(run *simulation, i int) (Row, error) {
		row, elapsed, err := run.Measure(ctx, measured[i])
		mu.Lock()
		defer mu.Unlock()
		s := &r.Speeds[i]
		s.Algorithm = measured[i].Name
		s.Decisions += row.Feedback.Requests + row.All.Requests
		s.Elapsed += elapsed
		return row, err
	}); err != nil {
		return nil, err
	}
	if r.Large, err = measureRows(ctx, cfg, largeWorkloads(largeRun*int(cfg.requests)), measured, func(run *simulation, i int) (Row, error) {
		return run.enforce(ctx, measured[i])
	}); err != nil {
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
	if r.Curves, err = curves(ctx, cfg.seed); err != nil {
		return nil, err
	}
	r.Attacked, err = attackTraces(ctx)
	return r, err
}

// measureRows measures each workload by all algorithms, of which measure is
// given the number, and adds up what it was with all seeds.
func measureRows(ctx context.Context, cfg config, workloads []Workload, measured []algorithm, measure func(*simulation, int) (Row, error)) ([]Row, error) {
	var runs []*simulation
	var first []int // run of each workload
	for _, w := range workloads {
		first = append(first, len(runs))
		for seed := range uint64(w.seeds(cfg.seeds)) {
			runs = append(runs, &simulation{Workload: w, seed: cfg.seed + seed})
		}
	}
	first = append(first, len(runs))
	if err := parallel(len(runs), func(i int) error {
		runs[i] = newSimulation(runs[i].Workload, runs[i].seed)
		return ctx.Err()
	}); err != nil {
		return nil, err
	}
	n := len(measured)
	each := make([][]Row, n) // of the runs
	for i := range each {
		each[i] = make([]Row, len(runs))
	}
	if err := parallel(len(runs)*n, func(i int) (err error) {
		run := runs[i/n]
		report.Progress("%s, limit %d, demand %g, seed %d: %s", run.Name, run.Limit, run.Demand, run.seed, measured[i%n].Name)
		each[i%n][i/n], err = measure(run, i%n)
		return err
	}); err != nil {
		return nil, err
	}
	var rows []Row
	for i := range workloads {
		for _, of := range each {
			rows = append(rows, together(of[first[i]:first[i+1]]))
		}
	}
	return rows, nil
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
	before := processorTime()
	c := newPopulation(cfg.like != "", cfg.requests, cfg.seed)
	figures, err := measurePopulation(ctx, c, populated(), runtime.GOMAXPROCS(0), func(decided int64) {
		report.Progress("%.1f of about %.0f million requests", float64(decided)/1e6, float64(cfg.requests)/1e6)
	})
	return &ScaleReport{
		Machine: report.ThisMachine(""), Seed: cfg.seed, Like: cfg.like, Worked: processorTime() - before, PopulationFigures: figures,
	}, err
}
