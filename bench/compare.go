package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// What is taken for the noise of a figure that its file has no repeats of.
const (
	noiseOfSpeed = 0.2  // rates and latencies
	noiseOfCount = 0.05 // such as commands per check
)

// A figure is one number of a report, and between what it lay in repeats.
type figure struct {
	row, name string
	value     float64
	low, high float64
	assumed   bool // low and high, without repeats
}

// A comparable report is a result that can be compared with another of the same
// subcommand.
type comparableReport interface {
	// figures returns all numbers to compare; the same ones have the same row and
	// name.
	figures() []figure
	// setting returns what else may make results differ, by name.
	setting() map[string]any
}

// comparableReports are the reports that can be compared, by subcommand.
func comparableReports() map[string]comparableReport {
	return map[string]comparableReport{
		"throughput": &throughputReport{}, "contention": &contentionReport{}, "load": &loadReport{},
	}
}

// compareResults prints, figure by figure, how two results of the same subcommand
// differ. args are the names of their files, the old one first.
func compareResults(_ context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "usage: go run ./bench compare old.json new.json")
		return err
	case err != nil:
		return fmt.Errorf("compare: %w", err)
	case flags.NArg() != 2:
		return errors.New("compare needs two files: go run ./bench compare old.json new.json")
	}
	oldCommand, before, err := readReport(flags.Arg(0))
	if err != nil {
		return err
	}
	newCommand, after, err := readReport(flags.Arg(1))
	if err != nil {
		return err
	}
	if oldCommand != newCommand {
		return fmt.Errorf("compare: %s is a result of %s and %s one of %s", flags.Arg(0), oldCommand, flags.Arg(1), newCommand)
	}
	printComparison(out, before, after)
	return nil
}

// readReport reads a result and tells by its fields of which subcommand it is.
func readReport(file string) (command string, r comparableReport, err error) {
	encoded, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	if !json.Valid(encoded) {
		return "", nil, fmt.Errorf("compare: %s is not JSON", file)
	}
	reports := comparableReports()
	for command, r := range reports {
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.DisallowUnknownFields()
		if decoder.Decode(r) == nil && len(r.figures()) > 0 {
			return command, r, nil
		}
	}
	return "", nil, fmt.Errorf("compare: %s is not a result that this version of the bench can read: it has no figures of %v, or unknown fields",
		file, slices.Sorted(maps.Keys(reports)))
}

// printComparison writes what is different in before and after.
func printComparison(out io.Writer, before, after comparableReport) {
	was, is := before.setting(), after.setting()
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if was[name] != is[name] {
			fmt.Fprintf(out, "not the same %s: %v, then %v\n", name, was[name], is[name])
		}
	}
	type key struct{ row, name string }
	others := make(map[key]figure)
	for _, f := range after.figures() {
		others[key{f.row, f.name}] = f
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "row\tfigure\told\tnoise\tnew\tnoise\tnew/old\tdifference\t")
	var only []string
	for _, old := range before.figures() {
		f, ok := others[key{old.row, old.name}]
		if !ok {
			only = append(only, fmt.Sprintf("only in the old result: %s, %s", old.row, old.name))
			continue
		}
		delete(others, key{old.row, old.name})
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", old.row, old.name, digits(old.value), old.noise(), digits(f.value), f.noise(), ratio(old, f), difference(old, f))
	}
	_ = t.Flush() // out is looked after by whoever reads it
	for _, f := range after.figures() {
		if _, ok := others[key{f.row, f.name}]; ok {
			only = append(only, fmt.Sprintf("only in the new result: %s, %s", f.row, f.name))
		}
	}
	for _, line := range only {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, `
noise       the range of the figure in the slices of its run; ~ where a figure has no slices: +-%.0f%% is assumed of rates and
            latencies, +-%.0f%% of counts per check
difference  higher or lower when it is beyond the noise: the two ranges have nothing in common. With five slices each
            that happens by chance in one of 126 figures. What changes from run to run but not within one, such as other load on
            the machine, is not in the slices.
`, 100*noiseOfSpeed, 100*noiseOfCount)
}

// noise returns the range relative to the value.
func (f figure) noise() string {
	if f.assumed {
		return "~"
	}
	if f.value == 0 {
		return fmt.Sprintf("%s..%s", digits(f.low), digits(f.high))
	}
	return fmt.Sprintf("%+.0f%%..%+.0f%%", 100*(f.low/f.value-1), 100*(f.high/f.value-1))
}

func ratio(old, f figure) string {
	if old.value == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", f.value/old.value)
}

func difference(old, f figure) string {
	switch {
	case f.low > old.high:
		return "higher"
	case f.high < old.low:
		return "lower"
	default:
		return "within noise"
	}
}

// digits returns x with four significant ones, or all before the point.
func digits(x float64) string {
	if math.Abs(x) >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}

// figures are a row's figures.
type figures struct {
	row string
	all []figure
}

// assume adds a figure without repeats.
func (f *figures) assume(name string, value, noise float64) {
	f.all = append(f.all, figure{f.row, name, value, value * (1 - noise), value * (1 + noise), true})
}

func (f *figures) duration(name string, d time.Duration) {
	f.assume(name, inMilliseconds(d), noiseOfSpeed)
}

// repeated adds a figure with repeats.
func (f *figures) repeated(name string, value, low, high float64) {
	f.all = append(f.all, figure{f.row, name, value, min(value, low), max(value, high), false})
}

func (m machine) setting() map[string]any {
	return map[string]any{"number of cores": m.Cores, "Go": m.Go, "memcached": m.Memcached}
}

func (r *throughputReport) setting() map[string]any {
	s := r.Machine.setting()
	s["connections"], s["duration"] = r.Connections, r.Duration
	return s
}

func (r *throughputReport) figures() []figure {
	var all []figure
	for _, c := range r.Checks {
		f := figures{row: c.Algorithm + ", " + c.Traffic}
		f.comparison(c.comparison)
		f.assume("commands/check", c.Commands, noiseOfCount)
		f.assume("keys/check", c.KeysRead, noiseOfCount)
		f.assume("allocations/check", c.Allocations, noiseOfCount)
		all = append(all, f.all...)
	}
	for _, s := range r.Store {
		f := figures{row: fmt.Sprintf("store, %d callers", s.Callers)}
		f.comparison(s.comparison)
		all = append(all, f.all...)
	}
	return all
}

func (f *figures) comparison(c comparison) {
	f.repeated("ratio", c.Ratio, c.RatioMin, c.RatioMax)
	f.assume("rate", c.Rate, noiseOfSpeed)
	f.duration("p50 ms", c.P50)
	f.duration("p99 ms", c.P99)
	f.duration("p999 ms", c.P999)
}

func (r *contentionReport) setting() map[string]any {
	s := r.Machine.setting()
	s["duration"], s["duration of exact rows"] = r.Duration, r.Exact
	return s
}

func (r *contentionReport) figures() []figure {
	var all []figure
	for _, row := range r.Rates {
		f := figures{row: fmt.Sprintf("%s, %d x %d callers", row.Loop, row.Processes, row.Callers)}
		f.assume("rate", row.Rate, noiseOfSpeed)
		f.assume("of plain", row.Ratio, noiseOfSpeed)
		f.duration("p50 ms", row.P50)
		f.duration("p99 ms", row.P99)
		f.duration("p999 ms", row.P999)
		f.assume("attempts", row.Attempts, noiseOfSpeed)
		f.assume("conflicts", row.Conflicts, noiseOfSpeed)
		f.assume("unluckiest", row.Unluckiest, noiseOfSpeed)
		all = append(all, f.all...)
	}
	for _, row := range r.Buckets {
		f := figures{row: exactRun{combinedCAS, row.Processes}.String()}
		f.assume("rate", row.Rate, noiseOfSpeed)
		f.assume("share admitted", row.share(), noiseOfCount)
		all = append(all, f.all...)
	}
	for _, row := range r.Logs {
		f := figures{row: exactRun{logCAS, row.Processes}.String()}
		f.assume("rate", row.Rate, noiseOfSpeed)
		f.assume("fullest window", float64(row.Fullest), noiseOfCount)
		all = append(all, f.all...)
	}
	return all
}

func (r *loadReport) setting() map[string]any {
	s := r.Machine.setting()
	s["target"], s["format"], s["Poisson arrivals"], s["number of clients"], s["Zipf exponent"] = r.Target, r.Format, r.Poisson, r.Clients, r.Zipf
	s["connections"], s["seed"], s["duration"], s["bound of p99"], s["ramp"] = r.Connections, r.Seed, r.Duration, r.Bound, r.Ramp
	if len(r.Rows) > 0 {
		s["rate"] = r.Rows[0].Rate
	}
	s["outcome"] = "without faults"
	if err := r.broken(); err != nil {
		s["outcome"] = err.Error()
	}
	return s
}

func (r *loadReport) figures() []figure {
	var all []figure
	for _, row := range r.Searches {
		f := figures{row: row.Policy + ", search"}
		// The rate lies between the highest that held and the lowest that failed.
		f.repeated("highest rate", row.Highest, row.Highest, row.Lowest)
		all = append(all, f.all...)
	}
	for _, row := range r.Rows {
		f := figures{row: row.Policy}
		f.slices(row.loadFigures, row.Slices, r.Ramp)
		if row.Store != nil {
			f.assume("writes/check", row.Store.Writes, noiseOfCount)
			f.assume("keys/check", row.Store.KeysRead, noiseOfCount)
		}
		all = append(all, f.all...)
		if !r.Ramp {
			continue
		}
		for _, s := range row.Slices {
			f := figures{row: fmt.Sprintf("%s at %.0f/s", row.Policy, s.Rate)}
			f.slices(s, nil, true)
			all = append(all, f.all...)
		}
	}
	return all
}

// slices adds the figures of a load that depend on speed. Those of a ramp have
// no repeats.
func (f *figures) slices(total loadFigures, slices []loadFigures, ramp bool) {
	for _, c := range []struct {
		name string
		of   func(loadFigures) (value float64, ok bool)
	}{
		{"achieved rate", func(l loadFigures) (float64, bool) { return l.Achieved, true }},
		{"p50 ms", latencyOf(func(l *latencies) time.Duration { return l.P50 })},
		{"p90 ms", latencyOf(func(l *latencies) time.Duration { return l.P90 })},
		{"p99 ms", latencyOf(func(l *latencies) time.Duration { return l.P99 })},
		{"p999 ms", latencyOf(func(l *latencies) time.Duration { return l.P999 })},
		{"max ms", latencyOf(func(l *latencies) time.Duration { return l.Max })},
		{"service p99 ms", latencyOf(func(l *latencies) time.Duration { return l.ServiceP99 })},
	} {
		value, ok := c.of(total)
		if !ok {
			continue
		}
		low, high, repeats := math.Inf(1), math.Inf(-1), 0
		for _, s := range slices {
			if x, ok := c.of(s); ok {
				low, high = min(low, x), max(high, x)
				repeats++
			}
		}
		if ramp || repeats < 2 {
			f.assume(c.name, value, noiseOfSpeed)
		} else {
			f.repeated(c.name, value, low, high)
		}
	}
}

// latencyOf picks a latency in ms, if there are any.
func latencyOf(pick func(*latencies) time.Duration) func(loadFigures) (float64, bool) {
	return func(l loadFigures) (float64, bool) {
		if l.Latency == nil {
			return 0, false
		}
		return inMilliseconds(pick(l.Latency)), true
	}
}
