package faults

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"weir/bench/internal/report"
)

// A shareRow is what clients were admitted in one trial. What is in percent is
// of the limit, and a mean of clients if nothing else is said.
type shareRow struct {
	Name      string  `json:"name"`
	Fault     string  `json:"fault"`
	Instances int     `json:"instances"`
	Clients   string  `json:"clients"` // what they do
	Number    int     `json:"number"`  // of clients
	Asked     float64 `json:"asked_percent"`
	// Alone is what was admitted while the fault was on, and UntilBack that and
	// what was admitted before.
	Alone     float64 `json:"alone_percent"`
	UntilBack float64 `json:"until_back_percent"`
	// All is what was admitted before, during and after the fault. Worst is of
	// the client that is the farthest from its limit, Algorithms are the means
	// of each.
	All        float64   `json:"all_percent"`
	P10        float64   `json:"p10_percent"`
	P90        float64   `json:"p90_percent"`
	Worst      float64   `json:"worst_percent"`
	Algorithms []float64 `json:"algorithms_percent"`
	// Whole is the time from the beginning of the fault until a client had been
	// admitted its limit, the median; 0 if most never were.
	Whole  time.Duration `json:"whole_ns"`
	Early  int64         `json:"early"` // checks before the fault that were decided without the store
	Wanted string        `json:"wanted"`
	misses
}

// row sums up what the clients of some beds were admitted, and holds it against
// what is wanted.
func (t shareTrial) row(beds []*shareBed) shareRow {
	r := shareRow{Name: t.String(), Fault: t.fault, Instances: t.instances, Clients: t.clients, Wanted: t.wanted.String()}
	if t.instances == 1 {
		r.Clients = "all"
	}
	var clients []*shareClient
	for _, b := range beds {
		clients = append(clients, b.clients...)
		r.Asked += float64(b.asked.Load())
		r.Early += b.early.Load()
	}
	if r.Number = len(clients); r.Number == 0 {
		return r
	}
	r.Asked *= 100. / limit / float64(r.Number)
	all := percents(clients, before, after)
	r.Alone, r.UntilBack, r.All = mean(percents(clients, alone, alone)), mean(percents(clients, before, alone)), mean(all)
	least, most := all[0], all[len(all)-1]
	r.P10, r.P90, r.Worst = all[len(all)/10], all[len(all)-1-len(all)/10], least
	if most-100 > 100-least {
		r.Worst = most
	}
	r.Whole = wholeAfter(clients)
	t.judge(&r, clients)
	return r
}

// judge adds what clients of each algorithm were admitted, and holds it against
// what is wanted.
func (t shareTrial) judge(r *shareRow, clients []*shareClient) {
	var outside, outsideUntilBack []string
	for i, a := range shareAlgorithms {
		of := slices.DeleteFunc(slices.Clone(clients), func(c *shareClient) bool { return c.algorithm != i })
		all, untilBack := percents(of, before, after), mean(percents(of, before, alone))
		r.Algorithms = append(r.Algorithms, mean(all))
		if t.wanted != exactly {
			all = []float64{mean(all)}
		}
		if i := slices.IndexFunc(all, func(p float64) bool { return !t.wanted.hold(p) }); i >= 0 {
			outside = append(outside, fmt.Sprintf("%s %.1f", a.Title(), all[i]))
		}
		if t.stall == 0 && t.wanted != unbounded && !together.hold(untilBack) {
			outsideUntilBack = append(outsideUntilBack, fmt.Sprintf("%s %.1f", a.Title(), untilBack))
		}
	}
	const text = "admitted %s, where %v %% of the limit are wanted: %s"
	r.must(len(outside) == 0, text, "in all", t.wanted, strings.Join(outside, ", "))
	r.must(len(outsideUntilBack) == 0, text, "until the store was back", together, strings.Join(outsideUntilBack, ", "))
}

// percents returns what each client was admitted in some phases, the least
// first.
func percents(clients []*shareClient, first, last phase) (all []float64) {
	for _, c := range clients {
		all = append(all, 100./limit*float64(c.sum(first, last)))
	}
	slices.Sort(all)
	return all
}

// wholeAfter returns the median of the times until clients had been admitted
// their limits, 0 for never.
func wholeAfter(clients []*shareClient) time.Duration {
	var times []time.Duration
	for _, c := range clients {
		whole := c.whole
		if whole == 0 {
			whole = math.MaxInt64
		}
		times = append(times, whole)
	}
	slices.Sort(times)
	if median := times[len(times)/2]; median < math.MaxInt64 {
		return median
	}
	return 0
}

func mean(all []float64) (mean float64) {
	for _, x := range all {
		mean += x
	}
	return mean / float64(len(all))
}

// printShares writes share rows as a table, and what its columns mean.
func printShares(out io.Writer, rows []shareRow) {
	header := "share\tinstances\tclients\tasked %\talone %\tuntil back\tin all %\tp10\tp90\tworst\t"
	for _, a := range shareAlgorithms {
		header += a.Title() + "\t"
	}
	header += "whole after s\tearly\twanted %\t\t"
	title := fmt.Sprintf("What instances admit together without their store, in percent of the limit; %d are used before", usedBefore)
	report.TableOf(out, title, header, rows, func(r shareRow) string {
		text := fmt.Sprintf("%s\t%d\t%s\t%.0f\t", r.Fault, r.Instances, r.Clients, r.Asked)
		for _, p := range append([]float64{r.Alone, r.UntilBack, r.All, r.P10, r.P90, r.Worst}, r.Algorithms...) {
			text += fmt.Sprintf("%.1f\t", p)
		}
		whole, verdict := "-", "ok"
		if r.Whole > 0 {
			whole = fmt.Sprintf("%.2f", r.Whole.Seconds())
		}
		if len(r.Missed) > 0 {
			verdict = "MISSED"
		}
		return fmt.Sprintf("%s%s\t%d\t%s\t%s\t", text, whole, r.Early, r.Wanted, verdict)
	}, `
clients      ask any instance (spread), always the same (sticky), or the same until it dies with the store, and then another (moved)
alone        admitted while the fault was on, and until back that and what was before it
in all       before, during and after the fault; p10, p90 and the worst are of clients, and an algorithm's column is the mean of its clients
whole after  from the beginning of the fault until a client had been admitted its limit, the median; what is left of it is asked for within %.0f%% of an outage, and %.0f%% of a stall
early        checks before the fault that were decided without the store, because the machine was slow
wanted       in all: of each algorithm's mean, and in an outage also until the store is back; with 1 instance of each client
`, 100.*(limit-usedBefore)/askedInOutage, 100.*(limit-usedBefore)/askedInStall)
}
