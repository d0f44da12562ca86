package loadgen

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// NewHistogram returns a histogram of latencies in nanoseconds, up to a minute,
// right to 1%.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(time.Minute), 2)
}

// Percentile returns the latency that so many percent don't exceed.
func Percentile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percent))
}

// Record counts a latency. Beyond a minute it counts as one.
func Record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(d, time.Minute)))
}
