//go:build !race

// The race detector makes sync.Pool forget at random.

package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// Of a check whose policy is that of the check before it, only the client's name
// takes memory.
func TestDecodingAllocations(t *testing.T) {
	text := []byte(`{"policy":"per-day-and-minute","client":"a-client-of-some-length"}`)
	in := bytes.NewReader(text)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", io.NopCloser(in))
	require.NoError(t, err)
	r.ContentLength = int64(len(text))
	allocations := testing.AllocsPerRun(1000, func() {
		in.Reset(text)
		b, err := readBody(r, maxCheckBytes)
		if err != nil {
			t.Fatal(err)
		}
		defer b.release()
		if q, err := b.decodeCheck(); err != nil || q.Policy != "per-day-and-minute" {
			t.Fatal(q, err)
		}
	})
	assert.LessOrEqual(t, allocations, 1.0)
}

// A check of a thousand takes hardly more memory than its client's name: the slices of a batch
// serve the next one.
func TestBatchAllocations(t *testing.T) {
	store, err := memcached.New(memcached.Config{Servers: []string{memcachedtest.Start(t).Addr}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	defer store.Close()
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, 5*time.Second
		cfg.Policies = bindLimitersFor(10_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", sliding("per-day", 1_000_000, 24*time.Hour, 10, "weighted")))
	})
	body := fmt.Appendf(nil, `{"checks":[%s]}`, strings.Join(clientChecks("c", 1000), ","))
	w := &reusedRecorder{header: make(http.Header)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	allocations := testing.AllocsPerRun(50, func() { s.serveBatch(t, w, body) })
	runtime.ReadMemStats(&after)
	assert.Less(t, allocations, 2000.0)
	assert.Less(t, (after.TotalAlloc-before.TotalAlloc)/50/1000, uint64(250), "bytes")
}
