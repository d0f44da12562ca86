package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// written returns a file with the report.
func written(t *testing.T, report any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	require.NoError(t, writeJSON(file, report))
	return file
}

// compared returns the lines that compare prints, without the legend and with
// single spaces.
func compared(t *testing.T, before, after any) []string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"compare", written(t, before), written(t, after)}, &out))
	printed, _, _ := strings.Cut(out.String(), "\n\n")
	var lines []string
	for line := range strings.Lines(printed) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

func TestCompareThroughput(t *testing.T) {
	report := func(ratio, low, high, commands float64) throughputReport {
		return throughputReport{Connections: 256, Checks: []checkRow{{
			Algorithm: "fixed", Traffic: "one hot client", Commands: commands, Allocations: 10,
			comparison: comparison{Rate: 40_000 * ratio, P50: 6 * time.Millisecond, P99: 12 * time.Millisecond, Ratio: ratio, RatioMin: low, RatioMax: high},
		}}}
	}
	before, after := report(0.5, 0.45, 0.55, 1), report(0.6, 0.56, 0.66, 1.2)
	after.Connections = 128
	after.Store = []storeRow{{Callers: 16}}
	lines := compared(t, before, after)
	assert.Equal(t, "not the same connections: 256, then 128", lines[0])
	assert.Equal(t, "row figure old noise new noise new/old difference", lines[1])
	assert.Contains(t, lines, "fixed, one hot client ratio 0.5 -10%..+10% 0.6 -7%..+10% 1.200 higher")
	assert.Contains(t, lines, "fixed, one hot client rate 20000 ~ 24000 ~ 1.200 within noise")
	assert.Contains(t, lines, "fixed, one hot client commands/check 1 ~ 1.2 ~ 1.200 higher")
	assert.Contains(t, lines, "fixed, one hot client p99 ms 12 ~ 12 ~ 1.000 within noise")
	assert.Contains(t, lines, "fixed, one hot client keys/check 0 ~ 0 ~ - within noise")
	assert.Contains(t, lines, "only in the new result: store, 16 callers, ratio")

	// The ranges touch.
	after = report(0.6, 0.55, 0.66, 1)
	assert.Contains(t, compared(t, before, after), "fixed, one hot client ratio 0.5 -10%..+10% 0.6 -8%..+10% 1.200 within noise")
	assert.Contains(t, compared(t, after, before), "fixed, one hot client ratio 0.6 -8%..+10% 0.5 -10%..+10% 0.833 within noise")
	assert.Contains(t, compared(t, report(0.6, 0.56, 0.66, 1), before), "fixed, one hot client ratio 0.6 -7%..+10% 0.5 -10%..+10% 0.833 lower")
}

func TestCompareContention(t *testing.T) {
	report := func(rate float64, fullest int) contentionReport {
		return contentionReport{
			Rates:   []rateRow{{Loop: plainCAS, Processes: 1, Callers: 4, Rate: rate}},
			Buckets: []bucketRow{{Processes: 8, Admitted: 995, Most: 1000}},
			Logs:    []logRow{{Processes: 8, Fullest: fullest}},
		}
	}
	lines := compared(t, report(1000, 1000), report(1600, 1200))
	assert.Contains(t, lines, "plain CAS loop, 1 x 4 callers rate 1000 ~ 1600 ~ 1.600 higher")
	assert.Contains(t, lines, "exact, combined CAS loop, 8 processes share admitted 0.995 ~ 0.995 ~ 1.000 within noise")
	assert.Contains(t, lines, "exact, sliding log, 8 processes fullest window 1000 ~ 1200 ~ 1.200 higher")
	assert.Contains(t, compared(t, report(1000, 1000), report(1499, 1000)), "plain CAS loop, 1 x 4 callers rate 1000 ~ 1499 ~ 1.499 within noise", "800 to 1200, and 1199 to 1799")
}

func TestCompareLoad(t *testing.T) {
	slice := func(p99 time.Duration) loadFigures {
		return loadFigures{Rate: 1000, Achieved: 1000, Latency: &latencies{P99: p99}}
	}
	report := func(p99s ...time.Duration) loadReport {
		row := loadRow{Policy: "fixed", loadFigures: slice(p99s[0]), Store: &storeCost{Writes: 1}}
		for _, p99 := range p99s[1:] {
			row.Slices = append(row.Slices, slice(p99))
		}
		return loadReport{
			Machine: machine{Cores: 2, Go: "go1.26.8"}, Seed: 1, Rows: []loadRow{row},
			Searches: []searchRow{{Policy: "fixed", Highest: 20_000, Lowest: 22_000}},
		}
	}
	before, after := report(10*ms, 8*ms, 12*ms), report(14*ms, 12500*time.Microsecond, 16*ms)
	after.Machine.Go, after.Seed, after.Rows[0].Fault = "go1.27.0", 2, "not sent: 3"
	after.Searches[0].Highest, after.Searches[0].Lowest = 24_000, 26_000
	lines := compared(t, before, after)
	assert.Equal(t, []string{
		"not the same Go: go1.26.8, then go1.27.0",
		"not the same outcome: without faults, then fixed: not sent: 3",
		"not the same seed: 1, then 2",
	}, lines[:3])
	assert.Contains(t, lines, "fixed, search highest rate 20000 +0%..+10% 24000 +0%..+8% 1.200 higher")
	assert.Contains(t, lines, "fixed p99 ms 10 -20%..+20% 14 -11%..+14% 1.400 higher")
	assert.Contains(t, lines, "fixed p50 ms 0 0..0 0 0..0 - within noise")
	assert.Contains(t, lines, "fixed writes/check 1 ~ 1 ~ 1.000 within noise")

	assert.Contains(t, compared(t, before, report(14*ms, 11*ms, 16*ms)), "fixed p99 ms 10 -20%..+20% 14 -21%..+14% 1.400 within noise")
	assert.Contains(t, compared(t, before, report(14*ms, 13*ms)), "fixed p99 ms 10 -20%..+20% 14 ~ 1.400 within noise", "a single slice is no repeat")

	// The slices of a ramp are no repeats, but rows of their own.
	before.Ramp, after.Ramp = true, true
	before.Rows[0].Slices[1].Rate, after.Rows[0].Slices[1].Rate = 2000, 3000
	lines = compared(t, before, after)
	assert.Contains(t, lines, "fixed p99 ms 10 ~ 14 ~ 1.400 within noise")
	assert.Contains(t, lines, "fixed at 1000/s p99 ms 8 ~ 12.5 ~ 1.562 higher")
	assert.Contains(t, lines, "only in the old result: fixed at 2000/s, p99 ms")
	assert.Contains(t, lines, "only in the new result: fixed at 3000/s, p99 ms")

	// A run that was behind has no latencies.
	after.Rows[0].Latency = nil
	assert.Contains(t, compared(t, before, after), "only in the old result: fixed, p99 ms")
}

func TestCompareRefuses(t *testing.T) {
	throughput := written(t, throughputReport{Checks: []checkRow{{Algorithm: "fixed"}}})
	contention := written(t, contentionReport{Logs: []logRow{{Processes: 1}}})
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "file.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	for _, tt := range []struct{ name, before, after, want string }{
		{"two commands", throughput, contention, "report.json is a result of throughput and "},
		{"no JSON", throughput, file("figures"), "file.json is not JSON"},
		{"two documents", throughput, file("{} {}"), "file.json is not JSON"},
		{"no figures", file("{}"), throughput, "file.json is not a result that this version of the bench can read"},
		{"other fields", file(`{"checks":[{"algorithm":"fixed","speed":1}]}`), throughput, "unknown fields"},
		{"no file", throughput, "no-such-file.json", "no-such-file.json: no such file"},
	} {
		assert.ErrorContains(t, execute(t.Context(), []string{"compare", tt.before, tt.after}, &bytes.Buffer{}), tt.want, tt.name)
	}
}

func TestCommittedResultsCanBeCompared(t *testing.T) {
	for _, command := range []string{"throughput", "contention"} {
		of, r, err := readReport(filepath.Join("results", command+".json"))
		require.NoError(t, err)
		assert.Equal(t, command, of)
		assert.NotEmpty(t, r.figures())
		// Each figure has a name of its own.
		seen := make(map[string]bool)
		for _, f := range r.figures() {
			assert.False(t, seen[f.row+f.name], "%s, %s", f.row, f.name)
			seen[f.row+f.name] = true
		}
	}
}
