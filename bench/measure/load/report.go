package load

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// votes that agree decide about a rate, so that one stall of a busy machine
// doesn't.
const votes = 2

// A Report is what load measured.
type Report struct {
	Machine     report.Machine `json:"machine"`
	Target      string         `json:"target,omitempty"` // none for a weir of the bench's own
	Connections int            `json:"connections"`
	Duration    time.Duration  `json:"duration_ns"`
	Bound       time.Duration  `json:"p99_bound_ns,omitempty"`
	Searches    []searchRow    `json:"search,omitempty"`
	Rows        []policyRow    `json:"rows,omitempty"`
}

// latencies are percentiles.
type latencies struct {
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	Max  time.Duration `json:"max_ns"`
}

func (l *latencies) all() []time.Duration {
	return []time.Duration{l.P50, l.P90, l.P99, l.P999, l.Max}
}

// loadFigures are those of a slice, or of all.
type loadFigures struct {
	Rate     float64    `json:"rate"`              // intended, per second
	Achieved float64    `json:"achieved"`          // answers per second
	Latency  *latencies `json:"latency,omitempty"` // nil when the bench was behind
	// 99% of the checks were sent at most so much later than they were due, by the
	// bench's own fault.
	Lag time.Duration `json:"lag_p99_ns"`
}

func newFigures(s *loadgen.Sample) loadFigures {
	f := loadFigures{
		Rate: s.Pace.Rate, Achieved: float64(s.Latency.TotalCount()) / s.Elapsed.Seconds(),
		Lag: loadgen.Percentile(s.Lag, 99),
	}
	if !s.Behind() {
		of := func(percent float64) time.Duration { return loadgen.Percentile(s.Latency, percent) }
		f.Latency = &latencies{
			P50: of(50), P90: of(90), P99: of(99), P999: of(99.9), Max: time.Duration(s.Latency.Max()),
		}
	}
	return f
}

// A policyRow is how a policy did.
type policyRow struct {
	Policy string `json:"policy"`
	loadFigures
	Statuses map[int]int64      `json:"statuses"`
	Degraded int64              `json:"degraded"`
	Fault    string             `json:"fault,omitempty"` // other than slowness
	Store    *testbed.StoreCost `json:"store,omitempty"` // nil when memcached wasn't asked
	Slices   []loadFigures      `json:"slices"`
	Curve    []curvePoint       `json:"curve,omitempty"` // empty when the bench was behind
}

// A curvePoint says that so many percent of the checks took at most so long.
type curvePoint struct {
	Percent float64       `json:"percent"`
	Latency time.Duration `json:"latency_ns"`
}

func newRow(policy string, s *loadgen.Sample, slices []loadFigures) policyRow {
	row := policyRow{Policy: policy, loadFigures: newFigures(s), Statuses: s.Statuses, Degraded: s.Degraded, Slices: slices}
	if err := s.Fault(); err != nil {
		row.Fault = err.Error()
	}
	if row.Latency != nil {
		row.Curve = percentileCurve(s.Latency)
	}
	return row
}

// percentileCurve returns percentiles ever closer to 100, eight for each factor
// of ten, as far as there are ten checks beyond.
func percentileCurve(h *hdrhistogram.Histogram) []curvePoint {
	var points []curvePoint
	for i := 0; ; i++ {
		beyond := math.Pow(10, -float64(i)/8)
		if beyond*float64(h.TotalCount()) < 10 {
			return points
		}
		percent := 100 * (1 - beyond)
		points = append(points, curvePoint{percent, loadgen.Percentile(h, percent)})
	}
}

// A searchRow is the highest rate of a policy that held.
type searchRow struct {
	Policy  string       `json:"policy"`
	Highest float64      `json:"highest"` // rate that held; 0 for none
	Lowest  float64      `json:"lowest"`  // rate that failed; 0 for none
	Steps   []searchStep `json:"steps"`
}

// A searchStep is one try of a rate.
type searchStep struct {
	loadFigures
	Failed string `json:"failed,omitempty"` // why
}

func newSearchStep(s *loadgen.Sample, bound time.Duration) searchStep {
	step := searchStep{loadFigures: newFigures(s)}
	p99 := loadgen.Percentile(s.Latency, 99)
	switch err := s.Fault(); {
	case err != nil:
		step.Failed = err.Error()
	case p99 <= bound:
	case step.Latency == nil:
		step.Failed = fmt.Sprintf("the bench was behind by %s ms", report.Milliseconds(step.Lag))
	default:
		step.Failed = fmt.Sprintf("p99 %s ms", report.Milliseconds(p99))
	}
	return step
}

// why returns why the lowest rate that failed did.
func (r searchRow) why() string {
	for _, s := range slices.Backward(r.Steps) {
		if s.Failed != "" && s.Rate == r.Lowest {
			return s.Failed
		}
	}
	return ""
}

// Broken returns an error that says what went wrong other than slowness.
func (r *Report) Broken() error {
	var errs []error
	for _, row := range r.Searches {
		if row.Highest == 0 {
			errs = append(errs, fmt.Errorf("%s: not even %.0f checks/s held: %s", row.Policy, row.Lowest, row.why()))
		}
	}
	for _, row := range r.Rows {
		if row.Fault != "" {
			errs = append(errs, fmt.Errorf("%s: %s", row.Policy, row.Fault))
		}
	}
	return errors.Join(errs...)
}

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	target := cmp.Or(r.Target, "a weir of the bench's own on memcached "+r.Machine.Memcached)
	fmt.Fprintf(out, "%s; the bench with %s on %d cores; Poisson arrivals; %d clients, Zipf %d; %d connections\n",
		target, r.Machine.Go, r.Machine.Cores, clients, exponent, r.Connections)
	report.TableOf(out, "", "highest rate\tchecks/s\tfailed at\ttries\tbecause of\t", r.Searches, func(row searchRow) string {
		return fmt.Sprintf("%s\t%.0f\t%.0f\t%d\t%s\t", row.Policy, row.Highest, row.Lowest, len(row.Steps), row.why())
	}, `
checks/s    the highest rate that kept p99 at %s ms or less without a failure; a rate is decided when %d tries of it agree
failed at   the lowest rate that didn't; a bench that was behind was slower than the server on this machine
`, report.Milliseconds(r.Bound), votes)
	if len(r.Rows) > 0 {
		r.printRows(out)
	}
}

func (r *Report) printRows(out io.Writer) {
	header := "policy\tchecks/s\tachieved\tp50 ms\tp90 ms\tp99 ms\tp999 ms\tmax ms\tlag\t200\t429\tdegraded\twrites\tkeys\t"
	report.TableOf(out, "", header, r.Rows, func(row policyRow) string {
		store := "-\t-\t"
		if c := row.Store; c != nil {
			store = fmt.Sprintf("%.2f\t%.1f\t", c.Writes, c.KeysRead)
		}
		return fmt.Sprintf("%s\t%s%d\t%d\t%d\t%s", row.Policy, row.columns(),
			row.Statuses[http.StatusOK], row.Statuses[http.StatusTooManyRequests], row.Degraded, store)
	}, `
checks/s    as intended; achieved are the answers until the last came
p50 to max  from when a check was due until its response was read
lag         p99 of how much later than due checks were sent though a connection was free, which is the bench's own fault: above %s ms and
            1/%d of p99 the bench was behind, and latencies are not given
200, 429    answers by status, of which other ones fail the run; degraded are those that weir gave without its store
writes      commands per check by which memcached was to change something; keys are the keys per check that were read
The policies took turns in %d slices, with the same arrivals and clients each.
`, report.Milliseconds(loadgen.LagAllowed), loadgen.LagShare, len(r.Rows[0].Slices))
	if len(r.Searches) > 0 {
		fmt.Fprint(out, `In the picture, percentiles are of all slices together: one in which the machine had other work sets their end. By rate, a point is
the try in the middle, of the search's or of these slices, and its bar goes from the lowest to the highest.
`)
	}
	for _, row := range r.Rows {
		if row.Latency == nil {
			fmt.Fprintf(out, "%s: the bench was behind: this run says nothing about latency\n", row.Policy)
		}
	}
}

// columns returns the cells of a table for the figures.
func (f *loadFigures) columns() string {
	cells := fmt.Sprintf("%.0f\t%.0f\t", f.Rate, f.Achieved)
	if l := f.Latency; l != nil {
		for _, d := range l.all() {
			cells += report.Milliseconds(d) + "\t"
		}
	} else {
		cells += strings.Repeat("-\t", 5)
	}
	return cells + report.Milliseconds(f.Lag) + "\t"
}

// Pictures are latency against percentile and, after a search, p99 against rate.
func (r *Report) Pictures() []report.Picture {
	var row []*report.Plot
	if curves := r.percentiles(); len(curves) > 0 {
		p := latencyPlot(fmt.Sprintf("Latency by percentile, at %.0f checks/s", r.Rows[0].Rate), "percentile", percents, curves)
		p.X.Min = 1
		row = append(row, p)
	}
	if curves := r.byRate(); len(curves) > 0 {
		p := latencyPlot("p99 by rate: middle of the tries, and their range", "checks/s", doublings(), curves)
		bound := report.InMilliseconds(r.Bound)
		p.Legend.Add("bound", p.Line(plotter.XYs{{X: p.X.Min, Y: bound}, {X: p.X.Max, Y: bound}}, 1, color.Black, 4, 3))
		row = append(row, p)
	}
	if len(row) == 0 {
		return nil
	}
	report.WholePowers(row...)
	return []report.Picture{report.NewPicture("load", "latency by percentile, and by rate", 5, row...)}
}

// percentiles returns the latency in ms at one in x checks beyond.
func (r *Report) percentiles() []report.Curve {
	var curves []report.Curve
	for _, row := range r.Rows {
		c := report.Curve{Name: row.Policy}
		for _, p := range row.Curve {
			c.Points = append(c.Points, plotter.XY{X: 100 / (100 - p.Percent), Y: report.InMilliseconds(p.Latency)})
		}
		if len(c.Points) > 0 {
			curves = append(curves, c)
		}
	}
	return curves
}

// byRate returns p99 in ms at the rates of a search, and at the rate that was
// measured then, whose slices are tries too: when a rate was tried several times
// the one in the middle, which decided, or the worse of two, and how far the
// others were.
func (r *Report) byRate() []report.Curve {
	var curves []report.Curve
	for _, row := range r.Searches {
		var figures []loadFigures
		for _, step := range row.Steps {
			figures = append(figures, step.loadFigures)
		}
		measured, _ := report.Find(r.Rows, func(m policyRow) bool { return m.Policy == row.Policy })
		tries := make(map[float64][]float64)
		for _, f := range append(figures, measured.Slices...) {
			if f.Latency != nil && f.Latency.P99 > 0 {
				tries[f.Rate] = append(tries[f.Rate], report.InMilliseconds(f.Latency.P99))
			}
		}
		c := report.Curve{Name: row.Policy}
		for _, rate := range slices.Sorted(maps.Keys(tries)) {
			p99s := slices.Sorted(slices.Values(tries[rate]))
			p99 := p99s[len(p99s)/2]
			c.Points = append(c.Points, plotter.XY{X: rate, Y: p99})
			c.Errors = append(c.Errors, struct{ Low, High float64 }{p99 - p99s[0], p99s[len(p99s)-1] - p99})
		}
		if len(c.Points) > 0 {
			curves = append(curves, c)
		}
	}
	return curves
}

// colorOf returns the color of the curve with number i, that of the algorithm if
// it is of one of weir's own policies.
func colorOf(name string, i int) color.Color {
	if c, ok := policyColors[name]; ok {
		return c
	}
	return report.Color(i)
}

var policyColors = map[string]color.Color{
	"default": report.Blue, "fixed": report.Vermillion, "sliding": report.Sky, "sliding-15s": report.Blue, "sliding-1s": report.Indigo,
	"strict": report.Green, "token": report.Purple, "leaky": report.Purple, "log": report.Wine,
}

// latencyPlot plots latencies in ms on logarithmic axes.
func latencyPlot(title, axis string, ticks plot.Ticker, curves []report.Curve) *report.Plot {
	for i := range curves {
		curves[i].Color = colorOf(curves[i].Name, i)
	}
	return report.LogPlot(title, axis, "ms", ticks, 2, curves)
}

// percents are the ticks of an axis on which x stands for all checks but one in
// x.
var percents = report.Ticks{1: "0", 2: "50", 10: "90", 100: "99", 1e3: "99.9", 1e4: "99.99", 1e5: "99.999"}

// doublings are ticks at 1, 2 and 5 times powers of ten.
func doublings() report.Ticks {
	ticks := make(report.Ticks)
	for power := 1.0; power <= mostRate; power *= 10 {
		for _, x := range []float64{power, 2 * power, 5 * power} {
			ticks[x] = fmt.Sprintf("%g", x)
			if x >= 1000 {
				ticks[x] = fmt.Sprintf("%gk", x/1000)
			}
		}
	}
	return ticks
}
