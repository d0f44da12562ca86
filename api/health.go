package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/counters"
)

// healthz answers /healthz: the process is alive.
func (s *Server) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// readiness is the body of /readyz.
type readiness struct {
	Ready    bool           `json:"ready"`
	Draining bool           `json:"draining"`
	Servers  []serverStatus `json:"servers"`
}

// serverStatus has neither the server nor the error for those who need a token
// for /v1 and have none.
type serverStatus struct {
	Server string `json:"server,omitempty"`
	Up     bool   `json:"up"`
	Error  string `json:"error,omitempty"`
}

// readyz answers /readyz: should this instance get requests?
func (s *Server) readyz(c echo.Context) error {
	named := s.checkToken(c) == nil
	r := readiness{Draining: s.draining.Load(), Servers: []serverStatus{}}
	for _, server := range s.cfg.Health() {
		status := serverStatus{Up: server.Err == nil}
		if named {
			status.Server = server.Server
		}
		if named && server.Err != nil {
			status.Error = strings.TrimPrefix(server.Err.Error(), "counters: ")
		}
		r.Ready = r.Ready || status.Up
		r.Servers = append(r.Servers, status)
	}
	r.Ready = r.Ready && !r.Draining
	if !r.Ready {
		return c.JSON(http.StatusServiceUnavailable, r)
	}
	return c.JSON(http.StatusOK, r)
}

// metricsHandler returns what answers /metrics. For those who need a token for
// /v1 and have none, servers are numbered in the place of their names: a
// scraper without a token sees all that a dashboard needs.
func (s *Server) metricsHandler() echo.HandlerFunc {
	handler := func(named bool) echo.HandlerFunc {
		servers := prometheus.NewRegistry()
		servers.MustRegister(newServerMetrics(s.cfg.Health, &s.cfg.Metrics.operations, named))
		return echo.WrapHandler(promhttp.HandlerFor(prometheus.Gatherers{s.cfg.Gatherer, servers}, promhttp.HandlerOpts{}))
	}
	named, numbered := handler(true), handler(false)
	return func(c echo.Context) error {
		if s.checkToken(c) != nil {
			return numbered(c)
		}
		return named(c)
	}
}

// serverMetrics collects the metrics of the store's servers.
type serverMetrics struct {
	health     func() []counters.ServerStatus
	named      bool // else the label of a server is its number, from 0
	operations *operationCounts

	up, open, items, bytes, evictions, ahead, ended *prometheus.Desc
}

func newServerMetrics(health func() []counters.ServerStatus, operations *operationCounts, named bool) *serverMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"server"}, labels...), nil)
	}
	return &serverMetrics{
		health: health, named: named, operations: operations,
		up:   desc("weir_store_up", "Whether a server of the store answers."),
		open: desc("weir_store_breaker_open", "Whether checks don't wait for a server, because it doesn't answer."),

		items:     desc("weir_memcached_items", "Items that a Memcached server holds."),
		bytes:     desc("weir_memcached_bytes", "Bytes that its items take."),
		evictions: desc("weir_memcached_evictions_total", "Items that a Memcached server dropped for want of memory since its start."),
		ahead:     desc("weir_memcached_clock_difference_seconds", "By how much this process's clock is ahead of a Memcached server's at least, or behind if that is negative; 0 as far as the server's whole seconds tell."),

		ended: desc("weir_store_operations_total", "Operations on a server of the store by outcome: ok, timeout, error.", "operation", "outcome"),
	}
}

func (s *serverMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{s.up, s.open, s.items, s.bytes, s.evictions, s.ahead, s.ended} {
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
		send := func(desc *prometheus.Desc, kind prometheus.ValueType, value int64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, kind, float64(value), append([]string{label}, labels...)...)
		}
		send(s.up, prometheus.GaugeValue, one(server.Err == nil))
		send(s.open, prometheus.GaugeValue, one(server.BreakerOpen))
		if server.Stats != nil {
			send(s.items, prometheus.GaugeValue, server.Stats.Items)
			send(s.bytes, prometheus.GaugeValue, server.Stats.Bytes)
			send(s.evictions, prometheus.CounterValue, server.Stats.Evictions)
			ch <- prometheus.MustNewConstMetric(s.ahead, prometheus.GaugeValue, server.Stats.Ahead.Seconds(), label)
		}
		operations := s.operations.of(server.Server)
		for o, operation := range operationNames {
			for e, outcome := range outcomeNames {
				send(s.ended, prometheus.CounterValue, operations[o][e].Load(), operation, outcome)
			}
		}
	}
}

func one(holds bool) int64 {
	if holds {
		return 1
	}
	return 0
}
