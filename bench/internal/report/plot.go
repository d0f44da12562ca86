package report

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colors that everyone can tell apart (after Okabe and Ito, and Tol). Those of
// an algorithm are no other's, in all pictures.
var (
	Vermillion = color.RGBA{R: 213, G: 94, A: 255}          // fixed window
	Sky        = color.RGBA{R: 86, G: 180, B: 233, A: 255}  // N=1
	Blue       = color.RGBA{G: 114, B: 178, A: 255}         // N=10, and other N up to there
	Indigo     = color.RGBA{R: 51, G: 34, B: 136, A: 255}   // N=60
	Green      = color.RGBA{G: 158, B: 115, A: 255}         // strict
	Orange     = color.RGBA{R: 230, G: 159, A: 255}         // capped
	Purple     = color.RGBA{R: 204, G: 121, B: 167, A: 255} // buckets
	Wine       = color.RGBA{R: 136, G: 34, B: 85, A: 255}   // logs

	Dark = color.RGBA{R: 60, G: 60, B: 60, A: 255}
	Pale = color.RGBA{R: 205, G: 205, B: 205, A: 255}
)

// A Plot keeps the first error of what is drawn in it, until it is written.
type Plot struct {
	*plot.Plot
	err error
}

// NewPlot returns one with nothing in it, whose y begins at 0.
func NewPlot(title, xAxis, yAxis string) *Plot {
	p := &Plot{Plot: plot.New()}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, xAxis, yAxis
	p.Legend.Left, p.Legend.Padding, p.Legend.XOffs = true, vg.Points(2), vg.Points(6)
	p.Y.Min = 0
	return p
}

// Line draws one of a width in points, with dashes and gaps of so many.
func (p *Plot) Line(points plotter.XYs, width float64, c color.Color, dashes ...vg.Length) *plotter.Line {
	line, err := plotter.NewLine(points)
	if p.err = cmp.Or(p.err, err); err != nil {
		return new(plotter.Line)
	}
	line.Width, line.Color, line.Dashes = vg.Points(width), c, dashes
	p.Add(line)
	return line
}

// A Picture is drawn as Name.svg: rows of plots, all of the same size.
type Picture struct {
	Name, Shows string
	Plots       [][]*Plot
}

// draw writes the picture to dir. It names fonts of the same widths, for readers
// who don't have the first.
func (pic Picture) draw(dir string) error {
	tiles := draw.Tiles{
		Rows: len(pic.Plots), Cols: len(pic.Plots[0]),
		PadX: vg.Points(16), PadY: vg.Points(12), PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(16),
	}
	canvas := vgsvg.New(11*vg.Inch, 6*vg.Inch)
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
