package throughput

import (
	"cmp"
	"context"
	"regexp"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

type config struct {
	duration    time.Duration // per row and side
	warmUp      time.Duration // per row and side, at least
	connections int
	clients     int64 // of a row, at most
	rows        *regexp.Regexp
	profiles    string // a directory, or ""
}

// halfLoad is how long answers take at half of the rate that was measured.
type halfLoad struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

const halfHeader = "p50 half\tp99 half\t"

// cells returns the cells of a table.
func (h halfLoad) cells() string {
	return report.Milliseconds(h.P50) + "\t" + report.Milliseconds(h.P99) + "\t"
}

// half sends, for d, half of the rate in checks per second, for clients in turn.
func half(ctx context.Context, s *testbed.Side, rate float64, d time.Duration) (halfLoad, error) {
	pace := loadgen.Pace{Rate: rate / float64(2*s.Size), Length: d, Seed: 1}
	sample := s.Connections.OpenLoop(ctx, pace, s.Turn.Client)
	p := report.NewPercentiles(sample.Latency)
	return halfLoad{p.P50, p.P99}, cmp.Or(ctx.Err(), sample.Fault())
}

// mallocsMetric is the name that Prometheus's Go collector gives to the number
// of objects allocated.
const mallocsMetric = "go_memstats_mallocs_total"

// muchMore is how many times as many objects as asking for their number
// allocates the load has to: that varies.
const muchMore = 10

// allocations returns how many objects the server at addr allocates for a check
// of the load, which is repeated until they are many.
func allocations(ctx context.Context, addr string, load func() (loadgen.Tally, error)) (float64, error) {
	for times := 1; ; times *= 2 {
		before, err1 := loadgen.Metric(ctx, addr, mallocsMetric)
		between, err2 := loadgen.Metric(ctx, addr, mallocsMetric)
		if err := cmp.Or(err1, err2); err != nil {
			return 0, err
		}
		var checks int64
		for range times {
			t, err := load()
			if err != nil {
				return 0, err
			}
			checks += t.Checks()
		}
		after, err := loadgen.Metric(ctx, addr, mallocsMetric)
		if err != nil {
			return 0, err
		}
		asking := between - before
		if allocated := after - between - asking; allocated >= muchMore*asking {
			return allocated / float64(checks), nil
		}
	}
}
