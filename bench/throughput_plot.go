package main

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// draw draws the rates of all algorithms relative to the no-op handler, if all
// were measured.
func (r *throughputReport) draw(dir string) ([]picture, error) {
	if len(r.Checks) != len(workloads()) {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = "Checks per second", "% of a no-op handler"
	p.Y.Min, p.Y.Max = 0, 120 // room for the legend
	const width = 16
	var names []string
	for _, a := range algorithms {
		names = append(names, a.name)
	}
	for i, t := range traffics {
		var ratios plotter.Values
		for _, c := range r.Checks {
			if c.Traffic == t.name {
				ratios = append(ratios, 100*c.Ratio)
			}
		}
		if len(ratios) != len(names) {
			return nil, fmt.Errorf("%d algorithms for %s", len(ratios), t.name)
		}
		bars, err := plotter.NewBarChart(ratios, vg.Points(width))
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width, bars.Offset = policyColors[i], 0, vg.Points(width*float64(i-1))
		p.Add(bars)
		p.Legend.Add(t.name, bars)
	}
	p.Legend.Top = true
	p.NominalX(names...)
	shown := picture{"throughput", "checks per second, relative to a handler that does nothing"}
	return []picture{shown}, drawPicture(dir, shown.name, p)
}
