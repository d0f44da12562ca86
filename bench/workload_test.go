package main

import (
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startedSide returns a weir on a memcached of its own, under the load of w from
// a few connections.
func startedSide(t *testing.T, w workload) (*memcached, *side) {
	t.Helper()
	dir := t.TempDir()
	policies := filepath.Join(dir, "policies.yaml")
	require.NoError(t, os.WriteFile(policies, []byte(policyFile(workloads())), 0o600))
	binary, err := buildWeir(t.Context(), dir)
	require.NoError(t, err)
	m := startedMemcached(t)
	weir, err := startWeir(t.Context(), binary, policies, m.addr)
	require.NoError(t, err)
	t.Cleanup(weir.stop)
	s, err := newSide(t.Context(), weir, w, 8)
	require.NoError(t, err)
	t.Cleanup(func() { closeClients(s.clients) })
	return m, s
}

// keys returns the keys of all items that memcached holds.
func (m *memcached) keys(t *testing.T) []string {
	t.Helper()
	lines, err := m.do("lru_crawler metadump all", "END", "BUSY")
	for err == nil && strings.HasPrefix(lines[0], "BUSY") {
		time.Sleep(10 * time.Millisecond)
		lines, err = m.do("lru_crawler metadump all", "END", "BUSY")
	}
	require.NoError(t, err)
	var keys []string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "key="); ok {
			escaped, _, _ := strings.Cut(rest, " ")
			key, err := url.PathUnescape(escaped)
			require.NoError(t, err)
			keys = append(keys, key)
		}
	}
	return keys
}

// clientCounts returns what memcached has counted for each client.
func (m *memcached) clientCounts(t *testing.T) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for _, key := range m.keys(t) {
		lines, err := m.do("get "+key, "END")
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(lines[1]))
		require.NoError(t, err)
		client := key[strings.LastIndex(key, ":")+1 : strings.LastIndex(key, "_")]
		counts[client] += n
	}
	return counts
}

func TestDistinctClientsAreDistinctAtTheServer(t *testing.T) {
	w := workload{fixedWindow, distinct}
	m, s := startedSide(t, w)
	result, err := drive(t.Context(), s.clients, &turn{clients: w.clients, last: w.clients}, 0)
	require.NoError(t, err)
	assert.Equal(t, w.clients, result.admitted)
	require.NoError(t, w.verify(result, 0))

	counts := m.clientCounts(t)
	assert.Len(t, counts, 10_000)
	for client, n := range counts {
		require.Equal(t, 1, n, client)
	}
	assert.Contains(t, counts, "client-00000000")
	assert.Contains(t, counts, "client-00009999")
}

func TestHotClientIsOneAndAdmitted(t *testing.T) {
	w := workload{slidingBy60, hot}
	m, s := startedSide(t, w)
	result, err := drive(t.Context(), s.clients, &turn{clients: w.clients, last: 500}, 0)
	require.NoError(t, err)
	assert.Equal(t, int64(500), result.admitted)
	assert.Zero(t, result.denied)
	assert.Equal(t, map[string]int{"client-00000000": 500}, m.clientCounts(t))
}

func TestDeniedClientIsDenied(t *testing.T) {
	for _, a := range []algorithm{fixedWindow, slidingBy60} {
		t.Run(a.name, func(t *testing.T) {
			w := workload{a, denied}
			m, s := startedSide(t, w)
			start := time.Now()
			result, err := drive(t.Context(), s.clients, &turn{clients: w.clients, last: 1000}, 0)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, result.admitted, int64(low))
			assert.Equal(t, int64(1000), result.checks())
			require.NoError(t, w.verify(result, time.Since(start)))
			assert.Equal(t, map[string]int{"client-00000000": int(result.admitted)}, m.clientCounts(t))
		})
	}
}

func TestTurnIsFair(t *testing.T) {
	turn := &turn{clients: 10_000}
	times := make(map[int64]int)
	for range 30_000 {
		n, ok := turn.next()
		require.True(t, ok)
		times[n]++
	}
	assert.Len(t, times, 10_000)
	for n, count := range times {
		require.Equalf(t, 3, count, "client %d", n)
		require.Less(t, n, int64(10_000))
	}
}

func TestTurnEnds(t *testing.T) {
	turn := &turn{clients: 2, last: 3}
	for _, want := range []int64{0, 1, 0} {
		n, ok := turn.next()
		assert.True(t, ok)
		assert.Equal(t, want, n)
	}
	_, ok := turn.next()
	assert.False(t, ok)
}

func TestWorkloads(t *testing.T) {
	all := workloads()
	names, policies := make(map[string]bool), make(map[string]bool)
	for _, w := range all {
		names[w.String()] = true
		policies[w.policy()] = true
	}
	assert.Len(t, names, 15)
	assert.Len(t, policies, 10, "those who are denied have policies of their own")
	assert.Equal(t, "sliding-n60-100", workload{slidingBy60, denied}.policy())
}

func TestVerify(t *testing.T) {
	admittedRow, deniedRow := workload{fixedWindow, hot}, workload{fixedWindow, denied}
	for _, tt := range []struct {
		w                workload
		admitted, denied int64
		since            time.Duration
		ok               bool
	}{
		{admittedRow, 1000, 0, time.Second, true},
		{admittedRow, 999, 1, time.Second, false},
		{deniedRow, 0, 1000, time.Second, true},
		{deniedRow, 200, 1000, time.Second, true},
		{deniedRow, 201, 1000, time.Second, false},
		{deniedRow, 201, 1000, time.Minute, true},
		{deniedRow, 100, 99, time.Second, false},
		{deniedRow, 1000, 0, time.Second, false},
	} {
		err := tt.w.verify(tally{admitted: tt.admitted, denied: tt.denied}, tt.since)
		assert.Equal(t, tt.ok, err == nil, "%+v: %v", tt, err)
	}
}

func TestPolicyFile(t *testing.T) {
	strict := workload{algorithm{name: "strict N=60", subWindows: 60, strict: true}, denied}
	assert.Equal(t, `policies:
  fixed-1000000000:
    limits: [{name: limit, algorithm: fixed_window, limit: 1000000000, window: 1m0s}]
    on_store_error: deny
  strict-n60-100:
    limits: [{name: limit, algorithm: sliding_window, sub_windows: 60, estimate: strict, limit: 100, window: 1m0s}]
    on_store_error: deny
`, policyFile([]workload{{fixedWindow, distinct}, {fixedWindow, hot}, strict}))
}
