package cas_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// A readOnly store answers what reads, and no Swap, as one does that is out of memory.
type readOnly struct {
	counters.StateStore
	bad bool
}

func (s *readOnly) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if s.bad {
		return counters.State{}, false, fmt.Errorf("%w: SERVER_ERROR out of memory storing object", counters.ErrUnavailable)
	}
	return s.StateStore.Swap(ctx, key, old, value, ttl)
}

// While a store reads and doesn't write, each check makes a flight without an
// answer. Few are remembered.
func TestFlightsAreBoundedWhereSwapsFail(t *testing.T) {
	racetest.Sequential(t)
	store := &readOnly{StateStore: memory.New(nil)}
	l, err := cas.NewTokenBucket(store, time.Hour, 0, cas.Config{Options: counters.Options{Policy: "p", Limit: "l", Clients: 100}})
	require.NoError(t, err)
	now := time.Now()
	r := func() counters.Request {
		now = now.Add(time.Millisecond)
		return counters.Request{Client: "c", Cost: 1, Limit: 1_000_000, Now: now}
	}
	_, err = l.Take(t.Context(), r())
	require.NoError(t, err)
	store.bad = true
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	check := func() {
		q := r()
		_, err := l.Take(t.Context(), q)
		require.Error(t, err)
		_, err = l.TakeLocal(q, err)
		require.NoError(t, err)
	}
	took := func() time.Duration {
		began := time.Now()
		for range 100 {
			check()
		}
		return time.Since(began) / 100
	}
	first := took()
	grown := int64(math.MaxInt64)
	for range 3 { // what other tests have left behind may come into one
		before := heap()
		for range 7_000 {
			check()
		}
		grown = min(grown, heap()-before)
	}
	t.Logf("one client, 7,000 checks more: %d bytes; a check %v at first, %v in the end", grown, first, took())
	assert.Less(t, grown, int64(30_000))
	runtime.KeepAlive(l)
}
