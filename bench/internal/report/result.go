// Package report is what all experiments do with what they measured: flags,
// JSON files, tables, plots and REPORT.md.
//
// An experiment's result implements Result. The package knows no experiment: the
// table of commands tells it the sections of REPORT.md.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Result is what a JSON file holds. It may have three methods more:
//
//	Broken() error        what it promised and didn't keep, if anything
//	Pictures() []Picture  what is drawn of it; what wasn't measured is left out
//	Columns() []Column    its part of the table of algorithms, of several results
type Result interface{ Print(out io.Writer) }

// A Column is a figure of algorithms: Cell returns that of the one with a name, or ""
// if there is none.
type Column struct {
	Title, Means string
	Cell         func(algorithm string) string
}

// broken returns what the run promised and didn't keep, if anything.
func broken(r Result) error {
	if promises, ok := r.(interface{ Broken() error }); ok {
		return promises.Broken()
	}
	return nil
}

// decode reads the result in a JSON file, and on what it was measured. The error says
// what is wrong with it, as are fields that a result of this version doesn't have.
func decode(encoded []byte, into Result) (Machine, error) {
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return Machine{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Machine{}, errors.New("there is more after the report")
	}
	var of struct{ Machine Machine }
	err := json.Unmarshal(encoded, &of)
	if err == nil && of.Machine.Cores == 0 {
		err = errors.New("it doesn't say on what machine it was made")
	}
	return of.Machine, err
}

// A Target is a figure that is aimed at.
type Target struct {
	Text string
	Met  bool
}

func (t Target) String() string {
	if t.Met {
		return t.Text + ": ok"
	}
	return t.Text + ": MISSED"
}

// Targets are all of a result, or of a part of it.
type Targets []Target

// Add adds a target that is described like fmt.Sprintf.
func (t *Targets) Add(met bool, format string, args ...any) {
	*t = append(*t, Target{fmt.Sprintf(format, args...), met})
}

// String returns a line for each.
func (t Targets) String() string {
	var lines strings.Builder
	for _, target := range t {
		fmt.Fprintln(&lines, target)
	}
	return lines.String()
}

// A Machine is what the figures were measured on.
type Machine struct {
	Cores     int    `json:"cores"`
	CPU       string `json:"cpu,omitempty"` // where the system tells
	Platform  string `json:"platform,omitempty"`
	Go        string `json:"go"`
	Memcached string `json:"memcached,omitempty"` // if it took part
}

// ThisMachine returns the machine that the bench runs on.
func ThisMachine(memcachedVersion string) Machine {
	m := Machine{Cores: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Memcached: memcachedVersion}
	info, _ := os.ReadFile("/proc/cpuinfo")
	if found := cpuModel.FindSubmatch(info); found != nil {
		m.CPU = string(found[1])
	}
	return m
}

// cpuModel finds the first model name in a /proc/cpuinfo.
var cpuModel = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func (m Machine) String() string {
	parts := []string{fmt.Sprintf("%d cores", m.Cores), m.CPU, m.Platform, m.Go}
	if m.Memcached != "" {
		parts = append(parts, "memcached "+m.Memcached)
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}

// Find returns the first row that matches.
func Find[R any](rows []R, match func(R) bool) (row R, ok bool) {
	for _, row := range rows {
		if match(row) {
			return row, true
		}
	}
	return row, false
}

// Table writes an empty line, the title if there is one, and right-aligned
// columns: the header and the lines, whose cells end with a tab. In REPORT.md it is
// a table of Markdown's.
func Table(out io.Writer, title, header string, lines []string) {
	if page, ok := out.(*markdown); ok {
		page.table(title, header, lines)
		return
	}
	if fmt.Fprintln(out); title != "" {
		fmt.Fprintln(out, title)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, line := range append([]string{header}, lines...) {
		fmt.Fprintln(t, line)
	}
	_ = t.Flush() // who reads out looks after it
}

// Lines returns what rows have in a table, without those that have nothing.
func Lines[R any](rows []R, cells func(R) string) (lines []string) {
	for _, row := range rows {
		if line := cells(row); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TableOf writes a table with a line of cells for each row, if it has any, and then a
// legend, which is formatted like fmt.Sprintf. It writes nothing if there are no rows.
func TableOf[R any](out io.Writer, title, header string, rows []R, cells func(R) string, legend string, args ...any) {
	if len(rows) == 0 {
		return
	}
	Table(out, title, header, Lines(rows, cells))
	fmt.Fprintf(out, legend, args...)
}

// Percentiles are those of a latency.
type Percentiles struct {
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
}

// NewPercentiles returns those of a histogram of nanoseconds.
func NewPercentiles(h *hdrhistogram.Histogram) Percentiles {
	quantile := func(percent float64) time.Duration { return time.Duration(h.ValueAtPercentile(percent)) }
	return Percentiles{quantile(50), quantile(99), quantile(99.9)}
}

// PercentileHeader is the header of Percentiles.Cells.
const PercentileHeader = "p50 ms\tp99 ms\tp999 ms\t"

// Cells returns the cells of a table.
func (p Percentiles) Cells() string {
	return Milliseconds(p.P50) + "\t" + Milliseconds(p.P99) + "\t" + Milliseconds(p.P999) + "\t"
}

// Percent writes a share so that a small one is not taken for none.
func Percent(share float64) string {
	if share == 0 {
		return "0"
	}
	return fmt.Sprintf("%.4f%%", 100*share)
}

// Milliseconds returns d with three significant digits or so.
func Milliseconds(d time.Duration) string {
	switch ms := InMilliseconds(d); {
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	default:
		return fmt.Sprintf("%.1f", ms)
	}
}

// InMilliseconds returns d as a number.
func InMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

var defaultDir = filepath.Join("bench", "results")

// Flags are those of a command that publishes a result. They have -out.
type Flags struct {
	*flag.FlagSet
	dir   string // "" if it isn't said
	quick bool
	guest bool
}

// NewFlags returns the flags of the command with the given name.
func NewFlags(name string) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError)}
	f.StringVar(&f.dir, "out", "", "the `directory` for the figures, as JSON, and the pictures (default "+defaultDir+
		", but none for what isn't to be published: a quick run, one of some -rows or of a -target, or with -profiles)")
	return f
}

// Quick defines -quick, whose figures aren't to be published.
func (f *Flags) Quick(usage string) *bool {
	f.BoolVar(&f.quick, "quick", false, usage)
	return &f.quick
}

// Guest says that the run measures a server that isn't this repository's, or lacks programs to
// compare weir with: so it doesn't replace the results.
func (f *Flags) Guest() { f.guest = true }

// Rows defines -rows. Some of them aren't to be published, as they would replace all.
func (f *Flags) Rows(pattern **regexp.Regexp) {
	*pattern = regexp.MustCompile("")
	f.Func("rows", "measure only the rows that this `regexp` matches", func(s string) (err error) {
		f.guest = true
		*pattern, err = regexp.Compile(s)
		return err
	})
}

// Profiles defines -profiles. As profiling costs time, the figures aren't to be
// published.
func (f *Flags) Profiles(dir *string) {
	f.Func("profiles", "the `directory` for a CPU profile of each weir that is started (default none)", func(s string) error {
		*dir, f.guest = s, true
		return nil
	})
}

// Parse is ParseFlags.
func (f *Flags) Parse(args []string, out io.Writer) error { return ParseFlags(f.FlagSet, args, out) }

// Errorf returns an error that begins with the command's name.
func (f *Flags) Errorf(format string, args ...any) error {
	return fmt.Errorf(f.Name()+": "+format, args...)
}

// Publish prints what the command found out, and writes and draws it in -out as
// name. Without -out it writes nothing if the run was quick, of some rows, profiled or
// a guest's. The error is the given one, if any; else it may be that the run broke
// a promise.
func (f *Flags) Publish(out io.Writer, name string, r Result, err error) error {
	Progress("") // removes the last line
	if err != nil {
		return err
	}
	r.Print(out)
	dir := f.dir
	switch {
	case dir != "":
	case f.quick || f.guest:
		fmt.Fprintln(out, "\nNothing is written: -out names a directory for the figures and pictures.")
		return broken(r)
	default:
		dir = defaultDir
	}
	encoded, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if _, err := drawAll(dir, r); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), append(encoded, '\n'), 0o644); err != nil {
		return err
	}
	return broken(r)
}

// drawAll makes dir and draws the pictures of a result in it, if it has any.
func drawAll(dir string, r Result) ([]Picture, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	pictured, ok := r.(interface{ Pictures() []Picture })
	if !ok {
		return nil, nil
	}
	pictures := pictured.Pictures()
	for _, pic := range pictures {
		if err := pic.draw(dir); err != nil {
			return nil, err
		}
	}
	return pictures, nil
}

// ParseFlags parses args, which must be flags only. Asked for help, it prints it to
// out and returns flag.ErrHelp.
func ParseFlags(flags *flag.FlagSet, args []string, out io.Writer) error {
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", flags.Name(), err)
	case flags.NArg() > 0:
		return fmt.Errorf("%s: %q is not a flag", flags.Name(), flags.Arg(0))
	}
	return nil
}

// Selected returns the rows whose names match.
func Selected[R fmt.Stringer](rows []R, pattern *regexp.Regexp) []R {
	return slices.DeleteFunc(slices.Clone(rows), func(row R) bool { return !pattern.MatchString(row.String()) })
}

// Each measures rows in turn. The error names the row.
func Each[W fmt.Stringer, R any](rows []W, measure func(W) (R, error)) ([]R, error) {
	var all []R
	for _, w := range rows {
		Progress("%s", w)
		r, err := measure(w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// Progress replaces the progress line on a terminal; it prints nothing
// elsewhere. An empty line removes it.
func Progress(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	const eraseLine = "\r\x1b[K"
	fmt.Fprintf(os.Stderr, eraseLine+format, args...)
}
