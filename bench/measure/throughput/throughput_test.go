package throughput

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
	"weir/counters"
)

func TestMain(m *testing.M) { benchtest.Main(m, testbed.NoopCommand, Noop) }

// keys returns the keys of all items that memcached holds.
func keys(t *testing.T, m *testbed.Memcached) []string {
	t.Helper()
	lines, err := m.Do("lru_crawler metadump all", "END", "BUSY")
	for err == nil && strings.HasPrefix(lines[0], "BUSY") {
		time.Sleep(10 * time.Millisecond)
		lines, err = m.Do("lru_crawler metadump all", "END", "BUSY")
	}
	require.NoError(t, err)
	var keys []string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "key="); ok {
			escaped, _, _ := strings.Cut(rest, " ")
			key, err := url.PathUnescape(escaped)
			require.NoError(t, err)
			if !strings.Contains(key, ":instance") { // which instances leave for each other
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// clientCounts returns what memcached has counted for each client.
func clientCounts(t *testing.T, m *testbed.Memcached) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for some := range slices.Chunk(keys(t, m), 100) { // one by one, the first would expire meanwhile
		lines, err := m.Do("get "+strings.Join(some, " "), "END")
		require.NoError(t, err)
		for ; len(lines) > 1; lines = lines[2:] {
			key := strings.Fields(lines[0])[1]
			n, err := strconv.Atoi(strings.TrimSpace(lines[1]))
			require.NoError(t, err)
			client := key[strings.LastIndex(key, ":")+1 : strings.LastIndex(key, "_")]
			counts[client] += n
		}
	}
	return counts
}

// Each client that asks is counted by its own name, and answered as the row says.
func TestTrafficsAtTheServer(t *testing.T) {
	t.Parallel()
	build := benchtest.Build(t, loadgen.PolicyFile(workloads()))
	for _, tt := range []struct {
		algorithm    string
		traffic      loadgen.Traffic
		checks, each int64 // 0: as many as were admitted
	}{
		{algorithms.Fixed, loadgen.Distinct, 10_000, 1},
		{algorithms.Sliding60, loadgen.Hot, 500, 500},
		{algorithms.Fixed, loadgen.Denied, 1000, 0},
		{algorithms.Sliding60, loadgen.Denied, 1000, 0},
	} {
		w := loadgen.Workload{Algorithm: algorithms.Named(tt.algorithm), Traffic: tt.traffic}
		t.Run(w.String(), func(t *testing.T) {
			t.Parallel()
			m := benchtest.Memcached(t)
			weir, err := build.Start(t.Context(), m.Addr)
			require.NoError(t, err)
			t.Cleanup(weir.Stop)
			clients, err := loadgen.Dial(t.Context(), weir.Addr, w.Request(), 8)
			require.NoError(t, err)
			t.Cleanup(clients.Close)

			start := time.Now()
			result, err := clients.Drive(t.Context(), &loadgen.Turn{Clients: w.Clients, Last: tt.checks}, 0)
			require.NoError(t, err)
			assert.Equal(t, tt.checks, result.Checks())
			require.NoError(t, w.Verify(result, time.Since(start)))
			each := tt.each
			if each == 0 {
				each = result.Admitted
				assert.GreaterOrEqual(t, each, int64(loadgen.Low))
			}
			counts := clientCounts(t, m)
			assert.Len(t, counts, int(w.Clients))
			for n := range w.Clients {
				require.Equal(t, int(each), counts[loadgen.ClientName(n)], "client %d", n)
			}
		})
	}
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	names, policies := make(map[string]bool), make(map[string]bool)
	for _, w := range workloads() {
		names[w.String()] = true
		policies[w.Policy()] = true
	}
	assert.Len(t, names, 20)
	assert.Len(t, policies, 12, "those who are denied have policies of their own")
	assert.True(t, policies["sliding-n60-100"])
}

func TestFill(t *testing.T) {
	t.Parallel()
	m := benchtest.Memcached(t)
	now := time.Now()
	w := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Sliding4), Traffic: loadgen.Traffic{Clients: 3, Limit: loadgen.Never}}
	require.NoError(t, fill(m, w, now))

	var want []string
	for n := range w.Clients {
		for slot := int64(1); slot <= 4; slot++ {
			client := counters.CounterNamespace("weir", "sliding-n4-1000000000", "limit", 15*time.Second).Client(loadgen.ClientName(n))
			want = append(want, counters.CounterKey(client, counters.Calendar(now, 15*time.Second).Number-slot))
		}
	}
	assert.ElementsMatch(t, want, keys(t, m))

	require.NoError(t, fill(m, loadgen.Workload{Algorithm: algorithms.Named(algorithms.Fixed), Traffic: loadgen.Distinct}, now))
	assert.Len(t, keys(t, m), 12, "a fixed window has no closed slots")
}

func TestQuickThroughput(t *testing.T) {
	t.Parallel()
	var r Report
	_, printed, err := benchtest.Run(t, Run, "throughput", &r,
		"-quick", "-connections", "64", "-rows", "^sliding N=1, one denied|^batches of 100, |^Go client, 256|^single, -http net|^gRPC|^check and settle|^take a place")
	require.NoError(t, err)
	assert.Contains(t, printed, "one denied client")
	assert.Contains(t, printed, "Go client, 256 callers")
	require.Len(t, r.Checks, 1)
	require.Len(t, r.Ways, 6)
	assert.Equal(t, 64, r.Connections)
	assert.Regexp(t, `^\d+\.\d+\.\d+`, r.Machine.Memcached)
	assert.Equal(t, "sliding N=1", r.Checks[0].Algorithm)
	assert.Greater(t, r.Checks[0].Denied, 0.5)
	for _, h := range []halfLoad{r.Checks[0].Half, r.Ways[0].Half, r.Ways[3].Half, r.Ways[5].Half} {
		assert.Positive(t, h.P50)
		assert.LessOrEqual(t, h.P50, h.P99)
	}
	for _, w := range r.Ways {
		assert.Positive(t, w.Weir, w.How)
		assert.Positive(t, w.Memcached, w.How)
		assert.Positive(t, w.CPUTimes.Other, w.How)
		assert.Positive(t, w.Allocations, w.How)
	}
	for _, c := range []testbed.Comparison{r.Checks[0].Comparison, r.Ways[0].Comparison, r.Ways[3].Comparison, r.Ways[4].Comparison, r.Ways[5].Comparison} {
		assert.Positive(t, c.Rate)
		assert.Positive(t, c.Other)
		assert.InDelta(t, c.Rate/c.Other, c.Ratio, 1e-9)
		assert.Positive(t, c.P50)
		assert.LessOrEqual(t, c.P50, c.P99)
		assert.LessOrEqual(t, c.P99, c.P999)
	}
}

// Asking for their number allocates too, now more and now less.
func TestAllocationsOfAShortLoad(t *testing.T) {
	t.Parallel()
	var allocated atomic.Int64
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(rw, "go_memstats_mallocs_total %d\n", allocated.Load())
		asking := int64(800 + asked%4*100)
		if asked++; asked == 1 {
			asking = 3000
		}
		allocated.Add(asking)
	}))
	t.Cleanup(server.Close)
	load := func() (loadgen.Tally, error) {
		const checks = 100
		allocated.Add(3 * checks)
		return loadgen.Tally{Admitted: checks}, nil
	}
	for range 5 {
		perCheck, err := allocations(t.Context(), server.Listener.Addr().String(), load)
		require.NoError(t, err)
		assert.InDelta(t, 3, perCheck, 0.4)
	}
}

func TestNoopAnswersAsWeirDid(t *testing.T) {
	t.Parallel()
	var asked []string
	weir := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		asked = append(asked, string(body))
		if len(asked) < 3 {
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Ratelimit", `"limit";r=0;t=9`)
		rw.WriteHeader(http.StatusTooManyRequests)
		_, err = io.WriteString(rw, `{"allowed":false}`)
		assert.NoError(t, err)
	}))
	t.Cleanup(weir.Close)
	captured, err := loadgen.CaptureReply(t.Context(), weir.Listener.Addr().String(), "the check", 429, 5)
	require.NoError(t, err)
	assert.Equal(t, []string{"the check", "the check", "the check"}, asked)

	noop, err := testbed.StartNoop(t.Context(), captured)
	require.NoError(t, err)
	t.Cleanup(noop.Stop)
	again, err := loadgen.CaptureReply(t.Context(), noop.Addr, "any check", 429, 1)
	require.NoError(t, err)
	assert.Equal(t, captured, again)
	assert.Equal(t, `{"allowed":false}`, string(again.Body))
	assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "Ratelimit": {`"limit";r=0;t=9`}}, again.Header)
}

func TestCheckRow(t *testing.T) {
	t.Parallel()
	p := &testbed.Pair{Weir: loadgen.NewTally(), Other: loadgen.NewTally(), Ratios: []float64{0.5}}
	p.Weir.Admitted, p.Weir.Denied = 150, 450
	w := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Fixed), Traffic: loadgen.Denied}

	p.Store = testbed.StoreStats{Writes: 900, KeysRead: 3600}
	row := newCheckRow(w, p, 12)
	assert.Equal(t, "fixed", row.Algorithm)
	assert.Equal(t, "one denied client", row.Traffic)
	assert.InDelta(t, 0.75, row.Denied, 1e-9)
	assert.InDelta(t, 6.0, row.KeysRead, 1e-9)
	assert.InDelta(t, 2.0, row.Commands, 1e-9, "900 writes and 300 gets in 600 checks")

	p.Store.KeysRead = 0
	row = newCheckRow(w, p, 0)
	assert.InDelta(t, 1.5, row.Commands, 1e-9)
}

func TestCellsOfProcessorTimes(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "20.0\t1.0\t25.0\t80%\t", cpuCells(testbed.CPUTimes{Weir: 20 * time.Microsecond, Memcached: time.Microsecond, Other: 25 * time.Microsecond}))
}
