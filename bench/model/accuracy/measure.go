package accuracy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
)

// A difference is how far estimates were from the true count, and what came of
// it. Each request is judged before it is decided: by the limiter's estimate of
// what is in use, and by the true count of the same window, (t-window, t], the
// request itself in neither. Differences of several clients add up.
type difference struct {
	Requests int64 `json:"requests"`
	// Sum is of |estimate - true count|.
	Sum int64 `json:"difference_sum"`
	// True is the sum of the true counts.
	True int64 `json:"true_sum"`
	// WronglyAdmitted are requests that were admitted although the true count
	// and they are more than the limit, WronglyDenied those that were denied
	// although they fit.
	WronglyAdmitted int64 `json:"wrongly_admitted"`
	WronglyDenied   int64 `json:"wrongly_denied"`
}

func (d *difference) observe(a answer, truth, limit int64) {
	d.Requests++
	d.Sum += max(a.estimate-truth, truth-a.estimate)
	d.True += truth
	switch fits := truth < limit; {
	case a.allowed && !fits:
		d.WronglyAdmitted++
	case !a.allowed && fits:
		d.WronglyDenied++
	}
}

// Add adds what was measured of other requests.
func (d *difference) add(other difference) {
	d.Requests += other.Requests
	d.Sum += other.Sum
	d.True += other.True
	d.WronglyAdmitted += other.WronglyAdmitted
	d.WronglyDenied += other.WronglyDenied
}

// Wrong returns the number of decisions that were wrong.
func (d difference) wrong() int64 { return d.WronglyAdmitted + d.WronglyDenied }

// Mean returns the mean of |estimate - true count|, in requests; 0 without any.
func (d difference) mean() float64 { return ratio(d.Sum, d.Requests) }

// Relative returns the mean of |estimate - true count| as a part of the mean
// true count; 0 if that is 0.
func (d difference) relative() float64 { return ratio(d.Sum, d.True) }

// A workloadRow is how one algorithm did on one workload, with all seeds together.
type workloadRow struct {
	Traffic   string  `json:"traffic"`
	Limit     int64   `json:"limit"`
	Demand    float64 `json:"demand"`
	Algorithm string  `json:"algorithm"`
	// Feedback is with only admitted requests counted: the true count is that
	// of the limiter's own admissions.
	Feedback difference `json:"feedback"`
	Admitted int64      `json:"admitted"`
	// Fullest is the most that any window (t-window, t] holds.
	Fullest int64 `json:"fullest"`
	// LogAdmitted is what an exact log admits of the same requests.
	LogAdmitted int64 `json:"log_admitted"`
	// All is with every request counted, whatever was decided: the true count
	// is that of all requests. It is zero for those that don't count.
	All difference `json:"all"`
	// Mean, Wrong and OfLog are the ranges among seeds, in percent, of
	// All.Relative, of the share of decisions that were wrong in Feedback, and of
	// Admitted in relation to LogAdmitted; zero with one seed.
	Mean  span `json:"mean_percent,omitzero"`
	Wrong span `json:"wrong_percent,omitzero"`
	OfLog span `json:"of_log_percent,omitzero"`
}

// A span is from the lowest to the highest of a figure.
type span struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// around writes a figure in the format, and the range if that is seen in it.
func (r span) around(format string, x float64) string {
	mean, low, high := fmt.Sprintf(format, x), fmt.Sprintf(format, r.Low), fmt.Sprintf(format, r.High)
	if r == (span{}) || low == mean && high == mean {
		return mean
	}
	return fmt.Sprintf("%s (%s..%s)", mean, low, high)
}

// together returns the row that those of several seeds make.
func together(rows []workloadRow) workloadRow {
	sum := rows[0]
	if len(rows) == 1 {
		return sum
	}
	among := func(figure func(workloadRow) float64) span {
		all := make([]float64, len(rows))
		for i, row := range rows {
			all[i] = figure(row)
		}
		return span{slices.Min(all), slices.Max(all)}
	}
	for _, row := range rows[1:] {
		sum.Feedback.add(row.Feedback)
		sum.All.add(row.All)
		sum.Admitted += row.Admitted
		sum.LogAdmitted += row.LogAdmitted
		sum.Fullest = max(sum.Fullest, row.Fullest)
	}
	sum.Mean, sum.Wrong, sum.OfLog = among(workloadRow.mean), among(workloadRow.wrong), among(workloadRow.ofLog)
	return sum
}

// mean, wrong and ofLog return the figures of Mean, Wrong and OfLog.
func (row workloadRow) mean() float64 { return 100 * row.All.relative() }
func (row workloadRow) wrong() float64 {
	return 100 * ratio(row.Feedback.wrong(), row.Feedback.Requests)
}
func (row workloadRow) ofLog() float64 { return 100 * ratio(row.Admitted, row.LogAdmitted) }

// A simulation is the times of a workload from a seed, and what an exact log
// admits of them.
type simulation struct {
	workload
	times       []time.Duration
	logAdmitted int64
}

// newSimulation returns the run of a workload that a seed makes.
func newSimulation(w workload, seed uint64) *simulation {
	run := &simulation{workload: w}
	var log exactLog
	for at := range w.arrivals(seed, w.Length) {
		run.times = append(run.times, at)
		if log.sum(at) < w.Limit {
			log.add(at, 1)
			run.logAdmitted++
		}
	}
	return run
}

// measure feeds the requests to a limiter, with feedback and without. It is safe
// for concurrent use. The error is ctx's or the limiter's.
func (run *simulation) measure(ctx context.Context, a algorithms.Algorithm) (workloadRow, error) {
	row, err := run.enforce(ctx, a)
	switch {
	case err != nil || !a.Counts():
	case row.Admitted == row.Feedback.Requests:
		row.All = row.Feedback // who has denied nothing has counted every request
	default:
		err = run.decide(ctx, a, false, func(answer answer, truth int64) { row.All.observe(answer, truth, run.Limit) })
	}
	return row, err
}

// enforce is Measure with feedback.
func (run *simulation) enforce(ctx context.Context, a algorithms.Algorithm) (row workloadRow, err error) {
	row = workloadRow{Traffic: run.Name, Limit: run.Limit, Demand: run.Demand, Algorithm: a.Name, LogAdmitted: run.logAdmitted}
	err = run.decide(ctx, a, true, func(answer answer, truth int64) {
		row.Feedback.observe(answer, truth, run.Limit)
		if answer.allowed {
			row.Admitted++
			row.Fullest = max(row.Fullest, truth+1)
		}
	})
	return row, err
}

// decide feeds the requests to a limiter and calls each with the answers and the
// true counts.
func (run *simulation) decide(ctx context.Context, a algorithms.Algorithm, feedback bool, each func(a answer, truth int64)) error {
	s, err := newSubject(a, run.Limit, feedback)
	if err != nil {
		return err
	}
	// A limiter without a deadline would look at the clock for one.
	steps, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	var counted exactLog
	for n, at := range run.times {
		if n%checkEvery == checkEvery-1 && ctx.Err() != nil {
			return ctx.Err()
		}
		answer, err := s.ask(steps, at)
		if err != nil {
			return fmt.Errorf("%s: %w", run.Name, err)
		}
		each(answer, counted.sum(at))
		if answer.allowed || !feedback {
			counted.add(at, 1)
		}
	}
	return nil
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
