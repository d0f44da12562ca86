package faults

import (
	"errors"
	"fmt"
	"io"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
)

const (
	// grace is what a check may take longer than the store timeout.
	grace = 20 * time.Millisecond
	// settledP99 is for checks that don't wait for a store.
	settledP99 = 5 * time.Millisecond
	// backWithin is how long after a fault the store decides again.
	backWithin = 2 * time.Second
)

// A row is what was seen in one trial.
type row struct {
	Fault     string `json:"fault"`
	Processes int    `json:"processes"`
	Checks    int64  `json:"checks"`
	// Above is what was admitted above the limits. Unexcused is the part that
	// processes didn't admit on their own; InFlight of it may be.
	Above     int64 `json:"above"`
	Unexcused int64 `json:"unexcused"`
	InFlight  int64 `json:"in_flight"`
	Below     int64 `json:"below"` // what clients that asked for it didn't get of their limits
	Local     int64 `json:"local"` // admitted by processes on their own
	Wrong     int   `json:"wrong"` // answers
	Stuck     int64 `json:"stuck"` // callers
	Leaked    int64 `json:"leaked"`
	// Of checks while the fault is on; 0 if none is counted. SettledP99 is of
	// those after a breaker may take to open.
	P50        time.Duration `json:"p50_ns"`
	P99        time.Duration `json:"p99_ns"`
	SettledP99 time.Duration `json:"settled_p99_ns"`
	Longest    time.Duration `json:"longest_ns"`
	// Machine is the longest that answers took meanwhile that need no store: how much
	// this machine held up all others.
	Machine time.Duration `json:"machine_ns"`
	Back    time.Duration `json:"back_ns"` // from the end of the fault until the store decides
	misses
}

// A Report is what faults found out.
type Report struct {
	Machine report.Machine `json:"machine"`
	Timeout time.Duration  `json:"store_timeout_ns"`
	Length  time.Duration  `json:"length_ns"` // of a fault
	Rows    []row          `json:"rows"`
	Shares  []shareRow     `json:"shares,omitempty"`
}

// Print writes the rows as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%v; store timeout %v, faults of %v, limit %d\n", r.Machine, r.Timeout, r.Length, limit)
	report.TableOf(out, "", "fault\tprocesses\tchecks\tabove\tunexcused\tmay be\tbelow\tlocal\twrong\tstuck\tleaked\tp50 ms\tp99 ms\tsettled\tlongest\tmachine\tback ms\t\t", r.Rows, func(r row) string {
		text := fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t", r.Fault, r.Processes, r.Checks, r.Above, r.Unexcused, r.InFlight, r.Below, r.Local, r.Wrong, r.Stuck, r.Leaked)
		for _, d := range []time.Duration{r.P50, r.P99, r.SettledP99, r.Longest, r.Machine, r.Back} {
			cell := "-"
			if d > 0 {
				cell = report.Milliseconds(d)
			}
			text += cell + "\t"
		}
		return text + r.verdict() + "\t"
	}, `
above      admitted above the limit, of all clients
unexcused  the part of it that processes didn't admit on their own while they couldn't ask the store; it may be as much as was in flight
below      what clients didn't get of their limits, though they asked for it
local      admitted by processes on their own
leaked     goroutines that are still there after the load
settled    p99 of the checks that began 0.5 s after the fault did
machine    the longest that an answer took meanwhile that needs no store: what a busy machine adds to the longest check
back       from the end of the fault until no check is decided without the store
`)
	printShares(out, r.Shares)
}

// Broken returns what didn't hold.
func (r *Report) Broken() error {
	var errs []error
	add := func(name string, of misses) {
		for _, text := range of.Missed {
			errs = append(errs, fmt.Errorf("faults: %s: %s", name, text))
		}
	}
	for _, row := range r.Rows {
		add(row.Fault, row.misses)
	}
	for _, row := range r.Shares {
		add(row.Name, row.misses)
	}
	return errors.Join(errs...)
}

// judge fills in what callers have seen, and holds it against what must hold in
// all trials.
func (b *bed) judge(r *row) {
	r.Checks, r.Local, r.Wrong, r.Stuck = b.checks, b.local, len(b.wrong), b.stuck
	unknowing := r.Processes - 1
	if b.lossy {
		unknowing = r.Processes
	}
	above, below, unexcused := b.above(unknowing)
	r.Above, r.Below = above, below
	for _, n := range unexcused {
		r.Unexcused += n
	}
	if b.during.TotalCount() > 0 {
		r.P50, r.P99 = loadgen.Percentile(b.during, 50), loadgen.Percentile(b.during, 99)
		r.SettledP99, r.Longest = loadgen.Percentile(b.settled, 99), time.Duration(b.during.Max())
	}
	r.must(r.Unexcused <= r.InFlight, "%d were admitted above the limit, and %d may be: %v", r.Unexcused, r.InFlight, unexcused)
	if len(b.wrong) > 0 {
		r.must(false, "%d wrong answers, such as: %s", len(b.wrong), b.wrong[0])
	}
	r.must(r.Stuck == 0, "%d callers had no answer within %v", r.Stuck, patience)
	r.must(r.Leaked == 0, "%d goroutines more than before", r.Leaked)
	bound := b.cfg.timeout + grace + r.Machine
	r.must(r.Longest <= bound, "a check took %v, longer than %v", r.Longest, bound)
	r.must(r.Back <= backWithin, "the store decided again after %v", r.Back)
}
