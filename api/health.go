package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"weir/counters"
)

// healthTimeout bounds what /readyz and /metrics ask of the store.
const healthTimeout = time.Second

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
	ctx, cancel := context.WithTimeout(c.Request().Context(), healthTimeout)
	defer cancel()
	r := readiness{Draining: s.draining.Load(), Servers: []serverStatus{}}
	for _, server := range s.cfg.Health(ctx) {
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

// serversUp collects weir_store_up.
type serversUp struct {
	health func(context.Context) []counters.ServerStatus
	up     *prometheus.Desc
}

// RegisterHealth registers weir_store_up with r, once. Each scrape calls health
// with a context that ends after a second; scrapes may overlap.
func RegisterHealth(r prometheus.Registerer, health func(context.Context) []counters.ServerStatus) {
	r.MustRegister(&serversUp{health: health, up: prometheus.NewDesc("weir_store_up",
		"Whether a server of the store answers.", []string{"server"}, nil)})
}

func (s *serversUp) Describe(ch chan<- *prometheus.Desc) { ch <- s.up }

func (s *serversUp) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	for _, server := range s.health(ctx) {
		up := 0.0
		if server.Err == nil {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, up, server.Server)
	}
}
