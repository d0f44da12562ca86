package load

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// votes that agree decide about a rate, so that one stall of a busy machine
// doesn't.
const votes = 2

// A Report is what load measured.
type Report struct {
	Machine     report.Machine `json:"machine"`
	Target      string         `json:"target,omitempty"` // none for a weir of the bench's own
	Connections int            `json:"connections"`
	Duration    time.Duration  `json:"duration_ns"`
	Bound       time.Duration  `json:"p99_bound_ns,omitempty"`
	Searches    []searchRow    `json:"search,omitempty"`
	Rows        []policyRow    `json:"rows,omitempty"`
}

// loadFigures are those of a try, or of all slices.
type loadFigures struct {
	Rate     float64             `json:"rate"`              // intended, per second
	Achieved float64             `json:"achieved"`          // answers per second
	Latency  *report.Percentiles `json:"latency,omitempty"` // nil when the bench was behind
	// 99% of the checks were sent at most so much later than they were due, by the
	// bench's own fault.
	Lag time.Duration `json:"lag_p99_ns"`
}

func newFigures(s *loadgen.Sample) loadFigures {
	f := loadFigures{
		Rate: s.Pace.Rate, Achieved: float64(s.Latency.TotalCount()) / s.Elapsed.Seconds(),
		Lag: loadgen.Percentile(s.Lag, 99),
	}
	if !s.Behind() {
		p := report.NewPercentiles(s.Latency)
		f.Latency = &p
	}
	return f
}

// A policyRow is how a policy did.
type policyRow struct {
	Policy string `json:"policy"`
	loadFigures
	Statuses map[int]int64      `json:"statuses"`
	Degraded int64              `json:"degraded"`
	Fault    string             `json:"fault,omitempty"` // other than slowness
	Store    *testbed.StoreCost `json:"store,omitempty"` // nil when memcached wasn't asked
}

func newRow(policy string, s *loadgen.Sample) policyRow {
	row := policyRow{Policy: policy, loadFigures: newFigures(s), Statuses: s.Statuses, Degraded: s.Degraded}
	if err := s.Fault(); err != nil {
		row.Fault = err.Error()
	}
	return row
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

func newSearchStep(s *loadgen.Sample, bound time.Duration) searchStep {
	step := searchStep{loadFigures: newFigures(s)}
	p99 := loadgen.Percentile(s.Latency, 99)
	switch err := s.Fault(); {
	case err != nil:
		step.Failed = err.Error()
	case p99 <= bound:
	case step.Latency == nil:
		step.Failed = fmt.Sprintf("the bench was behind by %s ms", report.Milliseconds(step.Lag))
	default:
		step.Failed = fmt.Sprintf("p99 %s ms", report.Milliseconds(p99))
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

// Broken returns an error that says what went wrong other than slowness.
func (r *Report) Broken() error {
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

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	target := cmp.Or(r.Target, "a weir of the bench's own on memcached "+r.Machine.Memcached)
	fmt.Fprintf(out, "%s; the bench with %s on %d cores; Poisson arrivals; %d clients, Zipf %d; %d connections\n",
		target, r.Machine.Go, r.Machine.Cores, clients, exponent, r.Connections)
	report.TableOf(out, "", "highest rate\tchecks/s\tfailed at\ttries\tbecause of\t", r.Searches, func(row searchRow) string {
		return fmt.Sprintf("%s\t%.0f\t%.0f\t%d\t%s\t", row.Policy, row.Highest, row.Lowest, len(row.Steps), row.why())
	}, `
checks/s    the highest rate that kept p99 at %s ms or less without a failure; a rate is decided when %d tries of it agree
failed at   the lowest rate that didn't; a bench that was behind was slower than the server on this machine
`, report.Milliseconds(r.Bound), votes)
	header := "policy\tchecks/s\tachieved\t" + report.PercentileHeader + "lag\t200\t429\tdegraded\twrites\tkeys\t"
	report.TableOf(out, "", header, r.Rows, func(row policyRow) string {
		store := "-\t-\t"
		if c := row.Store; c != nil {
			store = fmt.Sprintf("%.2f\t%.1f\t", c.Writes, c.KeysRead)
		}
		return fmt.Sprintf("%s\t%s%d\t%d\t%d\t%s", row.Policy, row.columns(),
			row.Statuses[http.StatusOK], row.Statuses[http.StatusTooManyRequests], row.Degraded, store)
	}, `
checks/s    as intended; achieved are the answers until the last came
p50 to p999 from when a check was due until its response was read
lag         p99 of how much later than due checks were sent though a connection was free, which is the bench's own fault: above %s ms and
            1/%d of p99 the bench was behind, and latencies are not given
200, 429    answers by status, of which other ones fail the run; degraded are those that weir gave without its store
writes      commands per check by which memcached was to change something; keys are the keys per check that were read
The policies took turns in %d slices, with the same arrivals and clients each.
`, report.Milliseconds(loadgen.LagAllowed), loadgen.LagShare, sliceCount)
	for _, row := range r.Rows {
		if row.Latency == nil {
			fmt.Fprintf(out, "%s: the bench was behind: this run says nothing about latency\n", row.Policy)
		}
	}
}

// columns returns the cells of a table for the figures.
func (f *loadFigures) columns() string {
	latencies := "-\t-\t-\t"
	if f.Latency != nil {
		latencies = f.Latency.Cells()
	}
	return fmt.Sprintf("%.0f\t%.0f\t%s%s\t", f.Rate, f.Achieved, latencies, report.Milliseconds(f.Lag))
}
