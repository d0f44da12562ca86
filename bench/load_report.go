package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A loadReport is what load measured.
type loadReport struct {
	Machine     machine       `json:"machine"`
	Target      string        `json:"target,omitempty"` // empty for a weir of the bench's own
	Format      string        `json:"format"`
	Poisson     bool          `json:"poisson"`
	Clients     int           `json:"clients"`
	Zipf        float64       `json:"zipf"`
	Connections int           `json:"connections"`
	Seed        uint64        `json:"seed"`
	Duration    time.Duration `json:"duration_ns"`
	Bound       time.Duration `json:"p99_bound_ns,omitempty"`
	Searches    []searchRow   `json:"search,omitempty"`
	Ramp        bool          `json:"ramp"` // the slices have different rates
	Rows        []loadRow     `json:"rows,omitempty"`
}

// latencies are percentiles.
type latencies struct {
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
	// Since the check was sent, not since it was due.
	ServiceP99 time.Duration `json:"service_p99_ns"`
}

// loadFigures are those of a slice, or of all.
type loadFigures struct {
	Rate     float64    `json:"rate"`              // intended, per second
	Achieved float64    `json:"achieved"`          // answers per second
	Latency  *latencies `json:"latency,omitempty"` // nil when the bench was behind
	// 99% of the checks were sent at most so much later than they were due: in
	// all, and of that by the bench's own fault.
	Late time.Duration `json:"late_p99_ns"`
	Lag  time.Duration `json:"lag_p99_ns"`
}

func newLoadFigures(s *sample) loadFigures {
	f := loadFigures{
		Rate: (s.pace.from + s.pace.to) / 2, Achieved: float64(s.latency.TotalCount()) / s.elapsed.Seconds(),
		Late: percentile(s.late, 99), Lag: percentile(s.lag, 99),
	}
	if !s.behind() {
		f.Latency = &latencies{
			P50: percentile(s.latency, 50), P90: percentile(s.latency, 90), P99: percentile(s.latency, 99), P999: percentile(s.latency, 99.9),
			Max: time.Duration(s.latency.Max()), ServiceP99: percentile(s.service, 99),
		}
	}
	return f
}

// storeCost is what a check costs memcached.
type storeCost struct {
	Writes   float64 `json:"writes"`    // add, set, cas, incr, decr and delete commands per check
	KeysRead float64 `json:"keys_read"` // per check
}

// String returns both, to one digit.
func (c storeCost) String() string { return fmt.Sprintf("%.1f + %.1f", c.Writes, c.KeysRead) }

func newStoreCost(stats storeStats, s *sample) *storeCost {
	checks := float64(max(1, s.sent))
	return &storeCost{float64(stats.writes) / checks, float64(stats.keysRead) / checks}
}

// A loadRow is how a policy did.
type loadRow struct {
	Policy string `json:"policy"`
	loadFigures
	Statuses map[int]int64 `json:"statuses"`
	Degraded int64         `json:"degraded"`
	Fault    string        `json:"fault,omitempty"` // other than slowness
	Store    *storeCost    `json:"store,omitempty"` // nil when memcached wasn't asked
	Slices   []loadFigures `json:"slices"`
	Curve    []curvePoint  `json:"curve,omitempty"` // empty when the bench was behind
}

// A curvePoint says that so many percent of the checks took at most so long.
type curvePoint struct {
	Percent float64       `json:"percent"`
	Latency time.Duration `json:"latency_ns"`
}

func newLoadRow(policy string, s *sample, slices []loadFigures) loadRow {
	row := loadRow{Policy: policy, loadFigures: newLoadFigures(s), Statuses: s.statuses, Degraded: s.degraded, Slices: slices}
	if err := s.fault(); err != nil {
		row.Fault = err.Error()
	}
	if row.Latency != nil {
		row.Curve = percentileCurve(s.latency)
	}
	return row
}

// percentileCurve returns percentiles ever closer to 100, eight for each factor of ten, as
// far as there are ten checks beyond.
func percentileCurve(h *hdrhistogram.Histogram) []curvePoint {
	var points []curvePoint
	for i := 0; ; i++ {
		beyond := math.Pow(10, -float64(i)/8)
		if beyond*float64(h.TotalCount()) < 10 {
			return points
		}
		percent := 100 * (1 - beyond)
		points = append(points, curvePoint{percent, percentile(h, percent)})
	}
}

// A searchRow is the highest rate of a policy that held.
type searchRow struct {
	Policy  string       `json:"policy"`
	Highest float64      `json:"highest"` // rate that held; 0 for none
	Lowest  float64      `json:"lowest"`  // rate that failed; 0 for none
	Steps   []searchStep `json:"steps"`
}

// A searchStep is one try of a rate.
type searchStep struct {
	loadFigures
	Failed string `json:"failed,omitempty"` // why
}

func newSearchStep(s *sample, bound time.Duration) searchStep {
	step := searchStep{loadFigures: newLoadFigures(s)}
	p99 := percentile(s.latency, 99)
	switch err := s.fault(); {
	case err != nil:
		step.Failed = err.Error()
	case p99 <= bound:
	case step.Latency == nil:
		step.Failed = fmt.Sprintf("the bench was behind by %s ms", milliseconds(step.Lag))
	default:
		step.Failed = fmt.Sprintf("p99 %s ms", milliseconds(p99))
	}
	return step
}

// why returns why the lowest rate that failed did.
func (r searchRow) why() string {
	for _, s := range slices.Backward(r.Steps) {
		if s.Failed != "" && s.Rate == r.Lowest {
			return s.Failed
		}
	}
	return ""
}

// broken returns an error that says what went wrong other than slowness.
func (r *loadReport) broken() error {
	var errs []error
	for _, row := range r.Searches {
		if row.Highest == 0 {
			errs = append(errs, fmt.Errorf("%s: not even %.0f checks/s held: %s", row.Policy, row.Lowest, row.why()))
		}
	}
	for _, row := range r.Rows {
		if row.Fault != "" {
			errs = append(errs, fmt.Errorf("%s: %s", row.Policy, row.Fault))
		}
	}
	return errors.Join(errs...)
}

// print writes the figures as tables, and what their columns mean.
func (r *loadReport) print(out io.Writer) {
	target, memcached, arrivals := "a weir of the bench's own", "", "evenly spaced"
	if r.Target != "" {
		target = r.Target
	}
	if r.Machine.Memcached != "" {
		memcached = " on memcached " + r.Machine.Memcached
	}
	if r.Poisson {
		arrivals = "Poisson"
	}
	fmt.Fprintf(out, "%s%s; the bench with %s on %d cores; %s arrivals; %d clients, Zipf %g; %d connections; seed %d\n",
		target, memcached, r.Machine.Go, r.Machine.Cores, arrivals, r.Clients, r.Zipf, r.Connections, r.Seed)
	if len(r.Searches) > 0 {
		r.printSearches(out)
	}
	if len(r.Rows) > 0 {
		r.printRows(out)
	}
}

func (r *loadReport) printSearches(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "highest rate\tchecks/s\tfailed at\ttries\tbecause of\t")
	for _, row := range r.Searches {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%d\t%s\t\n", row.Policy, row.Highest, row.Lowest, len(row.Steps), row.why())
	}
	_ = t.Flush() // out is looked after by whoever reads it
	fmt.Fprintf(out, `
checks/s    the highest rate that kept p99 at %s ms or less without a failure; a rate is decided when %d tries of it agree
failed at   the lowest rate that didn't; a bench that was behind was slower than the server on this machine
`, milliseconds(r.Bound), votes)
}

func (r *loadReport) printRows(out io.Writer) {
	fmt.Fprintln(out)
	if r.Ramp {
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "ramp\tchecks/s\tachieved\tp50 ms\tp90 ms\tp99 ms\tp999 ms\tmax ms\tservice\tlate\tlag\t")
		for _, row := range r.Rows {
			for _, s := range row.Slices {
				fmt.Fprintf(t, "%s\t%s\n", row.Policy, s.columns())
			}
		}
		_ = t.Flush() // as above
		fmt.Fprintln(out)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tchecks/s\tachieved\tp50 ms\tp90 ms\tp99 ms\tp999 ms\tmax ms\tservice\tlate\tlag\t200\t429\t503\tother\tdegraded\twrites\tkeys\t")
	for _, row := range r.Rows {
		other := int64(0)
		for status, n := range row.Statuses {
			if unexpected(status) && status != http.StatusServiceUnavailable {
				other += n
			}
		}
		fmt.Fprintf(t, "%s\t%s%d\t%d\t%d\t%d\t%d\t", row.Policy, row.columns(), row.Statuses[http.StatusOK],
			row.Statuses[http.StatusTooManyRequests], row.Statuses[http.StatusServiceUnavailable], other, row.Degraded)
		if c := row.Store; c != nil {
			fmt.Fprintf(t, "%.2f\t%.1f\t\n", c.Writes, c.KeysRead)
		} else {
			fmt.Fprint(t, "-\t-\t\n")
		}
	}
	_ = t.Flush() // as above
	fmt.Fprintf(out, `
checks/s    as intended; achieved are the answers until the last came
p50 to max  from when a check was due until its response was read
service     p99 from when a check was sent
late        p99 of how much later than due checks were sent; lag leaves out the wait for a free connection, and so is the bench's own
            fault: above %s ms and 1/%d of p99 the bench was behind, and latencies are not given
200 to other answers by status; degraded are those that weir gave without its store
writes      commands per check by which memcached was to change something; keys are the keys per check that were read
The policies took turns in %d slices, with the same arrivals and clients each.
`, milliseconds(lagAllowed), lagShare, len(r.Rows[0].Slices))
	for _, row := range r.Rows {
		if row.Latency == nil {
			fmt.Fprintf(out, "%s: the bench was behind: this run says nothing about latency\n", row.Policy)
		}
	}
}

// columns returns the cells of a table for the figures.
func (f *loadFigures) columns() string {
	cells := fmt.Sprintf("%.0f\t%.0f\t", f.Rate, f.Achieved)
	if l := f.Latency; l != nil {
		for _, d := range []time.Duration{l.P50, l.P90, l.P99, l.P999, l.Max, l.ServiceP99} {
			cells += milliseconds(d) + "\t"
		}
	} else {
		cells += strings.Repeat("-\t", 6)
	}
	return cells + milliseconds(f.Late) + "\t" + milliseconds(f.Lag) + "\t"
}
