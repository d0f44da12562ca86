package accuracy

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"weir/bench/internal/traffic"
)

// A Difference is how far estimates were from the true count, and what came of
// it. Each request is judged before it is decided: by the limiter's estimate of
// what is in use, and by the true count of the same window, (t-Window, t], the
// request itself in neither. Differences of several clients add up.
type Difference struct {
	Requests int64 `json:"requests"`
	// Sum is of |estimate - true count|, and Worst is the largest.
	Sum   int64 `json:"difference_sum"`
	Worst int64 `json:"difference_worst"`
	// True is the sum of the true counts.
	True int64 `json:"true_sum"`
	// WronglyAdmitted are requests that were admitted although the true count
	// and they are more than the limit, WronglyDenied those that were denied
	// although they fit.
	WronglyAdmitted int64 `json:"wrongly_admitted"`
	WronglyDenied   int64 `json:"wrongly_denied"`
	// WrongByOne and WrongByFew are those of both that a true count different
	// by 1, and by 2 to few, would have made right.
	WrongByOne int64 `json:"wrong_by_1"`
	WrongByFew int64 `json:"wrong_by_2_to_5"`
}

const few = 5

func (d *Difference) observe(a answer, truth, limit int64) {
	d.Requests++
	difference := max(a.estimate-truth, truth-a.estimate)
	d.Sum += difference
	d.Worst = max(d.Worst, difference)
	d.True += truth
	by := limit - truth // if it fits, the room that there is
	switch fits := by > 0; {
	case a.allowed && !fits:
		d.WronglyAdmitted++
		by = 1 - by
	case !a.allowed && fits:
		d.WronglyDenied++
	default:
		return
	}
	switch {
	case by == 1:
		d.WrongByOne++
	case by <= few:
		d.WrongByFew++
	}
}

// Add adds what was measured of other requests.
func (d *Difference) Add(other Difference) {
	d.Requests += other.Requests
	d.Sum += other.Sum
	d.Worst = max(d.Worst, other.Worst)
	d.True += other.True
	d.WronglyAdmitted += other.WronglyAdmitted
	d.WronglyDenied += other.WronglyDenied
	d.WrongByOne += other.WrongByOne
	d.WrongByFew += other.WrongByFew
}

// Wrong returns the number of decisions that were wrong.
func (d Difference) Wrong() int64 { return d.WronglyAdmitted + d.WronglyDenied }

// WrongByMore returns how many were wrong by more than few.
func (d Difference) WrongByMore() int64 { return d.Wrong() - d.WrongByOne - d.WrongByFew }

// Mean returns the mean of |estimate - true count|, in requests; 0 without any.
func (d Difference) Mean() float64 { return ratio(d.Sum, d.Requests) }

// Relative returns the mean of |estimate - true count| as a part of the mean
// true count; 0 if that is 0.
func (d Difference) Relative() float64 { return ratio(d.Sum, d.True) }

// Admissions is what a limiter admitted.
type Admissions struct {
	Admitted int64 `json:"admitted"`
	// Fullest is the most that any window (t-Window, t] of one client holds.
	Fullest int64 `json:"fullest"`
	// FullestReleased is the same of the times at which admitted requests may
	// proceed: those of a leaky bucket wait.
	FullestReleased int64 `json:"fullest_released"`
	// MeanWindow is the mean of what a window of one client holds, over all
	// times t from Window to the end of the run.
	MeanWindow float64 `json:"mean_window"`
}

// A Row is how one algorithm did on one workload, with all seeds together.
type Row struct {
	Traffic   string  `json:"traffic"`
	Limit     int64   `json:"limit"`
	Demand    float64 `json:"demand"`
	Algorithm string  `json:"algorithm"`
	// Feedback is with only admitted requests counted: the true count is that
	// of the limiter's own admissions.
	Feedback Difference `json:"feedback"`
	Admissions
	// LogAdmitted is what an exact log admits of the same requests.
	LogAdmitted int64 `json:"log_admitted"`
	// All is with every request counted, whatever was decided: the true count
	// is that of all requests. It is zero for those that judge by their limit;
	// see judgesByLimit.
	All Difference `json:"all"`
	// Mean, Wrong and OfLog are the ranges among seeds, in percent, of
	// All.Relative, of the share of decisions that were wrong in Feedback, and of
	// Admitted in relation to LogAdmitted; zero with one seed.
	Mean  Range `json:"mean_percent,omitzero"`
	Wrong Range `json:"wrong_percent,omitzero"`
	OfLog Range `json:"of_log_percent,omitzero"`
}

// A Range is from the lowest to the highest of a figure.
type Range struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// around writes a figure in the format, and the range if that is seen in it.
func (r Range) around(format string, x float64) string {
	mean, low, high := fmt.Sprintf(format, x), fmt.Sprintf(format, r.Low), fmt.Sprintf(format, r.High)
	if r == (Range{}) || low == mean && high == mean {
		return mean
	}
	return fmt.Sprintf("%s (%s..%s)", mean, low, high)
}

// together returns the row that those of several seeds make.
func together(rows []Row) Row {
	sum := rows[0]
	if len(rows) == 1 {
		return sum
	}
	among := func(figure func(Row) float64) Range {
		all := make([]float64, len(rows))
		for i, row := range rows {
			all[i] = figure(row)
		}
		return Range{slices.Min(all), slices.Max(all)}
	}
	for _, row := range rows[1:] {
		sum.Feedback.Add(row.Feedback)
		sum.All.Add(row.All)
		sum.Admitted += row.Admitted
		sum.LogAdmitted += row.LogAdmitted
		sum.Fullest, sum.FullestReleased = max(sum.Fullest, row.Fullest), max(sum.FullestReleased, row.FullestReleased)
		sum.MeanWindow += row.MeanWindow
	}
	sum.MeanWindow /= float64(len(rows))
	sum.Mean, sum.Wrong, sum.OfLog = among(Row.mean), among(Row.wrong), among(Row.ofLog)
	return sum
}

// mean, wrong and ofLog return the figures of Mean, Wrong and OfLog.
func (row Row) mean() float64  { return 100 * row.All.Relative() }
func (row Row) wrong() float64 { return 100 * ratio(row.Feedback.Wrong(), row.Feedback.Requests) }
func (row Row) ofLog() float64 { return 100 * ratio(row.Admitted, row.LogAdmitted) }

// A Speed is how fast an algorithm decided, the bookkeeping of the measures
// included.
type Speed struct {
	Algorithm string        `json:"algorithm"`
	Decisions int64         `json:"decisions"`
	Elapsed   time.Duration `json:"elapsed_ns"` // of one core
}

// PerSecond returns the decisions per second of one core.
func (s Speed) PerSecond() float64 { return float64(s.Decisions) / s.Elapsed.Seconds() }

// A simulation is a workload from a seed, and what an exact log admits of it.
type simulation struct {
	Workload
	seed        uint64
	names       []string
	logAdmitted int64
}

// newSimulation returns the run of a workload that a seed makes.
func newSimulation(w Workload, seed uint64) *simulation {
	run := &simulation{Workload: w, seed: seed}
	for client := range w.Clients {
		run.names = append(run.names, fmt.Sprintf("client-%06d", client))
	}
	logs := traffic.NewRecents(w.Clients, Window)
	for a := range w.arrivals(seed, w.Length) {
		if log := &logs[a.Client]; log.Count(a.At) < w.Limit {
			log.Add(a.At)
			run.logAdmitted++
		}
	}
	return run
}

// Measure feeds the requests to a limiter, with feedback and without. elapsed
// is the processor time that took. It is safe for concurrent use. The error is ctx's or
// the limiter's.
func (run *simulation) Measure(ctx context.Context, a algorithm) (row Row, elapsed time.Duration, err error) {
	runtime.LockOSThread() // whose time it is
	defer runtime.UnlockOSThread()
	start := worked()
	if row, err = run.enforce(ctx, a); err == nil && !a.judgesByLimit() {
		row.All, err = run.decide(ctx, a, false, func(traffic.Arrival, time.Duration, int64) {})
	}
	return row, worked() - start, err
}

// enforce is Measure with feedback.
func (run *simulation) enforce(ctx context.Context, a algorithm) (row Row, err error) {
	row = Row{Traffic: run.Name, Limit: run.Limit, Demand: run.Demand, Algorithm: a.Name, LogAdmitted: run.logAdmitted}
	var filled time.Duration
	released := traffic.NewRecents(run.Clients, Window)
	row.Feedback, err = run.decide(ctx, a, true, func(r traffic.Arrival, wait time.Duration, truth int64) {
		row.Admitted++
		row.Fullest = max(row.Fullest, truth+1)
		filled += windowsWith(r.At, run.Length)
		start := r.At + wait
		row.FullestReleased = max(row.FullestReleased, released[r.Client].Count(start)+1)
		released[r.Client].Add(start)
	})
	row.MeanWindow = float64(filled) / float64(run.Length-Window) / float64(run.Clients)
	return row, err
}

// windowsWith returns for how long, of the times t from Window to length,
// (t-Window, t] holds an event at the given time.
func windowsWith(at, length time.Duration) time.Duration {
	return max(0, min(at+Window, length)-max(at, Window))
}

// decide feeds the requests to a limiter and calls admitted with those that it
// admits, how long they have to wait, and the true count.
func (run *simulation) decide(ctx context.Context, a algorithm, feedback bool, admitted func(r traffic.Arrival, wait time.Duration, truth int64)) (d Difference, err error) {
	s, err := a.subject(run.Limit, run.Clients, feedback)
	if err != nil {
		return d, err
	}
	// A limiter without a deadline would look at the clock for one.
	steps, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	counted := traffic.NewRecents(run.Clients, Window)
	n := 0
	for r := range run.arrivals(run.seed, run.Length) {
		if n++; n%checkEvery == 0 && ctx.Err() != nil {
			return d, ctx.Err()
		}
		answer, err := s.ask(steps, run.names[r.Client], r.At)
		if err != nil {
			return d, fmt.Errorf("%s: %w", run.Name, err)
		}
		log := &counted[r.Client]
		truth := log.Count(r.At)
		d.observe(answer, truth, run.Limit)
		if answer.allowed || !feedback {
			log.Add(r.At)
		}
		if answer.allowed {
			admitted(r, answer.wait, truth)
		}
	}
	return d, nil
}

const (
	longestRun = 24 * time.Hour
	// checkEvery is how many requests go by between looks at the context.
	checkEvery = 4096
)

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
