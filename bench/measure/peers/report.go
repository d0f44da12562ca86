package peers

import (
	"fmt"
	"io"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
)

const (
	weirName      = "weir"
	ratelimitName = "envoyproxy/ratelimit"

	limit  = 100
	racers = 64 // who race for it

	mostErrorText = 200
)

// leastRatios are how many times the rate of envoyproxy/ratelimit is aimed at, by the traffic.
var leastRatios = map[string]float64{loadgen.Distinct.Name: 3, loadgen.Hot.Name: 3.5}

// A Report is what peers measured. Each row of weir comes before that of the
// other with which it took turns.
type Report struct {
	Machine  report.Machine `json:"machine"`
	Callers  int            `json:"callers"`
	Duration time.Duration  `json:"duration_ns"`
	Rates    []rateRow      `json:"rates"`
	HalfLoad []latencyRow   `json:"half_load"`
	Races    []raceRow      `json:"races"`
	Stalls   []stallRow     `json:"stalls"`
}

// A rateRow is how many requests were answered when each answer was followed
// by the next request.
type rateRow struct {
	Product     string             `json:"product"`
	Traffic     string             `json:"traffic"`
	Rate        float64            `json:"rate"` // per second
	Slices      []float64          `json:"slices"`
	CPU         time.Duration      `json:"cpu_ns"` // of the product, per request
	Percentiles report.Percentiles `json:"latency"`
}

// A latencyRow is how long answers took at a rate.
type latencyRow struct {
	Product     string             `json:"product"`
	Rate        float64            `json:"rate"`
	Percentiles report.Percentiles `json:"latency"`
}

// A raceRow is how many requests were admitted in each race.
type raceRow struct {
	Product  string  `json:"product"`
	Admitted []int64 `json:"admitted"`
}

// A stallRow is what callers saw while Memcached was stopped.
type stallRow struct {
	Product     string             `json:"product"`
	Rate        float64            `json:"rate"`
	Percentiles report.Percentiles `json:"latency"`
	Failed      int64              `json:"failed"`
	Failure     string             `json:"failure,omitempty"` // the first
}

// alone reports whether weir had no other beside it.
func (r *Report) alone() bool { return len(r.Races) == 1 }

// Print writes the tables.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%v; gRPC, %d callers, %v for each row\n", r.Machine, r.Callers, r.Duration)
	if r.alone() {
		fmt.Fprintf(out, "\nweir ran alone: -ratelimit PATH names the program of %s.\n", ratelimitName)
	}
	report.TableOf(out, "As many requests as are answered:", "traffic\tproduct\trequests/s\tslowest turn\tfastest turn\tcpu us\t"+report.PercentileHeader, r.Rates, func(row rateRow) string {
		return fmt.Sprintf("%s\t%s\t%.0f\t%.0f\t%.0f\t%.1f\t%s", row.Traffic, row.Product, row.Rate, slices.Min(row.Slices), slices.Max(row.Slices),
			float64(row.CPU)/float64(time.Microsecond), row.Percentiles.Cells())
	}, "")
	report.TableOf(out, "At the same rate, 10,000 clients:", "product\trequests/s\t"+report.PercentileHeader, r.HalfLoad, func(row latencyRow) string {
		return fmt.Sprintf("%s\t%.0f\t%s", row.Product, row.Rate, row.Percentiles.Cells())
	}, "")
	report.TableOf(out, fmt.Sprintf("Admitted of a limit of %d, in races of %d callers:", limit, racers), "product\traces\tfewest\tmost\t", r.Races, func(row raceRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%d\t", row.Product, len(row.Admitted), slices.Min(row.Admitted), slices.Max(row.Admitted))
	}, "")
	report.TableOf(out, "While Memcached is stopped:", "product\tanswers/s\tfailed\t"+report.PercentileHeader, r.Stalls, func(row stallRow) string {
		return fmt.Sprintf("%s\t%.0f\t%d\t%s", row.Product, row.Rate, row.Failed, row.Percentiles.Cells())
	}, "")
	for _, row := range r.Stalls {
		if row.Failed > 0 {
			fmt.Fprintf(out, "%s failed with: %s\n", row.Product, row.Failure)
		}
	}
	fmt.Fprintf(out, "\n%v", r.targets())
}

// targets hold weir's rates and latency against those of the other.
func (r *Report) targets() (all report.Targets) {
	for i := 1; i < len(r.Rates) && !r.alone(); i += 2 {
		own, other := r.Rates[i-1], r.Rates[i]
		ratio := own.Rate / other.Rate
		least := leastRatios[own.Traffic]
		all.Add(ratio >= least, "%s: %.2f times the rate of %s, at least %v", own.Traffic, ratio, other.Product, least)
	}
	if len(r.HalfLoad) > 1 {
		own, other := r.HalfLoad[0], r.HalfLoad[1]
		all.Add(own.Percentiles.P99 <= other.Percentiles.P99, "at %.0f requests/s: 99%% within %s ms, and no more than the %s ms of %s", own.Rate,
			report.Milliseconds(own.Percentiles.P99), report.Milliseconds(other.Percentiles.P99), other.Product)
	}
	return all
}

// Broken returns an error if weir didn't admit exactly the limit.
func (r *Report) Broken() error {
	for _, n := range r.Races[0].Admitted {
		if n != limit {
			return fmt.Errorf("peers: weir admitted %d of a limit of %d", n, limit)
		}
	}
	return nil
}
