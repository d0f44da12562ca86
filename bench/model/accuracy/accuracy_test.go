package accuracy

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
	"weir/bench/internal/report"
	"weir/bench/internal/traffic"
	"weir/counters/memory"
)

// amount returns how many requests to measure: some, or all without -short.
func amount(all, some int) int {
	if testing.Short() {
		return some
	}
	return all
}

func TestAccuracyEndToEnd(t *testing.T) {
	t.Parallel()
	requests := amount(2000, 1000)
	var r Report
	dir, printed, err := benchtest.Run(t, Run, "accuracy", &r, "-quick", "-requests", strconv.Itoa(requests), "-seed", "3")
	require.NoError(t, err)
	assert.Equal(t, uint64(3), r.Seed)
	assert.Len(t, r.Rows, 18*14)
	assert.Len(t, r.Large, 5*14)
	assert.Len(t, r.Attacks, 2*14)
	assert.Len(t, r.Traces, 16)
	assert.Len(t, r.CSV(), 1+23*14)
	for _, row := range r.Rows {
		assert.Positive(t, row.Feedback.Requests, "%s, %s", row.Traffic, row.Algorithm)
		if row.Algorithm == algorithms.Log {
			assert.Equal(t, Difference{Requests: row.Feedback.Requests, True: row.Feedback.True}, row.Feedback, "%s: the log is exact", row.Traffic)
			assert.Equal(t, row.LogAdmitted, row.Admitted, row.Traffic)
		}
	}
	for _, text := range []string{"back-loaded", "strict N=60", "59.999999s", "fixed admits 2.00 L in a window, 2.00 L: ok", "counting 32 admits 1.00 L in a window"} {
		assert.Contains(t, printed, text)
	}
	names := []string{"cost", "attack", "curves"}
	for _, name := range []string{"steady", "poisson", "bursty", "day", "front-loaded", "back-loaded", "boundary", "zipf"} {
		names = append(names, name, name+"-enforced")
	}
	for _, name := range names {
		picture, err := os.Stat(filepath.Join(dir, "accuracy-"+name+".svg"))
		if assert.NoError(t, err) {
			assert.Greater(t, picture.Size(), int64(5000), name)
		}
	}

	// The same seed gives the same figures, also to fewer workloads.
	second, err := measureAll(t.Context(), config{seed: 3, seeds: quickSeeds, tries: quickTries, requests: int64(requests)}, Workloads(requests)[6:12])
	require.NoError(t, err)
	assert.Equal(t, r.Rows[84:168], second.Rows)
	assert.Equal(t, r.Large, second.Large)
	assert.Equal(t, r.Attacks, second.Attacks)
	assert.Equal(t, r.Costs, second.Costs)
	assert.Equal(t, r.Traces, second.Traces)
	assert.Equal(t, r.Attacked, second.Attacked)
	assert.Equal(t, r.Curves, second.Curves)
}

func TestAccuracyAtScaleEndToEnd(t *testing.T) {
	t.Parallel()
	for file, tt := range map[string]struct {
		args  []string
		texts []string
	}{
		"accuracy-scale":            {[]string{"-scale"}, []string{"0.7", "4 are steady, 6 are poisson"}},
		"accuracy-scale-cloudflare": {[]string{"-scale", "-like", "cloudflare"}, []string{"0.0030%", "sigma 0.9"}},
	} {
		var r ScaleReport
		dir, printed, err := benchtest.Run(t, Run, file, &r, append(tt.args, "-requests", strconv.Itoa(amount(60_000, 15_000)))...)
		require.NoError(t, err)
		assert.Positive(t, r.Requests)
		assert.Positive(t, r.LogAdmitted)
		assert.Len(t, r.Rows, 7)
		for _, text := range tt.texts {
			assert.Contains(t, printed, text)
		}
		assert.FileExists(t, filepath.Join(dir, file+".svg"))
	}
}

func TestAccuracyThatFailsSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"-quick"}, {"-scale", "-quick"}, {"-scale", "-like", "cloudflare", "-quick"}} {
		dir := t.TempDir()
		err := Run(ctx, append(args, "-out", dir), &bytes.Buffer{})
		assert.ErrorIs(t, err, context.Canceled)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, files)
	}
}

// expected returns a report that meets all targets.
func expected() *Report {
	r := &Report{}
	row := func(traffic, algorithm string, difference, fullest int64) {
		for _, demand := range Demands() {
			d := Difference{Requests: 100, Sum: difference, True: 10_000}
			r.Rows = append(r.Rows, Row{
				Traffic: traffic, Limit: 100, Demand: demand, Algorithm: algorithm, Feedback: d, All: d, Admissions: Admissions{Fullest: fullest},
			})
		}
	}
	for _, traffic := range []string{Poisson, Bursty, FrontLoaded, BackLoaded} {
		row(traffic, algorithms.Sliding1, 1000, 130)
		row(traffic, algorithms.Sliding60, 100, 101)
	}
	row(Boundary, algorithms.Fixed, 0, 200)
	row(Boundary, algorithms.Strict60, 0, 100)
	row(Boundary, algorithms.Log, 0, 100)
	row(Boundary, algorithms.Counting64, 0, 100)
	row(Boundary, algorithms.Counting32, 0, 100)
	for _, a := range all() {
		r.Attacks = append(r.Attacks, AttackRow{Algorithm: a.Name, Limit: 100, Bound: a.Bound(100), Written: Result{Fullest: a.Bound(100)}})
	}
	r.Costs = []coldCheck{{Algorithm: algorithms.Fixed, Counters: true}, {Algorithm: algorithms.Log}}
	r.Speeds = []Speed{
		{Algorithm: algorithms.Fixed, Decisions: 2_000_000, Elapsed: time.Second}, {Algorithm: algorithms.Log, Decisions: 1, Elapsed: time.Second},
	}
	return r
}

func TestAccuracyTargets(t *testing.T) {
	t.Parallel()
	r := expected()
	require.NoError(t, r.Broken())
	// Four kinds of traffic, each with every request counted for both demands
	// and with admitted ones counted for one, the boundary attacker, strict and
	// three logs.
	assert.Len(t, r.targets(), 4*3+5)
	assert.Equal(t, report.Targets{{Text: "fixed: 2.00 million decisions/s per core, at least 1", Met: true}}, r.speedTargets(), "the log isn't made of counters")

	for missed, spoil := range map[string]func(r *Report){
		"poisson, demand 1, every request counts: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED": func(r *Report) { r.Rows[2].All.Sum = 210 },
		"poisson, demand 1, admitted count: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED":       func(r *Report) { r.Rows[2].Feedback.Sum = 210 },
		"bursty, demand 2, every request counts: mean difference of N=60 0.110 of N=1's, at most 0.100: MISSED":  func(r *Report) { r.Rows[7].All.Sum = 110 },
		"boundary attacker: fixed admits 1.98 L in a window, 2.00 L: MISSED":                                     func(r *Report) { r.Rows[16].Fullest = 198 },
		"all traffic and all attacks: strict N=60 admits 1.01 L in a window, at most 1.00 L: MISSED":             func(r *Report) { r.Rows[19].Fullest = 101 },
		"all traffic and all attacks: log admits 1.02 L in a window, at most 1.00 L: MISSED":                     func(r *Report) { r.Attacks[11].Found.Fullest, r.Attacks[11].Bound = 102, 102 },
		"attacks: capped N=10 admits 121 in a window, at most 120: MISSED":                                       func(r *Report) { r.Attacks[7].Found.Fullest = 121 },
		"attacks: token admits 200 in a window, at most 199: MISSED":                                             func(r *Report) { r.Attacks[9].Found.Fullest = 200 },
	} {
		r := expected()
		spoil(r)
		assert.EqualError(t, r.Broken(), missed)
	}

	r.Speeds[0].Elapsed = 4 * time.Second
	assert.Equal(t, report.Targets{{Text: "fixed: 0.50 million decisions/s per core, at least 1", Met: false}}, r.speedTargets())
	assert.NoError(t, r.Broken(), "a speed is no error")
}

func TestFullestIsOfAllTrafficAndAttacks(t *testing.T) {
	t.Parallel()
	r := &Report{
		Large: []Row{
			{Algorithm: algorithms.Log, Admissions: Admissions{Fullest: 1100}}, {Algorithm: algorithms.Log, Admissions: Admissions{Fullest: 1300}},
			{Algorithm: algorithms.Fixed, Admissions: Admissions{Fullest: 1900}}, {Algorithm: algorithms.Log, Admissions: Admissions{Fullest: 1200}},
		},
		Attacks: []AttackRow{
			{Algorithm: algorithms.Log, Limit: 100, Written: Result{Fullest: 5000}}, {Algorithm: algorithms.Log, Limit: 1000, Written: Result{Fullest: 1250}},
			{Algorithm: algorithms.Fixed, Limit: 1000, Written: Result{Fullest: 2000}},
		},
	}
	assert.InDelta(t, 1.3, r.fullest(algorithms.Log), 1e-9)
	assert.InDelta(t, 2, r.fullest(algorithms.Fixed), 1e-9)
}

func TestScaleIsBrokenByWrongDecisionsOfExactLimiters(t *testing.T) {
	t.Parallel()
	row := func(algorithm string, d Difference) *ScaleReport {
		return &ScaleReport{PopulationFigures: PopulationFigures{Rows: []PopulationRow{{Algorithm: algorithm, Feedback: d}}}}
	}
	assert.NoError(t, row(algorithms.Sliding60, Difference{Sum: 1, WronglyAdmitted: 1, WronglyDenied: 1}).Broken())
	assert.NoError(t, row(algorithms.Strict60, Difference{Sum: 1, WronglyDenied: 1}).Broken())
	assert.EqualError(t, row(algorithms.Strict60, Difference{WronglyAdmitted: 1}).Broken(), "strict N=60 admitted 1 requests above the limit")
	assert.NoError(t, row(algorithms.Counting64, Difference{Sum: 1, WronglyDenied: 1}).Broken())
	assert.EqualError(t, row(algorithms.Counting64, Difference{WronglyAdmitted: 2}).Broken(), "counting 64 admitted 2 requests above the limit")
}

func TestParallelStopsAtAnError(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	done := make([]bool, 1000)
	err := parallel(len(done), func(i int) error {
		done[i] = true
		if i == 10 {
			return failed
		}
		return nil
	})
	assert.ErrorIs(t, err, failed)
	assert.NotContains(t, done[:10], false)
	assert.Contains(t, done, false)
	require.NoError(t, parallel(len(done), func(i int) error {
		done[i] = true
		return nil
	}))
	assert.NotContains(t, done, false)
}

func TestDifference(t *testing.T) {
	t.Parallel()
	// With a limit of 4.
	var d Difference
	for _, r := range []struct {
		estimate, truth int64
		allowed         bool
	}{
		{0, 0, true},  // right
		{3, 4, true},  // wrongly admitted: 4 and this one are 5
		{4, 3, false}, // wrongly denied
		{4, 9, false}, // right, though far off
		{1, 3, true},  // right, though off
	} {
		d.observe(answer{estimate: r.estimate, allowed: r.allowed}, r.truth, 4)
	}
	// |0-0| + |3-4| + |4-3| + |4-9| + |1-3| = 9
	assert.Equal(t, Difference{Requests: 5, Sum: 9, Worst: 5, True: 19, WronglyAdmitted: 1, WronglyDenied: 1, WrongByOne: 2}, d)
	assert.InDelta(t, 9.0/5, d.Mean(), 1e-12)
	assert.InDelta(t, 9.0/19, d.Relative(), 1e-12)
	assert.Zero(t, Difference{}.Mean())
	assert.Zero(t, Difference{}.Relative())

	d.Add(Difference{Requests: 1, Sum: 7, Worst: 7, True: 2, WronglyAdmitted: 3, WronglyDenied: 4, WrongByOne: 1, WrongByFew: 2})
	assert.Equal(t, Difference{Requests: 6, Sum: 16, Worst: 7, True: 21, WronglyAdmitted: 4, WronglyDenied: 5, WrongByOne: 3, WrongByFew: 2}, d)
	assert.Equal(t, int64(9), d.Wrong())
	assert.Equal(t, int64(4), d.WrongByMore())
}

// With a limit of 10: one too many is the eleventh.
func TestWrongByHowMuch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		truth   int64
		allowed bool
		by      string
	}{
		{9, true, "right"}, {10, true, "one"}, {11, true, "few"}, {14, true, "few"}, {15, true, "more"},
		{10, false, "right"}, {9, false, "one"}, {8, false, "few"}, {5, false, "few"}, {4, false, "more"},
	} {
		var d Difference
		d.observe(answer{allowed: tt.allowed}, tt.truth, 10)
		got := "right"
		switch int64(1) {
		case d.WrongByOne:
			got = "one"
		case d.WrongByFew:
			got = "few"
		case d.WrongByMore():
			got = "more"
		}
		assert.Equal(t, tt.by, got, "%d, allowed %v", tt.truth, tt.allowed)
		assert.LessOrEqual(t, d.Wrong(), int64(1))
	}
}

// The figures of a row are those of all seeds together, and it says between what
// those of single seeds lie.
func TestRowsAreOfSeveralSeeds(t *testing.T) {
	t.Parallel()
	const seeds = 3
	w := single(traffic.AtOnce, "at once", largeLimit, 1, 20*largeLimit)
	measured := []algorithm{named(algorithms.Sliding10), named(algorithms.Log)}
	rows, err := measureRows(t.Context(), config{seed: 5, seeds: seeds}, []Workload{w}, measured, func(run *simulation, i int) (Row, error) {
		return run.enforce(t.Context(), measured[i])
	})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	var admitted, logged int64
	low, high := math.Inf(1), math.Inf(-1)
	for seed := range uint64(seeds) {
		one, err := newSimulation(w, 5+seed).enforce(t.Context(), measured[0])
		require.NoError(t, err)
		admitted, logged = admitted+one.Admitted, logged+one.LogAdmitted
		low, high = min(low, one.ofLog()), max(high, one.ofLog())
	}
	assert.Equal(t, []int64{admitted, logged}, []int64{rows[0].Admitted, rows[0].LogAdmitted})
	assert.Equal(t, Range{low, high}, rows[0].OfLog)
	assert.Less(t, low, high)
	assert.Equal(t, Range{100, 100}, rows[1].OfLog)

	// Arrivals that no seed changes are measured once.
	even := single(traffic.Named("steady"), "steady", DocumentLimit, 2, 1000)
	rows, err = measureRows(t.Context(), config{seed: 5, seeds: seeds}, []Workload{even, w}, measured, func(run *simulation, i int) (Row, error) {
		return run.enforce(t.Context(), measured[i])
	})
	require.NoError(t, err)
	require.Len(t, rows, 4)
	one, err := newSimulation(even, 5).enforce(t.Context(), measured[0])
	require.NoError(t, err)
	assert.Equal(t, one, rows[0])
	assert.Equal(t, admitted, rows[2].Admitted)
}

// Of all traffic each kind counts alike, with however many seeds it was measured.
func TestTrafficOfOneSeedCountsLikeTheOthers(t *testing.T) {
	t.Parallel()
	r := Report{Seeds: 3, Costs: []coldCheck{{Algorithm: algorithms.Fixed}}, Rows: []Row{
		{Algorithm: algorithms.Fixed, Limit: DocumentLimit, Feedback: Difference{Requests: 300, WronglyAdmitted: 30}, OfLog: Range{99, 100}},
		{Algorithm: algorithms.Fixed, Limit: DocumentLimit, Feedback: Difference{Requests: 100, WronglyAdmitted: 50}},
	}}
	var out bytes.Buffer
	r.printWrong(&out)
	assert.Contains(t, out.String(), "30.0000%")
}

// at returns a workload of one client that asks at the given seconds.
func at(limit int64, length time.Duration, seconds ...int) Workload {
	return Workload{
		Name: "timeline", Limit: limit, Demand: 1, Clients: 1, Length: length,
		arrivals: func(uint64, time.Duration) iter.Seq[traffic.Arrival] {
			return func(yield func(traffic.Arrival) bool) {
				for _, s := range seconds {
					if !yield(traffic.Arrival{At: time.Duration(s) * time.Second}) {
						return
					}
				}
			}
		},
	}
}

func TestRowOfATimeline(t *testing.T) {
	t.Parallel()
	// 4 per minute. The exact log admits the first four and the one at 70 s.
	run := newSimulation(at(4, 2*Window, timeline...), 1)

	// Fixed admits 10 20 30 40 | 65 70. Estimates are 0 1 2 3 4 0 1, its own
	// admissions within a minute 0 1 2 3 4 4 4, all requests 0 1 2 3 4 5 5.
	row, _, err := run.Measure(t.Context(), named(algorithms.Fixed))
	require.NoError(t, err)
	assert.Equal(t, Row{
		Traffic: "timeline", Limit: 4, Demand: 1, Algorithm: algorithms.Fixed,
		Feedback: Difference{Requests: 7, Sum: 4 + 3, Worst: 4, True: 18, WronglyAdmitted: 2, WrongByOne: 2},
		Admissions: Admissions{
			Admitted: 6, Fullest: 5, FullestReleased: 5,
			// Windows that end from 60 s to 120 s hold the admissions for 10,
			// 20, 30, 40, 55 and 50 s.
			MeanWindow: 205.0 / 60,
		},
		LogAdmitted: 5,
		All:         Difference{Requests: 7, Sum: 5 + 4, Worst: 5, True: 20, WronglyAdmitted: 2, WrongByFew: 2},
	}, row)

	// The leaky bucket admits all and releases them at 10, 25, 40, 55, 70, 85
	// and 100 s. Estimates are 0 1 1 1 2 2 2, its admissions 0 1 2 3 4 5 5.
	row, _, err = run.Measure(t.Context(), named(algorithms.Leaky))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 0 + 0 + 1 + 2 + 2 + 3 + 3, Worst: 3, True: 20, WronglyAdmitted: 3, WrongByOne: 1, WrongByFew: 2}, row.Feedback)
	assert.Equal(t, int64(6), row.Fullest)
	assert.Equal(t, int64(4), row.FullestReleased)

	// N=60 takes the request of 10 s to be in the window at 70 s.
	row, _, err = run.Measure(t.Context(), named(algorithms.Sliding60))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, Worst: 1, True: 17, WronglyDenied: 1, WrongByOne: 1}, row.Feedback)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, Worst: 1, True: 20}, row.All)

	row, _, err = run.Measure(t.Context(), named(algorithms.Log))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, True: 17}, row.Feedback)
	assert.Equal(t, row.LogAdmitted, row.Admitted)
}

func TestClientsAreCountedApart(t *testing.T) {
	t.Parallel()
	w := at(1, 2*Window)
	w.Clients = 2
	w.arrivals = func(uint64, time.Duration) iter.Seq[traffic.Arrival] {
		return slices.Values([]traffic.Arrival{{At: 0}, {At: 1, Client: 1}, {At: 2}})
	}
	row, _, err := newSimulation(w, 1).Measure(t.Context(), named(algorithms.Log))
	require.NoError(t, err)
	assert.Equal(t, int64(2), row.Admitted)
	assert.Equal(t, int64(2), row.LogAdmitted)
	assert.Equal(t, int64(1), row.Fullest)
	assert.Equal(t, Difference{Requests: 3, True: 1}, row.Feedback)
	// Nothing is left in the window after a minute: 0 of 2 clients' windows
	// from 60 s on, but for the 1 ns of client 1.
	assert.InDelta(t, 0, row.MeanWindow, 1e-9)
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	// 4,000 requests are 40 minutes of the limit of 100, of twice that 20; but
	// 1000 and 2000 a minute take no less than 2 or 4, and a day 24.
	lengths := map[string][]time.Duration{
		"day": {48 * time.Minute, 24 * time.Minute}, "poisson of 1000": {4 * time.Minute, 2 * time.Minute}, "zipf": {2 * time.Minute, 2 * time.Minute},
	}
	names := make(map[string]int)
	for i, w := range Workloads(4000) {
		names[w.Name]++
		assert.Equal(t, Demands()[i%2], w.Demand, w.Name)
		want := []time.Duration{40 * time.Minute, 20 * time.Minute}
		if other, ok := lengths[w.Name]; ok {
			want = other
		}
		assert.Equal(t, want[i%2], w.Length, w.Name)

		mean := w.Demand * float64(w.Limit) * w.Length.Minutes()
		if w.Name == "zipf" {
			mean *= ZipfDemand
		}
		n := 0.0
		clients := make([]float64, w.Clients)
		for a := range w.arrivals(1, w.Length) {
			require.Less(t, a.At, w.Length)
			clients[a.Client]++
			n++
		}
		spread := 5 * math.Sqrt(mean)
		switch w.Name {
		case "steady", Boundary:
			spread = 0
		case Bursty:
			spread = mean / 3 // about 50 bursts of random distance
		}
		assert.InDelta(t, mean, n, spread, "%s, demand %g", w.Name, w.Demand)
		if w.Name == "zipf" {
			// The sum of k^-1.1 for k from 1 to 1000 is 5.57: shares of 3.59,
			// 1.67 and 1.07 limits, demand 2 the double.
			limit := w.Demand * float64(w.Limit) * w.Length.Minutes()
			assert.InDelta(t, 3.59, clients[0]/limit, 0.3)
			assert.InDelta(t, 1.67, clients[1]/limit, 0.2)
			assert.InDelta(t, 1.07, clients[traceClient]/limit, 0.2)
		}
	}
	assert.Len(t, names, 9)
	for name, n := range names {
		assert.Equal(t, 2, n, name)
	}
}

func TestLargeWorkloads(t *testing.T) {
	t.Parallel()
	demands := make(map[string]float64)
	for _, w := range largeWorkloads(100_000) {
		demands[w.Name] = w.Demand
		assert.Equal(t, int64(1000), w.Limit)
		n := 0.0
		for range w.arrivals(1, w.Length) {
			n++
		}
		assert.InDelta(t, 100_000, n, 20_000, w.Name)
		assert.InDelta(t, w.Demand*1000*w.Length.Minutes(), n, 20_000, w.Name)
	}
	assert.Equal(t, map[string]float64{"steady": 1.5, Poisson: 2, Bursty: 2, FrontLoaded: 2, "at once": 1}, demands)
}

func TestTrace(t *testing.T) {
	t.Parallel()
	// Requests at 100, 110 and 130 s; samples from 120.55 s on, every 2.1 s.
	w := at(4, 0, 100, 110, 130)
	trace, err := w.trace(t.Context(), 1, false, algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding60)
	require.NoError(t, err)
	assert.Len(t, trace.True, tracePoints)
	// 100 s leaves the window at 160 s, 110 s at 170 s and 130 s at 190 s.
	assert.Equal(t, []int64{2, 2, 2, 2, 2, 3}, trace.True[:6])
	assert.Equal(t, []int64{3, 2, 2, 2, 2, 2, 1}, trace.True[18:25])
	assert.Equal(t, []int64{1, 0}, trace.True[33:35])
	require.Len(t, trace.Estimates, 3)
	fixed, one, sixty := trace.Estimates[0], trace.Estimates[1], trace.Estimates[2]
	assert.Equal(t, algorithms.Fixed, fixed.Algorithm)
	assert.Equal(t, []int64{0, 0, 0, 0, 0, 1}, fixed.Values[:6])
	assert.Equal(t, []int64{1, 0}, fixed.Values[28:30], "the third minute begins at 180 s")
	// 59.45/60 of 2 at 120.55 s, 48.95/60 of 2 and 1 more at 131.05 s, 30.05/60
	// of 2 and 1 at 149.95 s, 27.95/60 of 2 and 1 at 152.05 s.
	assert.Equal(t, []int64{1, 1}, one.Values[:2])
	assert.Equal(t, int64(2), one.Values[5])
	assert.Equal(t, []int64{2, 1}, one.Values[14:16])
	// A part of the oldest slot's 1 is nothing.
	assert.Equal(t, []int64{3, 2, 2}, sixty.Values[18:21])
}

func TestTracesAreOfTheDocumentsLimit(t *testing.T) {
	t.Parallel()
	traces, err := Traces(t.Context(), 1)
	require.NoError(t, err)
	assert.Len(t, traces, 16)
	for i, trace := range traces {
		assert.Equal(t, int64(DocumentLimit), trace.Limit)
		assert.Equal(t, i%2 == 1, trace.Enforced)
		assert.Equal(t, Demands()[i%2], trace.Demand)
		assert.Positive(t, slices.Max(trace.True))
		points, length := tracePoints, tracePoints*traceEvery
		switch trace.Traffic {
		case Day:
			length = traffic.Day // all of it
		case Boundary:
			points, length = boundaryPoints, 2*time.Minute // its cycle
		}
		assert.InEpsilon(t, length, time.Duration(len(trace.True))*trace.Every, 0.02, trace.Traffic)
		for _, e := range trace.Estimates {
			assert.Len(t, e.Values, points)
			if trace.Enforced {
				assert.Len(t, e.Admitted, points)
			}
			if named(e.Algorithm).exact() && trace.Enforced {
				assert.LessOrEqual(t, slices.Max(e.Admitted), trace.Limit, "%s: %s", trace.Traffic, e.Algorithm)
			}
		}
	}
}

// Traces look at all parts of a slot of N=60, none of them more often.
func TestTracesLookAtAllPartsOfASlot(t *testing.T) {
	t.Parallel()
	for _, w := range Workloads(0) {
		if w.Limit != DocumentLimit || w.Name == Boundary {
			continue
		}
		trace, err := w.trace(t.Context(), 1, false)
		require.NoError(t, err)
		var tenths [10]int
		for i := range trace.True {
			tenths[(trace.From+time.Duration(i)*trace.Every)%time.Second/(100*time.Millisecond)]++
		}
		for tenth, n := range tenths {
			assert.Equal(t, tracePoints/10, n, "%s: %d", w.Name, tenth)
		}
	}
}

// What the boundary attacker sent leaves the window at once. N=60 goes on to
// count it for a second: first all that came after the boundary, less and less
// if weighted.
func TestTraceOfTheBoundaryShowsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, w := range Workloads(0) {
		if w.Name != Boundary || w.Demand != 1 {
			continue
		}
		trace, err := w.trace(t.Context(), 1, false, algorithms.Sliding60, algorithms.Strict60)
		require.NoError(t, err)
		assert.Equal(t, int64(200), slices.Max(trace.True))
		weighted, strict := differences(trace.Estimates[0].Values, trace.True), differences(trace.Estimates[1].Values, trace.True)
		first := slices.IndexFunc(strict, func(d int64) bool { return d > 0 })
		require.Positive(t, first)
		assert.Equal(t, []int64{98, 73, 48, 23, 0}, weighted[first:first+5])
		assert.Equal(t, []int64{100, 100, 100, 100, 0}, strict[first:first+5])
	}
}

// Random traffic from its first request on: in the first minute windows that
// slide and the fixed one believe what is true, then only the fixed one forgets
// it all.
func TestCurvesBeginAtTheBeginning(t *testing.T) {
	t.Parallel()
	trace, err := curves(t.Context(), 1)
	require.NoError(t, err)
	var names []string
	minute := int(time.Minute / trace.Every)
	for _, e := range trace.Estimates {
		names = append(names, e.Algorithm)
		assert.Equal(t, trace.True[:minute], e.Values[:minute], e.Algorithm)
		second := e.Values[minute+1]
		assert.Equal(t, e.Algorithm == algorithms.Fixed, second < trace.True[minute+1]/2, e.Algorithm)
	}
	assert.Equal(t, []string{algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding60}, names)
}

// The rate of a day is highest in its sixth hour and lowest in its eighteenth.
func TestTraceOfADayShowsItAll(t *testing.T) {
	t.Parallel()
	for _, w := range Workloads(0) {
		if w.Name != Day || w.Demand != 1 {
			continue
		}
		trace, err := w.trace(t.Context(), 1, false)
		require.NoError(t, err)
		// It begins at two minutes, the second hour.
		var at [24]int64
		for i, n := range trace.True {
			hour := (traceFrom + time.Duration(i)*trace.Every) % traffic.Day / time.Minute
			at[hour] = max(at[hour], n)
		}
		assert.NotContains(t, at[:], int64(0), "an hour is missing")
		assert.Greater(t, at[7], int64(150))
		assert.Less(t, at[19], int64(50))
	}
}

func TestEnforcedTraceHasOwnAdmissions(t *testing.T) {
	t.Parallel()
	// With a limit of 1 the second is denied, and not in the estimate.
	trace, err := at(1, 0, 130, 150).trace(t.Context(), 1, true, algorithms.Log)
	require.NoError(t, err)
	log := trace.Estimates[0]
	assert.Equal(t, []int64{0, 1, 1, 2}, []int64{trace.True[4], trace.True[5], trace.True[14], trace.True[15]})
	assert.Equal(t, []int64{0, 1, 1, 1}, []int64{log.Admitted[4], log.Admitted[5], log.Admitted[14], log.Admitted[15]})
	assert.Equal(t, log.Admitted, log.Values)
	assert.Zero(t, log.Values[35], "at 190 s")
}

// The picture of the attack shows all that it gets.
func TestAttackTraces(t *testing.T) {
	t.Parallel()
	trace, err := attackTraces(t.Context())
	require.NoError(t, err)
	most := make(map[string]int64)
	for _, e := range trace.Estimates {
		most[e.Algorithm] = slices.Max(e.Admitted)
	}
	assert.Equal(t, map[string]int64{
		algorithms.Fixed: 200, algorithms.Sliding10: 200, algorithms.Sliding60: 200, algorithms.Capped10: 120, algorithms.Strict60: 100, algorithms.Counting64: 100,
	}, most)
}

// A client that comes at one moment exactly every minute: strict admits it each
// other time, and a weighted window L/(1+r), as r of the oldest slot counts:
// on average ln 2 of the limit. A log admits it all.
func TestWhoIsPunctual(t *testing.T) {
	t.Parallel()
	const limit, minutes, phases = 100, 40, 50
	for name, want := range map[string]float64{
		algorithms.Strict60: 0.5, algorithms.Sliding60: math.Ln2, algorithms.Sliding10: math.Ln2, algorithms.Log: 1, algorithms.Counting32: 1, algorithms.Counting64: 1,
	} {
		admitted := 0.0
		for phase := range phases {
			a := named(name)
			s, err := a.subject(limit, 1, true)
			require.NoError(t, err)
			from := a.Width(Window) * time.Duration(2*phase+1) / (2 * phases)
			for minute := range minutes {
				for range limit {
					answer, err := s.ask(t.Context(), oneClient, from+time.Duration(minute)*Window)
					require.NoError(t, err)
					if answer.allowed && minute >= minutes/2 {
						admitted++
					}
				}
			}
		}
		assert.InDelta(t, want, admitted/(limit*phases*minutes/2), 0.015, name)
	}
}

// A client that asks each 10 s, with a limit of 5 a minute: a log admits 5 of 6.
// Strict has 5 in its way for up to 61 s, so that it admits 5 of 7.
func TestStrictLosesMoreOfASmallLimit(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]float64{algorithms.Strict60: 5.0 / 7, algorithms.Log: 5.0 / 6} {
		s, err := named(name).subject(5, 1, true)
		require.NoError(t, err)
		admitted := 0.0
		for n := range 6 * 7 * 10 {
			answer, err := s.ask(t.Context(), oneClient, time.Duration(n)*10*time.Second)
			require.NoError(t, err)
			if answer.allowed {
				admitted++
			}
		}
		assert.InDelta(t, want, admitted/(6*7*10), 1e-9, name)
	}
}

func testPopulation(t *testing.T, seed uint64, measured ...algorithm) *worker {
	w, err := newWorker(newPopulation(false, PopulationRequests, seed), measured)
	require.NoError(t, err)
	return w
}

func TestPopulationFollowsZipf(t *testing.T) {
	t.Parallel()
	w := testPopulation(t, 1)
	var sum float64
	for k := range PopulationClients {
		sum += w.rate(k) * PopulationLength.Seconds()
	}
	assert.InEpsilon(t, PopulationRequests, sum, 1e-9)
	// 8 to the 0.7 is 4.29, and the sum of k^-0.7 is 139.2, so the first asks for
	// 400 million / 139.2.
	assert.InDelta(t, 4.287, w.rate(0)/w.rate(7), 0.001)
	assert.InDelta(t, 2.87e6, w.rate(0)*PopulationLength.Seconds(), 0.01e6)
	// A client's arrivals are those of its number, at its rate.
	const k = 1000
	n := 0.0
	for range w.arrivals(k) {
		n++
	}
	mean := w.rate(k) * PopulationLength.Seconds()
	assert.InDelta(t, mean, n, mean/3)
}

// The figures were chosen once, and the report says them.
func TestPopulationLikeCloudflares(t *testing.T) {
	t.Parallel()
	c := newPopulation(true, PopulationRequests, 1)
	assert.Equal(t, int64(2000), c.limit)
	var sum float64
	rates := make([]float64, PopulationClients)
	for k := range rates {
		rates[k] = c.rate(k) * Window.Seconds()
		sum += rates[k] * PopulationLength.Minutes()
	}
	assert.InEpsilon(t, 400_000_000, sum, 1e-9)
	assert.Equal(t, []float64{3000, 2480, 2040, 1700, 1400}, rates[:5])
	// All others are below the limit. Of a lognormal the mean is e^(sigma^2/2)
	// of the median, and the quantiles 0.1587 and 0.8413 are e^-sigma and
	// e^sigma of it.
	rest := rates[5:]
	assert.Less(t, rest[0], 1200.0)
	median := rest[len(rest)/2]
	assert.InEpsilon(t, math.Exp(0.9), rest[int(0.15866*float64(len(rest)))]/median, 0.001)
	assert.InEpsilon(t, math.Exp(-0.9), rest[int(0.84134*float64(len(rest)))]/median, 0.001)
	assert.InEpsilon(t, 400_000_000.0/270_000/60/math.Exp(0.405), median, 0.01)
	assert.Equal(t, traffic.Pages.Name, c.pattern(nil).Name)
}

func TestPopulationsDifferBySeed(t *testing.T) {
	t.Parallel()
	for _, like := range []bool{false, true} {
		var of [5][]traffic.Arrival
		for seed := range of {
			// Client 5003 is the first that isn't steady with any seed.
			of[seed] = slices.Collect(newPopulation(like, PopulationRequests, uint64(seed)).arrivals(5003))
			for other := range seed {
				assert.NotEqual(t, of[other], of[seed], "seeds %d and %d", other, seed)
			}
		}
	}
}

func TestEachTrafficHasASeedOfItsOwn(t *testing.T) {
	t.Parallel()
	// How many come in each minute is a fixed window's row.
	minutes := make(map[string][]int)
	for _, w := range Workloads(4000) {
		if w.Demand != 1 || w.Clients > 1 {
			continue
		}
		counts := make([]int, 24)
		for a := range w.arrivals(1, 24*time.Minute) {
			counts[a.At/time.Minute]++
		}
		minutes[w.Name] = counts
	}
	assert.NotEqual(t, minutes[Poisson], minutes[FrontLoaded])
	assert.NotEqual(t, minutes[Poisson], minutes[BackLoaded])
	assert.NotEqual(t, minutes[FrontLoaded], minutes[BackLoaded])
	seeds := make(map[uint64]bool)
	for seed := range uint64(10) {
		seeds[ownSeed(seed, Poisson)] = true
		seeds[ownSeed(seed, Bursty)] = true
	}
	assert.Len(t, seeds, 20)
}

func TestPopulationIsMixed(t *testing.T) {
	t.Parallel()
	// Of 2000 clients 400 are steady, with a standard deviation of 18: their
	// second request comes after exactly the time that the third comes after
	// it.
	w := testPopulation(t, 1)
	steady := 0.0
	for k := range 2000 {
		var times []time.Duration
		for r := range w.arrivals(100_000 + k) {
			if times = append(times, r.At); len(times) == 3 {
				break
			}
		}
		if len(times) == 3 && times[0] == 0 && math.Abs(float64(times[2]-2*times[1])) < 3 {
			steady++
		}
	}
	assert.InDelta(t, 400, steady, 90)
}

func TestPopulationClientIsMeasuredAsIfAlone(t *testing.T) {
	t.Parallel()
	w := testPopulation(t, 1, named(algorithms.Fixed), named(algorithms.Sliding1), named(algorithms.Log))
	// A client far above the limit, one near it, and one below.
	clients := []int{500, 7000, 200_000}
	for _, k := range clients {
		before := w.figures.Rows[1]
		require.NoError(t, w.client(t.Context(), k))
		after := w.figures.Rows[1]

		a := named(algorithms.Sliding1)
		feedback, err := a.subject(DocumentLimit, 1, true)
		require.NoError(t, err)
		all, err := a.subject(DocumentLimit, 1, false)
		require.NoError(t, err)
		admitted, asked := traffic.NewRecent(Window), traffic.NewRecent(Window)
		wantFeedback, wantAll := before.Feedback, before.All
		for r := range w.arrivals(k) {
			answer, err := feedback.ask(t.Context(), oneClient, r.At)
			require.NoError(t, err)
			wantFeedback.observe(answer, admitted.Count(r.At), DocumentLimit)
			if answer.allowed {
				admitted.Add(r.At)
			}
			answer, err = all.ask(t.Context(), oneClient, r.At)
			require.NoError(t, err)
			wantAll.observe(answer, asked.Count(r.At), DocumentLimit)
			asked.Add(r.At)
		}
		assert.Equal(t, wantFeedback, after.Feedback, k)
		assert.Equal(t, wantAll, after.All, k)
	}
	assert.Equal(t, 3, w.figures.Clients)
	assert.Equal(t, w.figures.Rows[2].Admitted, w.figures.LogAdmitted, "the log's own limiter")
	assert.Less(t, w.figures.LogAdmitted, w.figures.Requests)
	assert.Equal(t, 1, w.figures.Above, "the sum of k^-0.7 is 139.2, so the limit is at client 6745")
}

func TestPopulationNotesClients(t *testing.T) {
	t.Parallel()
	measured := all()
	w := testPopulation(t, 1, measured...)
	n := len(w.figures.Rows)
	feedback, all, denied := make([]Difference, n), make([]Difference, n), make([]int64, n)
	feedback[0], all[0] = Difference{Requests: 10, Sum: 3}, Difference{Requests: 10, Sum: 4}
	// Below the limit, and the first algorithm denied something.
	denied[0] = 2
	w.note(PopulationClients-1, 10, DocumentLimit, feedback, all, denied)
	// Above it in a window, and only the first algorithm noticed.
	w.note(0, 20, DocumentLimit+1, feedback, all, denied)

	other := testPopulation(t, 1, measured...)
	other.note(0, 20, DocumentLimit+1, feedback, all, denied)
	w.figures.add(other.figures)
	f := w.figures
	assert.Equal(t, []int64{50, 40}, []int64{f.Requests, f.AboveRequests})
	assert.Equal(t, []int{3, 2, 1}, []int{f.Clients, f.Above, f.Below})
	assert.Equal(t, PopulationRow{
		Algorithm: algorithms.Fixed, Admitted: 44, Feedback: Difference{Requests: 30, Sum: 9, Worst: 0}, All: Difference{Requests: 30, Sum: 12}, BelowLimited: 1,
	}, f.Rows[0])
	assert.Equal(t, PopulationRow{Algorithm: algorithms.Sliding1, Admitted: 50, OthersUnlimited: 2}, f.Rows[1])
}

func TestPopulationDependsOnSeedAlone(t *testing.T) {
	t.Parallel()
	requests := int64(amount(32_000, 8_000))
	var most int64
	measure := func(seed uint64, workers int) PopulationFigures {
		f, err := measurePopulation(t.Context(), newPopulation(false, requests, seed), all(), workers, func(n int64) {
			if workers == 1 {
				most = max(most, n)
			}
		})
		require.NoError(t, err)
		return f
	}
	one := measure(1, 1)
	assert.Equal(t, one.Requests, most)
	assert.Equal(t, one, measure(1, 3), "however many work on it")
	two, three := measure(2, 3), measure(3, 3)
	assert.NotEqual(t, one, two)
	assert.NotEqual(t, two, three)

	// 270,000 clients in steps of 400 million / 32,000 are 21.6.
	assert.InDelta(t, PopulationClients*float64(requests)/PopulationRequests, one.Clients, 0.5)
	assert.Equal(t, len(all()), len(one.Rows))
	for _, row := range one.Rows {
		assert.Equal(t, one.Requests, row.Feedback.Requests, row.Algorithm)
		switch {
		case row.Algorithm == algorithms.Log:
			assert.Equal(t, one.LogAdmitted, row.Admitted)
			assert.Equal(t, PopulationRow{Algorithm: algorithms.Log, Admitted: row.Admitted, Feedback: Difference{Requests: one.Requests, True: row.Feedback.True}}, row)
		case named(row.Algorithm).counters() && !named(row.Algorithm).Capped:
			assert.Equal(t, one.Requests, row.All.Requests, row.Algorithm)
		default:
			assert.Zero(t, row.All, row.Algorithm)
		}
	}
}

func TestScaleMeasuresWhatItsFlagsSay(t *testing.T) {
	t.Parallel()
	measure := func(seed uint64, like string) PopulationFigures {
		r, err := measureAtScale(t.Context(), config{scale: true, like: like, seed: seed, requests: 8_000})
		require.NoError(t, err)
		assert.Equal(t, seed, r.Seed)
		assert.Equal(t, like, r.Like)
		want, err := measurePopulation(t.Context(), newPopulation(like != "", 8_000, seed), populated(), 1, func(int64) {})
		require.NoError(t, err)
		assert.Equal(t, want, r.PopulationFigures)
		return r.PopulationFigures
	}
	assert.NotEqual(t, measure(2, ""), measure(3, ""))
	assert.NotEqual(t, measure(2, likeCloudflare), measure(3, likeCloudflare))
}

func TestPopulationKeepsNothingOfFormerClients(t *testing.T) {
	t.Parallel()
	w := testPopulation(t, 1, all()...)
	for i := range 60 {
		require.NoError(t, w.client(t.Context(), 250_000+i))
	}
	for _, s := range w.subjects {
		// What one client needs, and what is still to be removed: less than
		// what the 60 have left, 3 or more counters each in an hour of minutes.
		assert.Less(t, s.store.(*memory.Store).Len(), 250, s.algorithm.Name)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func named(name string) algorithm { return algorithm{algorithms.Named(name)} }

// timeline is when one client asks, in seconds.
var timeline = []int{10, 20, 30, 40, 50, 65, 70}

// With a limit of 4 per minute: what each limiter takes to be in use before
// each request of the timeline, and whether it admits it.
func TestEstimatesAndDecisions(t *testing.T) {
	t.Parallel()
	const y, n = true, false
	for _, c := range []struct {
		name      string
		feedback  bool
		estimates []int64
		allowed   []bool
	}{
		// The fifth is too many, and at 60 s all is forgotten.
		{algorithms.Fixed, true, []int64{0, 1, 2, 3, 4, 0, 1}, []bool{y, y, y, y, n, y, y}},
		{algorithms.Fixed, false, []int64{0, 1, 2, 3, 4, 0, 1}, []bool{y, y, y, y, n, y, y}},
		// At 65 s, 55/60 of 4 are 3.67, at 70 s, 50/60 of 4 and one more 4.33.
		{algorithms.Sliding1, true, []int64{0, 1, 2, 3, 4, 3, 4}, []bool{y, y, y, y, n, y, n}},
		// 55/60 of 5 are 4.58, and 50/60 of 5 and one more 5.17.
		{algorithms.Sliding1, false, []int64{0, 1, 2, 3, 4, 4, 5}, []bool{y, y, y, y, n, n, n}},
		// Slots of 15 s hold 1, 1, 2, 0. At 65 s 10/15 of the first 1 are none;
		// at 70 s the one of 65 s is there too.
		{algorithms.Sliding4, true, []int64{0, 1, 2, 3, 4, 3, 4}, []bool{y, y, y, y, n, y, n}},
		{algorithms.Sliding4, false, []int64{0, 1, 2, 3, 4, 4, 5}, []bool{y, y, y, y, n, n, n}},
		// At 65 s all four are in the window, at 70 s the one of 10 s is in its
		// oldest slot, all of which still counts.
		{algorithms.Sliding60, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		{algorithms.Strict60, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		{algorithms.Sliding60, false, []int64{0, 1, 2, 3, 4, 5, 6}, []bool{y, y, y, y, n, n, n}},
		// One drains each 15 s, and parts are rounded up: before the requests,
		// 0, 1/3, 2/3, 1, 4/3, 4/3 and 2 are in the bucket.
		{"token", true, []int64{0, 1, 1, 1, 2, 2, 2}, []bool{y, y, y, y, y, y, y}},
		{algorithms.Leaky, false, []int64{0, 1, 1, 1, 2, 2, 2}, []bool{y, y, y, y, y, y, y}},
		// A request that is exactly a minute old doesn't count.
		{algorithms.Log, true, []int64{0, 1, 2, 3, 4, 4, 3}, []bool{y, y, y, y, n, n, y}},
		{algorithms.Log, false, []int64{0, 1, 2, 3, 4, 5, 5}, []bool{y, y, y, y, n, n, n}},
		// An entry is one request, and leaves up to 0.1 ms late.
		{algorithms.Counting32, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		// Slots of 6 s: at 70 s, 2/6 of the 1 of 6 to 12 s are none.
		{algorithms.Capped10, true, []int64{0, 1, 2, 3, 4, 4, 3}, []bool{y, y, y, y, n, n, y}},
	} {
		s, err := named(c.name).subject(4, 1, c.feedback)
		require.NoError(t, err)
		for i, at := range timeline {
			peeked, err := s.peek(t.Context(), oneClient, time.Duration(at)*time.Second)
			require.NoError(t, err)
			a, err := s.ask(t.Context(), oneClient, time.Duration(at)*time.Second)
			require.NoError(t, err)
			assert.Equal(t, c.estimates[i], a.estimate, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.estimates[i], peeked, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.allowed[i], a.allowed, "%s, feedback %v, %d s", c.name, c.feedback, at)
		}
	}
}

func TestWithoutFeedbackABucketIsFilledByWhatItDenies(t *testing.T) {
	t.Parallel()
	// One per minute: the second request of a minute fills the bucket again, so
	// that the third is denied too, 60 s after the first.
	for _, feedback := range []bool{true, false} {
		s, err := named("token").subject(1, 1, feedback)
		require.NoError(t, err)
		var allowed []bool
		for _, at := range []time.Duration{0, 30 * time.Second, 60 * time.Second} {
			a, err := s.ask(t.Context(), oneClient, at)
			require.NoError(t, err)
			allowed = append(allowed, a.allowed)
		}
		assert.Equal(t, []bool{true, false, feedback}, allowed)
	}
}

func TestLeakyBucketWaits(t *testing.T) {
	t.Parallel()
	// A third of a request in the bucket takes 5 s.
	s, err := named(algorithms.Leaky).subject(4, 1, true)
	require.NoError(t, err)
	var waits []time.Duration
	for _, at := range timeline {
		a, err := s.ask(t.Context(), oneClient, time.Duration(at)*time.Second)
		require.NoError(t, err)
		waits = append(waits, a.wait/time.Second)
	}
	assert.Equal(t, []time.Duration{0, 5, 10, 15, 20, 20, 30}, waits)
}

func TestColdKeys(t *testing.T) {
	t.Parallel()
	// A window of N slots counts in one and reads N before it, and when the
	// client was reset last.
	for name, want := range map[string]int{algorithms.Fixed: 1, algorithms.Sliding1: 3, algorithms.Sliding4: 6, "N=5": 7, "N=10": 12, algorithms.Sliding60: 62, algorithms.Strict60: 62, algorithms.Capped10: 12, algorithms.Capped60: 62, "token": 1, algorithms.Leaky: 1, algorithms.Log: 1, algorithms.Counting64: 1, algorithms.Counting32: 1} {
		keys, err := named(name).keysOfColdCheck(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, keys, name)
	}
}

func TestErrorsSayWhoFailed(t *testing.T) {
	t.Parallel()
	s, err := named(algorithms.Log).subject(4, 1, false)
	require.NoError(t, err)
	for range 10_000 {
		_, err := s.ask(t.Context(), oneClient, 0)
		require.NoError(t, err)
	}
	_, err = s.ask(t.Context(), oneClient, 0)
	assert.EqualError(t, err, "log: more than 10000 requests in a window")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = newSimulation(Workloads(0)[0], 1).Measure(ctx, named(algorithms.Fixed))
	assert.NoError(t, err, "a run this short ends before anyone looks")
	_, _, err = newSimulation(Workloads(10_000)[0], 1).Measure(ctx, named(algorithms.Fixed))
	assert.ErrorIs(t, err, context.Canceled)
	_, err = attackOn(ctx, named(algorithms.Fixed), 4, 4, 1)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = measurePopulation(ctx, newPopulation(false, 10_000, 1), populated(), 2, func(int64) {})
	assert.ErrorIs(t, err, context.Canceled)
}

func TestAttemptsOfAnAttack(t *testing.T) {
	t.Parallel()
	const s = time.Second
	attack := Attack{Burst: 10 * s, Resume: 20 * s, Spacing: 25 * s}
	assert.Equal(t, []time.Duration{10 * s, 10 * s, 20 * s, 45 * s}, attack.attempts(2), "the burst leaves the window at 70 s")
	assert.Equal(t, "burst at 10s, from 20s on one each 25s", attack.String())
}

func TestEachAttackIsPlayedOnce(t *testing.T) {
	t.Parallel()
	// N=1 is attacked like fixed, strict like N=60, and all that don't count in
	// slots alike.
	for _, a := range all() {
		assert.Len(t, attacks(a, 100), 6, a.Name)
		assert.Equal(t, a.attack(100), attacks(a, 100)[0], a.Name)
	}
}

// What the attack written for each algorithm gets, of a limit of 100.
func TestWrittenAttacks(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ fullest, half, released, bound int64 }{
		// 100 just before the boundary and 100 after it, within 6 s.
		algorithms.Fixed: {200, 200, 200, 200},
		// 100 at the end of a slot; of the next 100, as many as have faded out:
		// in the slot of a minute 50 in half a minute. In shorter slots all of
		// them come in a minute after the burst.
		algorithms.Sliding1: {200, 150, 200, 200}, algorithms.Sliding4: {200, 100, 200, 200}, "N=5": {200, 100, 200, 200}, "N=10": {200, 100, 200, 200}, algorithms.Sliding60: {200, 100, 200, 200},
		algorithms.Strict60: {100, 100, 100, 100},
		// 100 at once, and one each 0.6 s: 49 in just under half a minute, 99
		// in just under a minute. The leaky bucket lets one go on each 0.6 s
		// from the start.
		"token": {199, 149, 199, 199}, algorithms.Leaky: {199, 149, 100, 199},
		algorithms.Log: {100, 100, 100, 100}, algorithms.Counting64: {100, 100, 100, 100}, algorithms.Counting32: {100, 100, 100, 100},
		// The burst, and 2/N of it, rounded up, while its slot fades out.
		algorithms.Capped10: {120, 100, 120, 120}, algorithms.Capped60: {104, 100, 104, 104},
	} {
		a := named(name)
		c, err := a.run(t.Context(), a.attack(100), 100)
		require.NoError(t, err)
		assert.Equal(t, want.fullest, c.Fullest, name)
		assert.Equal(t, want.half, c.FullestHalf, name)
		assert.Equal(t, want.released, c.FullestReleased, name)
		assert.Equal(t, want.bound, a.Bound(100), name)
	}
}

func TestSearchFindsAttacks(t *testing.T) {
	t.Parallel()
	row, err := attackOn(t.Context(), named(algorithms.Sliding1), 20, 40, 1)
	require.NoError(t, err)
	assert.Equal(t, "N=1", row.Algorithm)
	assert.Equal(t, int64(40), row.Written.Fullest)
	assert.Equal(t, int64(40), row.Worst())
	// A burst that falls x before the boundary gets 20 * (60 s - x) / 60 s
	// more: the best of 20 random ones nearly all.
	assert.Greater(t, row.Found.Fullest, int64(34))
	assert.LessOrEqual(t, row.Found.Fullest, row.Bound)
	c, err := named(algorithms.Sliding1).run(t.Context(), row.Found.Attack, 20)
	require.NoError(t, err)
	assert.Equal(t, row.Found.Fullest, c.Fullest, "the attack is the one that found it")

	again, err := attackOn(t.Context(), named(algorithms.Sliding1), 20, 40, 1)
	require.NoError(t, err)
	assert.Equal(t, row, again, "same seed")
}

// What an attack got stays, whatever comes after it.
func TestAttacksKeepTheirMaxima(t *testing.T) {
	t.Parallel()
	for _, a := range all() {
		row, err := attackOn(t.Context(), a, 20, 20, 1)
		require.NoError(t, err)
		var best Result
		for _, attack := range attacks(a, 20) {
			c, err := a.run(t.Context(), attack, 20)
			require.NoError(t, err)
			best.FullestHalf, best.FullestReleased = max(best.FullestHalf, c.FullestHalf), max(best.FullestReleased, c.FullestReleased)
			if c.Fullest > best.Fullest {
				best.Fullest, best.Attack = c.Fullest, attack
			}
		}
		assert.Equal(t, best, row.Written, a.Name)
		// With fewer tries the random ones are the same.
		few, err := attackOn(t.Context(), a, 20, 4, 1)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, row.Found.Fullest, few.Found.Fullest, a.Name)
		assert.GreaterOrEqual(t, row.Found.FullestHalf, few.Found.FullestHalf, a.Name)
	}
	// The last of the written attacks is far from the best on a fixed window, and
	// half a window is fullest by another one than a whole.
	row, err := attackOn(t.Context(), named(algorithms.Fixed), 100, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, []int64{200, 200, 200}, []int64{row.Written.Fullest, row.Written.FullestHalf, row.Written.FullestReleased})
}

// With N=60 a burst is worth much in the last moments of a slot only, and what
// comes after it in the second in which that fades out: half the tries change
// the best of the other half a little. Random ones alone get 906 of 8 * 120.
func TestSearchImprovesWhatItFound(t *testing.T) {
	t.Parallel()
	var sum int64
	for seed := range uint64(8) {
		row, err := attackOn(t.Context(), named(algorithms.Sliding60), 60, 24, seed)
		require.NoError(t, err)
		sum += row.Found.Fullest
	}
	assert.Greater(t, sum, int64(930))
}

func TestSearchDependsOnItsSeed(t *testing.T) {
	t.Parallel()
	var found [5]Attack
	for seed := range found {
		row, err := attackOn(t.Context(), named(algorithms.Sliding10), 10, 10, uint64(seed))
		require.NoError(t, err)
		found[seed] = row.Found.Attack
		assert.NotContains(t, found[:seed], found[seed])
	}
}

func TestNoTimelineExceedsTheBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(all()).Draw(t, "algorithm")
		limit := rapid.Int64Range(1, 6).Draw(t, "limit")
		s, err := a.subject(limit, 1, true)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(0)
		var admitted []time.Duration
		for _, gap := range rapid.SliceOfN(rapid.Int64Range(0, 1<<rapid.IntRange(20, 35).Draw(t, "gap bits")), 1, 80).Draw(t, "gaps") {
			at += time.Duration(gap)
			answer, err := s.ask(t.Context(), oneClient, at)
			if err != nil {
				t.Fatal(err)
			}
			if answer.allowed {
				admitted = append(admitted, at)
			}
		}
		if most := traffic.Fullest(admitted, Window); most > a.Bound(limit) {
			t.Fatalf("%s admitted %d in a window, at most %d", a.Name, most, a.Bound(limit))
		}
	})
}
