package accuracy

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// An Report is what accuracy measured. The same seed gives the same, but for
// the machine and the speeds.
type Report struct {
	Machine   report.Machine `json:"machine"`
	Seed      uint64         `json:"seed"`
	Window    time.Duration  `json:"window_ns"`
	Workloads []Workload     `json:"workloads"`
	Costs     []coldCheck    `json:"costs"`
	Rows      []Row          `json:"rows"`
	Attacks   []AttackRow    `json:"attacks"`
	Speeds    []Speed        `json:"speeds"`
	Traces    []Trace        `json:"traces"`
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
func (r *Report) targets() report.Targets {
	var targets report.Targets
	ratio := func(traffic string, demand float64, how string, mean func(Row) float64, most float64) {
		one, ok1 := r.find(traffic, demand, algorithms.Sliding1)
		sixty, ok60 := r.find(traffic, demand, algorithms.Sliding60)
		if ok1 && ok60 {
			share := mean(sixty) / mean(one)
			targets.Add(share <= most, "%s, demand %g, %s: mean difference of N=60 %.3f of N=1's, at most %.3f", traffic, demand, how, share, most)
		}
	}
	for _, demand := range Demands() {
		for _, traffic := range []string{Poisson, Bursty, FrontLoaded, BackLoaded} {
			most := targetUneven
			if traffic == Poisson {
				most = targetPoisson
			}
			ratio(traffic, demand, "every request counts", func(row Row) float64 { return row.All.Mean() }, most)
			if demand <= targetDemand {
				ratio(traffic, demand, "admitted count", func(row Row) float64 { return row.Feedback.Mean() }, most)
			}
		}
	}
	if row, ok := r.find(Boundary, 1, algorithms.Fixed); ok {
		targets.Add(row.Fullest >= 2*row.Limit-1 && row.Fullest <= 2*row.Limit,
			"boundary attacker: fixed admits %.2f L in a window, 2.00 L", float64(row.Fullest)/float64(row.Limit))
	}
	for _, name := range []string{algorithms.Strict60, algorithms.Log} {
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
		targets.Add(fullest <= 1, "all traffic and all attacks: %s admits %.2f L in a window, at most 1.00 L", name, fullest)
	}
	for _, row := range r.Attacks {
		if row.Worst() > row.Bound {
			targets.Add(false, "attacks: %s admits %d in a window, at most %d", row.Algorithm, row.Worst(), row.Bound)
		}
	}
	return targets
}

// speedTargets returns the speeds that are aimed at.
func (r *Report) speedTargets() report.Targets {
	var targets report.Targets
	for _, s := range r.Speeds {
		if r.cost(s.Algorithm).Counters {
			targets.Add(s.PerSecond() >= targetSpeed,
				"%s: %.2f million decisions/s per core, at least %.0f", s.Algorithm, s.PerSecond()/1e6, targetSpeed/1e6)
		}
	}
	return targets
}

// Broken returns an error that says which targets were missed, but for speeds.
func (r *Report) Broken() error {
	var errs []error
	for _, t := range r.targets() {
		if !t.Met {
			errs = append(errs, errors.New(t.String()))
		}
	}
	return errors.Join(errs...)
}

func (r *Report) find(traffic string, demand float64, algorithm string) (Row, bool) {
	return report.Find(r.Rows, func(row Row) bool {
		return row.Traffic == traffic && row.Demand == demand && row.Algorithm == algorithm
	})
}

// cost returns the costs of an algorithm.
func (r *Report) cost(algorithm string) coldCheck {
	c, _ := report.Find(r.Costs, func(c coldCheck) bool { return c.Algorithm == algorithm })
	return c
}

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
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
`, ZipfDemand)
	r.printAttacks(out)
	fmt.Fprintln(out)
	r.targets().Print(out)
	r.speedTargets().Print(out)
}

func (r *Report) printTraffic(out io.Writer, w Workload) {
	title := fmt.Sprintf("%s: %s; L = %d", w.Name, w.Description, w.Limit)
	report.Table(out, title, "\t\tadmitted count\t\t\t\t\t\t\t\tevery request counts\t\t\t\t\t\n"+
		"demand\talgorithm\tmean\tworst\twrongly +\twrongly -\tmost\tavg\tgo on\tof log\tmean\t%\tworst\twrongly +\twrongly -\t", func(t io.Writer) {
		for _, row := range r.Rows {
			if row.Traffic != w.Name {
				continue
			}
			limit := float64(row.Limit)
			fmt.Fprintf(t, "%g\t%s\t%.2f\t%d\t%s%.2f L\t%.2f L\t%.2f L\t%.1f%%\t%.2f\t%.2f%%\t%d\t%s\n",
				row.Demand, row.Algorithm, row.Feedback.Mean(), row.Feedback.Worst, row.Feedback.wrong(),
				float64(row.Fullest)/limit, row.MeanWindow/limit, float64(row.FullestReleased)/limit, 100*float64(row.Admitted)/float64(row.LogAdmitted),
				row.All.Mean(), 100*row.All.Relative(), row.All.Worst, row.All.wrong())
		}
	})
}

// wrong returns the cells of the shares of wrong verdicts.
func (d Difference) wrong() string {
	return report.Percent(ratio(d.WronglyAdmitted, d.Requests)) + "\t" + report.Percent(ratio(d.WronglyDenied, d.Requests)) + "\t"
}

func (r *Report) printAttacks(out io.Writer) {
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

// A ScaleReport is what accuracy -scale measured. The same seed and number of
// requests give the same, but for the machine, the speeds and the time it took.
type ScaleReport struct {
	Machine report.Machine `json:"machine"`
	Seed    uint64         `json:"seed"`
	Elapsed time.Duration  `json:"elapsed_ns"`
	PopulationFigures
	Speeds []Speed `json:"speeds"`
}

// Print writes the figures as a table, and what is comparable.
func (r *ScaleReport) Print(out io.Writer) {
	fmt.Fprintf(out, "%d requests from %d clients in %v of virtual time, limit %d a minute, seed %d; %v on %d cores, %s\n",
		r.Requests, r.Clients, r.Length, r.Limit, r.Seed, r.Elapsed.Round(time.Second), r.Machine.Cores, r.Machine.Go)
	fmt.Fprintf(out, "%d clients (%.2f%%) ask for more than the limit on average, and for %.0f%% of all requests; %d never had more than the limit in a window\n",
		r.Above, 100*float64(r.Above)/float64(r.Clients), 100*float64(r.AboveRequests)/float64(r.Requests), r.Below)
	report.Table(out, "", "\tadmitted count\t\t\t\tevery request counts\t\t\tclients\t\t\t\n"+
		"algorithm\tadmitted\twrongly +\twrongly -\tmean\twrongly +\twrongly -\tmean\tlimited, below\tunlimited, above\tdecisions/s per core\t", func(t io.Writer) {
		for i, row := range r.Rows {
			all := "-\t-\t-"
			if row.All.Requests > 0 {
				all = fmt.Sprintf("%s%.2f%%", row.All.wrong(), 100*row.All.Relative())
			}
			fmt.Fprintf(t, "%s\t%.2f%%\t%s%.2f%%\t%s\t%d\t%d\t%.0f\t\n", row.Algorithm, 100*float64(row.Admitted)/float64(r.Requests),
				row.Feedback.wrong(), 100*row.Feedback.Relative(), all, row.BelowLimited, row.OthersUnlimited, r.Speeds[i].PerSecond())
		}
		fmt.Fprintf(t, "Cloudflare\t\t\t\t\t%s wrong\t\t%.0f%%\t0\t\t\t\n", report.Percent(cloudflareWrong), 100*cloudflareMean)
	})
	fmt.Fprintf(out, `
wrongly +, -      share of all requests that were admitted although they and the true count are more than the limit, denied although they fit
mean              of |estimate - true count|, as a part of the mean true count; the estimate of token and leaky is what their bucket holds
limited, below    clients who never had more than the limit in a window, and were denied something
unlimited, above  the others who were denied nothing
The log is the true count, and a bucket counts no window: so neither has figures with every request counted.
The last two are the same whether denied requests count or not: up to the first denial all have been counted.
Of each 20 clients `)
	var mix []string
	for _, m := range PopulationMix {
		mix = append(mix, fmt.Sprintf("%d are %s", m.Share, m.Pattern))
	}
	fmt.Fprintf(out, `%s; how much they ask for follows Zipf's law with exponent %g.

Cloudflare (2017) measured two counters, which is N=1, on its own traffic: %d million requests from %d sources. That every request
counted there, as on the right of this table, is an assumption; so is that its differences were taken in the same way.
Comparable: the number of requests and of clients, and the algorithm. Not comparable: the traffic. Wrong verdicts come only from clients
near their limit, and a mean difference from uneven ones; how many of either there are is published for neither the sources nor their
limits, and here it was chosen. So the order of the algorithms says more than the distance to Cloudflare's figures.
`, strings.Join(mix, ", "), PopulationExponent, PopulationRequests/1_000_000, PopulationClients)
}

// Broken returns an error if an exact algorithm was wrong.
func (r *ScaleReport) Broken() error {
	var errs []error
	for _, row := range r.Rows {
		switch {
		case (row.Algorithm == algorithms.Strict60 || row.Algorithm == algorithms.Log) && row.Feedback.WronglyAdmitted > 0:
			errs = append(errs, fmt.Errorf("%s admitted %d requests above the limit", row.Algorithm, row.Feedback.WronglyAdmitted))
		case row.Algorithm == algorithms.Log && row.Feedback.Sum+row.Feedback.WronglyDenied > 0:
			errs = append(errs, fmt.Errorf("%s wasn't the true count, or denied %d requests that fit", row.Algorithm, row.Feedback.WronglyDenied))
		}
	}
	return errors.Join(errs...)
}

// estimateColors are of the algorithms that have a panel in the pictures of
// traffic.
var estimateColors = map[string]color.Color{
	algorithms.Fixed: report.Vermillion, algorithms.Sliding1: report.Blue, algorithms.Sliding4: report.Green, algorithms.Sliding60: report.Purple,
}

var (
	trueColor  = color.RGBA{R: 205, G: 205, B: 205, A: 255}
	limitColor = color.RGBA{R: 60, G: 60, B: 60, A: 255}
)

// Draw draws accuracy against cost, and each trace.
func (r *Report) Draw(dir string) ([]report.Picture, error) {
	p, err := costPlot(r)
	if err != nil {
		return nil, err
	}
	pictures, err := report.DrawGrid(dir, "accuracy-cost", "the mean difference against the keys of a cold check", 7*vg.Inch, 4.5*vg.Inch, [][]*plot.Plot{{p}})
	if err != nil {
		return nil, err
	}
	for _, t := range r.Traces {
		panels, err := tracePanels(t)
		if err != nil {
			return nil, err
		}
		drawn, err := report.DrawGrid(dir, "accuracy-"+t.Traffic, "true count and estimates, "+t.Traffic, 10*vg.Inch, 6*vg.Inch, panels)
		if err != nil {
			return nil, err
		}
		pictures = append(pictures, drawn...)
	}
	return pictures, nil
}

// Draw draws how many verdicts were wrong when only admitted requests count.
func (r *ScaleReport) Draw(dir string) ([]report.Picture, error) {
	var names []string
	admitted, denied := report.Series{Name: "wrongly admitted"}, report.Series{Name: "wrongly denied"}
	share := func(n int64) float64 { return 100 * float64(n) / float64(max(1, r.Requests)) }
	for _, row := range r.Rows {
		if row.Algorithm == algorithms.Fixed {
			continue // all others would be flat beside it
		}
		names = append(names, row.Algorithm)
		admitted.Values = append(admitted.Values, share(row.Feedback.WronglyAdmitted))
		denied.Values = append(denied.Values, share(row.Feedback.WronglyDenied))
	}
	if len(names) == 0 {
		return nil, nil
	}
	p, err := report.BarPlot("Wrong decisions", "% of all requests", 12, names, []report.Series{admitted, denied})
	if err != nil {
		return nil, err
	}
	p.Legend.Left = true
	shows := "wrong decisions of all but the fixed window, when only admitted requests count"
	return report.DrawGrid(dir, "accuracy-scale", shows, 8*vg.Inch, 4.5*vg.Inch, [][]*plot.Plot{{p}})
}

// tracePanels plots a trace, two algorithms in a row, all on the same scale.
func tracePanels(t Trace) ([][]*plot.Plot, error) {
	points := func(values []int64) plotter.XYs {
		xys := make(plotter.XYs, len(values))
		for i, v := range values {
			xys[i] = plotter.XY{X: float64(i) * t.Every.Minutes(), Y: float64(v)}
		}
		return xys
	}
	highest := float64(t.Limit)
	for _, e := range append(t.Estimates, Estimate{Values: t.True}) {
		for _, v := range e.Values {
			highest = max(highest, float64(v))
		}
	}
	var rows [][]*plot.Plot
	for i, e := range t.Estimates {
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = t.Traffic+": "+e.Algorithm, "minutes", "requests in the last 60 s"
		truth, err := plotter.NewLine(points(t.True))
		if err != nil {
			return nil, err
		}
		truth.LineStyle.Width, truth.FillColor = 0, trueColor
		estimate, err := plotter.NewLine(points(e.Values))
		if err != nil {
			return nil, err
		}
		estimate.Width, estimate.Color = vg.Points(1.6), estimateColors[e.Algorithm]
		last := float64(len(t.True)-1) * t.Every.Minutes()
		limit, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(t.Limit)}, {X: last, Y: float64(t.Limit)}})
		if err != nil {
			return nil, err
		}
		limit.Width, limit.Color, limit.Dashes = vg.Points(1), limitColor, []vg.Length{vg.Points(5), vg.Points(3)}
		p.Add(truth, estimate, limit)
		p.X.Tick.Marker = wholeMinutes(last)
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, last, 0, highest*1.3 // room for the legend
		if i == 0 {
			p.Legend.Top = true
			p.Legend.Add("true count", area{trueColor})
			p.Legend.Add("estimate", estimate)
			p.Legend.Add("limit", limit)
		}
		if i%2 == 0 {
			rows = append(rows, nil)
		}
		rows[i/2] = append(rows[i/2], p)
	}
	return rows, nil
}

// wholeMinutes are about six ticks from 0 to last.
func wholeMinutes(last float64) plot.ConstantTicks {
	step := max(1, math.Round(last/6))
	var ticks plot.ConstantTicks
	for minute := 0.0; minute <= last; minute += step {
		ticks = append(ticks, plot.Tick{Value: minute, Label: strconv.FormatFloat(minute, 'g', -1, 64)})
	}
	return ticks
}

// area is the legend of a filled area.
type area struct{ color color.Color }

// Thumbnail implements plot.Thumbnailer.
func (a area) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(a.color, []vg.Point{c.Min, {X: c.Min.X, Y: c.Max.Y}, c.Max, {X: c.Max.X, Y: c.Min.Y}})
}

// costPlot plots the mean difference of the windows that are made of counters
// against the keys of a cold check, for Poisson and bursty traffic of demand 1.
func costPlot(r *Report) (*plot.Plot, error) {
	var curves []report.Curve
	var names []string
	ticks := make(report.Ticks)
	for i, traffic := range []string{Bursty, Poisson} {
		curve := report.Curve{Name: traffic, Color: []color.Color{report.Vermillion, report.Blue}[i]}
		for _, cost := range r.Costs {
			row, ok := r.find(traffic, 1, cost.Algorithm)
			if !ok || !cost.Counters || cost.Algorithm == algorithms.Strict60 || row.All.Sum == 0 {
				continue
			}
			curve.Points = append(curve.Points, plotter.XY{X: float64(cost.Keys), Y: 100 * row.All.Relative()})
			ticks[float64(cost.Keys)] = strconv.Itoa(cost.Keys)
			if i == 0 {
				names = append(names, cost.Algorithm)
			}
		}
		curves = append(curves, curve)
	}
	p, err := report.LogPlot("Diminishing returns", "keys named by a cold check", "mean difference, % of the true count", ticks, 3, curves)
	if err != nil {
		return nil, err
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: curves[0].Points, Labels: names})
	if err != nil {
		return nil, err
	}
	labels.Offset = vg.Point{X: vg.Points(5), Y: vg.Points(5)}
	p.Add(labels)
	p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = false, 0, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.9, 100, 0.1, 100
	return p, nil
}
