package accuracy

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// Pictures are accuracy against cost, each trace, and the attacks.
func (r *Report) Pictures() []report.Picture {
	pictures := []report.Picture{report.NewPicture("accuracy-cost", "the mean difference against the keys of a cold check", 7, costPlot(r))}
	for _, t := range append([]Trace{r.Curves}, append(r.Traces, r.Attacked)...) {
		if len(t.Estimates) > 0 {
			name, shows := t.picture()
			pictures = append(pictures, report.Picture{Name: name, Shows: shows, Width: 11 * vg.Inch, Height: 6 * vg.Inch, Plots: t.panels()})
		}
	}
	return pictures
}

// picture returns the name of a trace's picture, and what it shows.
func (t Trace) picture() (name, shows string) {
	switch name = "accuracy-" + t.Traffic; {
	case t.Traffic == curvesName:
		return name, "what windows believe of random traffic, from its first request on, and what is true"
	case len(t.True) == 0:
		return name, "what the attack written for each algorithm gets in a window, and what the algorithm believes"
	case t.Enforced && t.alike():
		return name + "-enforced", fmt.Sprintf("by how much each is wrong about what it admits of %s traffic at %g times the limit", t.Traffic, t.Demand)
	case t.Enforced:
		return name + "-enforced", fmt.Sprintf("what each admits of %s traffic at %g times the limit, and what it believes", t.Traffic, t.Demand)
	default:
		return name, "by how much each is wrong about " + t.Traffic + " traffic while it denies nothing"
	}
}

// alike reports whether what algorithms believe is so near to the truth that the
// difference shows more. Without enforcement it always is, but for the fixed
// window's; curves show both. What a bucket holds is no count.
func (t Trace) alike() bool {
	if !t.Enforced {
		return t.Traffic != curvesName
	}
	for _, e := range t.Estimates {
		if !countable(e) {
			continue
		}
		for i, v := range e.Values {
			if d := v - e.Admitted[i]; max(d, -d) > t.Limit/5 || 5*e.Admitted[i] < 3*t.Limit || 5*e.Admitted[i] > 6*t.Limit {
				return false
			}
		}
	}
	return true
}

// countable reports whether differences are of counts, and small ones.
func countable(e Estimate) bool {
	return e.Algorithm != algorithms.Fixed && algorithms.Named(e.Algorithm).Kind != algorithms.Bucket
}

// panels plots a trace, an algorithm in each panel: what it believes above what is
// true, or if that is alike for all the difference. Without enforcement the
// first panel has the truth.
func (t Trace) panels() [][]*report.Plot {
	var panels, same []*report.Plot
	alike := t.alike()
	if alike && !t.Enforced {
		panels = append(panels, t.panel(true, "true count", t.True, nil, nil))
	}
	for _, e := range t.Estimates {
		c, truth := algorithms.Named(e.Algorithm).Color(), t.True
		if t.Enforced {
			truth = e.Admitted
		}
		var p *report.Plot
		switch title := e.Algorithm; {
		case alike && !countable(e):
			panels = append(panels, t.panel(false, title+": estimate - "+t.truth()+", own scale", nil, differences(e.Values, truth), c))
			continue
		case alike:
			p = t.panel(false, title+": estimate - "+t.truth(), nil, differences(e.Values, truth), c)
		default:
			if t.Traffic == curvesName {
				title = windows(title)
			}
			p = t.panel(len(panels) == 0, title, truth, e.Values, c)
		}
		panels, same = append(panels, p), append(same, p)
	}
	low, high := 0.0, 1.0
	for _, p := range same {
		low, high = min(low, p.Y.Min), max(high, p.Y.Max)
	}
	for _, p := range same {
		p.Y.Min, p.Y.Max = low, high
	}
	for i, p := range panels {
		if !alike || !t.Enforced && i == 0 {
			p.Y.Max *= 1.3 // room for the legend
		}
	}
	columns := 3
	if t.Traffic == curvesName {
		columns = 2
	}
	rows := slices.Collect(slices.Chunk(panels, columns))
	last := len(rows) - 1
	rows[last] = append(rows[last], make([]*report.Plot, columns-len(rows[last]))...)
	return rows
}

// windows says what a window is made of.
func windows(name string) string {
	a := algorithms.Named(name)
	if a.Slots == 0 {
		return name
	}
	number := map[int]string{1: "two", 4: "five"}[a.Slots]
	if number == "" {
		number = strconv.Itoa(a.Slots + 1)
	}
	return fmt.Sprintf("%s: %s windows of %g s", name, number, a.Width(Window).Seconds())
}

// truth names what estimates are compared with.
func (t Trace) truth() string {
	if t.Enforced {
		return "admitted"
	}
	return "true"
}

// differences returns what is in values beyond what is true.
func differences(values, truth []int64) []int64 {
	all := make([]int64, len(values))
	for i, v := range values {
		all[i] = v - truth[i]
	}
	return all
}

// panel plots an area, if there is one, and a line. The first panel of a picture
// says what they are.
func (t Trace) panel(first bool, title string, area, values []int64, c color.Color) *report.Plot {
	from, unit, label := 0.0, t.Every.Minutes(), "minutes"
	if len(t.True) == 0 { // an attack begins at 0
		from, unit, label = t.From.Seconds(), t.Every.Seconds(), "seconds"
	}
	p := report.NewPlot(title, label, "")
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(2), vg.Points(6)
	points := func(values []int64) plotter.XYs {
		xys := make(plotter.XYs, len(values))
		for i, v := range values {
			xys[i] = plotter.XY{X: from + float64(i)*unit, Y: float64(v)}
		}
		return xys
	}
	say := func(what string, line *plotter.Line) {
		if first {
			p.Legend.Add(what, line)
		}
	}
	last := from + float64(max(len(area), len(values))-1)*unit
	level := func(y int64) plotter.XYs { return plotter.XYs{{X: 0, Y: float64(y)}, {X: last, Y: float64(y)}} }
	if area == nil {
		p.Line(level(0), 0.7, report.Dark)
	} else {
		filled := p.Line(points(area), 0, color.Black)
		filled.FillColor = report.Pale
		limit := p.Line(level(t.Limit), 1, report.Dark, 5, 3)
		if values != nil {
			say(t.truth(), filled)
		}
		say("limit", limit)
	}
	if values != nil {
		line := p.Line(points(values), 1.6, c)
		if area != nil {
			say("believed", line)
		}
	}
	if area != nil {
		p.Y.Label.Text, p.Y.Min = "in the last 60 s", 0
	}
	room := max(2, math.Ceil((p.Y.Max-p.Y.Min)*0.08)) // for the line
	if p.Y.Min < 0 {
		p.Y.Min -= room
	}
	p.Y.Max += room
	p.X.Tick.Marker, p.Y.Tick.Marker = report.WholeTicks{}, report.WholeTicks{}
	p.X.Min, p.X.Max = 0, last
	return p
}

// costPlot plots the mean difference of the windows that are made of counters
// against the keys of a cold check, for Poisson and bursty traffic of demand 1.
func costPlot(r *Report) *report.Plot {
	var curves []report.Curve
	var names []string
	ticks := make(report.Ticks)
	for i, traffic := range []string{Bursty, Poisson} {
		curve := report.Curve{Name: traffic, Color: []color.Color{report.Dark, report.Gray}[i]}
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
	p := report.LogPlot("Diminishing returns", "keys named by a cold check", "mean difference, % of the true count", ticks, 3, curves)
	p.Labels(curves[0].Points, names)
	p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = false, 0, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.9, 100, 0.1, 100
	p.Y.Tick.Marker = report.Ticks{0.1: "0.1", 0.2: "0.2", 0.5: "0.5", 1: "1", 2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 100: "100"}
	return p
}

// Pictures are how many decisions were wrong when only admitted requests count.
func (r *ScaleReport) Pictures() []report.Picture {
	if len(r.Rows) == 0 {
		return nil
	}
	var names []string
	admitted, denied := report.Series{Name: "wrongly admitted"}, report.Series{Name: "wrongly denied"}
	for _, row := range r.Rows {
		names = append(names, row.Algorithm)
		admitted.Values = append(admitted.Values, 100*ratio(row.Feedback.WronglyAdmitted, r.Requests))
		denied.Values = append(denied.Values, 100*ratio(row.Feedback.WronglyDenied, r.Requests))
	}
	p := report.BarPlot("Wrong decisions", "% of all requests", 16, names, []report.Series{admitted, denied})
	return []report.Picture{report.NewPicture(scaleFile(r.Like), "wrong decisions, when only admitted requests count", 8, p)}
}
