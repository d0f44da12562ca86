package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQuickThroughput(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{
		"throughput", "-quick", "-connections", "4", "-rows", "^sliding N=1, one denied|^store, 16 |^ceiling, incr", "-out", dir,
	}, &out))
	assert.Contains(t, out.String(), "one denied client")
	assert.Contains(t, out.String(), "16 callers")

	encoded, err := os.ReadFile(filepath.Join(dir, "throughput.json"))
	require.NoError(t, err)
	var r throughputReport
	require.NoError(t, json.Unmarshal(encoded, &r))
	require.Len(t, r.Checks, 1)
	require.Len(t, r.Store, 1)
	assert.Equal(t, 4, r.Connections)
	assert.Regexp(t, `^\d+\.\d+\.\d+`, r.Machine.Memcached)
	assert.Equal(t, "sliding N=1", r.Checks[0].Algorithm)
	assert.Greater(t, r.Checks[0].Denied, 0.5)
	for _, c := range []comparison{r.Checks[0].comparison, r.Store[0].comparison} {
		assert.Positive(t, c.Rate)
		assert.Positive(t, c.Other)
		assert.InDelta(t, c.Rate/c.Other, c.Ratio, 1e-9)
		assert.Positive(t, c.P50)
		assert.LessOrEqual(t, c.P50, c.P99)
		assert.LessOrEqual(t, c.P99, c.P999)
	}
}

func TestCheckRow(t *testing.T) {
	p := newPair()
	side := func(admitted, denied int64) func() (tally, error) {
		return func() (tally, error) {
			return tally{admitted: admitted, denied: denied, elapsed: time.Second, latency: newHistogram()}, nil
		}
	}
	require.NoError(t, p.slice(side(400, 0), side(50, 150)))
	p.weirCPU, p.memcachedCPU, p.otherCPU = 4*time.Millisecond, 200*time.Microsecond, 8*time.Millisecond
	w := workload{fixedWindow, denied}

	row := newCheckRow(w, p, storeStats{writes: 300, keysRead: 1200}, 12)
	assert.Equal(t, "fixed", row.Algorithm)
	assert.Equal(t, "one denied client", row.Traffic)
	assert.InDelta(t, 0.75, row.Denied, 1e-9)
	assert.InDelta(t, 6.0, row.KeysRead, 1e-9)
	assert.InDelta(t, 2.0, row.Commands, 1e-9, "300 writes and 100 gets in 200 checks")

	assert.Equal(t, cpuTimes{Weir: 20 * time.Microsecond, Memcached: time.Microsecond, Noop: 20 * time.Microsecond}, row.cpuTimes)

	row = newCheckRow(w, p, storeStats{writes: 300}, 0)
	assert.InDelta(t, 1.5, row.Commands, 1e-9)
}

func TestReport(t *testing.T) {
	ms := time.Millisecond
	r := throughputReport{
		Machine: machine{Cores: 2, Go: "go1.26.8", Memcached: "1.6.18"}, Connections: 256, Duration: 5 * time.Second,
		Checks: []checkRow{
			{Algorithm: "fixed", Traffic: "10,000 clients", Commands: 1, Allocations: 31.4, cpuTimes: cpuTimes{31_400, 4_200, 20_000}, comparison: comparison{
				Rate: 40_000, Ratio: 0.8, RatioMin: 0.75, RatioMax: 0.85, P50: 6 * ms, P99: 12 * ms, P999: 345 * time.Microsecond}},
			{Algorithm: "sliding N=60", Traffic: "10,000 clients", Denied: 0.5, Commands: 2, KeysRead: 60, comparison: comparison{
				Rate: 10_000, Ratio: 0.2, RatioMin: 0.1, RatioMax: 0.3}},
			{Algorithm: "fixed", Traffic: "one hot client", comparison: comparison{Ratio: 0.5}},
		},
		Store: []storeRow{{Callers: 16, comparison: comparison{Rate: 300_000, Ratio: 2.6, RatioMin: 2.5, RatioMax: 2.75}}},
	}
	var out bytes.Buffer
	r.print(&out)
	assert.Contains(t, out.String(), "2 cores shared by weir, memcached 1.6.18 and the bench, go1.26.8; 5s per row; 256 connections\n")
	assert.Contains(t, out.String(), `
     algorithm         traffic  checks/s  of no-op  min  max  p50 ms  p99 ms  p999 ms  denied  cmds/check  keys/check  cmds/s  allocs  cpu us  memcached  no-op
         fixed  10,000 clients     40000       80%  75%  85%    6.00    12.0    0.345    0.0%        1.00         0.0   40000      31    31.4        4.2   20.0
  sliding N=60  10,000 clients     10000       20%  10%  30%   0.000   0.000    0.000   50.0%        2.00        60.0   20000       0     0.0        0.0    0.0
`)
	assert.Contains(t, out.String(), "sliding N=60 against fixed window, 10,000 clients: 25%\n")
	assert.NotContains(t, out.String(), "against fixed window, one hot client")
	assert.Contains(t, out.String(), `
  store alone  incr/s  of pool    min    max  p50 ms  p99 ms  p999 ms
   16 callers  300000    2.60x  2.50x  2.75x   0.000   0.000    0.000
`)
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		25 * time.Microsecond: "0.025", 1500 * time.Microsecond: "1.50", 123456 * time.Microsecond: "123.5",
	} {
		assert.Equal(t, want, milliseconds(d))
	}
}
