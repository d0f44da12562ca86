package api

import (
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
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
	named := s.tokens.Load().check(c.Request()) == nil
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
	r.Ready = r.Ready && !r.Draining && (s.cfg.Overrides == nil || s.cfg.Overrides.Ready())
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
		servers.MustRegister(s.cfg.Metrics.Servers(s.cfg.Health, named))
		return echo.WrapHandler(promhttp.HandlerFor(prometheus.Gatherers{s.cfg.Gatherer, servers}, promhttp.HandlerOpts{}))
	}
	named, numbered := handler(true), handler(false)
	return func(c echo.Context) error {
		if s.tokens.Load().check(c.Request()) != nil {
			return numbered(c)
		}
		return named(c)
	}
}
