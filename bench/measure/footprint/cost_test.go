package footprint

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/testbed"
)

// What a check asks for and what is kept can be told beforehand.
func TestFootprint(t *testing.T) {
	var r Cost
	dir, printed, err := benchtest.Run(t, Run, "cost", &r, "-busy", "200", "-clients", "500")
	require.NoError(t, err)
	assert.Contains(t, printed, "items/client")
	assert.FileExists(t, filepath.Join(dir, "memory.json"))
	assert.Contains(t, printed, "target: at most 300 MB")
	assert.Regexp(t, `(?m)^ +sliding N=60 +50 +\d+ +\d+ +\d+$`, printed)
	assert.Equal(t, 200, r.Clients)
	var titles []string
	for _, column := range r.Columns() {
		titles = append(titles, column.Title)
		for _, a := range priced {
			assert.NotEmpty(t, column.Cell(a.Name), "%s of %s", column.Title, a)
		}
	}
	assert.Equal(t, []string{"time, space", "busy", "new slot", "cold", "weir us", "Memcached us"}, titles)
	incr, addIncr := testbed.StoreCost{Writes: 1}, testbed.StoreCost{Writes: 2}
	for _, row := range r.Rows {
		var want costRow
		switch row.Algorithm {
		case "fixed":
			// A counter is kept for its window and 2.05 s more.
			want = costRow{Busy: incr, NewSlot: addIncr, Cold: addIncr, Items: 2}
		case "n1", "n4", "n10", "n60", "strict-n60", "capped-n10", "capped-n60":
			// Besides the slot before, which has just closed, a process reads
			// the others only when it knows none, and when the client was
			// reset.
			_, n, _ := strings.Cut(row.Algorithm, "n")
			slots := map[string]float64{"1": 1, "4": 4, "10": 10, "60": 60}[n]
			if strings.HasPrefix(row.Algorithm, "strict") {
				slots++ // the one before them, which other clocks may still have in the window
			}
			kept := map[string]float64{"1": 3, "4": 6, "10": 12, "60": 64}[n]
			want = costRow{Busy: incr, NewSlot: testbed.StoreCost{Writes: 2, KeysRead: 2}, Cold: testbed.StoreCost{Writes: 2, KeysRead: slots + 1}, Items: kept}
		default:
			// cas and a gets; before that add, in case nothing is there, and a
			// gets.
			want = costRow{Busy: testbed.StoreCost{Writes: 1, KeysRead: 1}, NewSlot: testbed.StoreCost{Writes: 1, KeysRead: 1}, Cold: testbed.StoreCost{Writes: 2, KeysRead: 2}, Items: 1}
		}
		want.Algorithm, want.Bytes, want.ViewBytes, want.Weir, want.Memcached = row.Algorithm, row.Bytes, row.ViewBytes, row.Weir, row.Memcached
		assert.Equal(t, want, row)
		assert.Greater(t, row.Bytes, 48*row.Items, "an item has a header")
		assert.Greater(t, row.ViewBytes, 50.0, row.Algorithm)
		assert.Positive(t, row.Weir, row.Algorithm)
		assert.Positive(t, row.Memcached, row.Algorithm)
	}
	assert.Len(t, r.Rows, len(priced))
}

// A counter of a window of 60 slots lives for 61 s, and 2.05 s more.
func TestPastOfABusyClient(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)
	for name, want := range map[string]struct {
		times int
		first time.Duration
	}{"fixed": {2, time.Minute}, "n1": {3, 2 * time.Minute}, "n4": {6, 75 * time.Second}, "n60": {64, 63 * time.Second}, "token": {1, 0}, "log": {50, 58800 * time.Millisecond}} {
		for _, a := range priced {
			if a.Short() == name {
				times := past(a, now)
				assert.Len(t, times, want.times, name)
				assert.Equal(t, want.first, now.Sub(times[0]), name)
				assert.Equal(t, now, times[len(times)-1], name)
			}
		}
	}
}
