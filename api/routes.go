package api

import (
	"cmp"
	_ "embed"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"weir/api/decide"
	"weir/counters"
)

//go:embed openapi.yaml
var openAPI []byte

// NewServer returns a server that isn't listening: HTTPServer is for that.
func NewServer(cfg Config) *Server {
	s := &Server{
		echo: echo.New(), cfg: cfg, drained: make(chan struct{}),
	}
	s.cfg.StoreTimeout = cmp.Or(cfg.StoreTimeout, counters.DefaultTimeout)
	s.batches = decide.NewQueue(checksAtOnce*runtime.GOMAXPROCS(0), s.cfg.StoreTimeout, cfg.Metrics.Silence())
	if cfg.Now == nil {
		s.cfg.Now = time.Now
	}
	s.started = s.cfg.Now()
	s.SetTokens(cfg.Tokens)
	s.SetPolicies(cfg.Policies)
	if cfg.Overrides != nil {
		cfg.Overrides.Notify(s.setOverrides)
	}

	s.echo.HTTPErrorHandler = s.writeError
	s.echo.IPExtractor = func(r *http.Request) string { return trustedProxies(cfg.TrustedProxies).clientOf(r).String() }
	if len(cfg.Tokens) > 0 {
		s.middleware = append(s.middleware, s.authorize)
	}
	if s.logsRequests() {
		s.middleware = append(s.middleware, requestLogger(s.cfg.Log, s.cfg.LogClients), giveRequestID)
	}
	s.addRoutes()
	return s
}

// addRoutes adds all paths, and counts requests by path. openapi.yaml has the paths too, but for
// those of cfg.Handlers. Those of the group v1 need a token, if there are any. A handler wrapped in
// operators needs one that may do more than make checks; one wrapped in bare takes no query.
func (s *Server) addRoutes() {
	e := s.echo
	// Wrapped here, once: middleware wraps the handler anew in each request.
	safe := middleware.RecoverWithConfig(middleware.RecoverConfig{DisableStackAll: true, LogErrorFunc: s.panicked})
	e.Match([]string{http.MethodGet, http.MethodHead}, "/healthz", safe(s.healthz))
	e.Match([]string{http.MethodGet, http.MethodHead}, "/readyz", safe(s.readyz))
	e.GET("/metrics", safe(s.metricsHandler()))
	e.GET("/openapi.yaml", safe(func(c echo.Context) error {
		return c.Blob(http.StatusOK, "application/yaml", openAPI)
	}))
	bare := func(h echo.HandlerFunc) echo.HandlerFunc {
		return safe(func(c echo.Context) error {
			if _, err := queryOf(c); err != nil {
				return err
			}
			return h(c)
		})
	}
	bareOperators := func(do func(c echo.Context, by change) error) echo.HandlerFunc {
		return safe(s.operators(func(c echo.Context, by change) error {
			if _, err := queryOf(c); err != nil {
				return err
			}
			return do(c, by)
		}))
	}
	v1 := e.Group("/v1")
	v1.POST("/check", safe(s.check))
	v1.POST("/check/batch", safe(s.checkBatch))
	v1.POST("/settle", safe(s.settle))
	v1.POST("/settle/batch", safe(s.settleBatch))
	v1.POST("/renew", safe(s.renew))
	v1.POST("/charge", safe(s.charge))
	v1.GET("/policies", bare(s.listPolicies))
	v1.GET("/policies/:policy", bare(s.showPolicy))
	v1.GET("/policies/:policy/top", safe(s.listTopClients))
	for _, client := range []string{":client", "*"} { // who doesn't escape a slash means the client, too
		v1.GET("/policies/:policy/clients/"+client, bare(s.peekClient))
		v1.DELETE("/policies/:policy/clients/"+client, bareOperators(s.resetClient))
	}
	if s.cfg.Overrides != nil {
		v1.GET("/policies/:policy/overrides", bareOperators(s.listOverrides))
		v1.GET("/policies/:policy/overrides/:key", bareOperators(s.showOverride))
		v1.PUT("/policies/:policy/overrides/:key", bareOperators(s.setOverride))
		v1.DELETE("/policies/:policy/overrides/:key", bareOperators(s.endOverride))
	}
	v1.GET("/policies/:policy/clients/:client/state", bare(s.showState))
	v1.GET("/policies/:policy/history", safe(s.showHistory))
	v1.GET("/status", bare(s.showStatus))
	v1.GET("/look", safe(s.look))
	v1.GET("/audit", safe(s.operators(s.listChanges)))
	// RouteNotFound takes every method; Any takes only the common ones.
	v1.RouteNotFound("/auth/:policy", safe(s.forwardAuth))
	v1.RouteNotFound("/auth/:policy/*", safe(s.forwardAuth))
	for pattern, handler := range s.cfg.Handlers {
		method, path, _ := strings.Cut(pattern, " ")
		e.Add(method, path, safe(echo.WrapHandler(handler)))
	}
	var paths []string
	for _, route := range e.Routes() {
		paths = append(paths, route.Path)
	}
	s.requests = s.cfg.Metrics.Requests(paths)
}

// authorize lets requests of /v1/* and /rlconfig pass that carry a configured bearer token.
// It is middleware of the whole server, because echo answers a wrong method
// with 404 in a group that has middleware.
func (s *Server) authorize(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if path := c.Request().URL.Path; strings.HasPrefix(path, "/v1/") || path == "/rlconfig" {
			if err := s.checkToken(c); err != nil {
				return err
			}
		}
		return next(c)
	}
}

// checkToken returns a problem unless c has a configured bearer token, if there are any.
func (s *Server) checkToken(c echo.Context) error {
	_, err := s.tokens.Load().of(c.Request())
	if err != nil {
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="weir"`)
	}
	return err
}
