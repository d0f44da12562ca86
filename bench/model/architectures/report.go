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

// A scenario is what an architecture has to cope with.
type scenario struct {
	Instances int           `json:"instances"`
	Lag       time.Duration `json:"lag_ns"`
	Rate      float64       `json:"rate"` // of the attacker's requests, per second
}

func (s scenario) String() string {
	return fmt.Sprintf("%d instances, lag %v, %g requests/s", s.Instances, s.Lag, s.Rate)
}

// The architectures.
const (
	stickyName = "sticky"
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
	Limit        int            `json:"limit"`
	Window       time.Duration  `json:"window_ns"`
	Usual        scenario       `json:"usual"`
	ScaleStart   time.Duration  `json:"scale_start_ns"`
	ScaleEvery   time.Duration  `json:"scale_every_ns"`
	ConsumerRate float64        `json:"consumer_rate"` // of the stream, events per second
	Instances    []runRow       `json:"by_instances"`
	Lag          []runRow       `json:"by_lag"`
	Load         []runRow       `json:"by_load"`
}

// A runRow is what an architecture did in a situation.
type runRow struct {
	Architecture string `json:"architecture"`
	scenario
	Fullest  int `json:"fullest"`  // window, wherever it begins
	Calendar int `json:"calendar"` // the fullest of those of the calendar
	// WorstLag is the longest time until the stream's counts were known.
	WorstLag time.Duration `json:"worst_lag_ns,omitempty"`
}

// over returns what the fullest window is of the limit, wherever it begins.
func (r *Report) over(row runRow) float64 {
	return float64(row.Fullest) / float64(r.Limit)
}

func (r *Report) rows() []runRow {
	return slices.Concat(r.Instances, r.Lag, r.Load)
}

// Broken returns an error that names the rows in which weir didn't admit exactly
// the limit in a window that it promises: the calendar's if it is fixed.
func (r *Report) Broken() error {
	var errs []error
	for _, row := range r.rows() {
		promised := map[string]int{fixedName: row.Calendar, strictName: row.Fullest}
		if n, ok := promised[row.Architecture]; ok && n != r.Limit {
			errs = append(errs, fmt.Errorf("%s, %v: %d admitted in a window, and the limit is %d", row.Architecture, row.scenario, n, r.Limit))
		}
	}
	return errors.Join(errs...)
}

// Print writes the figures as tables, and what they mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "limit %d in %v; simulated in virtual time\n", r.Limit, r.Window)
	r.printSweep(out, "instances", r.Instances, func(s scenario) string { return strconv.Itoa(s.Instances) })
	r.printSweep(out, "lag", r.Lag, func(s scenario) string { return s.Lag.String() })
	r.printSweep(out, "load", r.Load, func(s scenario) string { return fmt.Sprintf("%g/s", s.Rate) })
	r.printLegend(out)
}

// printSweep writes a table with a row for each architecture, and a column for
// each situation, of what it admitted.
func (r *Report) printSweep(out io.Writer, by string, rows []runRow, column func(scenario) string) {
	head := ""
	var names []string
	lines := make(map[string]string)
	for _, row := range rows {
		if !slices.Contains(names, row.Architecture) {
			names = append(names, row.Architecture)
		}
		if row.Architecture == names[0] {
			head += column(row.scenario) + "\t"
		}
		lines[row.Architecture] += fmt.Sprintf("%.2f\t", r.over(row))
	}
	report.TableOf(out, "admitted in the fullest window / limit: by "+by, "\t"+head, names, func(name string) string { return name + "\t" + lines[name] }, "")
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
An attacker makes %g requests/s for three minutes, evenly spaced. They are balanced over all instances in turn but with sticky sessions.
Unless the table says otherwise there are %d instances and a lag of %v.
fullest window  most admitted in any (t-%v, t], wherever it begins; weir's fixed window promises the limit in a calendar window only, where
                it admitted %.2f times the limit at most
sticky          one instance becomes two, four and so on %v into the run, %v apart; client c goes to instance c mod instances, and
                this is a client that each step moves
chatty          each instance counts, and broadcasts what it admits, which the others hear after the lag
stream          each request is an event that one consumer counts, as is assumed %.0f per second at the most, and publishes to all instances; the lag
                is what the ways there and back take. It took up to %v until an event was known
increment later read the count of a store that all share, decide, answer, and increment after the lag
weir            the real limiters on one embedded store, each instance with what it remembers; a check has been counted when it is
                answered, so that the lag, the way to the store, is waited for, here even beyond weir's -store-timeout of 50ms; what is
                given back comes the lag later

What Criteo's document says of them, and where it shows:
sticky          "allowing clients to make more calls each time our system is under pressure": by instances
stream          "it will increase when the load on the API increase. [...] they could allow calls that should be blocked": by load
`, r.Usual.Rate, r.Usual.Instances, r.Usual.Lag, r.Window, float64(calendar)/float64(r.Limit),
		r.ScaleStart, r.ScaleEvery, r.ConsumerRate, worstLag.Round(time.Millisecond))
}

// drawn are the architectures that are drawn, those first that others lie on.
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
			if row.Architecture == line.Name && at > 0 && row.Fullest > 0 {
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
