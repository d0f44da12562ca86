package architectures

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"weir/bench/internal/report"
)

// The clients of the runs.
const (
	attackerName = "attacker"
	busyName     = "busy client"
)

// A scenario is what an architecture has to cope with.
type scenario struct {
	Traffic   string        `json:"traffic"`
	Instances int           `json:"instances"`
	Lag       time.Duration `json:"lag_ns"`
	Rate      float64       `json:"rate"` // of the client's requests, per second
}

func (s scenario) String() string {
	return fmt.Sprintf("%s, %d instances, lag %v, %g requests/s", s.Traffic, s.Instances, s.Lag, s.Rate)
}

// The architectures.
const (
	stickyName = "sticky, rebound"
	stayName   = "sticky, staying"
	chattyName = "chatty"
	streamName = "stream"
	laterName  = "increment later"
	fixedName  = "weir, fixed"
	strictName = "weir, strict N=60"
)

// A Report is what architectures simulated: rows that differ in one respect
// from the usual situation.
type Report struct {
	Machine      report.Machine `json:"machine"`
	Seed         uint64         `json:"seed"`
	Limit        int            `json:"limit"`
	Window       time.Duration  `json:"window_ns"`
	Attacker     scenario       `json:"attacker"`
	Busy         scenario       `json:"busy_client"`
	ScaleStart   time.Duration  `json:"scale_start_ns"`
	ScaleEvery   time.Duration  `json:"scale_every_ns"`
	ConsumerRate float64        `json:"consumer_rate"` // of the stream, events per second
	Clients      int            `json:"clients"`       // of Balance
	Instances    []runRow       `json:"by_instances"`
	Lag          []runRow       `json:"by_lag"`
	Load         []runRow       `json:"by_load"`
	Balance      []balanceRow   `json:"balance"`
}

// A runRow is what an architecture did in a situation.
type runRow struct {
	Architecture string `json:"architecture"`
	scenario
	Figures
	// The fullest window of an attacker must be within these.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
	// WorstLag is the longest time until the stream's counts were known.
	WorstLag time.Duration `json:"worst_lag_ns,omitempty"`
}

// promised returns the fullest of the windows in which the architecture is to
// keep the limit: the calendar's for the fixed window.
func (a runRow) promised() int {
	if a.Architecture == fixedName {
		return a.Calendar
	}
	return a.Fullest
}

// over returns what the fullest window is of the limit, wherever it begins.
func (r *Report) over(row runRow) float64 {
	return float64(row.Fullest) / float64(r.Limit)
}

// A balanceRow is the load of the busiest instance after a scale-out, in the
// mean load.
type balanceRow struct {
	Instances int     `json:"instances"`
	Rebound   float64 `json:"rebound"`
	Staying   float64 `json:"staying"`
}

func (r *Report) rows() []runRow {
	return slices.Concat(r.Instances, r.Lag, r.Load)
}

// Broken returns an error that names the rows that don't agree with their
// model. Instances that take turns may differ by one request each.
func (r *Report) Broken() error {
	var errs []error
	for _, row := range r.rows() {
		weir := row.Architecture == fixedName || row.Architecture == strictName
		admitted, slack := float64(row.promised()), float64(row.Instances)
		if weir {
			slack = 0
		}
		attacked := row.Traffic == attackerName
		if (weir || attacked) && admitted > row.Most+slack || attacked && admitted < row.Least-slack {
			errs = append(errs, fmt.Errorf("%s, %v: %g admitted in a window; the model says %.1f to %.1f", row.Architecture, row.scenario, admitted, row.Least, row.Most))
		}
	}
	return errors.Join(errs...)
}

// Print writes the figures as tables, and what they mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "limit %d in %v; simulated in virtual time; seed %d\n", r.Limit, r.Window, r.Seed)
	instances := func(row runRow) string { return fmt.Sprint(row.Instances) }
	lag := func(row runRow) string { return row.Lag.String() }
	rate := func(row runRow) string { return fmt.Sprintf("%g/s", row.Rate) }
	over := func(row runRow) string { return fmt.Sprintf("%.2f", r.over(row)) }
	for _, client := range []string{attackerName, busyName} {
		printSweep(out, "admitted in the fullest window / limit: "+client+", by instances", client, r.Instances, instances, over)
		printSweep(out, "admitted in the fullest window / limit: "+client+", by lag", client, r.Lag, lag, over)
	}
	printSweep(out, "admitted in the fullest window / limit: attacker, by load", attackerName, r.Load, rate, over)
	printSweep(out, "messages per request: busy client, by instances", busyName, r.Instances, instances, func(row runRow) string {
		return fmt.Sprintf("%.2f", float64(row.Messages)/float64(row.Requests))
	})
	printSweep(out, "wrongly denied: busy client, by lag", busyName, r.Lag, lag, func(row runRow) string {
		return fmt.Sprintf("%.2f%%", 100*float64(row.WronglyDenied)/float64(row.Requests))
	})
	printSweep(out, "admitted / by an exact log: busy client, by lag", busyName, r.Lag, lag, r.ofExactLog)
	title := fmt.Sprintf("load of the busiest instance / mean, after a scale-out to so many, of %d clients", r.Clients)
	report.TableOf(out, title, "instances\trebound\tstaying\t", r.Balance, func(b balanceRow) string {
		return fmt.Sprintf("%d\t%.2f\t%.2f\t", b.Instances, b.Rebound, b.Staying)
	}, "")
	r.printLegend(out)
}

// ofExactLog returns what was admitted in relation to what one exact log
// admits, which is that of a client whose session stays where it is.
func (r *Report) ofExactLog(row runRow) string {
	log, ok := report.Find(r.rows(), func(log runRow) bool { return log.Architecture == stayName && log.scenario == row.scenario })
	if !ok {
		return "?"
	}
	return fmt.Sprintf("%.3f", float64(row.Admitted)/float64(log.Admitted))
}

// printSweep writes a table with a row for each architecture, and a column for
// each situation, of what the client's rows say.
func printSweep(out io.Writer, title, client string, rows []runRow, column, cell func(runRow) string) {
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
	report.TableOf(out, title, "\t"+head, names, func(name string) string { return name + "\t" + lines[name] }, "")
}

func (r *Report) printLegend(out io.Writer) {
	calendar, worstLag := 0, time.Duration(0)
	for _, row := range r.rows() {
		if row.Architecture == fixedName {
			calendar = max(calendar, row.Calendar)
		}
		worstLag = max(worstLag, row.WorstLag)
	}
	fmt.Fprintf(out, `
attacker        %g requests/s for three minutes, evenly spaced; busy client: %g/s for half an hour, independent. Both are balanced over
                all instances in turn but with sticky sessions. Unless the table says otherwise there are %d instances and a lag of %v
fullest window  most admitted in any (t-%v, t], wherever it begins; weir's fixed window promises the limit in a calendar window only, where
                it admitted %.2f times the limit at most
sticky          one instance becomes two, four and so on %v into the run, %v apart; rebound: client c goes to instance c mod
                instances, and this is a client that each step moves; staying: it goes on where it is
chatty          each instance counts, and broadcasts what it admits, which the others hear after the lag
stream          each request is an event that one consumer counts, as is assumed %.0f per second at the most, and publishes to all instances; the lag
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
`, r.Attacker.Rate, r.Busy.Rate, r.Attacker.Instances, r.Attacker.Lag, r.Window, float64(calendar)/float64(r.Limit),
		r.ScaleStart, r.ScaleEvery, r.ConsumerRate, worstLag.Round(time.Millisecond))
}

// drawn are the architectures that are drawn, those first that others lie on.
// What stays sticky would lie on weir's strict window.
var drawn = []report.Curve{
	{Name: fixedName, Color: report.Vermillion}, {Name: streamName, Color: report.Gray}, {Name: laterName, Color: report.Dark},
	{Name: stickyName, Color: report.Sand}, {Name: chattyName, Color: report.Olive}, {Name: strictName, Color: report.Green},
}

// Pictures are what an attacker was admitted, against what was simulated of
// instances, lag and load.
func (r *Report) Pictures() []report.Picture {
	var plots []*report.Plot
	for _, sweep := range []struct {
		title, axis string
		rows        []runRow
		x           func(scenario) (at float64, label string)
	}{
		{"Most admitted, by instances", "instances", r.Instances, func(s scenario) (float64, string) {
			return float64(s.Instances), strconv.Itoa(s.Instances)
		}},
		{"Most admitted, by lag", "lag", r.Lag, func(s scenario) (float64, string) {
			return s.Lag.Seconds(), decade(s.Lag.Seconds(), s.Lag)
		}},
		{"Most admitted, by load", "attacker's requests/s", r.Load, func(s scenario) (float64, string) {
			return s.Rate, decade(s.Rate, s.Rate)
		}},
	} {
		curves, ticks := r.curves(sweep.rows, sweep.x)
		if len(ticks) < 2 {
			continue
		}
		p := report.LogPlot(sweep.title, sweep.axis, "x limit", ticks, 3, curves)
		if len(plots) > 0 {
			p.Legend = plot.NewLegend() // one is enough
		}
		plots = append(plots, p)
	}
	if len(plots) == 0 {
		return nil
	}
	report.WholePowers(plots...)
	for _, p := range plots {
		p.Y.Min = 0.5 // weir's line isn't the edge
	}
	return []report.Picture{report.NewPicture("architectures", "the most that an attacker was admitted, against instances, lag and load", 5, plots...)}
}

// curves returns what the attacker was admitted, where x says and with its
// labels.
func (r *Report) curves(rows []runRow, x func(scenario) (at float64, label string)) ([]report.Curve, report.Ticks) {
	var curves []report.Curve
	ticks := make(report.Ticks)
	for _, line := range drawn {
		for _, row := range rows {
			at, label := x(row.scenario)
			// Logarithmic axes have no 0.
			if row.Traffic == attackerName && row.Architecture == line.Name && at > 0 && row.Fullest > 0 {
				ticks[at] = label
				line.Points = append(line.Points, plotter.XY{X: at, Y: r.over(row)})
			}
		}
		curves = append(curves, line)
	}
	return curves, ticks
}

// decade returns the label of a power of ten, and none for other values.
func decade(value float64, label any) string {
	if exponent := math.Log10(value); math.Abs(exponent-math.Round(exponent)) > 1e-9 {
		return ""
	}
	return fmt.Sprint(label)
}
