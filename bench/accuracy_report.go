package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"weir/bench/accuracy"
)

// An accuracyReport is what accuracy measured. The same seed gives the same,
// but for the machine and the speeds.
type accuracyReport struct {
	Machine   machine              `json:"machine"`
	Seed      uint64               `json:"seed"`
	Window    time.Duration        `json:"window_ns"`
	Workloads []accuracy.Workload  `json:"workloads"`
	Costs     []coldCheck          `json:"costs"`
	Rows      []accuracy.Row       `json:"rows"`
	Attacks   []accuracy.AttackRow `json:"attacks"`
	Speeds    []accuracy.Speed     `json:"speeds"`
	Traces    []accuracy.Trace     `json:"traces"`
}

// A coldCheck is what an algorithm costs at worst.
type coldCheck struct {
	Algorithm string `json:"algorithm"`
	Counters  bool   `json:"counters"` // a window made of counters
	// Keys is how many keys a check names to the store when its process knows
	// nothing of the client, who has been busy.
	Keys int `json:"cold_keys"`
}

// What accuracy is to show.
const (
	targetPoisson = 1.0 / 5  // of the mean difference of N=1, for N=60
	targetUneven  = 1.0 / 10 // the same where arrivals are uneven
	// Above that demand a limiter evens out its own admissions, and what it is
	// off by is less than a request whatever N is.
	targetDemand = 1
	targetSpeed  = 1e6 // decisions per second and core of windows made of counters
)

// targets returns what is aimed at, and whether it was reached.
func (r *accuracyReport) targets() []target {
	var targets []target
	ratio := func(traffic string, demand float64, how string, mean func(accuracy.Row) float64, most float64) {
		one, ok1 := r.find(traffic, demand, accuracy.Sliding1)
		sixty, ok60 := r.find(traffic, demand, accuracy.Sliding60)
		if ok1 && ok60 {
			share := mean(sixty) / mean(one)
			targets = append(targets, target{
				fmt.Sprintf("%s, demand %g, %s: mean difference of N=60 %.3f of N=1's, at most %.3f", traffic, demand, how, share, most), share <= most,
			})
		}
	}
	for _, demand := range accuracy.Demands() {
		for _, t := range []struct {
			traffic string
			most    float64
		}{
			{accuracy.Poisson, targetPoisson}, {accuracy.Bursty, targetUneven}, {accuracy.FrontLoaded, targetUneven}, {accuracy.BackLoaded, targetUneven},
		} {
			ratio(t.traffic, demand, "every request counts", func(row accuracy.Row) float64 { return row.All.Mean() }, t.most)
			if demand <= targetDemand {
				ratio(t.traffic, demand, "admitted count", func(row accuracy.Row) float64 { return row.Feedback.Mean() }, t.most)
			}
		}
	}
	if row, ok := r.find(accuracy.Boundary, 1, accuracy.Fixed); ok {
		targets = append(targets, target{
			fmt.Sprintf("boundary attacker: fixed admits %.2f L in a window, 2.00 L", float64(row.Fullest)/float64(row.Limit)),
			row.Fullest >= 2*row.Limit-1 && row.Fullest <= 2*row.Limit,
		})
	}
	for _, name := range []string{accuracy.Strict60, accuracy.Log} {
		var fullest float64
		for _, row := range r.Rows {
			if row.Algorithm == name {
				fullest = max(fullest, float64(row.Fullest)/float64(row.Limit))
			}
		}
		for _, row := range r.Attacks {
			if row.Algorithm == name {
				fullest = max(fullest, float64(row.Worst())/float64(row.Limit))
			}
		}
		targets = append(targets, target{fmt.Sprintf("all traffic and all attacks: %s admits %.2f L in a window, at most 1.00 L", name, fullest), fullest <= 1})
	}
	for _, row := range r.Attacks {
		if row.Worst() > row.Bound {
			targets = append(targets, target{fmt.Sprintf("attacks: %s admits %d in a window, at most %d", row.Algorithm, row.Worst(), row.Bound), false})
		}
	}
	return targets
}

// speedTargets returns the speeds that are aimed at.
func (r *accuracyReport) speedTargets() []target {
	var targets []target
	for _, s := range r.Speeds {
		if r.cost(s.Algorithm).Counters {
			targets = append(targets, target{
				fmt.Sprintf("%s: %.2f million decisions/s per core, at least %.0f", s.Algorithm, s.PerSecond()/1e6, targetSpeed/1e6), s.PerSecond() >= targetSpeed,
			})
		}
	}
	return targets
}

// broken returns an error that says which targets were missed, but for speeds.
func (r *accuracyReport) broken() error {
	var errs []error
	for _, t := range r.targets() {
		if !t.met {
			errs = append(errs, errors.New(t.String()))
		}
	}
	return errors.Join(errs...)
}

func (r *accuracyReport) find(traffic string, demand float64, algorithm string) (accuracy.Row, bool) {
	i := slices.IndexFunc(r.Rows, func(row accuracy.Row) bool {
		return row.Traffic == traffic && row.Demand == demand && row.Algorithm == algorithm
	})
	if i < 0 {
		return accuracy.Row{}, false
	}
	return r.Rows[i], true
}

// cost returns the costs of an algorithm.
func (r *accuracyReport) cost(algorithm string) coldCheck {
	i := slices.IndexFunc(r.Costs, func(c coldCheck) bool { return c.Algorithm == algorithm })
	if i < 0 {
		return coldCheck{}
	}
	return r.Costs[i]
}

// print writes the figures as tables, and what their columns mean.
func (r *accuracyReport) print(out io.Writer) {
	fmt.Fprintf(out, "weir's limiters on the embedded store in virtual time, window W = %v, seed %d; %d cores, %s\n",
		r.Window, r.Seed, r.Machine.Cores, r.Machine.Go)
	for i, w := range r.Workloads {
		if i == 0 || r.Workloads[i-1].Name != w.Name {
			r.printTraffic(out, w)
		}
	}
	fmt.Fprintf(out, `
Estimate and true count are of the window before each request, in requests; L is the limit per window and client.
demand      what a client asks for, in limits per window; of the 1000 clients of zipf, together, in units of %d limits. Who asks steadily
            for exactly the limit sees what is off by one: a request as old as the window isn't in the true count but is in a slot
mean, worst of |estimate - true count|; the estimate of token and leaky is what their bucket holds, which isn't meant to be a count
%%           the mean as a part of the mean true count
wrongly +   share of all requests that were admitted although they and the true count are more than L
wrongly -   share of all requests that were denied although they fit
most, avg   admitted in the fullest window of length W, and in windows on average
go on       the most that may proceed in a window: what leaky admits has to wait
of log      admissions relative to those of an exact log
The columns under "admitted count" are of the limiters as they are: only what they admit counts, and the true count is that of their own
admissions. Under "every request counts" the true count is of all requests, and verdicts are what estimate and true count say; a bucket
is filled by what it denies there.
`, accuracy.ZipfDemand)
	r.printAttacks(out)
	fmt.Fprintln(out)
	for _, t := range append(r.targets(), r.speedTargets()...) {
		fmt.Fprintln(out, t)
	}
}

func (r *accuracyReport) printTraffic(out io.Writer, w accuracy.Workload) {
	fmt.Fprintf(out, "\n%s: %s; L = %d\n", w.Name, w.Description, w.Limit)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\tadmitted count\t\t\t\t\t\t\t\tevery request counts\t\t\t\t\t")
	fmt.Fprintln(t, "demand\talgorithm\tmean\tworst\twrongly +\twrongly -\tmost\tavg\tgo on\tof log\tmean\t%\tworst\twrongly +\twrongly -\t")
	for _, row := range r.Rows {
		if row.Traffic != w.Name {
			continue
		}
		limit, requests := float64(row.Limit), float64(row.Feedback.Requests)
		fmt.Fprintf(t, "%g\t%s\t%.2f\t%d\t%s\t%s\t%.2f L\t%.2f L\t%.2f L\t%.1f%%\t%.2f\t%.2f%%\t%d\t%s\t%s\t\n",
			row.Demand, row.Algorithm, row.Feedback.Mean(), row.Feedback.Worst,
			percent(float64(row.Feedback.WronglyAdmitted)/requests), percent(float64(row.Feedback.WronglyDenied)/requests),
			float64(row.Fullest)/limit, row.MeanWindow/limit, float64(row.FullestReleased)/limit, 100*float64(row.Admitted)/float64(row.LogAdmitted),
			row.All.Mean(), 100*row.All.Relative(), row.All.Worst,
			percent(float64(row.All.WronglyAdmitted)/requests), percent(float64(row.All.WronglyDenied)/requests))
	}
	_ = t.Flush() // out is looked after by whoever reads it
}

// percent writes a share so that a small one is not taken for none.
func percent(share float64) string {
	if share == 0 {
		return "0"
	}
	return fmt.Sprintf("%.4f%%", 100*share)
}

func (r *accuracyReport) printAttacks(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "attack on\tin W\tsearch\tbound\tin W/2\tgo on\tcold keys\tthe attack written for it")
	for _, row := range r.Attacks {
		limit := float64(row.Limit)
		fmt.Fprintf(t, "%s\t%.2f L\t%.2f L\t%.2f L\t%.2f L\t%.2f L\t%d\t%v\n",
			row.Algorithm, float64(row.Written.Fullest)/limit, float64(row.Found.Fullest)/limit, float64(row.Bound)/limit,
			float64(max(row.Written.FullestHalf, row.Found.FullestHalf))/limit, float64(max(row.Written.FullestReleased, row.Found.FullestReleased))/limit,
			r.cost(row.Algorithm).Keys, row.Written.Attack)
	}
	_ = t.Flush() // as above
	fmt.Fprint(out, `
The attacker knows the clock, on which windows and slots begin at 0: L attempts at once, silence, and then attempts until the burst has
left the window.
in W        the most that the best of the written attacks gets admitted in a window; search, the best of random ones
bound       what theory allows. fixed: all of one window and all of the next. N slots, weighted: a burst at the end of a slot is taken to be
            spread over it, and while that slot fades out as the oldest, L more come in; so both are in one window, but never within
            (N-1)/N of one. token, leaky: what the full bucket holds and, in just under W, what drains. strict, log: L.
in W/2      the most in half a window
cold keys   keys that a check names to the store when its process knows nothing of the client
`)
}

// Cloudflare's figures of 2017, of two counters (N=1) on real traffic.
const (
	cloudflareWrong = 0.00003 // of the requests
	cloudflareMean  = 0.06    // difference, relative
)

// A scaleReport is what accuracy -scale measured. The same seed and number of
// requests give the same, but for the machine, the speeds and the time it took.
type scaleReport struct {
	Machine machine       `json:"machine"`
	Seed    uint64        `json:"seed"`
	Elapsed time.Duration `json:"elapsed_ns"`
	accuracy.CrowdFigures
	Speeds []accuracy.Speed `json:"speeds"`
}

// print writes the figures as a table, and what is comparable.
func (r *scaleReport) print(out io.Writer) {
	fmt.Fprintf(out, "%d requests from %d clients in %v of virtual time, limit %d a minute, seed %d; %v on %d cores, %s\n",
		r.Requests, r.Clients, r.Length, r.Limit, r.Seed, r.Elapsed.Round(time.Second), r.Machine.Cores, r.Machine.Go)
	fmt.Fprintf(out, "%d clients (%.2f%%) ask for more than the limit on average, and for %.0f%% of all requests; %d never had more than the limit in a window\n\n",
		r.Above, 100*float64(r.Above)/float64(r.Clients), 100*float64(r.AboveRequests)/float64(r.Requests), r.Below)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tadmitted count\t\t\t\tevery request counts\t\t\tclients\t\t\t")
	fmt.Fprintln(t, "algorithm\tadmitted\twrongly +\twrongly -\tmean\twrongly +\twrongly -\tmean\tlimited, below\tunlimited, above\tdecisions/s per core\t")
	requests := float64(r.Requests)
	for i, row := range r.Rows {
		all := []any{"-", "-", "-"}
		if row.All.Requests > 0 {
			all = []any{
				percent(float64(row.All.WronglyAdmitted) / requests), percent(float64(row.All.WronglyDenied) / requests), fmt.Sprintf("%.2f%%", 100*row.All.Relative()),
			}
		}
		fmt.Fprintf(t, "%s\t%.2f%%\t%s\t%s\t%.2f%%\t%s\t%s\t%s\t%d\t%d\t%.0f\t\n", row.Algorithm, 100*float64(row.Admitted)/requests,
			percent(float64(row.Feedback.WronglyAdmitted)/requests), percent(float64(row.Feedback.WronglyDenied)/requests), 100*row.Feedback.Relative(),
			all[0], all[1], all[2], row.BelowLimited, row.OthersUnlimited, r.Speeds[i].PerSecond())
	}
	fmt.Fprintf(t, "Cloudflare\t\t\t\t\t%s wrong\t\t%.0f%%\t0\t\t\t\n", percent(cloudflareWrong), 100*cloudflareMean)
	_ = t.Flush() // out is looked after by whoever reads it
	fmt.Fprintf(out, `
wrongly +, -      share of all requests that were admitted although they and the true count are more than the limit, denied although they fit
mean              of |estimate - true count|, as a part of the mean true count; the estimate of token and leaky is what their bucket holds
limited, below    clients who never had more than the limit in a window, and were denied something
unlimited, above  the others who were denied nothing
The log is the true count, and a bucket counts no window: so neither has figures with every request counted.
The last two are the same whether denied requests count or not: up to the first denial all have been counted.
Of each 20 clients`)
	for i, m := range accuracy.CrowdMix {
		separator := ","
		if i == 0 {
			separator = ""
		}
		fmt.Fprintf(out, "%s %d are %s", separator, m.Share, m.Pattern)
	}
	fmt.Fprintf(out, `; how much they ask for follows Zipf's law with exponent %g.

Cloudflare (2017) measured two counters, which is N=1, with every request counted, on its own traffic: %d million requests from %d sources.
Comparable: the number of requests and of clients, the algorithm, and how it was measured. Not comparable: the traffic. Wrong verdicts come
only from clients near their limit, and a mean difference from uneven ones; how many of either there are is published for neither the
sources nor their limits, and here it was chosen. So the order of the algorithms says more than the distance to Cloudflare's figures.
`, accuracy.CrowdExponent, accuracy.CrowdRequests/1_000_000, accuracy.CrowdClients)
}

// broken returns an error if an exact algorithm was wrong.
func (r *scaleReport) broken() error {
	var errs []error
	for _, row := range r.Rows {
		switch {
		case (row.Algorithm == accuracy.Strict60 || row.Algorithm == accuracy.Log) && row.Feedback.WronglyAdmitted > 0:
			errs = append(errs, fmt.Errorf("%s admitted %d requests above the limit", row.Algorithm, row.Feedback.WronglyAdmitted))
		case row.Algorithm == accuracy.Log && row.Feedback.Sum+row.Feedback.WronglyDenied > 0:
			errs = append(errs, fmt.Errorf("%s wasn't the true count, or denied %d requests that fit", row.Algorithm, row.Feedback.WronglyDenied))
		}
	}
	return errors.Join(errs...)
}
