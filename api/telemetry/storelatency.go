package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// durationBuckets are in seconds and start where the fastest checks end. 25 ms is
// what the alert WeirSlow asks about.
var durationBuckets = [...]float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3}

// latencySeconds is how often, in seconds, a storeLatency drops its oldest operations.
const latencySeconds = 30

// A storeLatency has how long operations on the store took lately. The zero value has none.
type storeLatency struct {
	mu      sync.Mutex
	samples int
	// since and next are the counts of the histogram at the last two multiples of
	// latencySeconds: p99 is of the operations after since.
	since, next [len(durationBuckets) + 1]uint64
}

// sample ends a second.
func (l *storeLatency) sample(times *prometheus.HistogramVec) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.samples%latencySeconds == 0 {
		l.since, l.next = l.next, counts(times)
	}
	l.samples++
}

// p99 returns what Metrics.StoreLatency does.
func (l *storeLatency) p99(times *prometheus.HistogramVec) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := counts(times)
	all := now[len(durationBuckets)] - l.since[len(durationBuckets)]
	if all == 0 {
		return 0
	}
	for i, bound := range durationBuckets {
		if (now[i]-l.since[i])*100 >= all*99 {
			return time.Duration(bound * float64(time.Second))
		}
	}
	return time.Second
}

// counts returns how many operations took at most as long as each of durationBuckets, and
// how many there were.
func counts(times *prometheus.HistogramVec) (all [len(durationBuckets) + 1]uint64) {
	metrics := make(chan prometheus.Metric, numOperations)
	times.Collect(metrics)
	close(metrics)
	for m := range metrics {
		var written dto.Metric
		if m.Write(&written) != nil {
			continue
		}
		for i, b := range written.Histogram.Bucket {
			if i < len(durationBuckets) {
				all[i] += b.GetCumulativeCount()
			}
		}
		all[len(durationBuckets)] += written.Histogram.GetSampleCount()
	}
	return all
}
