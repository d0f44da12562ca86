package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"weir/bench/architecture"
)

// An architecturesReport is what architectures simulated: rows that differ in
// one respect from the usual situation.
type architecturesReport struct {
	Machine      machine           `json:"machine"`
	Seed         uint64            `json:"seed"`
	Limit        int               `json:"limit"`
	Window       time.Duration     `json:"window_ns"`
	Attacker     situation         `json:"attacker"`
	Busy         situation         `json:"busy_client"`
	ScaleStart   time.Duration     `json:"scale_start_ns"`
	ScaleEvery   time.Duration     `json:"scale_every_ns"`
	ConsumerRate float64           `json:"consumer_rate"` // of the stream, events per second
	Clients      int               `json:"clients"`       // of Balance
	Instances    []architectureRow `json:"by_instances"`
	Lag          []architectureRow `json:"by_lag"`
	Load         []architectureRow `json:"by_load"`
	Balance      []balanceRow      `json:"balance"`
}

// An architectureRow is what an architecture did in a situation.
type architectureRow struct {
	Architecture string `json:"architecture"`
	situation
	architecture.Figures
	// The fullest window of an attacker must be within these.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
	// WorstLag is the longest time until the stream's counts were known.
	WorstLag time.Duration `json:"worst_lag_ns,omitempty"`
}

// promised returns the fullest of the windows in which the architecture is to
// keep the limit: the calendar's for the fixed window.
func (a architectureRow) promised() int {
	if a.Architecture == fixedName {
		return a.Calendar
	}
	return a.Fullest
}

// over returns what promised is of the limit.
func (r *architecturesReport) over(row architectureRow) float64 {
	return float64(row.promised()) / float64(r.Limit)
}

// A balanceRow is the load of the busiest instance after a scale-out, in the
// mean load.
type balanceRow struct {
	Instances int     `json:"instances"`
	Rebound   float64 `json:"rebound"`
	Staying   float64 `json:"staying"`
}

func (r *architecturesReport) rows() []architectureRow {
	return slices.Concat(r.Instances, r.Lag, r.Load)
}

// broken returns an error that names the rows that don't agree with their
// model. Instances that take turns may differ by one request each.
func (r *architecturesReport) broken() error {
	var errs []error
	for _, row := range r.rows() {
		weir := row.Architecture == fixedName || row.Architecture == strictName
		admitted, slack := float64(row.promised()), float64(row.Instances)
		if weir {
			slack = 0
		}
		attacked := row.Traffic == attackerName
		if (weir || attacked) && admitted > row.Most+slack || attacked && admitted < row.Least-slack {
			errs = append(errs, fmt.Errorf("%s, %v: %g admitted in a window; the model says %.1f to %.1f", row.Architecture, row.situation, admitted, row.Least, row.Most))
		}
	}
	return errors.Join(errs...)
}

// print writes the figures as tables, and what they mean.
func (r *architecturesReport) print(out io.Writer) {
	fmt.Fprintf(out, "limit %d in %v; simulated in virtual time; seed %d\n", r.Limit, r.Window, r.Seed)
	instances := func(row architectureRow) string { return fmt.Sprint(row.Instances) }
	lag := func(row architectureRow) string { return row.Lag.String() }
	rate := func(row architectureRow) string { return fmt.Sprintf("%g/s", row.Rate) }
	over := func(row architectureRow) string { return fmt.Sprintf("%.2f", r.over(row)) }
	for _, client := range []string{attackerName, busyName} {
		printSweep(out, "admitted in the fullest window / limit: "+client+", by instances", client, r.Instances, instances, over)
		printSweep(out, "admitted in the fullest window / limit: "+client+", by lag", client, r.Lag, lag, over)
	}
	printSweep(out, "admitted in the fullest window / limit: attacker, by load", attackerName, r.Load, rate, over)
	printSweep(out, "messages per request: busy client, by instances", busyName, r.Instances, instances, func(row architectureRow) string {
		return fmt.Sprintf("%.2f", float64(row.Messages)/float64(row.Requests))
	})
	printSweep(out, "wrongly denied: busy client, by lag", busyName, r.Lag, lag, func(row architectureRow) string {
		return fmt.Sprintf("%.2f%%", 100*float64(row.WronglyDenied)/float64(row.Requests))
	})
	printSweep(out, "admitted / by an exact log: busy client, by lag", busyName, r.Lag, lag, r.ofExactLog)
	r.printBalance(out)
	r.printLegend(out)
}

// ofExactLog returns what was admitted in relation to what one exact log admits,
// which is that of a client whose session stays where it is.
func (r *architecturesReport) ofExactLog(row architectureRow) string {
	for _, log := range r.rows() {
		if log.Architecture == stayName && log.situation == row.situation {
			return fmt.Sprintf("%.3f", float64(row.Admitted)/float64(log.Admitted))
		}
	}
	return "?"
}

// printSweep writes a table with a row for each architecture, and a column for
// each situation, of what the client's rows say.
func printSweep(out io.Writer, title, client string, rows []architectureRow, column, cell func(architectureRow) string) {
	head := ""
	var names []string
	lines := make(map[string]string)
	for _, row := range rows {
		if row.Traffic != client {
			continue
		}
		if len(names) == 0 || row.Architecture == names[0] {
			head += column(row) + "\t"
		}
		if _, ok := lines[row.Architecture]; !ok {
			names = append(names, row.Architecture)
		}
		lines[row.Architecture] += cell(row) + "\t"
	}
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s\n", title)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\n", head)
	for _, name := range names {
		fmt.Fprintf(t, "%s\t%s\n", name, lines[name])
	}
	_ = t.Flush() // out is looked after by whoever reads it
}

func (r *architecturesReport) printBalance(out io.Writer) {
	fmt.Fprintf(out, "\nload of the busiest instance / mean, after a scale-out to so many, of %d clients\n", r.Clients)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "instances\trebound\tstaying\t\n")
	for _, b := range r.Balance {
		fmt.Fprintf(t, "%d\t%.2f\t%.2f\t\n", b.Instances, b.Rebound, b.Staying)
	}
	_ = t.Flush() // as above
}

func (r *architecturesReport) printLegend(out io.Writer) {
	anyWindow, worstLag := 0, time.Duration(0)
	for _, row := range r.rows() {
		if row.Architecture == fixedName {
			anyWindow = max(anyWindow, row.Fullest)
		}
		worstLag = max(worstLag, row.WorstLag)
	}
	fmt.Fprintf(out, `
attacker        %g requests/s for three minutes, evenly spaced; busy client: %g/s for half an hour, independent. Both are balanced over
                all instances in turn but with sticky sessions. Unless the table says otherwise there are %d instances and a lag of %v
fullest window  most admitted in any (t-%v, t], wherever it begins; of weir's fixed window, in a calendar window, which is what it
                promises: in others it admitted up to %.2f times the limit, as its algorithm does at a boundary
sticky          one instance becomes two, four and so on %v into the run, %v apart; rebound: client c goes to instance c mod
                instances, and this is a client that each step moves; staying: it goes on where it is
chatty          each instance counts, and broadcasts what it admits, which the others hear after the lag
stream          each request is an event that one consumer counts, %.0f per second at the most, and publishes to all instances; the lag
                is what the ways there and back take. It took up to %v until an event was known
increment later read the count of a store that all share, decide, answer, and increment after the lag
weir            the real limiters on one embedded store, each instance with what it remembers; a check has been counted when it is
                answered, so that the lag, the way to the store, is waited for, here even beyond weir's -store-timeout of 50ms; what is
                given back comes the lag later
messages        to other instances, to a store or stream, and from the stream to instances; a broadcast is one to each other instance
wrongly denied  of all requests: denied with less than the limit admitted in the window before it. strict counts the oldest slot in full,
                a second longer, and a busy client asks again at once, so that this is many requests and little of the limit

What Criteo's document says of them, and where it shows:
sticky          "allowing clients to make more calls each time our system is under pressure": by instances; "what's the use of creating new
                instances, if all existing clients are stuck to the old ones?": the busiest instance
chatty          "the more instances we have, the more calls need to be made": messages
stream          "it will increase when the load on the API increase. [...] they could allow calls that should be blocked": by load
`, r.Attacker.Rate, r.Busy.Rate, r.Attacker.Instances, r.Attacker.Lag, r.Window, float64(anyWindow)/float64(r.Limit),
		r.ScaleStart, r.ScaleEvery, r.ConsumerRate, worstLag.Round(time.Millisecond))
}
