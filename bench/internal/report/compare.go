package report

import (
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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// What is taken for the noise of a figure that its file has no repeats of.
const (
	noiseOfSpeed = 0.2  // rates and latencies
	noiseOfCount = 0.05 // such as commands per check
)

// A Comparable result can be compared with another of the same command.
type Comparable interface {
	Result
	// Figures returns all numbers to compare; the same ones have the same row
	// and name.
	Figures() Figures
	// Setting returns what else may make results differ, by name.
	Setting() map[string]any
}

// Figures are numbers of a result.
type Figures struct {
	row string
	all []figure
}

// A figure is one number, and between what it lay in repeats.
type figure struct {
	row, name string
	value     float64
	low, high float64
	assumed   bool // low and high, without repeats
}

// Row names the row of the figures that are added from now on.
func (f *Figures) Row(format string, args ...any) { f.row = fmt.Sprintf(format, args...) }

func (f *Figures) assume(name string, value, noise float64) {
	f.all = append(f.all, figure{f.row, name, value, value * (1 - noise), value * (1 + noise), true})
}

// Speed adds a rate or a latency without repeats.
func (f *Figures) Speed(name string, value float64) { f.assume(name, value, noiseOfSpeed) }

// Count adds a count without repeats.
func (f *Figures) Count(name string, value float64) { f.assume(name, value, noiseOfCount) }

// Percentiles adds latencies without repeats.
func (f *Figures) Percentiles(p Percentiles) {
	for i, d := range []time.Duration{p.P50, p.P99, p.P999} {
		f.Speed([]string{"p50 ms", "p99 ms", "p999 ms"}[i], InMilliseconds(d))
	}
}

// Repeated adds a figure with repeats.
func (f *Figures) Repeated(name string, value, low, high float64) {
	f.all = append(f.all, figure{f.row, name, value, min(value, low), max(value, high), false})
}

// Compare returns the command that prints, figure by figure, how two results of
// the same command differ. Its arguments are the names of their files, the old
// one first.
func Compare(sections []Section) Command {
	return func(_ context.Context, args []string, out io.Writer) error {
		flags := flag.NewFlagSet("compare", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		var as []string
		flags.Func("as", "`old=new`: compare this row of the old result with that one of the new; may be given several times", func(s string) error {
			as = append(as, s)
			return nil
		})
		switch err := flags.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			fmt.Fprintln(out, "usage: go run ./bench compare [-as old=new] old.json new.json")
			flags.SetOutput(out)
			flags.PrintDefaults()
			return err
		case err != nil:
			return fmt.Errorf("compare: %w", err)
		case flags.NArg() != 2:
			return errors.New("compare needs two files: go run ./bench compare old.json new.json")
		}
		var commands [2]string
		var results [2]Comparable
		for i, file := range flags.Args() {
			var err error
			if commands[i], results[i], err = readComparable(sections, file); err != nil {
				return err
			}
		}
		if commands[0] != commands[1] {
			return fmt.Errorf("compare: %s is a result of %s and %s one of %s", flags.Arg(0), commands[0], flags.Arg(1), commands[1])
		}
		pairs, err := pair(as, results[0].Figures(), results[1].Figures())
		if err != nil {
			return err
		}
		PrintComparison(out, results[0], results[1], pairs)
		return nil
	}
}

// Pairs say which row of the new result goes with a row of the old one that has
// another name.
type Pairs map[string]string

// pair reads what -as says: old=new, where both are names of rows, or what comes
// before the first comma or " at " in the names of some.
func pair(as []string, before, after Figures) (Pairs, error) {
	pairs := make(Pairs)
	for _, text := range as {
		found := false
		for i := range len(text) {
			if text[i] != '=' || found { // which may be in a name, too
				continue
			}
			old, is := text[:i], text[i+1:]
			for _, f := range before.all {
				rest, ok := cutName(f.row, old)
				if ok && after.has(is+rest) {
					pairs[f.row], found = is+rest, true
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("compare: -as %s: must be a row of the old result, =, and one of the new; the old one has %s, the new one %s",
				text, before.rows(), after.rows())
		}
	}
	return pairs, nil
}

// cutName returns what follows the name in a row's that begins with it.
func cutName(row, name string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(row, name)
	return rest, ok && (rest == "" || strings.HasPrefix(rest, ",") || strings.HasPrefix(rest, " at "))
}

func (f Figures) has(row string) bool {
	return slices.ContainsFunc(f.all, func(f figure) bool { return f.row == row })
}

// rows returns the names of all rows, in quotes.
func (f Figures) rows() string {
	var names []string
	for _, figure := range f.all {
		if name := strconv.Quote(figure.row); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// readComparable reads a result and tells by its fields of which command it is.
func readComparable(sections []Section, file string) (command string, r Comparable, err error) {
	encoded, err := os.ReadFile(file)
	if err != nil {
		return "", nil, err
	}
	if !json.Valid(encoded) {
		return "", nil, fmt.Errorf("compare: %s is not JSON", file)
	}
	var commands []string
	for _, s := range sections {
		r, ok := s.New().(Comparable)
		if !ok {
			continue
		}
		if decode(encoded, r) == nil && len(r.Figures().all) > 0 {
			return s.Command, r, nil
		}
		commands = append(commands, s.Command)
	}
	slices.Sort(commands)
	return "", nil, fmt.Errorf("compare: %s is not a result that this version of the bench can read: it has no figures of %v, or unknown fields",
		file, commands)
}

// PrintComparison writes what is different in before and after. Rows of the same
// name are compared, but for those that are in pairs.
func PrintComparison(out io.Writer, before, after Comparable, pairs Pairs) {
	was, is := before.Setting(), after.Setting()
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if was[name] != is[name] {
			fmt.Fprintf(out, "not the same %s: %v, then %v\n", name, was[name], is[name])
		}
	}
	type key struct{ row, name string }
	others := make(map[key]figure)
	for _, f := range after.Figures().all {
		others[key{f.row, f.name}] = f
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "row\tfigure\told\tnoise\tnew\tnoise\tnew/old\tdifference\t")
	var only []string
	paired := slices.Collect(maps.Values(pairs))
	for _, old := range before.Figures().all {
		row, title := old.row, old.row
		is, renamed := pairs[old.row]
		if renamed {
			row, title = is, old.row+" = "+is
		}
		f, ok := others[key{row, old.name}]
		if !ok || !renamed && slices.Contains(paired, row) {
			only = append(only, fmt.Sprintf("only in the old result: %s, %s", old.row, old.name))
			continue
		}
		delete(others, key{row, old.name})
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", title, old.name, digits(old.value), old.noise(), digits(f.value), f.noise(), ratio(old, f), difference(old, f))
	}
	_ = t.Flush() // who reads out looks after it
	for _, f := range after.Figures().all {
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
