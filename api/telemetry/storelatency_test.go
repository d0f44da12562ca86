package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The latency is that of the last half to whole minute, by a bound of the histogram.
func TestStoreLatencyIsOfLately(t *testing.T) {
	t.Parallel()
	m := NewMetrics(nil, "")
	seconds := func(n int) {
		for range n {
			m.Sample()
		}
	}
	assert.Zero(t, m.StoreLatency(), "there was nothing")
	reads, swaps := m.operationTimes.WithLabelValues("read"), m.operationTimes.WithLabelValues("swap")
	for range 95 {
		reads.Observe(0.0003)
	}
	for range 4 {
		swaps.Observe(0.0008)
	}
	swaps.Observe(0.2)
	assert.Equal(t, time.Millisecond, m.StoreLatency())
	swaps.Observe(0.2)
	assert.Equal(t, 250*time.Millisecond, m.StoreLatency(), "2 of 101")
	seconds(latencySeconds)
	assert.Equal(t, 250*time.Millisecond, m.StoreLatency())
	reads.Observe(3)
	seconds(latencySeconds)
	assert.Equal(t, time.Second, m.StoreLatency(), "beyond all bounds; what was before is forgotten")
	seconds(latencySeconds)
	assert.Zero(t, m.StoreLatency())
}
