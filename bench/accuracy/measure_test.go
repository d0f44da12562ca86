package accuracy

import (
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/bench/traffic"
)

func TestRecentIsHalfOpen(t *testing.T) {
	var r recent
	assert.Zero(t, r.count(0))
	r.add(0)
	r.add(0)
	r.add(time.Second)
	assert.Equal(t, int64(3), r.count(Window-1))
	assert.Equal(t, int64(1), r.count(Window), "events at 0 are a window old")
	assert.Zero(t, r.count(Window+time.Second))
	r.add(2 * Window)
	r.clear()
	assert.Zero(t, r.count(2*Window))
}

func TestRecentAndFullestCountAsALoopDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r recent
		var times []time.Duration
		at, most := time.Duration(0), int64(0)
		for _, gap := range rapid.SliceOf(rapid.Int64Range(0, int64(20*time.Second))).Draw(t, "gaps") {
			at += time.Duration(gap)
			var within int64
			for _, before := range times {
				if before > at-Window {
					within++
				}
			}
			if got := r.count(at); got != within {
				t.Fatalf("at %v %d events, and not %d, are in the window", at, within, got)
			}
			most = max(most, within+1)
			r.add(at)
			times = append(times, at)
		}
		if got := fullest(times, Window); got != most {
			t.Fatalf("the fullest window holds %d, and not %d", most, got)
		}
	})
}

func TestDifference(t *testing.T) {
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
	assert.Equal(t, Difference{Requests: 5, Sum: 9, Worst: 5, True: 19, WronglyAdmitted: 1, WronglyDenied: 1}, d)
	assert.InDelta(t, 9.0/5, d.Mean(), 1e-12)
	assert.InDelta(t, 9.0/19, d.Relative(), 1e-12)
	assert.Zero(t, Difference{}.Mean())
	assert.Zero(t, Difference{}.Relative())

	d.Add(Difference{Requests: 1, Sum: 7, Worst: 7, True: 2, WronglyAdmitted: 3, WronglyDenied: 4})
	assert.Equal(t, Difference{Requests: 6, Sum: 16, Worst: 7, True: 21, WronglyAdmitted: 4, WronglyDenied: 5}, d)
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
	// 4 per minute. The exact log admits the first four and the one at 70 s.
	run := NewRun(at(4, 2*Window, timeline...), 1)

	// Fixed admits 10 20 30 40 | 65 70. Estimates are 0 1 2 3 4 0 1, its own
	// admissions within a minute 0 1 2 3 4 4 4, all requests 0 1 2 3 4 5 5.
	row, _, err := run.Measure(t.Context(), algorithm(t, Fixed))
	require.NoError(t, err)
	assert.Equal(t, Row{
		Traffic: "timeline", Limit: 4, Demand: 1, Algorithm: Fixed,
		Feedback: Difference{Requests: 7, Sum: 4 + 3, Worst: 4, True: 18, WronglyAdmitted: 2},
		Admissions: Admissions{
			Admitted: 6, Fullest: 5, FullestReleased: 5,
			// Windows that end from 60 s to 120 s hold the admissions for 10, 20, 30,
			// 40, 55 and 50 s.
			MeanWindow: 205.0 / 60,
		},
		LogAdmitted: 5,
		All:         Difference{Requests: 7, Sum: 5 + 4, Worst: 5, True: 20, WronglyAdmitted: 2},
	}, row)

	// The leaky bucket admits all and releases them at 10, 25, 40, 55, 70, 85 and
	// 100 s. Estimates are 0 1 1 1 2 2 2, its admissions 0 1 2 3 4 5 5.
	row, _, err = run.Measure(t.Context(), algorithm(t, Leaky))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 0 + 0 + 1 + 2 + 2 + 3 + 3, Worst: 3, True: 20, WronglyAdmitted: 3}, row.Feedback)
	assert.Equal(t, int64(6), row.Fullest)
	assert.Equal(t, int64(4), row.FullestReleased)

	// N=60 takes the request of 10 s to be in the window at 70 s.
	row, _, err = run.Measure(t.Context(), algorithm(t, Sliding60))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, Worst: 1, True: 17, WronglyDenied: 1}, row.Feedback)
	assert.Equal(t, Difference{Requests: 7, Sum: 1, Worst: 1, True: 20}, row.All)

	row, _, err = run.Measure(t.Context(), algorithm(t, Log))
	require.NoError(t, err)
	assert.Equal(t, Difference{Requests: 7, True: 17}, row.Feedback)
	assert.Equal(t, row.LogAdmitted, row.Admitted)
}

func TestClientsAreCountedApart(t *testing.T) {
	w := at(1, 2*Window)
	w.Clients = 2
	w.arrivals = func(uint64, time.Duration) iter.Seq[traffic.Arrival] {
		return slices.Values([]traffic.Arrival{{At: 0}, {At: 1, Client: 1}, {At: 2}})
	}
	row, _, err := NewRun(w, 1).Measure(t.Context(), algorithm(t, Log))
	require.NoError(t, err)
	assert.Equal(t, int64(2), row.Admitted)
	assert.Equal(t, int64(2), row.LogAdmitted)
	assert.Equal(t, int64(1), row.Fullest)
	assert.Equal(t, Difference{Requests: 3, True: 1}, row.Feedback)
	// Nothing is left in the window after a minute: 0 of 2 clients' windows from
	// 60 s on, but for the 1 ns of client 1.
	assert.InDelta(t, 0, row.MeanWindow, 1e-9)
}

func TestWorkloads(t *testing.T) {
	// 4,000 requests are 40 minutes of the limit of 100, of twice that 20; but
	// 1000 and 2000 a minute take no less than 12, and a day 24.
	lengths := map[string][]time.Duration{
		"day": {48 * time.Minute, 24 * time.Minute}, "poisson of 1000": {12 * time.Minute, 12 * time.Minute}, "zipf": {12 * time.Minute, 12 * time.Minute},
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
			// The sum of k^-1.1 for k from 1 to 1000 is 5.57: shares of 3.59, 1.67
			// and 1.07 limits, demand 2 the double.
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

func TestTrace(t *testing.T) {
	// Requests at 100, 110 and 130 s; samples from 120 s on, every 2 s.
	w := at(4, 0, 100, 110, 130)
	trace, err := w.trace(t.Context(), 1, []Algorithm{algorithm(t, Fixed), algorithm(t, Sliding1), algorithm(t, Sliding60)})
	require.NoError(t, err)
	assert.Len(t, trace.True, tracePoints)
	// 100 s leaves the window at 160 s, 110 s at 170 s and 130 s at 190 s.
	assert.Equal(t, []int64{2, 2, 2, 2, 2, 3}, trace.True[:6])
	assert.Equal(t, []int64{3, 2, 2, 2, 2, 2, 1}, trace.True[19:26])
	assert.Equal(t, []int64{1, 0}, trace.True[34:36])
	require.Len(t, trace.Estimates, 3)
	fixed, one, sixty := trace.Estimates[0], trace.Estimates[1], trace.Estimates[2]
	assert.Equal(t, Fixed, fixed.Algorithm)
	assert.Equal(t, []int64{0, 0, 0, 0, 0, 1}, fixed.Values[:6])
	assert.Equal(t, []int64{1, 0}, fixed.Values[29:31], "the third minute begins at 180 s")
	// All of 2 at 120 s, 50/60 of 2 and 1 more at 130 s, 30/60 of 2 and 1 at 150 s.
	assert.Equal(t, []int64{2, 1}, one.Values[:2])
	assert.Equal(t, int64(2), one.Values[5])
	assert.Equal(t, int64(2), one.Values[15])
	// The oldest slot of a second, whose request was made as it began, still
	// counts in full when the window has just left it.
	assert.Equal(t, []int64{3, 3, 2}, sixty.Values[19:22])
}

func TestTracesAreOfTheDocumentsLimit(t *testing.T) {
	traces, err := Traces(t.Context(), 1, []Algorithm{algorithm(t, Log)})
	require.NoError(t, err)
	assert.Len(t, traces, 8)
	for _, trace := range traces {
		assert.Equal(t, int64(DocumentLimit), trace.Limit)
		assert.Equal(t, trace.True, trace.Estimates[0].Values, "%s: the log is the truth", trace.Traffic)
		assert.Positive(t, slices.Max(trace.True))
	}
}
