package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weir/api/decide"
)

// HistorySeconds is how many seconds back a policy's history goes.
const HistorySeconds = 300

// inHistory are the verdicts by their names, and what the store couldn't decide of them.
var inHistory = append(decide.Verdicts[:], "degraded")

// totals are how many checks so far are each of inHistory.
type totals [len(decide.Verdicts) + 1]float64

// A history is what was decided in the last seconds. The zero value has none.
type history struct {
	mu      sync.Mutex
	before  totals // when the last second ended
	seconds [HistorySeconds][len(totals{})]uint32
	next    int // is overwritten next
}

// sample ends a second.
func (h *history) sample(now totals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range now {
		h.seconds[h.next][i] = uint32(now[i] - h.before[i])
	}
	h.next = (h.next + 1) % HistorySeconds
	h.before = now
}

// last returns how many were each of inHistory in each of the last n seconds, the oldest
// first.
func (h *history) last(n int) map[string][]uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string][]uint32, len(inHistory))
	for i, name := range inHistory {
		counts := make([]uint32, n)
		for k := range counts {
			counts[k] = h.seconds[(h.next+HistorySeconds-n+k)%HistorySeconds][i]
		}
		all[name] = counts
	}
	return all
}

func valueOf(c prometheus.Metric) float64 {
	var m dto.Metric
	_ = c.Write(&m) // theirs never fails
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}
