package load

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	// clients are checked as often as Zipf's law says, with this exponent.
	clients  = 100_000
	exponent = 1.0001 // as good as 1, and more than that, as math/rand wants it

	sliceCount = 5
)

// A Report is what load measured.
type Report struct {
	Machine     report.Machine `json:"machine"`
	Target      string         `json:"target,omitempty"` // none for a weir of the bench's own
	Connections int            `json:"connections"`
	Duration    time.Duration  `json:"duration_ns"`
	Rows        []policyRow    `json:"rows,omitempty"`
}

// A policyRow is how a policy did.
type policyRow struct {
	Policy   string              `json:"policy"`
	Rate     float64             `json:"rate"`              // intended, per second
	Achieved float64             `json:"achieved"`          // answers per second
	Latency  *report.Percentiles `json:"latency,omitempty"` // nil when the bench was behind
	// 99% of the checks were sent at most so much later than they were due, by the
	// bench's own fault.
	Lag      time.Duration      `json:"lag_p99_ns"`
	Statuses map[int]int64      `json:"statuses"`
	Degraded int64              `json:"degraded"`
	Fault    string             `json:"fault,omitempty"` // other than slowness
	Store    *testbed.StoreCost `json:"store,omitempty"` // nil when memcached wasn't asked
}

func newRow(policy string, s *loadgen.Sample) policyRow {
	row := policyRow{
		Policy: policy, Rate: s.Pace.Rate, Achieved: float64(s.Latency.TotalCount()) / s.Elapsed.Seconds(),
		Lag: loadgen.Percentile(s.Lag, 99), Statuses: s.Statuses, Degraded: s.Degraded,
	}
	if !s.Behind() {
		row.Latency = new(report.NewPercentiles(s.Latency))
	}
	if err := s.Fault(); err != nil {
		row.Fault = err.Error()
	}
	return row
}

// Broken returns an error that says what went wrong other than slowness.
func (r *Report) Broken() error {
	var errs []error
	for _, row := range r.Rows {
		if row.Fault != "" {
			errs = append(errs, fmt.Errorf("%s: %s", row.Policy, row.Fault))
		}
	}
	return errors.Join(errs...)
}

// Print writes the figures as a table, and what its columns mean.
func (r *Report) Print(out io.Writer) {
	target := cmp.Or(r.Target, "a weir of the bench's own on memcached "+r.Machine.Memcached)
	fmt.Fprintf(out, "%s; the bench with %s on %d cores; Poisson arrivals; %d clients, Zipf %.3g; %d connections\n",
		target, r.Machine.Go, r.Machine.Cores, clients, exponent, r.Connections)
	header := "policy\tchecks/s\tachieved\t" + report.PercentileHeader + "lag\t200\t429\tdegraded\twrites\tkeys\t"
	report.TableOf(out, "", header, r.Rows, func(row policyRow) string {
		latencies, store := "-\t-\t-\t", "-\t-\t"
		if row.Latency != nil {
			latencies = row.Latency.Cells()
		}
		if c := row.Store; c != nil {
			store = fmt.Sprintf("%.2f\t%.1f\t", c.Writes, c.KeysRead)
		}
		return fmt.Sprintf("%s\t%.0f\t%.0f\t%s%s\t%d\t%d\t%d\t%s", row.Policy, row.Rate, row.Achieved, latencies, report.Milliseconds(row.Lag),
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
}
