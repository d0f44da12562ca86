package accuracy

import (
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// Pictures are accuracy against cost, what estimates are worth, and each trace.
func (r *Report) Pictures() []report.Picture {
	pictures := []report.Picture{
		report.NewPicture("accuracy-cost", "the mean difference against Memcached's bytes for a client", 7, costPlot(r)),
	}
	if len(r.Settled) > 0 {
		pictures = append(pictures, report.NewPicture("accuracy-settled", "tokens admitted of a limit, by how wrong estimates are", 6, r.settledPlots()...))
	}
	for _, t := range r.Traces {
		pictures = append(pictures, report.Picture{
			Name: "accuracy-" + t.Name, Shows: t.Shows, Width: 11 * vg.Inch, Height: 6 * vg.Inch, Plots: t.panels(),
		})
	}
	return pictures
}

// panels plots a trace in two rows, an algorithm in each panel, all on the same
// scale.
func (t Trace) panels() [][]*report.Plot {
	var panels []*report.Plot
	most := 0.0
	for i, e := range t.Estimates {
		p := t.panel(i == 0, e)
		panels, most = append(panels, p), max(most, p.Y.Max)
	}
	for _, p := range panels {
		p.Y.Max = 1.3 * most // room for the legend
	}
	return slices.Collect(slices.Chunk(panels, len(panels)/2))
}

// panel plots what is true as an area, and what an algorithm believes as a line.
// The first panel says what they are.
func (t Trace) panel(first bool, e Estimate) *report.Plot {
	truth, name := t.True, "true"
	if e.Admitted != nil {
		truth, name = e.Admitted, "admitted"
	}
	from, every, unit := t.From.Minutes(), t.Every.Minutes(), "minutes"
	if every*float64(len(truth)) <= 2 {
		from, every, unit = 60*from, 60*every, "seconds"
	}
	p := report.NewPlot(e.Algorithm, unit, "in the last 60 s")
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(2), vg.Points(6)
	line := func(values []int64, width float64) *plotter.Line {
		points := make(plotter.XYs, len(values))
		for i, v := range values {
			points[i] = plotter.XY{X: from + float64(i)*every, Y: float64(v)}
		}
		return p.Line(points, width, algorithms.Named(e.Algorithm).Color())
	}
	area := line(truth, 0)
	area.FillColor = report.Pale
	last := from + float64(len(truth)-1)*every
	limit := p.Line(plotter.XYs{{X: from, Y: float64(t.Limit)}, {X: last, Y: float64(t.Limit)}}, 1, report.Dark, 5, 3)
	believed := line(e.Values, 1.6)
	if first {
		p.Legend.Add(name, area)
		p.Legend.Add("limit", limit)
		p.Legend.Add("believed", believed)
	}
	p.Y.Min, p.Y.Tick.Marker = 0, report.Ticks{0: "0", DocumentLimit: "100", 2 * DocumentLimit: "200"}
	return p
}

// settledPlots are the fullest window and what is admitted, against how wrong estimates
// are.
func (r *Report) settledPlots() []*report.Plot {
	var plots []*report.Plot
	ticks := make(report.Ticks)
	for _, factor := range factors() {
		ticks[factor] = strconv.FormatFloat(factor, 'g', -1, 64)
	}
	for _, of := range []struct {
		title, axis string
		figure      func(SettledRow) float64
		marks       report.Ticks
		low, high   float64
	}{
		{"Fullest window", "x limit", SettledRow.over, report.Ticks{0.5: "0.5", 1: "1", 2: "2", 3: "3", 4: "4"}, 0.5, 5},
		{"Admitted", "% of an exact log", SettledRow.ofLog, report.Ticks{25: "25", 50: "50", 100: "100", 200: "200"}, 25, 250},
	} {
		var curves []report.Curve
		for i, name := range ways {
			curve := report.Curve{Name: name, Color: report.Color(i)}
			if name == reserveName {
				curve.Color = algorithms.Named(algorithms.Strict60).Color()
			}
			for _, row := range r.Settled {
				if row.Way == name {
					curve.Points = append(curve.Points, plotter.XY{X: row.Factor, Y: of.figure(row)})
				}
			}
			curves = append(curves, curve)
		}
		p := report.LogPlot(of.title, "estimate / cost", of.axis, ticks, 3, curves)
		p.Y.Min, p.Y.Max, p.Y.Tick.Marker = of.low, of.high, of.marks
		if len(plots) > 0 {
			p.Legend = plot.NewLegend() // one is enough
		}
		plots = append(plots, p)
	}
	return plots
}

// costPlot plots the mean difference of weighted windows against what Memcached
// keeps of a client, for Poisson and bursty traffic of demand 1.
func costPlot(r *Report) *report.Plot {
	var curves []report.Curve
	var names []string
	ticks := make(report.Ticks)
	for i, traffic := range []string{Bursty, Poisson} {
		curve := report.Curve{Name: traffic, Color: report.Color(2 * i)}
		for _, cost := range r.Costs {
			row, ok := r.find(traffic, 1, cost.Algorithm)
			if a := algorithms.Named(cost.Algorithm); !ok || a.Kind != algorithms.Counters || a.Strict || row.All.Sum == 0 {
				continue
			}
			curve.Points = append(curve.Points, plotter.XY{X: float64(cost.Bytes), Y: 100 * row.All.Relative()})
			ticks[float64(cost.Bytes)] = strconv.Itoa(cost.Bytes)
			if i == 0 {
				names = append(names, cost.Algorithm)
			}
		}
		curves = append(curves, curve)
	}
	p := report.LogPlot("Diminishing returns", "Memcached's bytes for a client", "mean difference, % of the true count", ticks, 3, curves)
	p.Labels(curves[0].Points, names)
	p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = false, 0, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 200, 12_000, 0.1, 100
	p.Y.Tick.Marker = report.Ticks{0.1: "0.1", 0.2: "0.2", 0.5: "0.5", 1: "1", 2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 100: "100"}
	return p
}
