package api

import (
	"net/http"
	"strings"
	"time"

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

// serverStatus has neither the server nor the error for a caller without the token that /v1
// needs.
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
	r.Ready = r.Ready && !r.Draining && s.loaded()
	if !r.Ready {
		return c.JSON(http.StatusServiceUnavailable, r)
	}
	return c.JSON(http.StatusOK, r)
}

// loaded reports whether the server has all that it decides by.
func (s *Server) loaded() bool {
	return (s.cfg.Overrides == nil || s.cfg.Overrides.Ready()) && (s.cfg.Loaded == nil || s.cfg.Loaded())
}

// statusJSON is the body of GET /v1/status.
type statusJSON struct {
	Instance  string            `json:"instance"`
	Version   string            `json:"version"`
	Started   time.Time         `json:"started"`
	Ready     bool              `json:"ready"`
	Draining  bool              `json:"draining"`
	Policies  int               `json:"policies"`
	Files     filesStatus       `json:"files"`
	StoreP99  float64           `json:"store_p99"` // seconds
	Overrides *overridesStatus  `json:"overrides,omitempty"`
	Servers   []serverStateJSON `json:"servers"`
}

type overridesStatus struct {
	InForce  int     `json:"in_force"`
	Revision int64   `json:"revision"`
	AsOf     float64 `json:"as_of"` // seconds ago
}

// filesStatus says whether all files were right when they were last read, and when the
// policies in force were loaded.
type filesStatus struct {
	Right  bool      `json:"right"`
	Loaded time.Time `json:"loaded"`
}

// serverStateJSON is a server of the store.
type serverStateJSON struct {
	Server      string `json:"server"`
	Up          bool   `json:"up"`
	Error       string `json:"error,omitempty"`
	BreakerOpen bool   `json:"breaker_open"`
	// What it says of itself; nil, and absent, where that isn't known.
	*serverStatsJSON
}

type serverStatsJSON struct {
	Items     int64 `json:"items"`
	Bytes     int64 `json:"bytes"`
	Evictions int64 `json:"evictions"`
}

// showStatus answers GET /v1/status.
func (s *Server) showStatus(c echo.Context) error {
	j := statusJSON{
		Instance: s.cfg.Instance, Version: s.cfg.Version, Started: s.started.UTC(), Draining: s.draining.Load(),
		Policies: len(s.active.Load().policies), Servers: []serverStateJSON{},
	}
	j.Files.Loaded, j.Files.Right = s.cfg.Metrics.Files()
	j.StoreP99 = s.cfg.Metrics.StoreLatency().Seconds()
	for _, server := range s.cfg.Health() {
		state := serverStateJSON{Server: server.Server, Up: server.Err == nil, BreakerOpen: server.BreakerOpen}
		if server.Err != nil {
			state.Error = strings.TrimPrefix(server.Err.Error(), "counters: ")
		}
		if server.Stats != nil {
			state.serverStatsJSON = &serverStatsJSON{server.Stats.Items, server.Stats.Bytes, server.Stats.Evictions}
		}
		j.Ready = j.Ready || state.Up
		j.Servers = append(j.Servers, state)
	}
	j.Ready = j.Ready && !j.Draining && s.loaded()
	if o := s.cfg.Overrides; o != nil {
		inForce, revision := o.InForce()
		j.Overrides = &overridesStatus{inForce, revision, o.Age().Round(time.Millisecond).Seconds()}
	}
	return c.JSON(http.StatusOK, j)
}

// metricsHandler returns what answers /metrics. A caller without the token that /v1 needs
// gets numbers instead of servers' names, so a scraper without a token still sees what a
// dashboard needs.
func (s *Server) metricsHandler() echo.HandlerFunc {
	handler := func(named bool) echo.HandlerFunc {
		servers := prometheus.NewRegistry()
		servers.MustRegister(s.cfg.Metrics.Servers(s.cfg.Health, named))
		return echo.WrapHandler(promhttp.HandlerFor(prometheus.Gatherers{s.cfg.Gatherer, servers}, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	named, numbered := handler(true), handler(false)
	return func(c echo.Context) error {
		if s.tokens.Load().check(c.Request()) != nil {
			return numbered(c)
		}
		return named(c)
	}
}
