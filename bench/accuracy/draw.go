package accuracy

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
)

// Draw draws accuracy against cost, each trace, and the attacks.
func (r *Report) Draw(dir string) ([]report.Picture, error) {
	p, err := costPlot(r)
	if err != nil {
		return nil, err
	}
	pictures, err := report.DrawGrid(dir, "accuracy-cost", "the mean difference against the keys of a cold check", 7*vg.Inch, 4.5*vg.Inch, [][]*plot.Plot{{p}})
	if err != nil {
		return nil, err
	}
	for _, t := range append([]Trace{r.Curves}, append(r.Traces, r.Attacked)...) {
		if len(t.Estimates) == 0 {
			continue
		}
		panels, err := t.panels()
		if err != nil {
			return nil, err
		}
		name, shows := t.picture()
		drawn, err := report.DrawGrid(dir, name, shows, 11*vg.Inch, 6*vg.Inch, panels)
		if err != nil {
			return nil, err
		}
		pictures = append(pictures, drawn...)
	}
	return pictures, nil
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
func (t Trace) panels() ([][]*plot.Plot, error) {
	var panels, same []*plot.Plot
	alike := t.alike()
	if alike && !t.Enforced {
		p, err := t.panel(true, "true count", t.True, nil, nil)
		if err != nil {
			return nil, err
		}
		panels = append(panels, p)
	}
	for _, e := range t.Estimates {
		c := algorithms.Named(e.Algorithm).Color()
		truth := t.True
		if t.Enforced {
			truth = e.Admitted
		}
		if !alike {
			title := e.Algorithm
			if t.Traffic == curvesName {
				title = windows(e.Algorithm)
			}
			p, err := t.panel(len(panels) == 0, title, truth, e.Values, c)
			if err != nil {
				return nil, err
			}
			panels, same = append(panels, p), append(same, p)
			continue
		}
		title := e.Algorithm + ": estimate - " + t.truth()
		if !countable(e) {
			title += ", own scale"
		}
		p, err := t.panel(false, title, nil, differences(e.Values, truth), c)
		if err != nil {
			return nil, err
		}
		panels = append(panels, p)
		if countable(e) {
			same = append(same, p)
		}
	}
	low, high := 0.0, 1.0
	for _, p := range same {
		low, high = min(low, p.Y.Min), max(high, p.Y.Max)
	}
	for _, p := range same {
		p.Y.Min, p.Y.Max = low, high
	}
	const forLegend = 1.3
	switch {
	case !alike:
		for _, p := range panels {
			p.Y.Max *= forLegend
		}
	case !t.Enforced:
		panels[0].Y.Max *= forLegend
	}
	if t.Traffic == curvesName {
		return grid(panels, 2), nil
	}
	return grid(panels, 3), nil
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

// grid returns rows of panels; the last may have room.
func grid(panels []*plot.Plot, columns int) [][]*plot.Plot {
	var rows [][]*plot.Plot
	for i, p := range panels {
		if i%columns == 0 {
			rows = append(rows, make([]*plot.Plot, columns))
		}
		rows[i/columns][i%columns] = p
	}
	return rows
}

// panel plots an area, if there is one, and a line. The first panel of a picture
// says what they are.
func (t Trace) panel(first bool, title string, area, values []int64, c color.Color) (*plot.Plot, error) {
	p := plot.New()
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(2), vg.Points(6)
	from, unit, label := 0.0, t.Every.Minutes(), "minutes"
	if len(t.True) == 0 { // an attack begins at 0
		from, unit, label = t.From.Seconds(), t.Every.Seconds(), "seconds"
	}
	p.Title.Text, p.X.Label.Text = title, label
	points := func(values []int64) plotter.XYs {
		xys := make(plotter.XYs, len(values))
		for i, v := range values {
			xys[i] = plotter.XY{X: from + float64(i)*unit, Y: float64(v)}
		}
		return xys
	}
	last := from + float64(max(len(area), len(values))-1)*unit
	if area != nil {
		filled, err := plotter.NewLine(points(area))
		if err != nil {
			return nil, err
		}
		filled.LineStyle.Width, filled.FillColor = 0, report.Pale
		limit, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(t.Limit)}, {X: last, Y: float64(t.Limit)}})
		if err != nil {
			return nil, err
		}
		limit.Width, limit.Color, limit.Dashes = vg.Points(1), report.Dark, []vg.Length{vg.Points(5), vg.Points(3)}
		p.Add(filled, limit)
		if values != nil && first {
			p.Legend.Add(t.truth(), filled)
		}
		if first {
			p.Legend.Add("limit", limit)
		}
	}
	if area == nil {
		zero, err := plotter.NewLine(plotter.XYs{{X: 0}, {X: last}})
		if err != nil {
			return nil, err
		}
		zero.Width, zero.Color = vg.Points(0.7), report.Dark
		p.Add(zero)
	}
	if values != nil {
		line, err := plotter.NewLine(points(values))
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(1.6), c
		p.Add(line)
		if area != nil && first {
			p.Legend.Add("believed", line)
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
	return p, nil
}

// costPlot plots the mean difference of the windows that are made of counters
// against the keys of a cold check, for Poisson and bursty traffic of demand 1.
func costPlot(r *Report) (*plot.Plot, error) {
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
	p.Y.Tick.Marker = report.Ticks{0.1: "0.1", 0.2: "0.2", 0.5: "0.5", 1: "1", 2: "2", 5: "5", 10: "10", 20: "20", 50: "50", 100: "100"}
	return p, nil
}

// Draw draws how many decisions were wrong when only admitted requests count.
func (r *ScaleReport) Draw(dir string) ([]report.Picture, error) {
	if len(r.Rows) == 0 {
		return nil, nil
	}
	var names []string
	admitted, denied := report.Series{Name: "wrongly admitted"}, report.Series{Name: "wrongly denied"}
	share := func(n int64) float64 { return 100 * float64(n) / float64(max(1, r.Requests)) }
	for _, row := range r.Rows {
		names = append(names, row.Algorithm)
		admitted.Values = append(admitted.Values, share(row.Feedback.WronglyAdmitted))
		denied.Values = append(denied.Values, share(row.Feedback.WronglyDenied))
	}
	p, err := report.BarPlot("Wrong decisions", "% of all requests", 16, names, []report.Series{admitted, denied})
	if err != nil {
		return nil, err
	}
	shows := "wrong decisions, when only admitted requests count"
	return report.DrawGrid(dir, r.file(), shows, 8*vg.Inch, 4.5*vg.Inch, [][]*plot.Plot{{p}})
}
