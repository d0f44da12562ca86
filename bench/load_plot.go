package main

import (
	"fmt"
	"image/color"
	"maps"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// policyColors can be told apart by everyone (Okabe and Ito).
var policyColors = []color.Color{
	color.RGBA{G: 114, B: 178, A: 255}, color.RGBA{R: 213, G: 94, A: 255}, color.RGBA{G: 158, B: 115, A: 255}, color.RGBA{R: 204, G: 121, B: 167, A: 255},
	color.RGBA{R: 230, G: 159, A: 255}, color.RGBA{R: 86, G: 180, B: 233, A: 255}, color.RGBA{A: 255},
}

// A curveOf is what a policy's line goes through.
type curveOf struct {
	policy string
	points plotter.XYs
}

// draw draws latency against percentile and, after a ramp or a search, p99 against
// rate. What wasn't measured is left out.
func (r *loadReport) draw(dir string) ([]picture, error) {
	var row []*plot.Plot
	if curves := r.percentiles(); len(curves) > 0 {
		p, err := latencyPlot("Latency by percentile", "percentile", curves)
		if err != nil {
			return nil, err
		}
		p.X.Tick.Marker, p.X.Min = percents{}, 1
		row = append(row, p)
	}
	if curves := r.byRate(); len(curves) > 0 {
		p, err := latencyPlot("p99 by rate", "checks/s", curves)
		if err != nil {
			return nil, err
		}
		p.X.Tick.Marker = doublings{}
		if len(r.Searches) > 0 {
			bound, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: inMilliseconds(r.Bound)}, {X: p.X.Max, Y: inMilliseconds(r.Bound)}})
			if err != nil {
				return nil, err
			}
			bound.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
			p.Add(bound)
			p.Legend.Add("bound", bound)
		}
		row = append(row, p)
	}
	if len(row) == 0 {
		return nil, nil
	}
	p := picture{"load", "latency by percentile, and by rate"}
	return []picture{p}, drawPicture(dir, p.name, row...)
}

// percentiles returns the latency in ms at one in x checks beyond.
func (r *loadReport) percentiles() []curveOf {
	var curves []curveOf
	for _, row := range r.Rows {
		c := curveOf{policy: row.Policy}
		for _, p := range row.Curve {
			c.points = append(c.points, plotter.XY{X: 100 / (100 - p.Percent), Y: inMilliseconds(p.Latency)})
		}
		if len(c.points) > 0 {
			curves = append(curves, c)
		}
	}
	return curves
}

// byRate returns p99 in ms at the rates of a ramp or a search: when a rate was
// tried several times the one in the middle, which decided, or the worse of two.
func (r *loadReport) byRate() []curveOf {
	var curves []curveOf
	add := func(policy string, figures []loadFigures) {
		tries := make(map[float64][]float64)
		for _, f := range figures {
			if f.Latency != nil && f.Rate > 0 && f.Latency.P99 > 0 {
				tries[f.Rate] = append(tries[f.Rate], inMilliseconds(f.Latency.P99))
			}
		}
		c := curveOf{policy: policy}
		for _, rate := range slices.Sorted(maps.Keys(tries)) {
			p99s := slices.Sorted(slices.Values(tries[rate]))
			c.points = append(c.points, plotter.XY{X: rate, Y: p99s[len(p99s)/2]})
		}
		if len(c.points) > 0 {
			curves = append(curves, c)
		}
	}
	for _, row := range r.Searches {
		figures := make([]loadFigures, len(row.Steps))
		for i, step := range row.Steps {
			figures[i] = step.loadFigures
		}
		add(row.Policy, figures)
	}
	if r.Ramp {
		for _, row := range r.Rows {
			add(row.Policy, row.Slices)
		}
	}
	return curves
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// latencyPlot plots latencies in ms on logarithmic axes.
func latencyPlot(title, axis string, curves []curveOf) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, axis, "ms"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = powersOfTen{}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(6)
	least, most := math.Inf(1), 0.0
	for i, c := range curves {
		line, dots, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(2), policyColors[i%len(policyColors)]
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, line.Color, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(c.policy, line, dots)
		for _, point := range c.points {
			least, most = min(least, point.Y), max(most, point.Y)
		}
	}
	// A logarithmic axis has labels at powers of ten only.
	p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(least)))), math.Pow10(int(math.Floor(math.Log10(most)))+1)
	return p, nil
}

// percents are the ticks of an axis on which x stands for all checks but one in x.
type percents struct{}

// Ticks implements plot.Ticker.
func (percents) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for _, percent := range []float64{0, 50, 90, 99, 99.9, 99.99, 99.999} {
		if x := 100 / (100 - percent); x >= low*(1-1e-9) && x <= high*(1+1e-9) {
			ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprintf("%g", percent)})
		}
	}
	return ticks
}

// doublings are ticks at 1, 2 and 5 times powers of ten.
type doublings struct{}

// Ticks implements plot.Ticker.
func (doublings) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for power := math.Pow10(int(math.Floor(math.Log10(low)))); power <= high; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			x := digit * power
			if x < low || x > high {
				continue
			}
			label := fmt.Sprintf("%g", x)
			if x >= 1000 {
				label = fmt.Sprintf("%gk", x/1000)
			}
			ticks = append(ticks, plot.Tick{Value: x, Label: label})
		}
	}
	return ticks
}
