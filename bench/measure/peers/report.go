package peers

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	weirName      = "weir"
	ratelimitName = "envoyproxy/ratelimit"
	flexibleName  = "rate-limiter-flexible"

	limit  = 100
	racers = 64 // who race for it

	mostErrorText = 200
)

// localCache is a variable of envoyproxy/ratelimit: without a cache it asks Memcached
// about those too who are over their limit.
const localCache = "LOCAL_CACHE_SIZE_IN_BYTES"

// leastRatios are how many times the rate of envoyproxy/ratelimit is aimed at, by the traffic.
var leastRatios = map[string]float64{loadgen.Distinct.Name: 3, loadgen.Hot.Name: 3.5}

// leastOverHTTP are those over HTTP, by the product too.
var leastOverHTTP = map[string]map[string]float64{
	ratelimitName: {loadgen.Distinct.Name: 4.5, loadgen.Hot.Name: 5, loadgen.Denied.Name: 3},
	flexibleName:  {loadgen.Distinct.Name: 3, loadgen.Hot.Name: 4, loadgen.Denied.Name: 2.2},
}

// A Report is what peers measured. Each row of weir over gRPC comes before that of the
// other with which it took turns.
type Report struct {
	Machine  report.Machine `json:"machine"`
	Callers  int            `json:"callers"`
	Duration time.Duration  `json:"duration_ns"`
	Rates    []rateRow      `json:"rates"`
	HalfLoad []latencyRow   `json:"half_load"`
	Races    []raceRow      `json:"races"`
	Stalls   []stallRow     `json:"stalls"`
	HTTP     []httpRow      `json:"http,omitempty"`
	// The size of envoyproxy/ratelimit's local cache, where it was set.
	LocalCache string `json:"local_cache,omitempty"`
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
	latencyRow
	Failed  int64  `json:"failed"`
	Failure string `json:"failure,omitempty"` // the first
}

// An httpRow is how weir did over HTTP beside another product.
type httpRow struct {
	Traffic string `json:"traffic"`
	Product string `json:"product"` // the other
	testbed.Comparison
	testbed.CPUTimes
}

// alone reports whether weir had no other beside it over gRPC.
func (r *Report) alone() bool { return len(r.Races) == 1 }

// Print writes the tables.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%v; gRPC, %d callers, %v for each row\n", r.Machine, r.Callers, r.Duration)
	if r.alone() {
		fmt.Fprintf(out, "\nOver gRPC weir ran alone: -ratelimit PATH names the program of %s.\n", ratelimitName)
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
	report.TableOf(out, "Over HTTP:", "traffic\tbeside\tweir/s\tother/s\tratio\tmin\tmax\tcpu us\tof other\tratio\t", r.HTTP, func(row httpRow) string {
		own, other := row.Weir+row.Memcached, row.CPUTimes.Other+row.OtherMemcached
		return fmt.Sprintf("%s\t%s\t%.0f\t%.0f\t%.2fx\t%.2fx\t%.2fx\t%.1f\t%.1f\t%.2fx\t", row.Traffic, row.Product, row.Rate, row.Comparison.Other,
			row.Ratio, row.RatioMin, row.RatioMax, float64(own)/1e3, float64(other)/1e3, float64(other)/float64(own))
	}, `
weir/s      answers of POST /v1/check, by fixed windows, over %d connections; and in turn those of the other: POST /json of
            %s, with %s=%s, or a service of Node's that limits by
            %s and denies who is over the limit from memory; min and max are of single turns
cpu us      what an answer takes of a processor in weir and its Memcached, and in the other and its own Memcached, while both are
            loaded at the same moment, by half of the connections each
`, r.Callers, ratelimitName, localCache, cmp.Or(r.LocalCache, "0"), flexibleName)
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
	for _, row := range r.HTTP {
		least := leastOverHTTP[row.Product][row.Traffic]
		all.Add(row.Ratio >= least, "over HTTP, %s: %.2f times the rate of %s, at least %v", row.Traffic, row.Ratio, row.Product, least)
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
