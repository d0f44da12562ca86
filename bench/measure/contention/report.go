package contention

import (
	"errors"
	"fmt"
	"io"
	"time"

	"weir/bench/internal/report"
	"weir/counters"
)

// A shape is who decides: so many processes with so many callers each.
type shape struct{ processes, callers int }

func (s shape) String() string { return fmt.Sprintf("rate, %d x %d callers", s.processes, s.callers) }

// callersPerProcess is the same in all rows that several processes share.
const callersPerProcess = 32

// farLimit is that of the runs far from the store that deny, per second, and their
// burst.
const farLimit = 100

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
	Rates    []rateRow      `json:"rates"`
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
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	Unluckiest float64 `json:"unluckiest"` // caller, as a part of the mean
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
// errors, and that no more than the limit is admitted. Far from the store, where
// decisions have little time, there may be errors.
func (r *Report) Broken() error {
	var errs []error
	for _, row := range r.Rates {
		if row.Loop != plainCAS && row.Errors > 0 {
			errs = append(errs, fmt.Errorf("%s, %d x %d callers: %d errors, the first: %s", row.Loop, row.Processes, row.Callers, row.Errors, row.FirstError))
		}
	}
	for _, row := range r.Far {
		if row.Most > 0 && float64(row.Admitted) > row.Most {
			errs = append(errs, fmt.Errorf("%v: admitted %d; must be at most %.1f", row, row.Admitted, row.Most))
		}
	}
	return errors.Join(errs...)
}

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%d cores shared by memcached %s and all callers, %s; %v per row\n",
		r.Machine.Cores, r.Machine.Memcached, r.Machine.Go, r.Duration)
	header := "one key\tprocesses\tcallers\tdecisions/s\tof plain\t" + report.PercentileHeader + "errors\tunluckiest\t"
	report.TableOf(out, "", header, r.Rates, func(row rateRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%.0f\t%.1fx\t%s%d\t%.2f\t",
			row.Loop, row.Processes, row.Callers, row.Rate, row.Ratio, row.Cells(), row.Errors, row.Unluckiest)
	}, `
callers     per process, each deciding again as soon as it has an answer; nothing is denied, so that each decision is written
decisions/s without each caller's last, which comes when the time is over, and without the wait for it
of plain    rate relative to a loop that each caller runs for itself on gomemcache: get, take a token, compare-and-swap, at once
            again when another was faster; all four run in turn
p50 to p999 of a decision, with retries
errors      decisions that were not made within %v
unluckiest  decisions of the caller that got the fewest, as a part of the mean
`, callTimeout)
	header = "token bucket\tround trip ms\tseen p50\tp99\tprocesses\tcallers\tdecisions/s\t" + report.PercentileHeader + "degraded\tcontended\tadmitted\tat most\t"
	report.TableOf(out, "", header, r.Far, func(row farRow) string {
		kind, most := "rate", "-"
		if row.Most > 0 {
			kind, most = "limited", fmt.Sprintf("%.1f", row.Most)
		}
		return fmt.Sprintf("%s\t%g\t%s\t%s\t%d\t%d\t%.0f\t%s%s\t%s\t%d\t%s\t",
			kind, report.InMilliseconds(row.RoundTrip), report.Milliseconds(row.RoundTripP50), report.Milliseconds(row.RoundTripP99), row.Processes, row.Callers,
			row.Rate, row.Cells(), report.Percent(row.Degraded), report.Percent(row.Contended), row.Admitted, most)
	}, `
round trip  to memcached, by a proxy that adds it to what the machine needs for one; at 0 there is no proxy
seen        round trips meanwhile, of a connection of its own: a machine that is busy with other things makes them longer
limited     to %d per second, burst %d, where denied requests count, so that each decision is written; the others deny nothing
degraded    requests that the store didn't answer within %v: the policy decides what becomes of them
contended   requests denied because another process was faster at each attempt within that time
at most     burst + limit * time from the first request to the last
`, farLimit, farLimit, counters.DefaultTimeout)
}
