package report

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colors that everyone can tell apart (after Okabe and Ito, and Tol). Those of
// an algorithm are no other's, in all pictures; what is not an algorithm has
// one of the others.
var (
	Vermillion = color.RGBA{R: 213, G: 94, A: 255}          // fixed window
	Sky        = color.RGBA{R: 86, G: 180, B: 233, A: 255}  // N=1
	Blue       = color.RGBA{G: 114, B: 178, A: 255}         // N=10, and other N up to there
	Indigo     = color.RGBA{R: 51, G: 34, B: 136, A: 255}   // N=60
	Green      = color.RGBA{G: 158, B: 115, A: 255}         // strict
	Orange     = color.RGBA{R: 230, G: 159, A: 255}         // capped
	Purple     = color.RGBA{R: 204, G: 121, B: 167, A: 255} // buckets
	Wine       = color.RGBA{R: 136, G: 34, B: 85, A: 255}   // logs

	Olive = color.RGBA{R: 153, G: 153, B: 51, A: 255}
	Sand  = color.RGBA{R: 205, G: 185, B: 90, A: 255}
	Dark  = color.RGBA{R: 60, G: 60, B: 60, A: 255}
	Gray  = color.RGBA{R: 140, G: 140, B: 140, A: 255}
	Pale  = color.RGBA{R: 205, G: 205, B: 205, A: 255}
)

// Color returns the color of the curve with number i that is no algorithm's.
func Color(i int) color.Color { return []color.Color{Dark, Olive, Gray, Sand}[i%4] }

// bars are the colors of bars side by side, whose names are below them.
var bars = []color.Color{Dark, Gray, Pale}

// dashes are those of curves, one after the other, so that none hides one that
// is below it; the dots of those below are larger.
var dashes = [][]vg.Length{nil, {vg.Points(7), vg.Points(4)}, {vg.Points(2), vg.Points(3)}, {vg.Points(9), vg.Points(3), vg.Points(2), vg.Points(3)}, {vg.Points(4), vg.Points(6)}, {vg.Points(10), vg.Points(8)}}

// A Plot keeps the first error of what is drawn in it, until it is written.
type Plot struct {
	*plot.Plot
	err error
}

// NewPlot returns one with nothing in it.
func NewPlot(title, xAxis, yAxis string) *Plot {
	p := &Plot{Plot: plot.New()}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xAxis, yAxis
	return p
}

// ok reports whether there is no error, and else keeps it.
func (p *Plot) ok(err error) bool {
	p.err = cmp.Or(p.err, err)
	return err == nil
}

// Line draws one of a width in points, with dashes and gaps of so many.
func (p *Plot) Line(points plotter.XYs, width float64, c color.Color, dashes ...vg.Length) *plotter.Line {
	line, err := plotter.NewLine(points)
	if !p.ok(err) {
		return new(plotter.Line)
	}
	line.Width, line.Color, line.Dashes = vg.Points(width), c, dashes
	p.Add(line)
	return line
}

// Labels writes a text beside each point.
func (p *Plot) Labels(points plotter.XYs, texts []string) {
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: points, Labels: texts})
	if p.ok(err) {
		labels.Offset = vg.Point{X: vg.Points(5), Y: vg.Points(5)}
		p.Add(labels)
	}
}

// A Curve is a line through points, with a name in the legend.
type Curve struct {
	Name   string
	Color  color.Color
	Points plotter.XYs
	Errors plotter.YErrors // of the points; or none
}

// logScale is said of each axis that is logarithmic.
const logScale = " (log scale)"

// LogPlot plots the curves that have points on two logarithmic axes, which it
// says, with dots of the given radius in points.
func LogPlot(title, xAxis, yAxis string, ticks plot.Ticker, radius float64, curves []Curve) *Plot {
	p := NewPlot(title, xAxis+logScale, yAxis+logScale)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, powersOfTen{}
	p.Add(plotter.NewGrid())
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), -vg.Points(6)
	for i, c := range curves {
		if len(c.Points) == 0 {
			continue
		}
		line := p.Line(c.Points, 2, c.Color, dashes[i%len(dashes)]...)
		dots, err := plotter.NewScatter(c.Points)
		if !p.ok(err) {
			continue
		}
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, c.Color, vg.Points(radius*(1+0.15*float64(len(curves)-1-i)))
		p.Add(dots)
		p.Legend.Add(c.Name, line, dots)
		if c.Errors == nil {
			continue
		}
		bars, err := plotter.NewYErrorBars(struct {
			plotter.XYs
			plotter.YErrors
		}{c.Points, c.Errors})
		if p.ok(err) {
			bars.Color = c.Color
			p.Add(bars)
		}
	}
	return p
}

// Ticks are labels at values.
type Ticks map[float64]string

// Ticks implements plot.Ticker.
func (t Ticks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for _, value := range slices.Sorted(maps.Keys(t)) {
		if value >= low*(1-1e-9) && value <= high*(1+1e-9) {
			ticks = append(ticks, plot.Tick{Value: value, Label: t[value]})
		}
	}
	return ticks
}

// WholePowers makes the logarithmic y axes of plots the same, from one power of
// ten to another, as they have labels there only.
func WholePowers(plots ...*Plot) {
	least, most := math.Inf(1), 0.0
	for _, p := range plots {
		least, most = min(least, p.Y.Min), max(most, p.Y.Max)
	}
	for _, p := range plots {
		p.Y.Min, p.Y.Max = math.Pow10(int(math.Floor(math.Log10(least)))), math.Pow10(int(math.Floor(math.Log10(most)))+1)
	}
}

// A Series is bars of one color, one for each name below the axis.
type Series struct {
	Name   string
	Values plotter.Values
}

// BarPlot plots series side by side, with bars of the given width in points.
func BarPlot(title, yAxis string, width float64, names []string, series []Series) *Plot {
	p := NewPlot(title, "", yAxis)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(6)
	for i, s := range series {
		chart, err := plotter.NewBarChart(s.Values, vg.Points(width))
		if !p.ok(err) {
			continue
		}
		chart.Color, chart.LineStyle.Width = bars[i%len(bars)], 0
		chart.Offset = vg.Points(width * (float64(i) - float64(len(series)-1)/2))
		p.Add(chart)
		p.Legend.Add(s.Name, chart)
	}
	p.NominalX(names...)
	p.Y.Min, p.Y.Max = 0, 1.2*p.Y.Max // no bar is cut, and there is room for the legend
	return p
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

// A Picture is drawn as Name.svg: rows of plots, all of the same size.
type Picture struct {
	Name, Shows   string
	Width, Height vg.Length
	Plots         [][]*Plot
}

// NewPicture returns plots beside each other, each so many inches wide.
func NewPicture(name, shows string, inches vg.Length, row ...*Plot) Picture {
	return Picture{name, shows, vg.Length(len(row)) * inches * vg.Inch, 4.5 * vg.Inch, [][]*Plot{row}}
}

// draw writes the picture to dir. It names fonts of the same widths, for readers
// who don't have the first.
func (pic Picture) draw(dir string) error {
	tiles := draw.Tiles{
		Rows: len(pic.Plots), Cols: len(pic.Plots[0]),
		PadX: vg.Points(16), PadY: vg.Points(12), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(16),
	}
	canvas := vgsvg.New(pic.Width, pic.Height)
	page := draw.New(canvas)
	// Also between the plots, for a reader whose page is dark.
	page.FillPolygon(color.White, []vg.Point{page.Min, {X: page.Min.X, Y: page.Max.Y}, page.Max, {X: page.Max.X, Y: page.Min.Y}})
	plots := make([][]*plot.Plot, len(pic.Plots))
	for i, row := range pic.Plots {
		for _, p := range row {
			if p.err != nil {
				return fmt.Errorf("%s: %w", pic.Name, p.err)
			}
			plots[i] = append(plots[i], p.Plot)
		}
	}
	for i, row := range plot.Align(plots, tiles, page) {
		for j, c := range row {
			plots[i][j].Draw(c)
		}
	}
	var encoded bytes.Buffer
	if _, err := canvas.WriteTo(&encoded); err != nil {
		return err
	}
	content := bytes.ReplaceAll(encoded.Bytes(), []byte("font-family:Liberation Serif"), []byte("font-family:Liberation Serif,Times New Roman,Times,serif"))
	return os.WriteFile(filepath.Join(dir, pic.Name+".svg"), content, 0o644)
}
