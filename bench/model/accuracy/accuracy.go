// Package accuracy runs weir's own limiters on the embedded store in virtual
// time, beside an exact log of the same requests, and measures how far their
// estimates are from the true counts, how much they admit in any window, and
// what the best attack gets.
//
// Run is the command. measure.go decides and compares requests of a workload,
// attack.go plays the attacks, settling.go settles costs that are known afterwards,
// trace.go follows a client for the pictures, and population.go is what -scale
// measures. The rows are all algorithms, on the kinds of traffic of workload.go.
package accuracy

import (
	"cmp"
	"context"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

type config struct {
	scale    bool
	like     string // "" or cloudflare
	seed     uint64
	seeds    int   // how many, from seed on, workloads are measured with
	requests int64 // per workload and seed, or of the population
}

const (
	fullRequests, quickRequests = 100_000, 5_000
	fullSeeds, quickSeeds       = 12, 2
	quickPopulationRequests     = 300_000
)

const likeCloudflare = "cloudflare"

// gcPercent spares the runs, which keep little and throw away much, most of the
// garbage collector's rounds.
const gcPercent = 1600

// Run runs the simulations, prints what they measured as tables and draws it.
// The error says which expectation was broken.
func Run(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{seeds: fullSeeds}
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
		most, usual = populationRequests, populationRequests
	}
	if cfg.requests < 0 || cfg.requests > most {
		return flags.Errorf("-requests must be from 1 to %d", most)
	}
	if *quick {
		cfg.seeds, usual = quickSeeds, quickRequests
		if cfg.scale {
			usual = quickPopulationRequests
		}
	}
	cfg.requests = cmp.Or(cfg.requests, usual)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	if cfg.scale {
		r, err := measureAtScale(ctx, cfg)
		return flags.Publish(out, strings.TrimSuffix("accuracy-scale-"+cfg.like, "-"), r, err)
	}
	r, err := measureAll(ctx, cfg, documentWorkloads(int(cfg.requests)))
	return flags.Publish(out, "accuracy", r, err)
}

// measureAll runs everything but the population.
func measureAll(ctx context.Context, cfg config, workloads []workload) (*Report, error) {
	r := &Report{Machine: report.ThisMachine(""), Seed: cfg.seed, Seeds: cfg.seeds, Window: window, Workloads: workloads}
	measured := algorithms.All
	for _, a := range measured {
		bytes, err := a.Bytes(window, largeLimit)
		if err != nil {
			return nil, err
		}
		r.Costs = append(r.Costs, cost{a.Name, bytes})
	}
	var err error
	if r.Rows, err = measureRows(ctx, cfg, workloads, measured, (*simulation).measure); err != nil {
		return nil, err
	}
	large := largeWorkloads(largeRun * int(cfg.requests))
	if r.Large, err = measureRows(ctx, cfg, large, measured, (*simulation).enforce); err != nil {
		return nil, err
	}
	for _, limit := range []int64{documentLimit, largeLimit} {
		for _, a := range measured {
			report.Progress("attacks: %s", a.Name)
			row, err := attackOn(ctx, a, limit)
			if err != nil {
				return nil, err
			}
			r.Attacks = append(r.Attacks, row)
		}
	}
	if r.Settled, err = measureSettling(ctx, cfg.seed, cfg.seeds, int(cfg.requests)); err != nil {
		return nil, err
	}
	r.Traces, err = traces(ctx, cfg.seed)
	return r, err
}

// measureRows measures each workload by all algorithms, and adds up what it was
// with all seeds.
func measureRows(
	ctx context.Context, cfg config, workloads []workload, measured []algorithms.Algorithm,
	measure func(*simulation, context.Context, algorithms.Algorithm) (workloadRow, error),
) ([]workloadRow, error) {
	type run struct{ workload, seed int }
	var runs []run
	for i, w := range workloads {
		for seed := range w.seeds(cfg.seeds) {
			runs = append(runs, run{i, seed})
		}
	}
	each := make([][]workloadRow, len(runs)) // of all algorithms
	if err := testbed.Parallel(len(runs), runtime.GOMAXPROCS(0), func(i int) error {
		w := workloads[runs[i].workload]
		s := newSimulation(w, cfg.seed+uint64(runs[i].seed))
		for _, a := range measured {
			report.Progress("%s, limit %d, demand %g: %s", w.Name, w.Limit, w.Demand, a.Name)
			row, err := measure(s, ctx, a)
			if err != nil {
				return err
			}
			each[i] = append(each[i], row)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var rows []workloadRow
	for i := range workloads {
		for k := range measured {
			var seeds []workloadRow
			for n, run := range runs {
				if run.workload == i {
					seeds = append(seeds, each[n][k])
				}
			}
			rows = append(rows, together(seeds))
		}
	}
	return rows, nil
}

// measureAtScale measures the population.
func measureAtScale(ctx context.Context, cfg config) (*ScaleReport, error) {
	before, _ := testbed.OwnCPU() // no figure but what it took
	figures, err := measurePopulation(ctx, newPopulation(cfg.like != "", cfg.requests, cfg.seed), populated)
	after, _ := testbed.OwnCPU()
	return &ScaleReport{Machine: report.ThisMachine(""), Seed: cfg.seed, Like: cfg.like, Worked: after - before, populationFigures: figures}, err
}
