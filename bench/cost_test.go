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

// What a check asks for and what is kept can be told beforehand.
func TestCosts(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"cost", "-quick", "-out", dir}, &out))
	assert.Contains(t, out.String(), "items/client")
	for _, name := range []string{"cost.svg", "cost.png"} {
		assert.FileExists(t, filepath.Join(dir, name))
	}
	encoded, err := os.ReadFile(filepath.Join(dir, "cost.json"))
	require.NoError(t, err)
	decoded, err := decode[costReport](encoded)
	require.NoError(t, err)
	r := decoded.(*costReport)
	assert.Equal(t, 200, r.Clients)
	incr, addIncr := storeCost{Writes: 1}, storeCost{Writes: 2}
	for _, row := range r.Rows {
		var want costRow
		switch row.Algorithm {
		case "fixed":
			// A counter is kept for its window and 2.05 s more.
			want = costRow{Busy: incr, NewSlot: addIncr, Cold: addIncr, Items: 2}
		case "n1", "n4", "n10", "n60":
			// Besides the slot before, which has just closed, a process reads the
			// others only when it knows none, and when the client was reset.
			slots := map[string]float64{"n1": 1, "n4": 4, "n10": 10, "n60": 60}[row.Algorithm]
			kept := map[string]float64{"n1": 3, "n4": 6, "n10": 12, "n60": 64}[row.Algorithm]
			want = costRow{Busy: incr, NewSlot: storeCost{2, 2}, Cold: storeCost{2, slots + 1}, Items: kept}
		default:
			// cas and a gets; before that add, in case nothing is there, and a gets.
			want = costRow{Busy: storeCost{1, 1}, NewSlot: storeCost{1, 1}, Cold: storeCost{2, 2}, Items: 1}
		}
		want.Algorithm, want.Bytes, want.ViewBytes = row.Algorithm, row.Bytes, row.ViewBytes
		assert.Equal(t, want, row)
		assert.Greater(t, row.Bytes, 48*row.Items, "an item has a header")
		assert.Greater(t, row.ViewBytes, 50.0, row.Algorithm)
	}
	assert.Len(t, r.Rows, len(pricedAlgorithms()))
	again, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, string(encoded), string(again))
}

// A counter of a window of 60 slots lives for 61 s, and 2.05 s more.
func TestPastOfABusyClient(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)
	for name, want := range map[string]struct {
		times int
		first time.Duration
	}{"fixed": {2, time.Minute}, "n1": {3, 2 * time.Minute}, "n4": {6, 75 * time.Second}, "n60": {64, 63 * time.Second}, "token": {1, 0}, "log": {50, 58800 * time.Millisecond}} {
		for _, p := range pricedAlgorithms() {
			if p.name == name {
				times := p.past(now)
				assert.Len(t, times, want.times, name)
				assert.Equal(t, want.first, now.Sub(times[0]), name)
				assert.Equal(t, now, times[len(times)-1], name)
			}
		}
	}
}

func TestParseSlabs(t *testing.T) {
	h, err := parseSlabs([]string{
		"STAT 1:chunk_size 96", "STAT 1:total_chunks 10922", "STAT 1:used_chunks 3", "STAT 2:chunk_size 120", "STAT 2:used_chunks 5",
		"STAT active_slabs 2", "STAT total_malloced 2097152",
	})
	require.NoError(t, err)
	assert.Equal(t, holdings{items: 8, bytes: 3*96 + 5*120}, h)
	_, err = parseSlabs([]string{"STAT 1:chunk_size many"})
	assert.Error(t, err)
}
