package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// What contention is to show.
const (
	targetCallers    = 256
	targetRatio      = 100 // to the plain loop, in one process
	targetProcesses  = 8
	targetManyRatio  = 10 // to the plain loop, in many processes
	targetP99        = 20 * time.Millisecond
	targetUnluckiest = 0.25
	targetAdmitted   = 0.99 // of what a token bucket may admit
)

// A contentionReport is what contention measured.
type contentionReport struct {
	Machine  machine       `json:"machine"`
	Duration time.Duration `json:"duration_ns"`
	Exact    time.Duration `json:"exact_ns"`
	Rates    []rateRow     `json:"rates"`
	Buckets  []bucketRow   `json:"token_bucket"`
	Logs     []logRow      `json:"sliding_log"`
}

// A rateRow is how fast a loop decided.
type rateRow struct {
	Loop      string        `json:"loop"`
	Processes int           `json:"processes"`
	Callers   int           `json:"callers"` // per process
	Rate      float64       `json:"rate"`    // per second
	Ratio     float64       `json:"ratio"`   // to the plain loop
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	P999      time.Duration `json:"p999_ns"`
	// Per decision.
	Attempts   float64 `json:"attempts"`
	Conflicts  float64 `json:"conflicts"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	Unluckiest float64 `json:"unluckiest"` // caller, as a part of the mean
}

func newRateRow(loop string, s shape, o outcome, plain float64) rateRow {
	quantile := func(percent float64) time.Duration {
		return time.Duration(o.Latency.ValueAtPercentile(percent))
	}
	decisions := float64(max(1, o.decisions()))
	return rateRow{
		Loop: loop, Processes: s.processes, Callers: s.callers, Rate: o.rate(), Ratio: o.rate() / plain,
		P50: quantile(50), P99: quantile(99), P999: quantile(99.9),
		Attempts: float64(o.Attempts) / decisions, Conflicts: float64(o.Conflicts) / decisions,
		Errors: o.Errors, FirstError: o.FirstError, Unluckiest: o.unluckiest(),
	}
}

// A bucketRow is what a token bucket admitted.
type bucketRow struct {
	Processes  int           `json:"processes"`
	Rate       float64       `json:"rate"` // decisions per second
	Elapsed    time.Duration `json:"elapsed_ns"`
	Admitted   int64         `json:"admitted"`
	Most       float64       `json:"most"` // that may be admitted
	Errors     int64         `json:"errors"`
	FirstError string        `json:"first_error,omitempty"`
}

func newBucketRow(e exactRun, o outcome) bucketRow {
	elapsed := time.Duration(o.Last - o.First)
	return bucketRow{
		Processes: e.processes, Rate: o.rate(), Elapsed: elapsed, Admitted: o.Admitted,
		Most: bucketMost(bucketLimit, bucketBurst, elapsed), Errors: o.Errors, FirstError: o.FirstError,
	}
}

func (b bucketRow) share() float64 { return float64(b.Admitted) / b.Most }

// A logRow is what a sliding log admitted.
type logRow struct {
	Processes int     `json:"processes"`
	Rate      float64 `json:"rate"` // decisions per second
	Admitted  int64   `json:"admitted"`
	Denied    int64   `json:"denied"`
	Fullest   int     `json:"fullest"` // window
	// Obstacles are the different reasons for a denial, Unfounded those that an
	// exact log would not have had.
	Obstacles  int    `json:"obstacles"`
	Unfounded  int    `json:"unfounded"`
	Errors     int64  `json:"errors"`
	FirstError string `json:"first_error,omitempty"`
}

func newLogRow(e exactRun, o outcome) logRow {
	slices.Sort(o.Admissions)
	slices.Sort(o.Obstacles)
	obstacles := slices.Compact(o.Obstacles)
	return logRow{
		Processes: e.processes, Rate: o.rate(), Admitted: o.Admitted, Denied: o.Denied, Fullest: fullest(o.Admissions, fill),
		Obstacles: len(obstacles), Unfounded: unfounded(o.Admissions, obstacles, logLimit, fill),
		Errors: o.Errors, FirstError: o.FirstError,
	}
}

// broken returns an error that says which promise was broken: that there are no
// errors, and that exactly the limit is admitted.
func (r *contentionReport) broken() error {
	var errs []error
	failed := func(row string, n int64, first string) {
		if n > 0 {
			errs = append(errs, fmt.Errorf("%s: %d errors, the first: %s", row, n, first))
		}
	}
	for _, row := range r.Rates {
		if row.Loop != plainCAS {
			failed(fmt.Sprintf("%s, %d x %d callers", row.Loop, row.Processes, row.Callers), row.Errors, row.FirstError)
		}
	}
	for _, row := range r.Buckets {
		name := exactRun{combinedCAS, row.Processes}.String()
		failed(name, row.Errors, row.FirstError)
		if float64(row.Admitted) > row.Most || row.share() < targetAdmitted {
			errs = append(errs, fmt.Errorf("%s: admitted %d; must be at most %.1f and at least %.0f%% of it", name, row.Admitted, row.Most, 100*targetAdmitted))
		}
	}
	for _, row := range r.Logs {
		name := exactRun{logCAS, row.Processes}.String()
		failed(name, row.Errors, row.FirstError)
		if row.Fullest != logLimit || row.Unfounded > 0 {
			errs = append(errs, fmt.Errorf("%s: the fullest window holds %d of %d; %d denials would have fitted", name, row.Fullest, logLimit, row.Unfounded))
		}
	}
	return errors.Join(errs...)
}

// find returns the row of a loop with the given shape.
func (r *contentionReport) find(loop string, s shape) (rateRow, bool) {
	i := slices.IndexFunc(r.Rates, func(row rateRow) bool {
		return row.Loop == loop && row.Processes == s.processes && row.Callers == s.callers
	})
	if i < 0 {
		return rateRow{}, false
	}
	return r.Rates[i], true
}

// A target is a speed that is aimed at.
type target struct {
	text string
	met  bool
}

func (t target) String() string {
	if t.met {
		return t.text + ": ok"
	}
	return t.text + ": MISSED"
}

// targets returns those of the combined loop whose rows were measured.
func (r *contentionReport) targets() []target {
	var targets []target
	if row, ok := r.find(combinedCAS, shape{1, targetCallers}); ok {
		targets = append(targets, target{
			fmt.Sprintf("one process, %d callers: %.1fx the plain loop, at least %dx", row.Callers, row.Ratio, targetRatio), row.Ratio >= targetRatio,
		})
	}
	var last rateRow
	never := target{"one process, from 1 to 256 callers: decisions/s never falls", true}
	for _, row := range r.Rates {
		if row.Loop != combinedCAS || row.Processes != 1 {
			continue
		}
		if row.Rate < last.Rate {
			never.met = false
			never.text += fmt.Sprintf("; %d callers %.0f%% of %d callers", row.Callers, 100*row.Rate/last.Rate, last.Callers)
		}
		last = row
	}
	if last.Callers > 1 {
		targets = append(targets, never)
	}
	if row, ok := r.find(combinedCAS, shape{targetProcesses, callersPerProcess}); ok {
		many := fmt.Sprintf("%d processes, %d callers each: ", row.Processes, row.Callers)
		targets = append(targets,
			target{many + fmt.Sprintf("%.1fx the plain loop, at least %dx", row.Ratio, targetManyRatio), row.Ratio >= targetManyRatio},
			target{many + fmt.Sprintf("p99 %s ms, under %s ms", milliseconds(row.P99), milliseconds(targetP99)), row.P99 < targetP99},
			target{many + fmt.Sprintf("unluckiest caller %.2f of the mean, at least %.2f", row.Unluckiest, targetUnluckiest), row.Unluckiest >= targetUnluckiest},
		)
	}
	return targets
}

// print writes the figures as tables, and what their columns mean.
func (r *contentionReport) print(out io.Writer) {
	fmt.Fprintf(out, "%d cores shared by memcached %s and all callers, %s; %v per row of rates, %v per exact row\n",
		r.Machine.Cores, r.Machine.Memcached, r.Machine.Go, r.Duration, r.Exact)
	if len(r.Rates) > 0 {
		r.printRates(out)
	}
	if len(r.Buckets) > 0 {
		r.printBuckets(out)
	}
	if len(r.Logs) > 0 {
		r.printLogs(out)
	}
}

func (r *contentionReport) printRates(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "one key\tprocesses\tcallers\tdecisions/s\tof plain\tp50 ms\tp99 ms\tp999 ms\tattempts\tconflicts\terrors\tunluckiest\t")
	for _, row := range r.Rates {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.0f\t%.1fx\t%s\t%s\t%s\t%.4f\t%.4f\t%d\t%.2f\t\n",
			row.Loop, row.Processes, row.Callers, row.Rate, row.Ratio, milliseconds(row.P50), milliseconds(row.P99), milliseconds(row.P999),
			row.Attempts, row.Conflicts, row.Errors, row.Unluckiest)
	}
	_ = t.Flush() // out is looked after by whoever reads it
	for _, target := range r.targets() {
		fmt.Fprintln(out, target)
	}
	fmt.Fprintf(out, `
callers     per process, each deciding again as soon as it has an answer; nothing is denied, so that each decision is written
decisions/s without each caller's last, which comes when the time is over, and without the wait for it
of plain    rate relative to a loop that each caller runs for itself on gomemcache: get, take a token, compare-and-swap, at once
            again when another was faster; all four run in turn
p50 to p999 of a decision, with retries
attempts    writes per decision; conflicts are those that found that another was faster, and start over
errors      decisions that were not made within %v
unluckiest  decisions of the caller that got the fewest, as a part of the mean
`, callTimeout)
}

func (r *contentionReport) printBuckets(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "token bucket\tprocesses\tdecisions/s\tseconds\tadmitted\tat most\tshare\terrors\t")
	for _, row := range r.Buckets {
		fmt.Fprintf(t, "exact\t%d\t%.0f\t%.3f\t%d\t%.1f\t%.2f%%\t%d\t\n",
			row.Processes, row.Rate, row.Elapsed.Seconds(), row.Admitted, row.Most, 100*row.share(), row.Errors)
	}
	_ = t.Flush() // as above
	fmt.Fprintf(out, `
%d callers per process, far more requests than the %d per second, burst %d, that are admitted
seconds     from the first request to the last
at most     burst + limit * seconds; share is what was admitted of it, and must be at least %.0f%%
`, callersPerProcess, bucketLimit, bucketBurst, 100*targetAdmitted)
}

func (r *contentionReport) printLogs(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "sliding log\tprocesses\tdecisions/s\tadmitted\tdenied\tfullest\tobstacles\tunfounded\terrors\t")
	for _, row := range r.Logs {
		fmt.Fprintf(t, "exact\t%d\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
			row.Processes, row.Rate, row.Admitted, row.Denied, row.Fullest, row.Obstacles, row.Unfounded, row.Errors)
	}
	_ = t.Flush() // as above
	fmt.Fprintf(out, `
%d callers per process, far more requests than the %d per second that are admitted
fullest     admissions in the fullest window of a second, whenever it begins; must be the limit
obstacles   different admissions that denied requests waited for to leave the window
unfounded   those of them that an exact log would not have waited for: the second after them was not full; must be 0
`, callersPerProcess, logLimit)
}
