package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weir/api/decide"
)

// HistorySeconds is how many seconds back a policy's history goes.
const HistorySeconds = 300

// totals are how many checks were decided so far, by verdict, and of how many of them the
// store couldn't decide.
type totals struct {
	verdicts [len(decide.Verdicts)]float64
	degraded float64
}

// A second is how many were in it.
type second struct {
	verdicts [len(decide.Verdicts)]uint32
	degraded uint32
}

// A history is what was decided in the last seconds. The zero value has none.
type history struct {
	mu      sync.Mutex
	before  *totals // when the last second ended; nil before the first
	seconds [HistorySeconds]second
	next    int // is overwritten next
}

// sample ends a second.
func (h *history) sample(now totals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.before != nil {
		var s second
		for v := range s.verdicts {
			s.verdicts[v] = uint32(now.verdicts[v] - h.before.verdicts[v])
		}
		s.degraded = uint32(max(0, now.degraded-h.before.degraded)) // by another on_store_error it begins anew
		h.seconds[h.next] = s
		h.next = (h.next + 1) % HistorySeconds
	}
	h.before = &now
}

// last returns for each verdict by its name, and for "degraded", what was in each of the
// last n seconds, the oldest first.
func (h *history) last(n int) map[string][]uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var verdicts [len(decide.Verdicts)][]uint32
	for v := range verdicts {
		verdicts[v] = make([]uint32, n)
	}
	degraded := make([]uint32, n)
	for i := range n {
		s := &h.seconds[(h.next+HistorySeconds-n+i)%HistorySeconds]
		for v := range verdicts {
			verdicts[v][i] = s.verdicts[v]
		}
		degraded[i] = s.degraded
	}
	all := map[string][]uint32{"degraded": degraded}
	for v, name := range decide.Verdicts {
		all[name] = verdicts[v]
	}
	return all
}

// valueOf returns that of a counter or gauge.
func valueOf(c prometheus.Metric) float64 {
	var m dto.Metric
	_ = c.Write(&m) // theirs never fails
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}
