package api

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// newFarService returns a service with the policy default on a server that is a
// round trip away, and on the real clock.
func newFarService(t testing.TB, server *memcachedtest.Server, roundTrip, timeout time.Duration, subWindows int) *service {
	store, err := memcached.New(memcached.Config{Servers: []string{server.Far(roundTrip)}, Timeout: timeout})
	require.NoError(t, err)
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, timeout
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", sliding("per-minute", 100, time.Minute, subWindows, "weighted")))
	})
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return s
}

// clientChecks are checks of as many clients, whose names begin so.
func clientChecks(prefix string, clients int) []string {
	checks := make([]string, clients)
	for i := range checks {
		checks[i] = fmt.Sprintf(`{"policy":"api","client":"%s-%d"}`, prefix, i)
	}
	return checks
}

// A thousand clients whom nobody has seen before take a few round trips, of
// which the store timeout has 25.
func TestBatchOfNewClientsIsInTimeFarFromTheStore(t *testing.T) {
	t.Parallel()
	const roundTrip = 100 * time.Millisecond // as 2 ms of 50 ms, on a busy machine
	s := newFarService(t, memcachedtest.Start(t), roundTrip, 25*roundTrip, 10)
	for round := range 2 {
		for _, one := range s.batch(t, clientChecks(fmt.Sprint("new-", round), 1000)...).Results {
			require.True(t, one.Allowed)
			require.False(t, one.Degraded)
		}
	}
}

// BenchmarkBatchFarFromTheStore measures batches of 1000 clients whom nobody has
// seen before, a round trip of 2 ms from the store, and single checks of the
// last of them meanwhile.
func BenchmarkBatchFarFromTheStore(b *testing.B) {
	s := newFarService(b, memcachedtest.Start(b), 2*time.Millisecond, 50*time.Millisecond, 10)
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
