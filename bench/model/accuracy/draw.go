package accuracy

import (
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// Pictures plot how each way to settle does for wrong estimates, and each trace.
func (r *Report) Pictures() (pictures []report.Picture) {
	if len(r.Settled) > 0 {
		pictures = append(pictures, report.Picture{Name: "accuracy-settled", Shows: "tokens admitted of a limit, by how wrong estimates are", Plots: [][]*report.Plot{{
			r.settledPlot("Fullest window", "x limit", settledRow.over), r.settledPlot("Admitted", "% of an exact log", settledRow.ofLog),
		}}})
	}
	for _, t := range r.Traces {
		pictures = append(pictures, report.Picture{Name: "accuracy-" + t.Name, Shows: t.Shows, Plots: t.panels()})
	}
	return pictures
}

// panels plots a trace in two rows, an algorithm in each panel, all on the same
// scale.
func (t trace) panels() [][]*report.Plot {
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

// panel plots the true count as an area, and an algorithm's estimate as a line.
// The first panel has the legend.
func (t trace) panel(first bool, e traceEstimate) *report.Plot {
	truth, name := t.True, "true"
	if e.Admitted != nil {
		truth, name = e.Admitted, "admitted"
	}
	from, every, unit := t.From.Minutes(), t.Every.Minutes(), "minutes"
	if every*float64(len(truth)) <= 2 {
		from, every, unit = 60*from, 60*every, "seconds"
	}
	p := report.NewPlot(e.Algorithm, unit, "in the last 60 s")
	p.Legend.Top = true
	line := func(values []int64, width float64) *plotter.Line {
		points := make(plotter.XYs, len(values))
		for i, v := range values {
			points[i] = plotter.XY{X: from + float64(i)*every, Y: float64(v)}
		}
		return p.Line(points, width, algorithms.Named(e.Algorithm).Color)
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
	p.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: documentLimit, Label: "100"}, {Value: 2 * documentLimit, Label: "200"}}
	return p
}

// settledPlot plots a figure of each way against how wrong estimates are.
func (r *Report) settledPlot(title, axis string, figure func(settledRow) float64) *report.Plot {
	p := report.NewPlot(title, "estimate / cost", axis)
	position := func(factor float64) float64 { return math.Log2(factor / factors[0]) }
	var ticks plot.ConstantTicks
	for _, factor := range factors {
		ticks = append(ticks, plot.Tick{Value: position(factor), Label: strconv.FormatFloat(factor, 'g', -1, 64)})
	}
	for i, way := range ways {
		var points plotter.XYs
		for _, row := range r.Settled {
			if row.Way == way {
				points = append(points, plotter.XY{X: position(row.Factor), Y: figure(row)})
			}
		}
		p.Legend.Add(way, p.Line(points, 2, []color.Color{report.Green, report.Dark, report.Orange}[i]))
	}
	p.X.Tick.Marker = ticks
	return p
}
