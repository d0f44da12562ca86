package accuracy

import (
	"bytes"
	"context"
	"iter"
	"math"
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

// assertPicture checks that a picture was drawn.
func assertPicture(t *testing.T, dir, name string) {
	t.Helper()
	drawn, err := os.ReadFile(filepath.Join(dir, name+".svg"))
	require.NoError(t, err)
	assert.Truef(t, strings.HasPrefix(string(drawn), "<?xml"), "%s.svg begins with %.20q", name, drawn)
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
			assert.Equal(t, difference{Requests: row.Feedback.Requests, True: row.Feedback.True}, row.Feedback, "%s: the log is exact", row.Traffic)
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
	second, err := measureAll(t.Context(), config{seed: 3, seeds: quickSeeds, requests: int64(requests)}, documentWorkloads(requests)[6:12])
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
	row := func(traffic, algorithm string, off, fullest int64) {
		for _, demand := range demands {
			d := difference{Requests: 100, Sum: off, True: 10_000}
			r.Rows = append(r.Rows, workloadRow{
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
		r.Attacks = append(r.Attacks, attackRow{Algorithm: a.Name, Limit: 100, Bound: bound(a, 100), attackResult: attackResult{Fullest: bound(a, 100)}})
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
		Large: []workloadRow{
			{Algorithm: algorithms.Log, Limit: 1000, Fullest: 1100}, {Algorithm: algorithms.Log, Limit: 1000, Fullest: 1300},
			{Algorithm: algorithms.Fixed, Limit: 1000, Fullest: 1900}, {Algorithm: algorithms.Log, Limit: 1000, Fullest: 1200},
		},
		Attacks: []attackRow{
			{Algorithm: algorithms.Log, Limit: 100, attackResult: attackResult{Fullest: 5000}}, {Algorithm: algorithms.Log, Limit: 1000, attackResult: attackResult{Fullest: 1250}},
			{Algorithm: algorithms.Fixed, Limit: 1000, attackResult: attackResult{Fullest: 2000}},
		},
	}
	assert.InDelta(t, 1.3, r.fullest(algorithms.Log, 1000), 1e-9)
	assert.InDelta(t, 2, r.fullest(algorithms.Fixed, 1000), 1e-9)
}

func TestScaleIsBrokenByWrongDecisionsOfExactLimiters(t *testing.T) {
	t.Parallel()
	row := func(algorithm string, d difference) *ScaleReport {
		return &ScaleReport{populationFigures: populationFigures{Rows: []populationRow{{Algorithm: algorithm, Feedback: d}}}}
	}
	assert.NoError(t, row(algorithms.Sliding60, difference{Sum: 1, WronglyAdmitted: 1, WronglyDenied: 1}).Broken())
	assert.NoError(t, row(algorithms.Strict60, difference{Sum: 1, WronglyDenied: 1}).Broken())
	assert.EqualError(t, row(algorithms.Strict60, difference{WronglyAdmitted: 1}).Broken(), "strict N=60 admitted 1 requests above the limit")
	assert.NoError(t, row(algorithms.Counting64, difference{Sum: 1, WronglyDenied: 1}).Broken())
	assert.EqualError(t, row(algorithms.Counting64, difference{WronglyAdmitted: 2}).Broken(), "counting 64 admitted 2 requests above the limit")
}

func TestDifference(t *testing.T) {
	t.Parallel()
	// With a limit of 4.
	var d difference
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
	assert.Equal(t, difference{Requests: 5, Sum: 9, True: 19, WronglyAdmitted: 1, WronglyDenied: 1}, d)
	assert.InDelta(t, 9.0/5, d.mean(), 1e-12)
	assert.InDelta(t, 9.0/19, d.relative(), 1e-12)
	assert.Zero(t, difference{}.mean())
	assert.Zero(t, difference{}.relative())

	d.add(difference{Requests: 1, Sum: 7, True: 2, WronglyAdmitted: 3, WronglyDenied: 4})
	assert.Equal(t, difference{Requests: 6, Sum: 16, True: 21, WronglyAdmitted: 4, WronglyDenied: 5}, d)
	assert.Equal(t, int64(9), d.wrong())
}

// The figures of a row are those of all seeds together, and it says between what
// those of single seeds lie.
func TestRowsAreOfSeveralSeeds(t *testing.T) {
	t.Parallel()
	const seeds = 3
	w := single(traffic.AtOnce, largeLimit, 1, 20*largeLimit)
	measured := []algorithms.Algorithm{algorithms.Named(algorithms.Sliding10), algorithms.Named(algorithms.Log)}
	rows, err := measureRows(t.Context(), config{seed: 5, seeds: seeds}, []workload{w}, measured, (*simulation).enforce)
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
	assert.Equal(t, span{low, high}, rows[0].OfLog)
	assert.Less(t, low, high)
	assert.Equal(t, span{100, 100}, rows[1].OfLog)

	// Arrivals that no seed changes are measured once.
	even := single(traffic.Steady, documentLimit, 2, 1000)
	rows, err = measureRows(t.Context(), config{seed: 5, seeds: seeds}, []workload{even, w}, measured, (*simulation).enforce)
	require.NoError(t, err)
	require.Len(t, rows, 4)
	one, err := newSimulation(even, 5).enforce(t.Context(), measured[0])
	require.NoError(t, err)
	assert.Equal(t, one, rows[0])
	assert.Equal(t, admitted, rows[2].Admitted)
}

// at returns a workload of one client that asks at the given seconds.
func at(limit int64, length time.Duration, seconds ...int) workload {
	return workload{
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
	run := newSimulation(at(4, 2*window, timeline...), 1)

	// Fixed admits 10 20 30 40 | 65 70. Estimates are 0 1 2 3 4 0 1, its own
	// admissions within a minute 0 1 2 3 4 4 4, all requests 0 1 2 3 4 5 5.
	row, err := run.measure(t.Context(), algorithms.Named(algorithms.Fixed))
	require.NoError(t, err)
	assert.Equal(t, workloadRow{
		Traffic: "timeline", Limit: 4, Demand: 1, Algorithm: algorithms.Fixed,
		Feedback: difference{Requests: 7, Sum: 4 + 3, True: 18, WronglyAdmitted: 2},
		Admitted: 6, Fullest: 5, LogAdmitted: 5,
		All: difference{Requests: 7, Sum: 5 + 4, True: 20, WronglyAdmitted: 2},
	}, row)

	// The leaky bucket admits all. Estimates are 0 1 1 1 2 2 2, its admissions 0 1
	// 2 3 4 5 5.
	row, err = run.measure(t.Context(), algorithms.Named(algorithms.Leaky))
	require.NoError(t, err)
	assert.Equal(t, difference{Requests: 7, Sum: 0 + 0 + 1 + 2 + 2 + 3 + 3, True: 20, WronglyAdmitted: 3}, row.Feedback)
	assert.Equal(t, int64(6), row.Fullest)

	// N=60 takes the request of 10 s to be in the window at 70 s.
	row, err = run.measure(t.Context(), algorithms.Named(algorithms.Sliding60))
	require.NoError(t, err)
	assert.Equal(t, difference{Requests: 7, Sum: 1, True: 17, WronglyDenied: 1}, row.Feedback)
	assert.Equal(t, difference{Requests: 7, Sum: 1, True: 20}, row.All)

	row, err = run.measure(t.Context(), algorithms.Named(algorithms.Log))
	require.NoError(t, err)
	assert.Equal(t, difference{Requests: 7, True: 17}, row.Feedback)
	assert.Equal(t, row.LogAdmitted, row.Admitted)
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	// 4,000 requests are 40 minutes of the limit of 100, of twice that 20; but
	// days are whole.
	names := make(map[string]int)
	for i, w := range documentWorkloads(4000) {
		names[w.Name]++
		assert.Equal(t, demands[i%2], w.Demand, w.Name)
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
			from := a.Width(window) * time.Duration(2*phase+1) / (2 * phases)
			for minute := range minutes {
				for range limit {
					answer, err := s.ask(t.Context(), from+time.Duration(minute)*window)
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
	_, err = newSimulation(documentWorkloads(0)[0], 1).measure(ctx, algorithms.Named(algorithms.Fixed))
	assert.NoError(t, err, "a run this short ends before anyone looks")
	_, err = newSimulation(documentWorkloads(10_000)[0], 1).measure(ctx, algorithms.Named(algorithms.Fixed))
	assert.ErrorIs(t, err, context.Canceled)
	_, err = attackOn(ctx, algorithms.Named(algorithms.Fixed), 4)
	assert.ErrorIs(t, err, context.Canceled)
	_, err = measurePopulation(ctx, newPopulation(false, 10_000, 1), populated)
	assert.ErrorIs(t, err, context.Canceled)
}
