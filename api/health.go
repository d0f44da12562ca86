package api

import (
	"net/http"
	"slices"
	"strings"
	"time"

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

// serverStatus has neither the server nor the error for a caller without the token that /v1
// needs.
type serverStatus struct {
	Server string `json:"server,omitempty"`
	Up     bool   `json:"up"`
	Error  string `json:"error,omitempty"`
}

func statusOfServer(server *counters.ServerStatus, named bool) serverStatus {
	status := serverStatus{Up: server.Err == nil}
	if named {
		status.Server = server.Server
		if server.Err != nil {
			status.Error = strings.TrimPrefix(server.Err.Error(), "counters: ")
		}
	}
	return status
}

// ready reports whether this instance should get requests: a server of the store answers, limits
// and overrides are loaded, and it isn't draining.
func (s *Server) ready(servers []counters.ServerStatus) bool {
	return slices.ContainsFunc(servers, func(server counters.ServerStatus) bool { return server.Err == nil }) &&
		!s.Draining() && (s.cfg.Overrides == nil || s.cfg.Overrides.Ready()) && (s.cfg.Loaded == nil || s.cfg.Loaded())
}

// readyz answers /readyz: should this instance get requests?
func (s *Server) readyz(c echo.Context) error {
	_, unnamed := s.tokens.Load().of(c.Request())
	servers := s.cfg.Health()
	r := readiness{Ready: s.ready(servers), Draining: s.Draining(), Servers: []serverStatus{}}
	for i := range servers {
		r.Servers = append(r.Servers, statusOfServer(&servers[i], unnamed == nil))
	}
	return c.JSON(statusOf(r.Ready, http.StatusServiceUnavailable), r)
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
	serverStatus
	BreakerOpen bool `json:"breaker_open"`
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
	servers := s.cfg.Health()
	j := statusJSON{
		Instance: s.cfg.Instance, Version: s.cfg.Version, Started: s.started.UTC(), Ready: s.ready(servers), Draining: s.Draining(),
		Policies: len(s.active.Load().policies), StoreP99: s.cfg.Metrics.StoreLatency().Seconds(), Servers: []serverStateJSON{},
	}
	j.Files.Loaded, j.Files.Right = s.cfg.Metrics.Files()
	for i := range servers {
		server := &servers[i]
		state := serverStateJSON{serverStatus: statusOfServer(server, true), BreakerOpen: server.BreakerOpen}
		if server.Stats != nil {
			state.serverStatsJSON = &serverStatsJSON{server.Stats.Items, server.Stats.Bytes, server.Stats.Evictions}
		}
		j.Servers = append(j.Servers, state)
	}
	if o := s.cfg.Overrides; o != nil {
		inForce, revision := o.InForce()
		j.Overrides = &overridesStatus{inForce, revision, o.Age().Round(time.Millisecond).Seconds()}
	}
	return c.JSON(http.StatusOK, j)
}

// metricsHandler returns the handler of /metrics. A caller without the token that /v1 needs
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
		if _, err := s.tokens.Load().of(c.Request()); err != nil {
			return numbered(c)
		}
		return named(c)
	}
}
