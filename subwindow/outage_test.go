package subwindow_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// What is due of slots that have left every window is forgotten, however long the
// store fails.
func (by way) TestWhatIsDueIsBoundedInAnOutage(t *testing.T) {
	w, err := subwindow.NewFixedWindow(time.Second)
	require.NoError(t, err)
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second})
	now := at("12:00:00.5")
	store.Fail(limitertest.ErrUnsent)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	check := func() {
		r := request(now, 1, 10)
		_, err := l.Limiter.Take(t.Context(), r)
		require.Error(t, err)
		d, err := l.TakeLocal(r, err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		now = now.Add(time.Second)
	}
	took := func() time.Duration {
		began := time.Now()
		for range 200 {
			check()
		}
		return time.Since(began) / 200
	}
	first := took()
	for range 4 * 3600 { // seconds of outage
		check()
	}
	last := took()
	t.Logf("one client, 1 s slots, 4 h: a check alone %v at first, %v in the end", first, last)
	// What others have left behind in the background goes within a moment.
	assert.Eventually(t, func() bool { return heap() < before+20_000 }, 10*time.Second, 10*time.Millisecond)
	runtime.KeepAlive(l)
}
