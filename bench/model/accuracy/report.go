package accuracy

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/traffic"
)

// A Report is what accuracy measured. The same seed gives the same, but for
// the machine.
type Report struct {
	Machine   report.Machine `json:"machine"`
	Seed      uint64         `json:"seed"`
	Seeds     int            `json:"seeds"` // as many, from Seed on
	Window    time.Duration  `json:"window_ns"`
	Workloads []workload     `json:"workloads"`
	Costs     []cost         `json:"costs"`
	Rows      []workloadRow  `json:"rows"`
	Large     []workloadRow  `json:"large"`   // of largeWorkloads, with feedback
	Attacks   []attackRow    `json:"attacks"` // on documentLimit, and on a large limit
	Settled   []settledRow   `json:"settled"` // costs that are known only afterwards
	Traces    []trace        `json:"traces"`
}

// A cost is what Memcached keeps of a client that asks evenly, with a large
// limit.
type cost struct {
	Algorithm string `json:"algorithm"`
	Bytes     int    `json:"bytes"`
}

// What accuracy is to show.
const (
	targetPoisson = 1.0 / 5  // of the mean difference of N=1, for N=60
	targetUneven  = 1.0 / 10 // the same where arrivals are uneven
	// Above that demand a limiter evens out its own admissions, and what it is
	// off by is less than a request whatever N is.
	targetDemand = 1
)

// targets returns what is aimed at, and whether it was reached.
func (r *Report) targets() report.Targets {
	var targets report.Targets
	ratio := func(kind string, demand float64, how string, mean func(workloadRow) float64, most float64) {
		one, ok1 := r.find(kind, demand, algorithms.Sliding1)
		sixty, ok60 := r.find(kind, demand, algorithms.Sliding60)
		if ok1 && ok60 {
			share := mean(sixty) / mean(one)
			targets.Add(share <= most, "%s, demand %g, %s: mean difference of N=60 %.3f of N=1's, at most %.3f", kind, demand, how, share, most)
		}
	}
	for _, demand := range demands {
		for _, kind := range []traffic.Pattern{traffic.Poisson, traffic.Bursty, traffic.FrontLoaded, traffic.BackLoaded} {
			most := targetUneven
			if kind.Name == traffic.Poisson.Name {
				most = targetPoisson
			}
			ratio(kind.Name, demand, "every request counts", func(row workloadRow) float64 { return row.All.mean() }, most)
			if demand <= targetDemand {
				ratio(kind.Name, demand, "admitted count", func(row workloadRow) float64 { return row.Feedback.mean() }, most)
			}
		}
	}
	if row, ok := r.find(traffic.Boundary.Name, 1, algorithms.Fixed); ok {
		targets.Add(row.Fullest >= 2*row.Limit-1 && row.Fullest <= 2*row.Limit,
			"boundary attacker: fixed admits %.2f L in a window, 2.00 L", float64(row.Fullest)/float64(row.Limit))
	}
	for _, name := range []string{algorithms.Strict60, algorithms.Log, algorithms.Counting64, algorithms.Counting32} {
		fullest := max(r.fullest(name, documentLimit), r.fullest(name, largeLimit))
		targets.Add(fullest <= 1, "all traffic and all attacks: %s admits %.2f L in a window, at most 1.00 L", name, fullest)
	}
	if len(r.Settled) > 0 {
		var fullest float64
		for _, row := range r.Settled {
			if row.Way == reserveName && row.Factor >= 1 {
				fullest = max(fullest, row.over())
			}
		}
		targets.Add(fullest <= 1, "costs known afterwards: %s admits %.2f L in a window where no estimate is below the cost, at most 1.00 L", reserveName, fullest)
	}
	for _, row := range r.Attacks {
		if row.Fullest > row.Bound {
			targets.Add(false, "attacks: %s admits %d in a window, at most %d", row.Algorithm, row.Fullest, row.Bound)
		}
	}
	return targets
}

// Broken returns an error that says which targets were missed.
func (r *Report) Broken() error {
	var errs []error
	for _, t := range r.targets() {
		if !t.Met {
			errs = append(errs, errors.New(t.String()))
		}
	}
	return errors.Join(errs...)
}

func (r *Report) find(kind string, demand float64, algorithm string) (workloadRow, bool) {
	return report.Find(r.Rows, func(row workloadRow) bool {
		return row.Traffic == kind && row.Demand == demand && row.Algorithm == algorithm
	})
}

// Print writes the figures as tables, and what they mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "weir's limiters on the embedded store in virtual time, window W = %v, seeds %d to %d; %d cores, %s\n",
		r.Window, r.Seed, r.Seed+uint64(r.Seeds)-1, r.Machine.Cores, r.Machine.Go)
	r.printLarge(out)
	r.printMatrix(out, 1, "mean of |estimate - true count|, in % of the mean true count: every request counts, demand 1", func(row workloadRow) string {
		if row.All.Requests == 0 {
			return ""
		}
		return row.Mean.around("%.2f", row.mean())
	})
	r.printMatrix(out, 1, "wrong decisions, in % of all requests: only admitted requests count, demand 1", func(row workloadRow) string {
		return row.Wrong.around("%.2f", row.wrong())
	})
	r.printMatrix(out, 2, "admitted, in % of what an exact log admits: demand 2", func(row workloadRow) string {
		return row.OfLog.around("%.1f", row.ofLog())
	})
	r.printMatrix(out, 2, "admitted in the fullest window, in limits: demand 2", func(row workloadRow) string {
		return fmt.Sprintf("%.2f", float64(row.Fullest)/float64(row.Limit))
	})
	r.printAttacks(out)
	r.printSettled(out)
	fmt.Fprint(out, "\ntraffic\n")
	for i, w := range r.Workloads {
		if i == 0 || r.Workloads[i-1].Name != w.Name {
			fmt.Fprintf(out, "%-16s%s\n", w.Name, w.Description)
		}
	}
	fmt.Fprintf(out, `
Estimate and true count are of the window before each request, in requests; L is the limit per window and client, 100 where nothing else
is said. Each kind of traffic comes from seeds of its own. A figure is that of all seeds together, and behind it, where it differs, comes
the range of what it is with single ones; in fullest windows it is the highest of all. A run begins with nothing in use, and so with a
burst of a bucket's that it doesn't have again.
demand          what a client asks for, in limits per window. Who asks steadily for exactly the limit sees what is off by one: a request
                as old as the window isn't in the true count but is in a slot
mean            what a bucket holds isn't a count, and capped and counting logs judge by their limit
wrong           admitted although the request and the true count are more than L, or denied although it fits. The true count is that of
                the limiter's own admissions
%v`, r.targets())
}

// printLarge writes what a large limit is worth.
func (r *Report) printLarge(out io.Writer) {
	header := "algorithm\tfullest window\tbound\t"
	var names []string
	for _, row := range r.Large {
		if name := fmt.Sprintf("%s %gx", row.Traffic, row.Demand); !slices.Contains(names, name) {
			names = append(names, name)
			header += name + "\t"
		}
	}
	title := fmt.Sprintf("limit %d: admitted in the fullest window, in limits, by all traffic and attacks; admitted in %% of an exact log; Memcached's bytes for a client", largeLimit)
	report.TableOf(out, title, header+"bytes\t", r.Costs, func(c cost) string {
		var cells strings.Builder
		for _, row := range r.Large {
			if row.Algorithm == c.Algorithm {
				fmt.Fprintf(&cells, "%s\t", row.OfLog.around("%.1f", row.ofLog()))
			}
		}
		attacked, _ := report.Find(r.Attacks, func(row attackRow) bool { return row.Algorithm == c.Algorithm && row.Limit == largeLimit })
		return fmt.Sprintf("%s\t%.2f\t%.2f\t%s%d\t", c.Algorithm, r.fullest(c.Algorithm, largeLimit), float64(attacked.Bound)/largeLimit, cells.String(), c.Bytes)
	}, "")
}

// fullest returns the most that any traffic or attack got into a window of a limit,
// in limits.
func (r *Report) fullest(algorithm string, limit int64) float64 {
	var most int64
	for _, row := range slices.Concat(r.Rows, r.Large) {
		if row.Algorithm == algorithm && row.Limit == limit {
			most = max(most, row.Fullest)
		}
	}
	for _, row := range r.Attacks {
		if row.Algorithm == algorithm && row.Limit == limit {
			most = max(most, row.Fullest)
		}
	}
	return float64(most) / float64(limit)
}

// printMatrix writes a table with a line for each algorithm that has cells, and a
// column for each traffic of a demand.
func (r *Report) printMatrix(out io.Writer, demand float64, title string, cell func(workloadRow) string) {
	header := "algorithm\t"
	for _, w := range r.Workloads {
		if w.Demand == demand {
			header += w.Name + "\t"
		}
	}
	report.TableOf(out, title, header, r.Costs, func(c cost) string {
		var cells strings.Builder
		for _, row := range r.Rows {
			if text := cell(row); row.Algorithm == c.Algorithm && row.Demand == demand && text != "" {
				cells.WriteString(text + "\t")
			}
		}
		if cells.Len() == 0 {
			return ""
		}
		return c.Algorithm + "\t" + cells.String()
	}, "")
}

func (r *Report) printAttacks(out io.Writer) {
	var rows []attackRow
	for _, row := range r.Attacks {
		if row.Limit == documentLimit {
			rows = append(rows, row)
		}
	}
	title := fmt.Sprintf("attacks on limit %d, in limits", documentLimit)
	report.TableOf(out, title, "attack on\tin W\tbound\tgo on\tthe best\t", rows, func(row attackRow) string {
		cells := row.Algorithm
		for _, n := range []int64{row.Fullest, row.Bound, row.FullestReleased} {
			cells += fmt.Sprintf("\t%.2f", float64(n)/documentLimit)
		}
		return fmt.Sprintf("%s\t%v\t", cells, row.Attack)
	}, `
The attacker knows the clock, on which windows and slots begin at 0: L attempts at once, silence, and then attempts until the burst has
left the window. Each is attacked as is best for it, and as is best for the others.
in W            the most that gets admitted in a window
bound           what theory allows. fixed: all of one window and all of the next. N slots, weighted: a burst at the end of a slot is taken
                to be spread over it, and while that slot fades out as the oldest, L more come in; so both are in one window, but never
                within (N-1)/N of one. capped: all but 2L/N of that slot stays. token, leaky: what the full bucket holds and, in just
                under W, what drains. strict, logs: L
go on           the most that may proceed in a window: what leaky admits has to wait
`)
}

// printSettled writes how far each way goes above a limit of tokens, and what it wastes.
func (r *Report) printSettled(out io.Writer) {
	header := "estimate / cost\t"
	for _, factor := range factors {
		header += fmt.Sprintf("%g\t", factor)
	}
	table := func(title, format string, figure func(settledRow) float64) {
		report.TableOf(out, title, header, ways, func(name string) string {
			line := name + "\t"
			for _, row := range r.Settled {
				if row.Way == name {
					line += fmt.Sprintf(format+"\t", figure(row))
				}
			}
			return line
		}, "")
	}
	table("costs known afterwards: admitted in the fullest window, in limits", "%.2f", settledRow.over)
	table("costs known afterwards: admitted, in % of an exact log that knows each cost beforehand", "%.1f", settledRow.ofLog)
	fmt.Fprintf(out, `
Answers of a language model come independently, %d times the limit of %d tokens, take %v and cost %d tokens on average, exponentially. A request
says beforehand what it costs, off by a factor. What counts here are the tokens that it costs in the end, when it was admitted.
%-19sweir, strict N=60: the estimate is taken, and what it is off by given back or charged when the answer ends
%-19sthe same limiter, asked for 0 tokens before, and charged the cost when the answer ends
%-19sa peer's way, with an exact log: the estimate has to fit beside all that has ended, and the cost counts when the answer ends
`, tokenDemand, tokenLimit, answerTime, meanTokens, reserveName, chargeName, laterName)
}

// Columns are those of the table of algorithms.
func (r *Report) Columns() []report.Column {
	return []report.Column{
		{Title: "fullest window", Means: fmt.Sprintf("the most that all traffic and attacks get into a window, in limits of %d", largeLimit), Cell: func(name string) string { return fmt.Sprintf("%.2f", r.fullest(name, largeLimit)) }},
		{Title: "off by", Means: fmt.Sprintf("the mean difference of estimate and true count, in %% of that, on independent arrivals at a limit of %d", documentLimit), Cell: func(name string) string {
			row, _ := r.find(traffic.Poisson.Name, 1, name)
			if !algorithms.Named(name).Counts() {
				return "-"
			}
			return fmt.Sprintf("%.1f%%", row.mean())
		}},
		{Title: "bunched", Means: fmt.Sprintf("what is admitted of that of an exact log, at twice a limit of %d, when 90%% of a minute's requests come in its first 10 s", largeLimit), Cell: func(name string) string {
			row, _ := report.Find(r.Large, func(row workloadRow) bool { return row.Traffic == traffic.FrontLoaded.Name && row.Algorithm == name })
			return fmt.Sprintf("%.1f%%", row.ofLog())
		}},
		{Title: "bytes", Means: fmt.Sprintf("what Memcached keeps of a client with a limit of %d", largeLimit), Cell: func(name string) string {
			of, ok := report.Find(r.Costs, func(c cost) bool { return c.Algorithm == name })
			if !ok {
				return ""
			}
			return strconv.Itoa(of.Bytes)
		}},
	}
}
