// Package api is weir's HTTP service: may this client do this now?
//
// It turns policies, which are sets of limits that are checked as one, into
// endpoints with headers, problem details and metrics. It promises that a
// denied check consumes nothing from any limit (unless its policy counts denied
// requests), that bad input changes nothing, and that no check waits for the
// store longer than the store timeout; if the store fails, the policy says what
// is answered. It knows limiters only through the interface Limiter.
//
// A check goes from its handler to its policy, to a limiter, to the store.
// Start reading in check.go, follow it to decide.go, and see server.go for the
// routes. README.md is the reference for those who call the service.
package api

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"weir/api/policy"
	"weir/counters"
)

// writeTimeout bounds handling a request and writing its answer.
const writeTimeout = 15 * time.Second

// maxStreams is how many requests a connection of HTTP/2 may have under way. One
// that resets them and goes on opening others is closed.
const maxStreams = 250

// Config configures a Server. Metrics and Log are needed; so are Health for
// /readyz and Gatherer for /metrics.
type Config struct {
	// Policies are those to begin with, as in SetPolicies.
	Policies policy.Policies
	// StoreTimeout bounds how long a check waits for the store, counted
	// from the check's start; 0 means counters.DefaultTimeout.
	StoreTimeout time.Duration
	// Health returns which servers of the store answer, within about a second.
	// It is called concurrently.
	Health func() []counters.ServerStatus
	// Undecided, if it isn't nil, is called with the client of each check that
	// the store could not decide, and why. It is called concurrently.
	Undecided func(client string, err error)
	// Tokens are the first bearer tokens; see SetTokens. If there are any, /v1/* needs one of them, and
	// /readyz and /metrics name no server to those who have none.
	Tokens []string
	// TrustedProxies are the peers whose X-Forwarded- headers are believed, as
	// Network returns them.
	TrustedProxies []netip.Prefix
	// Handlers answer what weir's own paths don't, by method and path, such as
	// "POST /json". They need no token.
	Handlers map[string]http.Handler
	// Metrics count what the server does.
	Metrics *Metrics
	// Gatherer is what /metrics shows, beside the servers of Health.
	Gatherer prometheus.Gatherer
	Log      *slog.Logger
	// LogClients shows the names of clients in debug logs, and of those that are
	// reset, as they are. By default they are hashed.
	LogClients bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A Server is weir's HTTP service. Make one with NewServer: the zero Server
// isn't usable. It is safe for concurrent use.
type Server struct {
	echo *echo.Echo
	// middleware wraps the handler of each request, the last outermost.
	middleware []echo.MiddlewareFunc
	routes     routeCounters
	cfg        Config
	tokens     atomic.Pointer[tokens]
	policies   atomic.Pointer[activePolicies]
	batches    *gate
	draining   atomic.Bool
	drained    chan struct{} // closed by Drain
	requests   sync.RWMutex  // each request holds it for reading
	held       atomic.Int64  // number of answers that are being held
	resets     lateResets
}

// HTTPServer returns an http.Server for this service. Its timeouts keep slow or
// silent peers from holding connections forever.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler: s,
		// Equal, so that net/http sets no second deadline in each
		// request.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// logsRequests reports whether requests and checks are logged.
func (s *Server) logsRequests() bool { return s.cfg.Log.Enabled(context.Background(), slog.LevelDebug) }

// SetPolicies replaces all policies at once. They must not be changed any more.
// A check under way ends with the policy that it began with. So the metrics of a
// policy that is gone end when policies are next set.
func (s *Server) SetPolicies(policies policy.Policies) {
	active := &activePolicies{
		byName: make(map[string]*decider, len(policies)), metrics: make(map[string]*policyMetrics, len(policies)), now: s.cfg.Now, undecided: s.cfg.Undecided,
		unknown: newUnknownPolicies(s.cfg.Log),
	}
	if s.logsRequests() {
		active.log = &checkLogger{s.cfg.Log, s.cfg.LogClients}
	}
	var before map[string]*policyMetrics
	if old := s.policies.Load(); old != nil {
		before = old.metrics
		for name := range old.byName {
			if policies[name] == nil {
				active.gone = append(active.gone, name)
			}
		}
		for _, name := range old.gone {
			if policies[name] == nil {
				s.cfg.Metrics.forget(name)
			}
		}
	}
	for name, p := range policies {
		active.metrics[name] = s.cfg.Metrics.policy(p, before[name])
		active.byName[name] = newDecider(p)
	}
	s.policies.Store(active)
}

// SetTokens replaces all bearer tokens at once. There must be some if and only if
// the Config of the server had some.
func (s *Server) SetTokens(list []string) {
	t := newTokens(list)
	s.tokens.Store(&t)
}

// Drain prepares for a shutdown a moment later, so that no request is lost:
// /readyz says that the server is going away, each connection is closed after
// its next answer, and held answers are given at once. It may be called again.
func (s *Server) Drain() {
	if s.draining.CompareAndSwap(false, true) {
		close(s.drained)
	}
}

// Draining reports whether Drain was called.
func (s *Server) Draining() bool { return s.draining.Load() }

// Await returns when no request is under way any more. One that comes later, on
// a connection that is closed already, is dropped. It may be called once.
func (s *Server) Await() { s.requests.Lock() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.requests.TryRLock() {
		panic(http.ErrAbortHandler)
	}
	defer s.requests.RUnlock()
	s.closeWhenDraining(w.Header())
	// As echo.ServeHTTP does, which doesn't tell what it answered.
	c := s.echo.AcquireContext()
	c.Reset(r, w)
	s.echo.Router().Find(r.Method, echo.GetPath(r), c)
	handler := c.Handler()
	for _, wrap := range s.middleware {
		handler = wrap(handler)
	}
	if err := handler(c); err != nil {
		s.writeError(err, c)
	}
	s.routes.count(c.Path(), c.Response().Status)
	s.echo.ReleaseContext(c)
}

// closeWhenDraining lets the answer close its connection when the server
// drains.
func (s *Server) closeWhenDraining(h http.Header) {
	if s.draining.Load() {
		h.Set(echo.HeaderConnection, "close")
	}
}

// writeError answers an error of a handler or of echo with problem details.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var p *problem
	var status *echo.HTTPError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &status):
		p = statusProblem(status.Code, c.Request())
	default:
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelError, "request failed",
			slog.String("method", c.Request().Method), slog.String("path", c.Path()), slog.Any("error", err))
		p = newProblem(http.StatusInternalServerError, "the request failed inside weir; its log says why")
	}
	c.Response().Header().Set(echo.HeaderContentType, "application/problem+json")
	if c.Request().Method == http.MethodHead {
		err = c.NoContent(p.Status)
	} else {
		err = c.JSON(p.Status, p)
	}
	if err != nil {
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelDebug, "answer not written", slog.Any("error", err))
	}
}

func (s *Server) logPanic(c echo.Context, err error, stack []byte) error {
	s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelError, "panic",
		slog.String("path", c.Path()), slog.Any("error", err), slog.String("stack", string(stack)))
	return newProblem(http.StatusInternalServerError, "the request failed inside weir; its log says why")
}
