package contention

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"weir/bench/internal/report"
	"weir/counters"
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

	targetRoundTrip = time.Millisecond // of many processes
	targetContended = 0.001
	targetFarP99    = 30 * time.Millisecond
)

// A shape is who decides: so many processes with so many callers each.
type shape struct{ processes, callers int }

func (s shape) String() string { return fmt.Sprintf("rate, %d x %d callers", s.processes, s.callers) }

// callersPerProcess is the same in all rows that several processes share.
const callersPerProcess = 32

// The limits of the runs that count what is admitted.
const (
	bucketLimit = 5000 // per second
	bucketBurst = 1000
	logLimit    = 1000 // per second
)

// An exactRun has many more requests than its limit admits.
type exactRun struct {
	loop      string
	processes int
}

func (e exactRun) String() string { return fmt.Sprintf("exact, %s, %d processes", e.loop, e.processes) }

// The limit of the runs far from the store that deny.
const (
	farLimit = 100 // per second
	farBurst = 100
)

// A farRun has the store a round trip away, and the deadlines that weir has by
// default. Without a limit nothing is denied. With one, nearly everything is,
// and counts.
type farRun struct {
	processes int
	roundTrip time.Duration
	limited   bool
}

func (f farRun) String() string {
	kind := "rate"
	if f.limited {
		kind = "limited"
	}
	return fmt.Sprintf("far, %s, %d x %d callers, %v", kind, f.processes, callersPerProcess, f.roundTrip)
}

// A Report is what contention measured.
type Report struct {
	Machine  report.Machine `json:"machine"`
	Duration time.Duration  `json:"duration_ns"`
	Exact    time.Duration  `json:"exact_ns"`
	Rates    []rateRow      `json:"rates"`
	Buckets  []bucketRow    `json:"token_bucket"`
	Logs     []logRow       `json:"sliding_log"`
	Far      []farRow       `json:"far,omitempty"`
}

// A rateRow is how fast a loop decided.
type rateRow struct {
	Loop      string  `json:"loop"`
	Processes int     `json:"processes"`
	Callers   int     `json:"callers"` // per process
	Rate      float64 `json:"rate"`    // per second
	Ratio     float64 `json:"ratio"`   // to the plain loop
	report.Percentiles
	// Per decision.
	Attempts   float64 `json:"attempts"`
	Conflicts  float64 `json:"conflicts"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	Unluckiest float64 `json:"unluckiest"` // caller, as a part of the mean
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

// A farRow is what a token bucket did whose store is a round trip away.
type farRow struct {
	Processes int           `json:"processes"`
	Callers   int           `json:"callers"` // per process
	RoundTrip time.Duration `json:"round_trip_ns"`
	// Those that were seen meanwhile.
	RoundTripP50 time.Duration `json:"round_trip_p50_ns"`
	RoundTripP99 time.Duration `json:"round_trip_p99_ns"`
	Rate         float64       `json:"rate"` // decisions per second
	report.Percentiles
	// Of all requests: those that the store didn't answer in time, and those
	// denied because others were faster.
	Degraded   float64 `json:"degraded"`
	Contended  float64 `json:"contended"`
	FirstError string  `json:"first_error,omitempty"`
	Admitted   int64   `json:"admitted"`
	Most       float64 `json:"most,omitempty"` // that may be admitted, if it is limited
}

func (f farRow) String() string { return farRun{f.Processes, f.RoundTrip, f.Most > 0}.String() }

// Broken returns an error that says which promise was broken: that there are no
// errors, and that exactly the limit is admitted. Far from the store, where
// decisions have little time, there may be errors, and less is admitted.
func (r *Report) Broken() error {
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
	for _, row := range r.Far {
		if row.Most > 0 && float64(row.Admitted) > row.Most {
			errs = append(errs, fmt.Errorf("%v: admitted %d; must be at most %.1f", row, row.Admitted, row.Most))
		}
	}
	return errors.Join(errs...)
}

// find returns the row of a loop with the given shape.
func (r *Report) find(loop string, s shape) (rateRow, bool) {
	return report.Find(r.Rates, func(row rateRow) bool {
		return row.Loop == loop && row.Processes == s.processes && row.Callers == s.callers
	})
}

// targets returns those of the combined loop whose rows were measured.
func (r *Report) targets() report.Targets {
	var targets report.Targets
	if row, ok := r.find(combinedCAS, shape{1, targetCallers}); ok {
		targets.Add(row.Ratio >= targetRatio, "one process, %d callers: %.1fx the plain loop, at least %dx", row.Callers, row.Ratio, targetRatio)
	}
	var last rateRow
	falls := ""
	for _, row := range r.Rates {
		if row.Loop != combinedCAS || row.Processes != 1 {
			continue
		}
		if row.Rate < last.Rate {
			falls += fmt.Sprintf("; %d callers %.0f%% of %d callers", row.Callers, 100*row.Rate/last.Rate, last.Callers)
		}
		last = row
	}
	if last.Callers > 1 {
		targets.Add(falls == "", "one process, from 1 to 256 callers: decisions/s never falls%s", falls)
	}
	if row, ok := r.find(combinedCAS, shape{targetProcesses, callersPerProcess}); ok {
		many := fmt.Sprintf("%d processes, %d callers each", row.Processes, row.Callers)
		targets.Add(row.Ratio >= targetManyRatio, "%s: %.1fx the plain loop, at least %dx", many, row.Ratio, targetManyRatio)
		targets.Add(row.P99 < targetP99, "%s: p99 %s ms, under %s ms", many, report.Milliseconds(row.P99), report.Milliseconds(targetP99))
		targets.Add(row.Unluckiest >= targetUnluckiest, "%s: unluckiest caller %.2f of the mean, at least %.2f", many, row.Unluckiest, targetUnluckiest)
	}
	return targets
}

// farTargets returns those of the rows that have the target's round trip.
func (r *Report) farTargets() report.Targets {
	var targets report.Targets
	for _, row := range r.Far {
		if row.Processes == targetProcesses && row.RoundTrip == targetRoundTrip {
			targets.Add(row.Contended < targetContended, "%v: contended %s, under %s", row, report.Percent(row.Contended), report.Percent(targetContended))
			targets.Add(row.P99 < targetFarP99, "%v: p99 %s ms, under %s ms", row, report.Milliseconds(row.P99), report.Milliseconds(targetFarP99))
		}
	}
	return targets
}

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%d cores shared by memcached %s and all callers, %s; %v per row of rates, %v per exact row\n",
		r.Machine.Cores, r.Machine.Memcached, r.Machine.Go, r.Duration, r.Exact)
	header := "one key\tprocesses\tcallers\tdecisions/s\tof plain\t" + report.PercentileHeader + "attempts\tconflicts\terrors\tunluckiest\t"
	report.TableOf(out, "", header, r.Rates, func(row rateRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%.0f\t%.1fx\t%s%.4f\t%.4f\t%d\t%.2f\t",
			row.Loop, row.Processes, row.Callers, row.Rate, row.Ratio, row.Cells(), row.Attempts, row.Conflicts, row.Errors, row.Unluckiest)
	}, `%v
callers     per process, each deciding again as soon as it has an answer; nothing is denied, so that each decision is written
decisions/s without each caller's last, which comes when the time is over, and without the wait for it
of plain    rate relative to a loop that each caller runs for itself on gomemcache: get, take a token, compare-and-swap, at once
            again when another was faster; all four run in turn
p50 to p999 of a decision, with retries
attempts    writes per decision; conflicts are those that found that another was faster, and start over
errors      decisions that were not made within %v
unluckiest  decisions of the caller that got the fewest, as a part of the mean
`, r.targets(), callTimeout)
	report.TableOf(out, "", "token bucket\tprocesses\tdecisions/s\tseconds\tadmitted\tat most\tshare\terrors\t", r.Buckets, func(row bucketRow) string {
		return fmt.Sprintf("exact\t%d\t%.0f\t%.3f\t%d\t%.1f\t%.2f%%\t%d\t",
			row.Processes, row.Rate, row.Elapsed.Seconds(), row.Admitted, row.Most, 100*row.share(), row.Errors)
	}, `
%d callers per process, far more requests than the %d per second, burst %d, that are admitted
seconds     from the first request to the last
at most     burst + limit * seconds; share is what was admitted of it, and must be at least %.0f%%
`, callersPerProcess, bucketLimit, bucketBurst, 100*targetAdmitted)
	report.TableOf(out, "", "sliding log\tprocesses\tdecisions/s\tadmitted\tdenied\tfullest\tobstacles\tunfounded\terrors\t", r.Logs, func(row logRow) string {
		return fmt.Sprintf("exact\t%d\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t",
			row.Processes, row.Rate, row.Admitted, row.Denied, row.Fullest, row.Obstacles, row.Unfounded, row.Errors)
	}, `
%d callers per process, far more requests than the %d per second that are admitted
fullest     admissions in the fullest window of a second, whenever it begins; must be the limit
obstacles   different admissions that denied requests waited for to leave the window
unfounded   those of them that an exact log would not have waited for: the second after them was not full; must be 0
`, callersPerProcess, logLimit)
	header = "token bucket\tround trip ms\tseen p50\tp99\tprocesses\tcallers\tdecisions/s\t" + report.PercentileHeader + "degraded\tcontended\tadmitted\tat most\t"
	report.TableOf(out, "", header, r.Far, func(row farRow) string {
		kind, most := "rate", "-"
		if row.Most > 0 {
			kind, most = "limited", fmt.Sprintf("%.1f", row.Most)
		}
		return fmt.Sprintf("%s\t%g\t%s\t%s\t%d\t%d\t%.0f\t%s%s\t%s\t%d\t%s\t",
			kind, report.InMilliseconds(row.RoundTrip), report.Milliseconds(row.RoundTripP50), report.Milliseconds(row.RoundTripP99), row.Processes, row.Callers,
			row.Rate, row.Cells(), report.Percent(row.Degraded), report.Percent(row.Contended), row.Admitted, most)
	}, `%v
round trip  to memcached, by a proxy that adds it to what the machine needs for one; at 0 there is no proxy
seen        round trips meanwhile, of a connection of its own: a machine that is busy with other things makes them longer
limited     to %d per second, burst %d, where denied requests count, so that each decision is written; the others deny nothing
degraded    requests that the store didn't answer within %v: the policy decides what becomes of them
contended   requests denied because another process was faster at each attempt within that time
at most     burst + limit * time from the first request to the last
`, r.farTargets(), farLimit, farBurst, counters.DefaultTimeout)
}

// loopColors are those of the loops; weir's is of a token bucket.
var loopColors = map[string]color.Color{plainCAS: report.Gray, combinedCAS: report.Purple, fixedSlots: report.Vermillion, sixtySlots: report.Indigo}

// Pictures are decisions per second against callers and against processes.
func (r *Report) Pictures() []report.Picture {
	if len(r.Rates) == 0 {
		return nil
	}
	byCallers := panel("One process", "callers on one key", targetCallers, r.Rates, func(r rateRow) (int, bool) {
		return r.Callers, r.Processes == 1
	})
	byProcesses := panel(fmt.Sprintf("Several processes, %d callers each", callersPerProcess), "processes on one key", targetProcesses, r.Rates, func(r rateRow) (int, bool) {
		return r.Processes, r.Callers == callersPerProcess
	})
	report.WholePowers(byCallers, byProcesses)
	// One legend is enough, and on the left it is in nobody's way.
	byProcesses.Legend = plot.NewLegend()
	return []report.Picture{report.NewPicture("contention", "decisions per second against callers and against processes", 5, byCallers, byProcesses)}
}

// panel plots the rates of the rows that at selects, where it says, on an axis
// from 1 to most.
func panel(title, axis string, most int, rows []rateRow, at func(rateRow) (x int, ok bool)) *report.Plot {
	var curves []report.Curve
	ticks := make(report.Ticks)
	for _, loop := range loops {
		c := report.Curve{Name: loop, Color: loopColors[loop]}
		for _, r := range rows {
			if x, ok := at(r); ok && r.Loop == loop && r.Rate > 0 {
				c.Points = append(c.Points, plotter.XY{X: float64(x), Y: r.Rate})
				ticks[float64(x)] = strconv.Itoa(x)
			}
		}
		curves = append(curves, c)
	}
	p := report.LogPlot(title, axis, "decisions/s", ticks, 3, curves)
	p.X.Min, p.X.Max = 1, float64(most)
	return p
}
