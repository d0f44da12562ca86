package report

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/recorder"
)

func TestNoBarIsCut(t *testing.T) {
	t.Parallel()
	p, err := BarPlot("", "", 16, []string{"a", "b"}, []Series{{"one", plotter.Values{1, 5}}, {"two", plotter.Values{10, 0}}})
	require.NoError(t, err)
	assert.Zero(t, p.Y.Min)
	assert.Greater(t, p.Y.Max, 10.0)
}

// Of curves that lie on each other all can be seen: each has dashes of its own,
// but the lowest, and smaller dots than those below it.
func TestNoCurveHidesAnother(t *testing.T) {
	t.Parallel()
	var curves []Curve
	for i := range 6 {
		curves = append(curves, Curve{Name: fmt.Sprint(i), Color: color.Gray{uint8(i)}, Points: plotter.XYs{{X: 1, Y: 1}, {X: 10, Y: 10}}})
	}
	p, err := LogPlot("", "", "", Ticks{}, 3, curves)
	require.NoError(t, err)
	page := new(recorder.Canvas)
	p.Draw(draw.NewCanvas(page, 500, 400))
	patterns := make(map[string]bool)
	var sizes []vg.Length
	var last []vg.Length
	for _, action := range page.Actions {
		switch a := action.(type) {
		case *recorder.SetLineDash:
			last = a.Dashes
		case *recorder.Stroke:
			patterns[fmt.Sprint(last)] = true
		case *recorder.Fill:
			for _, c := range a.Path {
				if c.Type == vg.ArcComp {
					sizes = append(sizes, c.Radius)
				}
			}
		}
	}
	assert.GreaterOrEqual(t, len(patterns), len(curves))
	require.GreaterOrEqual(t, len(sizes), 2*len(curves))
	for i := 2; i < 2*len(curves); i += 2 { // two dots of each
		assert.Less(t, sizes[i], sizes[i-2])
	}
}

// A picture says that its scales are logarithmic, and shows between what points
// lie.
func TestLogPlot(t *testing.T) {
	t.Parallel()
	p, err := LogPlot("", "callers", "ms", Ticks{}, 3, []Curve{
		{Points: plotter.XYs{{X: 1, Y: 1}, {X: 10, Y: 10}}, Errors: plotter.YErrors{{}, {Low: 9.5, High: 30}}},
	})
	require.NoError(t, err)
	assert.Equal(t, "callers (log scale)", p.X.Label.Text)
	assert.Equal(t, "ms (log scale)", p.Y.Label.Text)
	assert.InDelta(t, 0.5, p.Y.Min, 1e-9)
	assert.InDelta(t, 40, p.Y.Max, 1e-9)
}

func TestPicturesNameFontsThatReadersHave(t *testing.T) {
	t.Parallel()
	p, err := LogPlot("title", "", "", Ticks{}, 3, []Curve{{Points: plotter.XYs{{X: 1, Y: 1}, {X: 10, Y: 10}}}})
	require.NoError(t, err)
	dir := t.TempDir()
	_, err = DrawPicture(dir, "a", "", p)
	require.NoError(t, err)
	svg, err := os.ReadFile(filepath.Join(dir, "a.svg"))
	require.NoError(t, err)
	assert.Contains(t, string(svg), "font-family:Liberation Serif,Times New Roman,Times,serif;")
}
