package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir/counters"
)

// serverMetrics collects the metrics of the store's servers.
type serverMetrics struct {
	health     func() []counters.ServerStatus
	named      bool // else the label of a server is its number, from 0
	operations *operationCounts
}

func serverDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"server"}, labels...), nil)
}

var (
	upDesc          = serverDesc("weir_store_up", "Whether a server of the store answers.")
	breakerOpenDesc = serverDesc("weir_store_breaker_open", "Whether checks don't wait for a server, because it doesn't answer.")
	operationsDesc  = serverDesc("weir_store_operations_total", "Operations on a server of the store by outcome: ok, timeout, error.", "operation", "outcome")

	itemsDesc     = serverDesc("weir_memcached_items", "Items that a Memcached server holds.")
	bytesDesc     = serverDesc("weir_memcached_bytes", "Bytes that its items take.")
	evictionsDesc = serverDesc("weir_memcached_evictions_total", "Items that a Memcached server dropped for want of memory since its start.")
	aheadDesc     = serverDesc("weir_memcached_clock_difference_seconds", "By how much this process's clock is ahead of a Memcached server's at least, or behind if that is negative; 0 if it is behind the time that the server tells by up to 1 s, or ahead of it by up to 3 s.")
)

// Servers returns a collector of the metrics of the store's servers, which health
// returns. If they aren't named, their label is their number, from 0.
func (m *Metrics) Servers(health func() []counters.ServerStatus, named bool) prometheus.Collector {
	return &serverMetrics{health, named, &m.operations}
}

func (s *serverMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{upDesc, breakerOpenDesc, operationsDesc, itemsDesc, bytesDesc, evictionsDesc, aheadDesc} {
		ch <- desc
	}
}

func (s *serverMetrics) Collect(ch chan<- prometheus.Metric) {
	servers := s.health()
	names := make([]string, len(servers))
	for i, server := range servers {
		names[i] = server.Server
	}
	s.operations.keep(names)
	for i, server := range servers {
		label := server.Server
		if !s.named {
			label = strconv.Itoa(i)
		}
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{label}, labels...)...)
		}
		send(upDesc, prometheus.GaugeValue, one(server.Err == nil))
		send(breakerOpenDesc, prometheus.GaugeValue, one(server.BreakerOpen))
		if stats := server.Stats; stats != nil {
			send(itemsDesc, prometheus.GaugeValue, float64(stats.Items))
			send(bytesDesc, prometheus.GaugeValue, float64(stats.Bytes))
			send(evictionsDesc, prometheus.CounterValue, float64(stats.Evictions))
			send(aheadDesc, prometheus.GaugeValue, stats.Ahead.Seconds())
		}
		counts := s.operations.of(server.Server)
		for o, operation := range operationNames {
			for e, outcome := range outcomeNames {
				send(operationsDesc, prometheus.CounterValue, float64(counts[o][e].Load()), operation, outcome)
			}
		}
	}
}
