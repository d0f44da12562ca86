package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

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

type serverStatus struct {
	Server string `json:"server"`
	Up     bool   `json:"up"`
	Error  string `json:"error,omitempty"`
}

// readyz answers /readyz: should this instance get requests?
func (s *Server) readyz(c echo.Context) error {
	r := readiness{Draining: s.draining.Load(), Servers: []serverStatus{}}
	for _, server := range s.cfg.Health() {
		status := serverStatus{Server: server.Server, Up: server.Err == nil}
		if server.Err != nil {
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

// serverMetrics collects the metrics of the store's servers.
type serverMetrics struct {
	health   func() []counters.ServerStatus
	up, open *prometheus.Desc
}

// RegisterHealth registers the metrics of the store's servers with r, once.
// Each scrape calls health; scrapes may overlap.
func RegisterHealth(r prometheus.Registerer, health func() []counters.ServerStatus) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"server"}, nil)
	}
	r.MustRegister(&serverMetrics{
		health: health,
		up:     desc("weir_store_up", "Whether a server of the store answers."),
		open:   desc("weir_store_breaker_open", "Whether checks don't wait for a server, because it doesn't answer."),
	})
}

func (s *serverMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- s.up
	ch <- s.open
}

func (s *serverMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, server := range s.health() {
		gauge := func(desc *prometheus.Desc, holds bool) {
			value := 0.0
			if holds {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, server.Server)
		}
		gauge(s.up, server.Err == nil)
		gauge(s.open, server.BreakerOpen)
	}
}
