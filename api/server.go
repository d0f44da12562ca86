// Package api is weir's HTTP service: may this client do this now?
//
// It turns policies into endpoints with headers and problem details. It promises that
// bad input changes nothing. Package policy says what policies are, package decide
// decides by them, and package telemetry counts what they decide.
//
// A check goes from its handler to what decides by its policy, to a limiter, to the
// store. Start reading in check.go, and follow it to decide/engine.go. routes.go makes
// the server, with all paths that it answers. problem.go has what errors are answered
// with, encode.go the bodies, and decide/headers.go the headers that say how limits
// stand. README.md is the reference for those who call the service.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"weir/api/decide"
	"weir/api/fleet"
	"weir/api/overrides"
	"weir/api/policy"
	"weir/api/receipt"
	"weir/api/telemetry"
	"weir/counters"
)

// checksAtOnce is how many checks of batches are decided at once at most, for each
// processor: that many keep it busy. If more share it, all batches end late.
const checksAtOnce = 1000

// writeTimeout bounds handling a request and writing its answer.
const writeTimeout = 15 * time.Second

// maxStreams is how many requests a connection of HTTP/2 may have under way. One
// that resets them and goes on opening others is closed.
const maxStreams = 250

// Config configures a Server. Metrics and Log are needed; so are Health for
// /readyz, Gatherer for /metrics, and Fleet for what all instances have decided.
type Config struct {
	// Policies are those to begin with, as in SetPolicies.
	Policies policy.Policies
	// StoreTimeout bounds how long a check waits for the store, counted
	// from the check's start; 0 means counters.DefaultTimeout.
	StoreTimeout time.Duration
	// Claims are where settlements are claimed, so that each is done once.
	Claims decide.Claims
	// Overrides are exceptions that are made at run time; nil means that none can be made.
	Overrides *overrides.Overrides
	// Fleet is this instance and the others.
	Fleet *fleet.Fleet
	// Health returns which servers of the store answer, within about a second.
	// It is called concurrently.
	Health func() []counters.ServerStatus
	// Loaded, if it isn't nil, reports whether there are limits to decide by: until then
	// the server isn't ready. It is called concurrently.
	Loaded func() bool
	// Undecided, if it isn't nil, is called with the client of each check that
	// the store could not decide, and why. It is called concurrently.
	Undecided func(client string, err error)
	// Tokens are the first bearer tokens; see SetTokens. If there are any, /v1/* needs one of them, and
	// /readyz and /metrics name no server to those who have none.
	Tokens []Token
	// TrustedProxies are the peers whose X-Forwarded- headers are believed, as
	// Network returns them.
	TrustedProxies []netip.Prefix
	// Handlers answer what weir's own paths don't, by method and path, such as
	// "POST /json". They need no token.
	Handlers map[string]http.Handler
	// Metrics count what the server does.
	Metrics *telemetry.Metrics
	// Gatherer is what /metrics shows, beside the servers of Health.
	Gatherer prometheus.Gatherer
	Log      *slog.Logger
	// LogClients shows the names of clients in debug logs, and of those that are
	// reset, as they are. By default they are hashed.
	LogClients bool
	// Decisions, if it isn't nil, gets a line for each check that it asks for.
	Decisions *telemetry.DecisionLog
	// Instance and Version name this process to operators.
	Instance, Version string
	// LocalOnly refuses requests for another host than localhost or an address: a page of
	// another site may have had its own name point here.
	LocalOnly bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A Server is weir's HTTP service. Make one with NewServer: the zero Server
// isn't usable. It is safe for concurrent use.
type Server struct {
	echo *echo.Echo
	// middleware wraps the handler of each request, the last outermost.
	middleware []echo.MiddlewareFunc
	requests   telemetry.Requests // counted by route
	cfg        Config
	tokens     atomic.Pointer[tokens]
	receipts   atomic.Pointer[receipt.Key] // that follows from the tokens
	active     atomic.Pointer[activePolicies]
	setting    sync.Mutex // held while active changes, or what is overridden
	overridden map[string]map[policy.ClientKey]policy.Terms
	batches    *decide.Queue
	draining   atomic.Bool
	drained    chan struct{} // closed by Drain
	underWay   sync.RWMutex  // each request holds it for reading
	held       atomic.Int64  // number of answers that are being held
	resets     lateResets
	started    time.Time
	audit      audit
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

// activePolicies are the policies in force, which change as a whole.
type activePolicies struct {
	*decide.Engine
	policies policy.Policies
	checks   map[string]*telemetry.Checks
	gone     []string // policies that these don't have any more; checks by them may be under way
	unknown  unknownPolicies
}

// SetPolicies replaces all policies at once. They must not be changed any more.
// A check under way ends with the policy that it began with. So the metrics of a
// policy that is gone end when policies are next set.
func (s *Server) SetPolicies(policies policy.Policies) {
	s.setting.Lock()
	defer s.setting.Unlock()
	active := &activePolicies{
		policies: policies, checks: make(map[string]*telemetry.Checks, len(policies)), unknown: unknownPolicies{log: s.cfg.Log, told: make(map[string]bool)},
	}
	listeners := telemetry.Listeners{Undecided: s.cfg.Undecided, ShowClients: s.cfg.LogClients, Decisions: s.cfg.Decisions}
	if s.logsRequests() {
		listeners.Log = s.cfg.Log
	}
	var before map[string]*telemetry.Checks
	if old := s.active.Load(); old != nil {
		before = old.checks
		for name := range old.policies {
			if policies[name] == nil {
				active.gone = append(active.gone, name)
			}
		}
		for _, name := range old.gone {
			if policies[name] == nil {
				s.cfg.Metrics.Forget(name)
			}
		}
	}
	active.Engine = decide.NewEngine(decide.Config{StoreTimeout: s.cfg.StoreTimeout, Now: s.cfg.Now, Claims: s.cfg.Claims}, s.batches, policies, func(p *policy.Policy) decide.Observer {
		if p.Finder != nil {
			c := s.cfg.Metrics.LimitChecks(p, before[p.Name], listeners)
			active.checks[p.Name] = c.Checks
			return c
		}
		active.checks[p.Name] = s.cfg.Metrics.Checks(p, before[p.Name], listeners)
		return active.checks[p.Name]
	})
	active.Override(s.overridden)
	s.active.Store(active)
}

// Find returns the Decider of the policy of that name. It is in force until SetPolicies is called
// again.
func (s *Server) Find(name string) (*decide.Decider, error) { return s.active.Load().Find(name) }

// SetTokens replaces all bearer tokens at once, and no receipt that was given with
// others can be settled any more. There must be some if and only if the Config of the
// server had some.
func (s *Server) SetTokens(list []Token) {
	t, secrets := newTokens(list), make([]string, len(list))
	for i, token := range list {
		secrets[i] = token.Secret
	}
	s.tokens.Store(&t)
	s.receipts.Store(receipt.NewKey(secrets))
}

// ReceiptKey returns the key of the receipts that are given now.
func (s *Server) ReceiptKey() *receipt.Key { return s.receipts.Load() }

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
func (s *Server) Await() { s.underWay.Lock() }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.underWay.TryRLock() {
		panic(http.ErrAbortHandler)
	}
	defer s.underWay.RUnlock()
	c := s.begin(w, r)
	s.echo.Router().Find(r.Method, echo.GetPath(r), c)
	handler := c.Handler()
	if err := fromElsewhere(r, s.cfg.LocalOnly); err != nil {
		handler = func(echo.Context) error { return err }
	}
	for _, wrap := range s.middleware {
		handler = wrap(handler)
	}
	s.end(c, handler(c))
}

// begin does what is to be done before any request is handled, as echo.ServeHTTP does, which
// doesn't tell what it answered.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) echo.Context {
	s.closeWhenDraining(w.Header())
	returnRequestID(w.Header(), r)
	c := s.echo.AcquireContext()
	c.Reset(r, w)
	return c
}

// end ends a request that was handled with err.
func (s *Server) end(c echo.Context, err error) {
	if err != nil {
		s.writeError(err, c)
	}
	s.requests.Count(c.Path(), c.Response().Status)
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
	p := s.problemOf(err, c)
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

// problemOf returns the problem that an error of a handler, of deciding or of echo
// is answered with. It logs what nobody but the operator should see.
func (s *Server) problemOf(err error, c echo.Context) *problem {
	var unknown decide.UnknownPolicy
	if errors.As(err, &unknown) && unknown != "" {
		s.active.Load().unknown.asked(string(unknown))
	}
	if p := knownProblem(err); p != nil {
		return p
	}
	var status *echo.HTTPError
	var panicked *decide.Panic
	switch {
	case errors.As(err, &status):
		return statusProblem(status.Code, c.Request())
	case errors.As(err, &panicked):
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelError, "panic",
			slog.String("path", c.Path()), slog.Any("error", err), slog.String("stack", string(panicked.Stack)))
	default:
		s.cfg.Log.LogAttrs(c.Request().Context(), slog.LevelError, "request failed",
			slog.String("method", c.Request().Method), slog.String("path", c.Path()), slog.Any("error", err))
	}
	return newProblem(http.StatusInternalServerError, "the request failed inside weir; its log says why")
}

// panicked returns the problem of a handler that has panicked with err.
func (s *Server) panicked(c echo.Context, err error, stack []byte) error {
	if p := new(decide.Panic); !errors.As(err, &p) { // else another goroutine has panicked
		err = &decide.Panic{Value: err, Stack: stack}
	}
	return s.problemOf(err, c)
}
