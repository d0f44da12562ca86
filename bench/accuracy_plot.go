package main

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"weir/bench/accuracy"
)

// estimateColors are of the algorithms that have a panel in the pictures of
// traffic.
var estimateColors = map[string]color.Color{
	accuracy.Fixed:     color.RGBA{R: 213, G: 94, A: 255},
	accuracy.Sliding1:  color.RGBA{G: 114, B: 178, A: 255},
	accuracy.Sliding4:  color.RGBA{G: 158, B: 115, A: 255},
	accuracy.Sliding60: color.RGBA{R: 204, G: 121, B: 167, A: 255},
}

var (
	trueColor  = color.RGBA{R: 205, G: 205, B: 205, A: 255}
	limitColor = color.RGBA{R: 60, G: 60, B: 60, A: 255}
)

// draw draws accuracy against cost, and each trace.
func (r *accuracyReport) draw(dir string) ([]picture, error) {
	p, err := costPlot(r)
	if err != nil {
		return nil, err
	}
	pictures := []picture{{"accuracy-cost", "the mean difference against the keys of a cold check"}}
	if err := drawGrid([][]*plot.Plot{{p}}, 7*vg.Inch, 4.5*vg.Inch, dir, pictures[0].name); err != nil {
		return nil, err
	}
	for _, t := range r.Traces {
		panels, err := tracePanels(t)
		if err != nil {
			return nil, err
		}
		shown := picture{"accuracy-" + t.Traffic, "true count and estimates, " + t.Traffic}
		if err := drawGrid(panels, 10*vg.Inch, 6*vg.Inch, dir, shown.name); err != nil {
			return nil, err
		}
		pictures = append(pictures, shown)
	}
	return pictures, nil
}

// draw draws how many verdicts were wrong when only admitted requests count.
func (r *scaleReport) draw(dir string) ([]picture, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = "Wrong decisions", "% of all requests"
	const width = 12
	var names []string
	for i, side := range []struct {
		name  string
		wrong func(accuracy.Difference) int64
	}{
		{"wrongly admitted", func(d accuracy.Difference) int64 { return d.WronglyAdmitted }},
		{"wrongly denied", func(d accuracy.Difference) int64 { return d.WronglyDenied }},
	} {
		var shares plotter.Values
		names = names[:0]
		for _, row := range r.Rows {
			if row.Algorithm == accuracy.Fixed {
				continue // all others would be flat beside it
			}
			names = append(names, row.Algorithm)
			shares = append(shares, 100*float64(side.wrong(row.Feedback))/float64(max(1, r.Requests)))
		}
		if len(names) == 0 {
			return nil, nil
		}
		bars, err := plotter.NewBarChart(shares, vg.Points(width))
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width, bars.Offset = policyColors[i], 0, vg.Points(width*(float64(i)-0.5))
		p.Add(bars)
		p.Legend.Add(side.name, bars)
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.NominalX(names...)
	shown := picture{"accuracy-scale", "wrong decisions of all but the fixed window, when only admitted requests count"}
	return []picture{shown}, drawGrid([][]*plot.Plot{{p}}, 8*vg.Inch, 4.5*vg.Inch, dir, shown.name)
}

// tracePanels plots a trace, two algorithms in a row, all on the same scale.
func tracePanels(t accuracy.Trace) ([][]*plot.Plot, error) {
	points := func(values []int64) plotter.XYs {
		xys := make(plotter.XYs, len(values))
		for i, v := range values {
			xys[i] = plotter.XY{X: float64(i) * t.Every.Minutes(), Y: float64(v)}
		}
		return xys
	}
	highest := float64(t.Limit)
	for _, e := range append(t.Estimates, accuracy.Estimate{Values: t.True}) {
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
func costPlot(r *accuracyReport) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "Diminishing returns"
	p.X.Label.Text, p.Y.Label.Text = "keys named by a cold check", "mean difference, % of the true count"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = powersOfTen{}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.Add(plotter.NewGrid())
	var ticks plot.ConstantTicks
	for i, traffic := range []string{accuracy.Bursty, accuracy.Poisson} {
		var curve plotter.XYs
		var names []string
		for _, cost := range r.Costs {
			row, ok := r.find(traffic, 1, cost.Algorithm)
			if !ok || !cost.Counters || cost.Algorithm == accuracy.Strict60 || row.All.Sum == 0 {
				continue
			}
			curve = append(curve, plotter.XY{X: float64(cost.Keys), Y: 100 * row.All.Relative()})
			names = append(names, cost.Algorithm)
			ticks = append(ticks, plot.Tick{Value: float64(cost.Keys), Label: strconv.Itoa(cost.Keys)})
		}
		line, dots, err := plotter.NewLinePoints(curve)
		if err != nil {
			return nil, err
		}
		line.Color = []color.Color{estimateColors[accuracy.Fixed], estimateColors[accuracy.Sliding1]}[i]
		line.Width, dots.Shape, dots.Color, dots.Radius = vg.Points(2), draw.CircleGlyph{}, line.Color, vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(traffic, line, dots)
		if i == 0 {
			labels, err := plotter.NewLabels(plotter.XYLabels{XYs: curve, Labels: names})
			if err != nil {
				return nil, err
			}
			labels.Offset = vg.Point{X: vg.Points(5), Y: vg.Points(5)}
			p.Add(labels)
		}
	}
	p.X.Tick.Marker = ticks
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.9, 100, 0.1, 100
	return p, nil
}
