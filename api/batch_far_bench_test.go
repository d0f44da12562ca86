package api

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// BenchmarkBatchFarFromTheStore measures batches of 1000 clients whom nobody has
// seen before, a round trip of 2 ms from the store, and single checks of the
// last of them meanwhile.
func BenchmarkBatchFarFromTheStore(b *testing.B) {
	store, err := memcached.New(memcached.Config{Servers: []string{memcachedtest.Start(b).Far(2 * time.Millisecond)}})
	require.NoError(b, err)
	b.Cleanup(func() { assert.NoError(b, store.Close()) })
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, counters.DefaultTimeout
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted")))
	})
	s.batch(b, clientChecks("first", 2)...) // connects
	var singles []time.Duration
	degraded, batches := 0, 0
	for b.Loop() {
		batches++
		checks := clientChecks(fmt.Sprint("new-", batches), 1000)
		results := make(chan result, 1)
		go func() { results <- s.batch(b, checks...) }()
		for len(results) == 0 {
			begin := time.Now()
			s.check(b, checks[len(checks)-1])
			singles = append(singles, time.Since(begin))
		}
		for _, one := range (<-results).Results {
			if one.Degraded {
				degraded++
			}
		}
	}
	slices.Sort(singles)
	b.ReportMetric(float64(degraded)/float64(batches), "degraded/batch")
	for _, percent := range []int{50, 99} {
		b.ReportMetric(singles[len(singles)*percent/100].Seconds()*1000, fmt.Sprintf("single-ms-p%d", percent))
	}
}
