package throughput

import (
	"fmt"
	"io"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// A Report is what throughput measured.
type Report struct {
	Machine     report.Machine `json:"machine"`
	Connections int            `json:"connections"`
	Duration    time.Duration  `json:"duration_ns"`
	Checks      []checkRow     `json:"checks"`
	Ways        []wayRow       `json:"ways,omitempty"`
}

// A checkRow is how one workload did over HTTP.
type checkRow struct {
	Algorithm string `json:"algorithm"`
	Traffic   string `json:"traffic"`
	testbed.Comparison
	Half   halfLoad `json:"half_load"`
	Denied float64  `json:"denied"` // share of the checks
	testbed.CPUTimes
	// Per check.
	Commands    float64 `json:"commands"`
	KeysRead    float64 `json:"keys_read"`
	Allocations float64 `json:"allocations"`
}

func newCheckRow(w loadgen.Workload, p *testbed.Pair, keysPerGet float64) checkRow {
	cost := p.Store.Per(p.Weir.Checks())
	row := checkRow{
		Algorithm: w.Algorithm.Title(), Traffic: w.Traffic.Name, Comparison: p.Comparison(), CPUTimes: p.CPU,
		Denied: float64(p.Weir.Denied) / float64(p.Weir.Checks()), Commands: cost.Writes, KeysRead: cost.KeysRead,
	}
	if keysPerGet > 0 {
		row.Commands += row.KeysRead / keysPerGet
	}
	return row
}

// Print writes the figures as tables, and what their columns mean.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "%d cores shared by weir, memcached %s and the bench, %s; %v per row; %d connections\n",
		r.Machine.Cores, r.Machine.Memcached, r.Machine.Go, r.Duration, r.Connections)
	report.TableOf(out, "", "algorithm\ttraffic\tchecks/s\tof no-op\tmin\tmax\t"+report.PercentileHeader+halfHeader+
		"denied\tcmds/check\tkeys/check\tcmds/s\tallocs\t"+cpuHeader("no-op"), r.Checks, func(c checkRow) string {
		return fmt.Sprintf("%s\t%s\t%s%s%.1f%%\t%.2f\t%.1f\t%.0f\t%.0f\t%s",
			c.Algorithm, c.Traffic, percentCells(c.Comparison), c.Half.cells(), 100*c.Denied, c.Commands, c.KeysRead, c.Rate*c.Commands, c.Allocations, cpuCells(c.CPUTimes))
	}, `
checks/s    over HTTP/1.1 on loopback, each connection checking again as soon as it is answered
of no-op    rate relative to an echo handler that reads the same request and sends the same response, without middleware or
            timeouts; both run in turn, and min and max are of single turns
p50 to p999 from before a request is written until its response is read
half        the same at half of checks/s, from when a request was due until its response is read; arrivals are Poisson
cmds/check  commands that reach Memcached: writes as it counts them, and keys/check divided by the keys of an average get command,
            which a short run of 16 connections with Memcached's command log on finds out: of more, clients share more of them
keys/check  keys asked for by get commands
allocs      objects that weir allocates for a check in all
cpu us      what a check takes of a processor in weir, in memcached, and in the no-op handler, while both servers are loaded at
            the same moment, by half of the connections each: unlike rates, that hardly depends on what else the machine does
All clients have been busy for a whole window when a sliding row begins; the denied client has used up its limit.
`)
	report.TableOf(out, "", "way in\tchecks/s\tof single\tmin\tmax\t"+report.PercentileHeader+halfHeader+cpuHeader("single")+"checks/core\tallocs\t", r.Ways, func(w wayRow) string {
		return fmt.Sprintf("%s\t%s%s%s%.0f\t%.1f\t", w.How, timesCells(w.Comparison), w.Half.cells(), cpuCells(w.CPUTimes), 1e9/float64(w.Weir), w.Allocations)
	}, `
checks/s    by sliding N=10, of 10,000 clients who have been busy for a whole window; each connection or caller goes on as soon
            as it is answered
            (batches of 100 and 1000 by N=60, and the single checks beside them, have a store timeout of 2s, as 16 batches of new
            clients read 100,000 keys, or a million)
of single   rate relative to single checks of the same clients over connections to a weir of their own, in turn
p50 to p999 of a batch, or of a caller's check; at half load from when it was due
cpu us      of a check in weir and in memcached, and of a single one in weir, while both weirs are loaded so;
            checks/core are what a core of weir's makes of it, and allocs the objects that weir allocates for a check in all
-http net   by net/http alone, where all others are by the plain door
Go client   callers of one client in the bench's own process, which puts their checks together
gRPC        the rate limit service of Envoy
settle      a check of cost 3 and its settlement with a cost of 1 count as one; so do a place's taking and its release, beside
            single checks of a token bucket
`)
}

// cpuHeader is the header of cpuCells, for what weir is compared with.
func cpuHeader(other string) string {
	return fmt.Sprintf("cpu us\tmemcached\t%s\tcpu of %s\t", other, other)
}

// cpuCells returns the cells of a table.
func cpuCells(c testbed.CPUTimes) string {
	return fmt.Sprintf("%.1f\t%.1f\t%.1f\t%.0f%%\t", float64(c.Weir)/1e3, float64(c.Memcached)/1e3, float64(c.Other)/1e3, 100*float64(c.Weir)/float64(c.Other))
}

// percentCells returns the rate, in percent of the other's, and the percentiles.
func percentCells(c testbed.Comparison) string {
	return fmt.Sprintf("%.0f\t%.0f%%\t%.0f%%\t%.0f%%\t%s", c.Rate, 100*c.Ratio, 100*c.RatioMin, 100*c.RatioMax, c.Percentiles.Cells())
}

// timesCells is percentCells with how many times the other's rate it is.
func timesCells(c testbed.Comparison) string {
	return fmt.Sprintf("%.0f\t%.2fx\t%.2fx\t%.2fx\t%s", c.Rate, c.Ratio, c.RatioMin, c.RatioMax, c.Percentiles.Cells())
}
