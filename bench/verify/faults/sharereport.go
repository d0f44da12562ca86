package faults

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"weir/bench/internal/report"
)

// A shareRow is what clients were admitted in one trial. What is in percent is
// of the limit, and a mean of clients if nothing else is said.
type shareRow struct {
	Name      string `json:"name"`
	Fault     string `json:"fault"`
	Instances int    `json:"instances"`
	Clients   string `json:"clients"` // what they do
	Number    int    `json:"number"`  // of clients
	// Alone is what was admitted while the fault was on, and UntilBack that and
	// what was admitted before.
	Alone     float64 `json:"alone_percent"`
	UntilBack float64 `json:"until_back_percent"`
	// All is what was admitted before, during and after the fault. Worst is of
	// the client that is the farthest from its limit, Algorithms are the means
	// of each.
	All        float64   `json:"all_percent"`
	Worst      float64   `json:"worst_percent"`
	Algorithms []float64 `json:"algorithms_percent"`
	Wanted     string    `json:"wanted"`
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
	}
	if r.Number = len(clients); r.Number == 0 {
		return r
	}
	all := percents(clients, before, after)
	r.Alone, r.UntilBack, r.All = mean(percents(clients, alone, alone)), mean(percents(clients, before, alone)), mean(all)
	least, most := all[0], all[len(all)-1]
	if r.Worst = least; most-100 > 100-least {
		r.Worst = most
	}
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

func mean(all []float64) (mean float64) {
	for _, x := range all {
		mean += x
	}
	return mean / float64(len(all))
}

// printShares writes share rows as a table, and what its columns mean.
func printShares(out io.Writer, rows []shareRow) {
	header := "share\tinstances\tclients\talone %\tuntil back\tin all %\tworst\t"
	for _, a := range shareAlgorithms {
		header += a.Title() + "\t"
	}
	header += "wanted %\t\t"
	title := fmt.Sprintf("What instances admit together without their store, in percent of the limit; %d are used before", usedBefore)
	report.TableOf(out, title, header, rows, func(r shareRow) string {
		text := fmt.Sprintf("%s\t%d\t%s\t", r.Fault, r.Instances, r.Clients)
		for _, p := range append([]float64{r.Alone, r.UntilBack, r.All, r.Worst}, r.Algorithms...) {
			text += fmt.Sprintf("%.1f\t", p)
		}
		return text + r.Wanted + "\t" + r.verdict() + "\t"
	}, `
clients      ask any instance (spread), always the same (sticky), or the same until it dies with the store, and then another (moved)
alone        admitted while the fault was on, and until back that and what was before it
in all       before, during and after the fault; the worst is of clients, and an algorithm's column is the mean of its clients
wanted       in all: of each algorithm's mean, and in an outage also until the store is back; with 1 instance of each client
`)
}
