package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// loopColors can be told apart by everyone (Okabe and Ito).
var loopColors = map[string]color.Color{
	plainCAS:    color.RGBA{R: 213, G: 94, A: 255},
	combinedCAS: color.RGBA{G: 114, B: 178, A: 255},
	fixedSlots:  color.RGBA{G: 158, B: 115, A: 255},
	sixtySlots:  color.RGBA{R: 204, G: 121, B: 167, A: 255},
}

// draw draws decisions per second against callers and against processes, if
// they were measured.
func (r *contentionReport) draw(dir string) ([]picture, error) {
	if len(r.Rates) == 0 {
		return nil, nil
	}
	byCallers, err := panel("One process", "callers on one key", targetCallers, r.Rates, func(r rateRow) (int, bool) {
		return r.Callers, r.Processes == 1
	})
	if err != nil {
		return nil, err
	}
	byProcesses, err := panel(fmt.Sprintf("Several processes, %d callers each", callersPerProcess), "processes on one key", targetProcesses, r.Rates, func(r rateRow) (int, bool) {
		return r.Processes, r.Callers == callersPerProcess
	})
	if err != nil {
		return nil, err
	}
	// One legend is enough, and on the left it is in nobody's way.
	byProcesses.Legend = plot.NewLegend()
	p := picture{"contention", "decisions per second against callers and against processes"}
	return []picture{p}, drawPicture(dir, p.name, byCallers, byProcesses)
}

// panel plots the rates of the rows that at selects, where it says, on an axis from 1 to
// most.
func panel(title, axis string, most int, rows []rateRow, at func(rateRow) (x int, ok bool)) (*plot.Plot, error) {
	var curves []curve
	ticks := make(map[float64]string)
	for _, loop := range loops {
		c := curve{name: loop, color: loopColors[loop]}
		for _, r := range rows {
			if x, ok := at(r); ok && r.Loop == loop && r.Rate > 0 {
				c.points = append(c.points, plotter.XY{X: float64(x), Y: r.Rate})
				ticks[float64(x)] = strconv.Itoa(x)
			}
		}
		curves = append(curves, c)
	}
	p, err := logPlot(title, axis, "decisions/s", ticks, curves)
	if err != nil {
		return nil, err
	}
	p.X.Min, p.X.Max = 1, float64(most)
	// Both panels have the same scale. Its ends are powers of ten because a
	// logarithmic axis has labels there only.
	slowest, fastest := math.Inf(1), 1.0
	for _, r := range rows {
		if r.Rate > 0 {
			slowest, fastest = min(slowest, r.Rate), max(fastest, r.Rate)
		}
	}
	p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(slowest)))), math.Pow10(int(math.Floor(math.Log10(fastest)))+1)
	return p, nil
}

// A curve is a line through points, with a name in the legend.
type curve struct {
	name   string
	color  color.Color
	points plotter.XYs
}

// logPlot plots the curves that have points on two logarithmic axes, of which
// the first has the given ticks.
func logPlot(title, xAxis, yAxis string, ticks map[float64]string, curves []curve) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xAxis, yAxis
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	var marks plot.ConstantTicks
	for x, label := range ticks {
		marks = append(marks, plot.Tick{Value: x, Label: label})
	}
	slices.SortFunc(marks, func(a, b plot.Tick) int { return cmp.Compare(a.Value, b.Value) })
	p.X.Tick.Marker, p.Y.Tick.Marker = marks, powersOfTen{}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(6)
	for _, c := range curves {
		if len(c.points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(c.points)
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(2), c.color
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, c.color, vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(c.name, line, dots)
	}
	return p, nil
}

// powersOfTen are the ticks of a logarithmic axis, with labels that can be read
// at a glance.
type powersOfTen struct{}

// Ticks implements plot.Ticker.
func (powersOfTen) Ticks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{}.Ticks(low, high)
	for i, t := range ticks {
		switch {
		case t.IsMinor():
		case t.Value >= 1e6:
			ticks[i].Label = fmt.Sprintf("%gM", t.Value/1e6)
		case t.Value >= 1e3:
			ticks[i].Label = fmt.Sprintf("%gk", t.Value/1e3)
		default:
			ticks[i].Label = fmt.Sprintf("%g", t.Value)
		}
	}
	return ticks
}

// drawPicture draws plots of the same size beside each other, as name.svg and
// name.png in dir, which it makes.
func drawPicture(dir, name string, row ...*plot.Plot) error {
	return drawGrid([][]*plot.Plot{row}, vg.Length(len(row))*5*vg.Inch, 4.5*vg.Inch, dir, name)
}

// drawGrid is drawPicture with rows of plots, all of the same size.
func drawGrid(plots [][]*plot.Plot, width, height vg.Length, dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tiles := draw.Tiles{
		Rows: len(plots), Cols: len(plots[0]),
		PadX: vg.Points(16), PadY: vg.Points(12), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(16),
	}
	for _, format := range []string{"svg", "png"} {
		canvas, err := draw.NewFormattedCanvas(width, height, format)
		if err != nil {
			return err
		}
		for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
			for j, c := range row {
				plots[i][j].Draw(c)
			}
		}
		var encoded bytes.Buffer
		if _, err := canvas.WriteTo(&encoded); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+"."+format), encoded.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
