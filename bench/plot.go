package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
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

// plotContention draws decisions per second against callers and against
// processes, as contention.svg and contention.png in dir, which it makes.
func plotContention(rows []rateRow, dir string) error {
	byCallers, err := panel("One process", "callers on one key", targetCallers, rows, func(r rateRow) (int, bool) {
		return r.Callers, r.Processes == 1
	})
	if err != nil {
		return err
	}
	byProcesses, err := panel(fmt.Sprintf("Several processes, %d callers each", callersPerProcess), "processes on one key", targetProcesses, rows, func(r rateRow) (int, bool) {
		return r.Processes, r.Callers == callersPerProcess
	})
	if err != nil {
		return err
	}
	// One legend is enough, and on the left it is in nobody's way.
	byProcesses.Legend = plot.NewLegend()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, format := range []string{"svg", "png"} {
		if err := drawBeside(byCallers, byProcesses, format, filepath.Join(dir, "contention."+format)); err != nil {
			return err
		}
	}
	return nil
}

// panel plots the rates of the rows that at selects, where it says, on an axis from 1 to
// most.
func panel(title, axis string, most int, rows []rateRow, at func(rateRow) (x int, ok bool)) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, axis, "decisions/s"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.Y.Tick.Marker = powersOfTen{}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(6)
	ticks := make(map[int]bool)
	for _, loop := range loops {
		var points plotter.XYs
		for _, r := range rows {
			if x, ok := at(r); ok && r.Loop == loop && r.Rate > 0 {
				points = append(points, plotter.XY{X: float64(x), Y: r.Rate})
				ticks[x] = true
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(2), loopColors[loop]
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, loopColors[loop], vg.Points(3)
		p.Add(line, dots)
		p.Legend.Add(loop, line, dots)
	}
	var marks plot.ConstantTicks
	for x := range ticks {
		marks = append(marks, plot.Tick{Value: float64(x), Label: strconv.Itoa(x)})
	}
	p.X.Tick.Marker = marks
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
		}
	}
	return ticks
}

// drawBeside draws two plots of the same size to a file.
func drawBeside(left, right *plot.Plot, format, file string) error {
	const width, height = 10 * vg.Inch, 4.5 * vg.Inch
	canvas, err := draw.NewFormattedCanvas(width, height, format)
	if err != nil {
		return err
	}
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Points(16), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(16)}
	plots := [][]*plot.Plot{{left, right}}
	for i, c := range plot.Align(plots, tiles, draw.New(canvas))[0] {
		plots[0][i].Draw(c)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(out); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
