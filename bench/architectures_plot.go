package main

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// architectureColors are those of the architectures that are drawn. The others
// would lie on weir's line.
var architectureColors = map[string]color.Color{
	stickyName: color.RGBA{R: 230, G: 159, A: 255},
	chattyName: color.RGBA{R: 204, G: 121, B: 167, A: 255},
	streamName: color.RGBA{R: 213, G: 94, A: 255},
	laterName:  color.RGBA{G: 158, B: 115, A: 255},
	strictName: color.RGBA{G: 114, B: 178, A: 255},
}

// draw draws what an attacker was admitted, against what was simulated of
// instances, lag and load.
func (r *architecturesReport) draw(dir string) ([]picture, error) {
	var row []*plot.Plot
	for _, sweep := range []struct {
		title, axis string
		rows        []architectureRow
		x           func(situation) (at float64, label string)
	}{
		{"Most admitted, by instances", "instances", r.Instances, func(s situation) (float64, string) {
			return float64(s.Instances), strconv.Itoa(s.Instances)
		}},
		{"Most admitted, by lag", "lag", r.Lag, func(s situation) (float64, string) {
			return s.Lag.Seconds(), decade(s.Lag.Seconds(), s.Lag)
		}},
		{"Most admitted, by load", "attacker's requests/s", r.Load, func(s situation) (float64, string) {
			return s.Rate, decade(s.Rate, s.Rate)
		}},
	} {
		curves, ticks := r.curves(sweep.rows, sweep.x)
		if len(ticks) < 2 {
			continue
		}
		p, err := logPlot(sweep.title, sweep.axis, "x limit", ticks, curves)
		if err != nil {
			return nil, err
		}
		if len(row) > 0 {
			p.Legend = plot.NewLegend() // one is enough
		}
		row = append(row, p)
	}
	if len(row) == 0 {
		return nil, nil
	}
	// All have the same scale, on which weir's line isn't an edge.
	most := 1.0
	for _, p := range row {
		most = max(most, p.Y.Max)
	}
	for _, p := range row {
		p.Y.Min, p.Y.Max = 0.5, math.Pow10(int(math.Floor(math.Log10(most)))+1)
	}
	p := picture{"architectures", "the most that an attacker was admitted, against instances, lag and load"}
	return []picture{p}, drawPicture(dir, p.name, row...)
}

// curves returns what the attacker was admitted, where x says and with its
// labels.
func (r *architecturesReport) curves(rows []architectureRow, x func(situation) (at float64, label string)) ([]curve, map[float64]string) {
	var curves []curve
	ticks := make(map[float64]string)
	for _, c := range contenders() {
		line := curve{name: c.name, color: architectureColors[c.name]}
		for _, row := range rows {
			at, label := x(row.situation)
			// Logarithmic axes have no 0.
			if row.Traffic == attackerName && row.Architecture == c.name && line.color != nil && at > 0 && row.promised() > 0 {
				ticks[at] = label
				line.points = append(line.points, plotter.XY{X: at, Y: r.over(row)})
			}
		}
		curves = append(curves, line)
	}
	return curves, ticks
}

// decade returns the label of a power of ten, and none for other values.
func decade(value float64, label any) string {
	if exponent := math.Log10(value); math.Abs(exponent-math.Round(exponent)) > 1e-9 {
		return ""
	}
	return fmt.Sprint(label)
}
