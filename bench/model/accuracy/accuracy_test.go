package accuracy

import (
	"bytes"
	"context"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
	"weir/bench/internal/traffic"
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
	assert.Len(t, r.Rows, 14*14)
	assert.Len(t, r.Large, 5*14)
	assert.Len(t, r.Attacks, 2*14)
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
	for _, trace := range r.Traces {
		assertPicture(t, dir, "accuracy-"+trace.Name)
	}
	assertPicture(t, dir, "accuracy-settled")

	// The same seed gives the same figures, also to fewer workloads.
	second, err := measureAll(t.Context(), config{seed: 3, seeds: quickSeeds, requests: int64(requests)}, Workloads(requests)[6:12])
	require.NoError(t, err)
	assert.Equal(t, r.Rows[84:168], second.Rows)
	assert.Equal(t, r.Large, second.Large)
	assert.Equal(t, r.Attacks, second.Attacks)
	assert.Equal(t, r.Costs, second.Costs)
	assert.Equal(t, r.Settled, second.Settled)
	assert.Equal(t, r.Traces, second.Traces)
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
		_, printed, err := benchtest.Run(t, Run, file, &r, append(tt.args, "-requests", strconv.Itoa(amount(60_000, 15_000)))...)
		require.NoError(t, err)
		assert.Positive(t, r.Requests)
		assert.Positive(t, r.LogAdmitted)
		assert.Len(t, r.Rows, 7)
		for _, text := range tt.texts {
			assert.Contains(t, printed, text)
		}
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
		for _, demand := range Demands {
			d := Difference{Requests: 100, Sum: difference, True: 10_000}
			r.Rows = append(r.Rows, Row{
				Traffic: traffic, Limit: 100, Demand: demand, Algorithm: algorithm, Feedback: d, All: d, Fullest: fullest,
			})
		}
	}
	for _, traffic := range []string{"poisson", "bursty", "front-loaded", "back-loaded"} {
		row(traffic, algorithms.Sliding1, 1000, 130)
		row(traffic, algorithms.Sliding60, 100, 101)
	}
	row("boundary", algorithms.Fixed, 0, 200)
	row("boundary", algorithms.Strict60, 0, 100)
	row("boundary", algorithms.Log, 0, 100)
	row("boundary", algorithms.Counting64, 0, 100)
	row("boundary", algorithms.Counting32, 0, 100)
	for _, a := range algorithms.All {
		r.Attacks = append(r.Attacks, AttackRow{Algorithm: a.Name, Limit: 100, Bound: bound(a, 100), Result: Result{Fullest: bound(a, 100)}})
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

	for missed, spoil := range map[string]func(r *Report){
		"poisson, demand 1, every request counts: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED": func(r *Report) { r.Rows[2].All.Sum = 210 },
		"poisson, demand 1, admitted count: mean difference of N=60 0.210 of N=1's, at most 0.200: MISSED":       func(r *Report) { r.Rows[2].Feedback.Sum = 210 },
		"bursty, demand 2, every request counts: mean difference of N=60 0.110 of N=1's, at most 0.100: MISSED":  func(r *Report) { r.Rows[7].All.Sum = 110 },
		"boundary attacker: fixed admits 1.98 L in a window, 2.00 L: MISSED":                                     func(r *Report) { r.Rows[16].Fullest = 198 },
		"all traffic and all attacks: strict N=60 admits 1.01 L in a window, at most 1.00 L: MISSED":             func(r *Report) { r.Rows[19].Fullest = 101 },
		"all traffic and all attacks: log admits 1.02 L in a window, at most 1.00 L: MISSED":                     func(r *Report) { r.Attacks[11].Fullest, r.Attacks[11].Bound = 102, 102 },
		"attacks: capped N=10 admits 121 in a window, at most 120: MISSED":                                       func(r *Report) { r.Attacks[7].Fullest = 121 },
		"attacks: token admits 200 in a window, at most 199: MISSED":                                             func(r *Report) { r.Attacks[9].Fullest = 200 },
	} {
		r := expected()
		spoil(r)
		assert.EqualError(t, r.Broken(), missed)
	}
}

func TestFullestIsOfAllTrafficAndAttacks(t *testing.T) {
	t.Parallel()
	r := &Report{
		Large: []Row{
			{Algorithm: algorithms.Log, Limit: 1000, Fullest: 1100}, {Algorithm: algorithms.Log, Limit: 1000, Fullest: 1300},
			{Algorithm: algorithms.Fixed, Limit: 1000, Fullest: 1900}, {Algorithm: algorithms.Log, Limit: 1000, Fullest: 1200},
		},
		Attacks: []AttackRow{
			{Algorithm: algorithms.Log, Limit: 100, Result: Result{Fullest: 5000}}, {Algorithm: algorithms.Log, Limit: 1000, Result: Result{Fullest: 1250}},
			{Algorithm: algorithms.Fixed, Limit: 1000, Result: Result{Fullest: 2000}},
		},
	}
	assert.InDelta(t, 1.3, r.fullest(algorithms.Log, 1000), 1e-9)
	assert.InDelta(t, 2, r.fullest(algorithms.Fixed, 1000), 1e-9)
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
	assert.Equal(t, Difference{Requests: 5, Sum: 9, True: 19, WronglyAdmitted: 1, WronglyDenied: 1}, d)
	assert.InDelta(t, 9.0/5, d.Mean(), 1e-12)
	assert.InDelta(t, 9.0/19, d.Relative(), 1e-12)
	assert.Zero(t, Difference{}.Mean())
	assert.Zero(t, Difference{}.Relative())

	d.Add(Difference{Requests: 1, Sum: 7, True: 2, WronglyAdmitted: 3, WronglyDenied: 4})
	assert.Equal(t, Difference{Requests: 6, Sum: 16, True: 21, WronglyAdmitted: 4, WronglyDenied: 5}, d)
	assert.Equal(t, int64(9), d.Wrong())
}

// The figures of a row are those of all seeds together, and it says between what
// those of single seeds lie.
func TestRowsAreOfSeveralSeeds(t *testing.T) {
	t.Parallel()
	const seeds = 3
	w := single(traffic.AtOnce, largeLimit, 1, 20*largeLimit)
	measured := []algorithms.Algorithm{algorithms.Named(algorithms.Sliding10), algorithms.Named(algorithms.Log)}
	rows, err := measureRows(t.Context(), config{seed: 5, seeds: seeds}, []Workload{w}, measured, (*simulation).enforce)
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
	even := single(traffic.Steady, DocumentLimit, 2, 1000)
	rows, err = measureRows(t.Context(), config{seed: 5, seeds: seeds}, []Workload{even, w}, measured, (*simulation).enforce)
	require.NoError(t, err)
	require.Len(t, rows, 4)
	one, err := newSimulation(even, 5).enforce(t.Context(), measured[0])
	require.NoError(t, err)
	assert.Equal(t, one, rows[0])
	assert.Equal(t, admitted, rows[2].Admitted)
}

// at returns a workload of one client that asks at the given seconds.
func at(limit int64, length time.Duration, seconds ...int) Workload {
	return Workload{
		Name: "timeline", Limit: limit, Demand: 1, Length: length,
		arrivals: func(uint64, time.Duration) iter.Seq[time.Duration] {
			return func(yield func(time.Duration) bool) {
				for _, s := range seconds {
					if !yield(time.Duration(s) * time.Second) {
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
	row, err := run.Measure(t.Context(), algorithms.Named(algorithms.Fixed))
	require.NoError(t, err)
	assert.Equal(t, Row{
		Traffic: "timeline", Limit: 4, Demand: 1, Algorithm: algorithms.Fixed,
		Feedback: Difference{Requests: 7, Sum: 4 + 3, True: 18, WronglyAdmitted: 2},
		Admitted: 6, Fullest: 5, LogAdmitted: 5,
		All: Difference{Requests: 7, Sum: 5 + 4, True: 20, WronglyAdmitted: 2},
	}, row)

	// The leaky bucket admits all. Estimates are 0 1 1 1 2 2 2, its admissions 0 1
	// 2 3 4 5 5.
	row, err = run.Measure(t.Context(), algorithms.Named(algorithms.Leaky))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 0 + 0 + 1 + 2 + 2 + 3 + 3, True: 20, WronglyAdmitted: 3}, row.Feedback)
	assert.Equal(t, int64(6), row.Fullest)

	// N=60 takes the request of 10 s to be in the window at 70 s.
	row, err = run.Measure(t.Context(), algorithms.Named(algorithms.Sliding60))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, True: 17, WronglyDenied: 1}, row.Feedback)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, True: 20}, row.All)

	row, err = run.Measure(t.Context(), algorithms.Named(algorithms.Log))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, True: 17}, row.Feedback)
	assert.Equal(t, row.LogAdmitted, row.Admitted)
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	// 4,000 requests are 40 minutes of the limit of 100, of twice that 20; but
	// days are whole.
	names := make(map[string]int)
	for i, w := range Workloads(4000) {
		names[w.Name]++
		assert.Equal(t, Demands[i%2], w.Demand, w.Name)
		want := []time.Duration{40 * time.Minute, 20 * time.Minute}
		if w.Name == "day" {
			want = []time.Duration{48 * time.Minute, 24 * time.Minute}
		}
		assert.Equal(t, want[i%2], w.Length, w.Name)

		mean := w.Demand * float64(w.Limit) * w.Length.Minutes()
		n := 0.0
		for a := range w.arrivals(1, w.Length) {
			require.Less(t, a, w.Length)
			n++
		}
		spread := 5 * math.Sqrt(mean)
		switch w.Name {
		case "steady", "boundary":
			spread = 0
		case "bursty":
			spread = mean / 3 // about 50 bursts of random distance
		}
		assert.InDelta(t, mean, n, spread, "%s, demand %g", w.Name, w.Demand)
	}
	assert.Len(t, names, 7)
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
	assert.Equal(t, map[string]float64{"steady": 1.5, "poisson": 2, "bursty": 2, "front-loaded": 2, "at once": 1}, demands)
}

func TestTrace(t *testing.T) {
	t.Parallel()
	// Requests at 100, 110 and 130 s; samples from 120.55 s on, every 2.1 s.
	trace, err := at(4, 0, 100, 110, 130).trace(t.Context(), 1, view{
		from: traceFrom, every: traceEvery, points: tracePoints, algorithms: []string{algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding60},
	})
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

func TestEnforcedTraceHasOwnAdmissions(t *testing.T) {
	t.Parallel()
	// With a limit of 1 the second is denied, and not in the estimate.
	trace, err := at(1, 0, 130, 150).trace(t.Context(), 1, view{
		demand: 2, from: traceFrom, every: traceEvery, points: tracePoints, algorithms: []string{algorithms.Log},
	})
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
	all, err := traces(t.Context(), 1)
	require.NoError(t, err)
	most := make(map[string]int64)
	for _, e := range all[len(all)-1].Estimates {
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
			a := algorithms.Named(name)
			s, err := newSubject(a, limit, true)
			require.NoError(t, err)
			from := a.Width(Window) * time.Duration(2*phase+1) / (2 * phases)
			for minute := range minutes {
				for range limit {
					answer, err := s.ask(t.Context(), from+time.Duration(minute)*Window)
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
		s, err := newSubject(algorithms.Named(name), 5, true)
		require.NoError(t, err)
		admitted := 0.0
		for n := range 6 * 7 * 10 {
			answer, err := s.ask(t.Context(), time.Duration(n)*10*time.Second)
			require.NoError(t, err)
			if answer.allowed {
				admitted++
			}
		}
		assert.InDelta(t, want, admitted/(6*7*10), 1e-9, name)
	}
}

func TestPopulationFollowsZipf(t *testing.T) {
	t.Parallel()
	w := newPopulation(false, PopulationRequests, 1)
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
		var of [5][]time.Duration
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
		if w.Demand != 1 {
			continue
		}
		counts := make([]int, 24)
		for a := range w.arrivals(1, 24*time.Minute) {
			counts[a/time.Minute]++
		}
		minutes[w.Name] = counts
	}
	assert.NotEqual(t, minutes["poisson"], minutes["front-loaded"])
	assert.NotEqual(t, minutes["poisson"], minutes["back-loaded"])
	assert.NotEqual(t, minutes["front-loaded"], minutes["back-loaded"])
	seeds := make(map[uint64]bool)
	for seed := range uint64(10) {
		seeds[ownSeed(seed, "poisson")] = true
		seeds[ownSeed(seed, "bursty")] = true
	}
	assert.Len(t, seeds, 20)
}

func TestPopulationIsMixed(t *testing.T) {
	t.Parallel()
	// Of 2000 clients 400 are steady, with a standard deviation of 18: their
	// second request comes after exactly the time that the third comes after
	// it.
	w := newPopulation(false, PopulationRequests, 1)
	steady := 0.0
	for k := range 2000 {
		var times []time.Duration
		for r := range w.arrivals(100_000 + k) {
			if times = append(times, r); len(times) == 3 {
				break
			}
		}
		if len(times) == 3 && times[0] == 0 && math.Abs(float64(times[2]-2*times[1])) < 3 {
			steady++
		}
	}
	assert.InDelta(t, 400, steady, 90)
}

// A population's figures are the sums of its clients', whoever else is measured.
func TestPopulationIsMadeOfItsClients(t *testing.T) {
	t.Parallel()
	const requests = int64(8_000)
	measure := func(like bool, seed uint64) PopulationFigures {
		c := newPopulation(like, requests, seed)
		sum, err := measurePopulation(t.Context(), c, algorithms.All)
		require.NoError(t, err)
		alone := PopulationFigures{Limit: c.limit, Length: PopulationLength, Rows: make([]PopulationRow, len(algorithms.All))}
		for i, a := range algorithms.All {
			alone.Rows[i].Algorithm = a.Name
		}
		for k := c.step / 2; k < PopulationClients; k += c.step {
			one, err := c.measure(t.Context(), k, algorithms.All)
			require.NoError(t, err)
			alone.add(one)
		}
		require.Equal(t, alone, sum)
		return sum
	}
	one := measure(false, 1)
	assert.NotEqual(t, one, measure(false, 2))
	assert.NotEqual(t, measure(true, 1), measure(true, 2))

	// 270,000 clients in steps of 400 million / 8,000 are 5.4.
	assert.InDelta(t, PopulationClients*float64(requests)/PopulationRequests, one.Clients, 0.5)
	for _, row := range one.Rows {
		assert.Equal(t, one.Requests, row.Feedback.Requests, row.Algorithm)
		if row.Algorithm == algorithms.Log {
			assert.Equal(t, one.LogAdmitted, row.Admitted)
			assert.Equal(t, Difference{Requests: one.Requests, True: row.Feedback.True}, row.Feedback)
		}
	}
}

// With a limit of 4 a minute. N=60 denies the request of 70 s, though that of 10
// s has just left; with another at 69 s there are too many.
func TestPopulationNotesClients(t *testing.T) {
	t.Parallel()
	asking := func(perMinute float64, seconds ...int) []int {
		c := population{limit: 4, rate: func(int) float64 { return perMinute / 60 }, pattern: func(*rand.Rand) traffic.Pattern {
			return traffic.Pattern{Generate: func(seed uint64, _ float64, length time.Duration) iter.Seq[time.Duration] {
				return at(4, 0, seconds...).arrivals(seed, length)
			}}
		}}
		one, err := c.measure(t.Context(), 0, []algorithms.Algorithm{algorithms.Named(algorithms.Sliding60), algorithms.Named(algorithms.Log)})
		require.NoError(t, err)
		return []int{one.Above, one.Below, one.Rows[0].BelowLimited, one.Rows[1].BelowLimited}
	}
	assert.Equal(t, []int{0, 1, 0, 0}, asking(4, 10, 20, 30, 40))
	assert.Equal(t, []int{0, 1, 1, 0}, asking(4, 10, 20, 30, 40, 70))
	assert.Equal(t, []int{1, 0, 0, 0}, asking(4.1, 10, 20, 30, 40, 69, 70))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
		{algorithms.Leaky, true, []int64{0, 1, 1, 1, 2, 2, 2}, []bool{y, y, y, y, y, y, y}},
		// A request that is exactly a minute old doesn't count.
		{algorithms.Log, true, []int64{0, 1, 2, 3, 4, 4, 3}, []bool{y, y, y, y, n, n, y}},
		{algorithms.Log, false, []int64{0, 1, 2, 3, 4, 5, 5}, []bool{y, y, y, y, n, n, n}},
		// An entry is one request, and leaves up to 0.1 ms late.
		{algorithms.Counting32, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		// Slots of 6 s: at 70 s, 2/6 of the 1 of 6 to 12 s are none.
		{algorithms.Capped10, true, []int64{0, 1, 2, 3, 4, 4, 3}, []bool{y, y, y, y, n, n, y}},
	} {
		s, err := newSubject(algorithms.Named(c.name), 4, c.feedback)
		require.NoError(t, err)
		for i, at := range timeline {
			peeked, err := s.peek(t.Context(), time.Duration(at)*time.Second)
			require.NoError(t, err)
			a, err := s.ask(t.Context(), time.Duration(at)*time.Second)
			require.NoError(t, err)
			assert.Equal(t, c.estimates[i], a.estimate, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.estimates[i], peeked, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.allowed[i], a.allowed, "%s, feedback %v, %d s", c.name, c.feedback, at)
		}
	}
}

func TestLeakyBucketWaits(t *testing.T) {
	t.Parallel()
	// A third of a request in the bucket takes 5 s.
	s, err := newSubject(algorithms.Named(algorithms.Leaky), 4, true)
	require.NoError(t, err)
	var waits []time.Duration
	for _, at := range timeline {
		a, err := s.ask(t.Context(), time.Duration(at)*time.Second)
		require.NoError(t, err)
		waits = append(waits, a.wait/time.Second)
	}
	assert.Equal(t, []time.Duration{0, 5, 10, 15, 20, 20, 30}, waits)
}

func TestErrorsSayWhoFailed(t *testing.T) {
	t.Parallel()
	s, err := newSubject(algorithms.Named(algorithms.Log), 4, false)
	require.NoError(t, err)
	for range 10_000 {
		_, err := s.ask(t.Context(), 0)
		require.NoError(t, err)
	}
	_, err = s.ask(t.Context(), 0)
	assert.EqualError(t, err, "log: more than 10000 requests in a window")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = newSimulation(Workloads(0)[0], 1).Measure(ctx, algorithms.Named(algorithms.Fixed))
	assert.NoError(t, err, "a run this short ends before anyone looks")
	_, err = newSimulation(Workloads(10_000)[0], 1).Measure(ctx, algorithms.Named(algorithms.Fixed))
	assert.ErrorIs(t, err, context.Canceled)
	_, err = attackOn(ctx, algorithms.Named(algorithms.Fixed), 4)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = measurePopulation(ctx, newPopulation(false, 10_000, 1), populated)
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
	for _, a := range algorithms.All {
		assert.Len(t, attacks(a, 100), 6, a.Name)
		assert.Equal(t, attackFor(a, 100), attacks(a, 100)[0], a.Name)
	}
}

// What the attack written for each algorithm gets, of a limit of 100.
func TestWrittenAttacks(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ fullest, released, bound int64 }{
		// 100 just before the boundary and 100 after it, within 6 s.
		algorithms.Fixed: {200, 200, 200},
		// 100 at the end of a slot; of the next 100, as many as have faded out:
		// all of them in a minute after the burst.
		algorithms.Sliding1: {200, 200, 200}, algorithms.Sliding4: {200, 200, 200}, "N=5": {200, 200, 200}, "N=10": {200, 200, 200}, algorithms.Sliding60: {200, 200, 200},
		algorithms.Strict60: {100, 100, 100},
		// 100 at once, and one each 0.6 s: 99 in just under a minute. The leaky bucket lets one go on each 0.6 s
		// from the start.
		"token": {199, 199, 199}, algorithms.Leaky: {199, 100, 199},
		algorithms.Log: {100, 100, 100}, algorithms.Counting64: {100, 100, 100}, algorithms.Counting32: {100, 100, 100},
		// The burst, and 2/N of it, rounded up, while its slot fades out.
		algorithms.Capped10: {120, 120, 120}, algorithms.Capped60: {104, 104, 104},
	} {
		a := algorithms.Named(name)
		c, err := play(t.Context(), a, attackFor(a, 100), 100)
		require.NoError(t, err)
		assert.Equal(t, want.fullest, c.Fullest, name)
		assert.Equal(t, want.released, c.FullestReleased, name)
		assert.Equal(t, want.bound, bound(a, 100), name)
	}
}

// What an attack got stays, whatever comes after it: the last of the written
// attacks is far from the best on a fixed window.
func TestAttacksKeepTheirMaxima(t *testing.T) {
	t.Parallel()
	row, err := attackOn(t.Context(), algorithms.Named(algorithms.Fixed), 100)
	require.NoError(t, err)
	assert.Equal(t, []int64{200, 200}, []int64{row.Fullest, row.FullestReleased})
	assert.Equal(t, attackFor(algorithms.Named(algorithms.Fixed), 100), row.Attack)
}

func TestNoTimelineExceedsTheBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(algorithms.All).Draw(t, "algorithm")
		limit := rapid.Int64Range(1, 6).Draw(t, "limit")
		s, err := newSubject(a, limit, true)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(0)
		var admitted []time.Duration
		for _, gap := range rapid.SliceOfN(rapid.Int64Range(0, 1<<rapid.IntRange(20, 35).Draw(t, "gap bits")), 1, 80).Draw(t, "gaps") {
			at += time.Duration(gap)
			answer, err := s.ask(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			if answer.allowed {
				admitted = append(admitted, at)
			}
		}
		if most := traffic.Fullest(admitted, Window); most > bound(a, limit) {
			t.Fatalf("%s admitted %d in a window, at most %d", a.Name, most, bound(a, limit))
		}
	})
}

// assertPicture checks that a picture was drawn.
func assertPicture(t *testing.T, dir, name string) {
	t.Helper()
	drawn, err := os.ReadFile(filepath.Join(dir, name+".svg"))
	require.NoError(t, err)
	assert.Truef(t, strings.HasPrefix(string(drawn), "<?xml"), "%s.svg begins with %.20q", name, drawn)
}
