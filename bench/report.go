package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A machine is what the figures were measured on.
type machine struct {
	Cores     int    `json:"cores"`
	CPU       string `json:"cpu,omitempty"` // where the system tells
	Platform  string `json:"platform,omitempty"`
	Go        string `json:"go"`
	Memcached string `json:"memcached,omitempty"` // if it took part
}

func thisMachine(memcachedVersion string) machine {
	m := machine{Cores: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Memcached: memcachedVersion}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(info))
	}
	return m
}

// cpuModel returns the model name in a /proc/cpuinfo, if it has one.
func cpuModel(info string) string {
	for line := range strings.Lines(info) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m machine) String() string {
	parts := []string{fmt.Sprintf("%d cores", m.Cores), m.CPU, m.Platform, m.Go}
	if m.Memcached != "" {
		parts = append(parts, "memcached "+m.Memcached)
	}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ", ")
}

// writeJSON writes a report's figures to a file, if one is named, whose
// directory it makes.
func writeJSON(file string, report any) error {
	if file == "" {
		return nil
	}
	encoded, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(encoded, '\n'), 0o644)
}

// A throughputReport is what throughput measured.
type throughputReport struct {
	Machine     machine       `json:"machine"`
	Connections int           `json:"connections"`
	Duration    time.Duration `json:"duration_ns"`
	Checks      []checkRow    `json:"checks"`
	Ceilings    []ceilingRow  `json:"ceilings"`
	Store       []storeRow    `json:"store"`
}

// comparison is how two sides of a pair did.
type comparison struct {
	Rate  float64       `json:"rate"`       // per second
	P50   time.Duration `json:"p50_ns"`     // of weir
	P99   time.Duration `json:"p99_ns"`     // of weir
	P999  time.Duration `json:"p999_ns"`    // of weir
	Other float64       `json:"other_rate"` // per second
	Ratio float64       `json:"ratio"`      // of Rate to Other
	// The smallest and the largest ratio of two neighbouring slices.
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
}

func (p *pair) comparison() comparison {
	quantile := func(percent float64) time.Duration {
		return time.Duration(p.weir.latency.ValueAtPercentile(percent))
	}
	return comparison{
		Rate: p.weir.rate(), P50: quantile(50), P99: quantile(99), P999: quantile(99.9),
		Other: p.other.rate(), Ratio: p.weir.rate() / p.other.rate(),
		RatioMin: slices.Min(p.ratios), RatioMax: slices.Max(p.ratios),
	}
}

// cpuTimes are what a check takes of a processor.
type cpuTimes struct {
	Weir      time.Duration `json:"cpu_ns"`
	Memcached time.Duration `json:"memcached_cpu_ns"`
	Noop      time.Duration `json:"noop_cpu_ns"`
}

func (p *pair) cpuTimes() cpuTimes {
	checks := time.Duration(p.weir.checks())
	return cpuTimes{Weir: p.weirCPU / checks, Memcached: p.memcachedCPU / checks, Noop: p.otherCPU / time.Duration(p.other.checks())}
}

// A checkRow is how one workload did over HTTP.
type checkRow struct {
	Algorithm string `json:"algorithm"`
	Traffic   string `json:"traffic"`
	comparison
	Denied float64 `json:"denied"` // share of the checks
	cpuTimes
	// Per check.
	Commands    float64 `json:"commands"`
	KeysRead    float64 `json:"keys_read"`
	Allocations float64 `json:"allocations"`
}

func newCheckRow(w workload, p *pair, store storeStats, keysPerGet float64) checkRow {
	checks := float64(p.weir.checks())
	row := checkRow{
		Algorithm: w.algorithm.name, Traffic: w.traffic.name, comparison: p.comparison(), cpuTimes: p.cpuTimes(),
		Denied:   float64(p.weir.denied) / checks,
		Commands: float64(store.writes) / checks,
		KeysRead: float64(store.keysRead) / checks,
	}
	if keysPerGet > 0 {
		row.Commands += row.KeysRead / keysPerGet
	}
	return row
}

// A storeRow is how the store alone did.
type storeRow struct {
	Callers int `json:"callers"`
	comparison
}

func newStoreRow(w storeWorkload, p *pair) storeRow {
	return storeRow{Callers: w.callers, comparison: p.comparison()}
}

// print writes the figures as tables, and what their columns mean.
func (r *throughputReport) print(out io.Writer) {
	fmt.Fprintf(out, "%d cores shared by weir, memcached %s and the bench, %s; %v per row; %d connections\n",
		r.Machine.Cores, r.Machine.Memcached, r.Machine.Go, r.Duration, r.Connections)
	if len(r.Checks) > 0 {
		r.printChecks(out)
	}
	if len(r.Ceilings) > 0 {
		r.printCeilings(out)
	}
	if len(r.Store) > 0 {
		r.printStore(out)
	}
}

func (r *throughputReport) printChecks(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\ttraffic\tchecks/s\tof no-op\tmin\tmax\tp50 ms\tp99 ms\tp999 ms\tdenied\tcmds/check\tkeys/check\tcmds/s\tallocs\tcpu us\tmemcached\tno-op\t")
	for _, c := range r.Checks {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.0f%%\t%.0f%%\t%.0f%%\t%s\t%s\t%s\t%.1f%%\t%.2f\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\t\n",
			c.Algorithm, c.Traffic, c.Rate, 100*c.Ratio, 100*c.RatioMin, 100*c.RatioMax,
			milliseconds(c.P50), milliseconds(c.P99), milliseconds(c.P999),
			100*c.Denied, c.Commands, c.KeysRead, c.Rate*c.Commands, c.Allocations, microseconds(c.Weir), microseconds(c.Memcached), microseconds(c.Noop))
	}
	_ = t.Flush() // out is looked after by whoever reads it
	for _, traffic := range []traffic{distinct, hot} {
		if ratio, ok := r.slidingToFixed(traffic); ok {
			fmt.Fprintf(out, "sliding N=60 against fixed window, %s: %.0f%%\n", traffic.name, 100*ratio)
		}
	}
	fmt.Fprint(out, `
checks/s    over HTTP/1.1 on loopback, each connection checking again as soon as it is answered
of no-op    rate relative to an echo handler that reads the same request and sends the same response, without middleware or
            timeouts; both run in turn, and min and max are of single turns
p50 to p999 from before a request is written until its response is read
cmds/check  commands that reach Memcached: writes as it counts them, and keys/check divided by the keys of an average get command,
            which a short run with Memcached's command log on finds out
keys/check  keys asked for by get commands
allocs      objects that weir allocates for a check beyond those of the no-op handler
cpu us      what a check takes of a processor in weir, in memcached, and in the no-op handler; the bench takes the rest
sliding N=60 against fixed window: both relative to the no-op handler
All clients have been busy for a whole window when a sliding row begins; the denied client has used up its limit.
`)
}

// slidingToFixed returns the rate of the sliding window of 60 slots relative to
// the fixed window's, if both were measured.
func (r *throughputReport) slidingToFixed(t traffic) (ratio float64, ok bool) {
	var sliding, fixed float64
	for _, c := range r.Checks {
		if c.Traffic != t.name {
			continue
		}
		switch c.Algorithm {
		case slidingBy60.name:
			sliding = c.Ratio
		case fixedWindow.name:
			fixed = c.Ratio
		}
	}
	return sliding / fixed, sliding > 0 && fixed > 0
}

func (r *throughputReport) printStore(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "store alone\tincr/s\tof pool\tmin\tmax\tp50 ms\tp99 ms\tp999 ms\t")
	for _, s := range r.Store {
		fmt.Fprintf(t, "%d callers\t%.0f\t%.2fx\t%.2fx\t%.2fx\t%s\t%s\t%s\t\n",
			s.Callers, s.Rate, s.Ratio, s.RatioMin, s.RatioMax, milliseconds(s.P50), milliseconds(s.P99), milliseconds(s.P999))
	}
	_ = t.Flush()
	fmt.Fprint(out, `
incr/s      weir's store, without HTTP, adding to 10,000 counters in turn
of pool     rate relative to gomemcache's own pool of connections (MaxIdleConns 512) doing the same, measured in turn
`)
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// milliseconds returns d with three significant digits or so.
func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 1:
		return fmt.Sprintf("%.3f", ms)
	case ms < 10:
		return fmt.Sprintf("%.2f", ms)
	default:
		return fmt.Sprintf("%.1f", ms)
	}
}
