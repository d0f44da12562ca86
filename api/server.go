package api

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weir/counters"
)

const (
	// healthTimeout bounds /readyz and what /metrics asks of the store.
	healthTimeout = time.Second

	// batchWorkers is how many checks of a batch are under way at once.
	batchWorkers = 128

	// maxHold and maxHeld are how long an answer is held, and how many are held
	// at once. An answer has to be written within writeTimeout.
	maxHold      = 10 * time.Second
	maxHeld      = 10_000
	writeTimeout = 15 * time.Second
)

// Config configures a Server.
type Config struct {
	Policies Policies
	// StoreTimeout bounds what a check waits for the store, from its start;
	// 0 means counters.DefaultTimeout.
	StoreTimeout time.Duration
	// Health tells which servers of the store answer.
	Health func(context.Context) []counters.ServerStatus
	// Tokens are the bearer tokens of which /v1/* needs one, if there are any.
	Tokens []string
	// TrustedProxies are the peers whose X-Forwarded-For counts.
	TrustedProxies []*net.IPNet
	Metrics        *Metrics
	Gatherer       prometheus.Gatherer
	Log            *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A Server is weir's HTTP service. It is safe for concurrent use.
type Server struct {
	echo     *echo.Echo
	cfg      Config
	log      *slog.Logger
	now      func() time.Time
	tokens   map[[sha256.Size]byte]struct{}
	policies atomic.Pointer[activePolicies]
	draining atomic.Bool
	drained  chan struct{} // closed by Drain
	held     atomic.Int64  // answers that are held
}

// activePolicies are the policies in force, which change as a whole.
type activePolicies struct {
	byName  Policies
	metrics map[string]*policyMetrics
}

// policy returns the policy of that name, or a problem.
func (a *activePolicies) policy(name string) (*Policy, error) {
	p, ok := a.byName[name]
	switch {
	case ok:
		return p, nil
	case name == "":
		return nil, badRequest("policy is missing; GET /v1/policies lists them")
	default:
		return nil, unknownPolicy(name)
	}
}

//go:embed openapi.yaml
var openAPI []byte

// NewServer returns a server that isn't listening yet.
func NewServer(cfg Config) *Server {
	s := &Server{echo: echo.New(), cfg: cfg, log: cfg.Log, now: cfg.Now, tokens: make(map[[sha256.Size]byte]struct{}), drained: make(chan struct{})}
	if s.now == nil {
		s.now = time.Now
	}
	if s.cfg.StoreTimeout == 0 {
		s.cfg.StoreTimeout = counters.DefaultTimeout
	}
	for _, token := range cfg.Tokens {
		s.tokens[sha256.Sum256([]byte(token))] = struct{}{}
	}
	s.SetPolicies(cfg.Policies)

	e := s.echo
	e.HTTPErrorHandler = s.writeError
	e.IPExtractor = ipExtractor(cfg.TrustedProxies)
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		e.Use(middleware.RequestID(), s.requestLogger())
	}
	if len(s.tokens) > 0 {
		e.Use(s.authorize)
	}
	// Around each handler once: Use would put it around them for each request.
	safe := middleware.RecoverWithConfig(middleware.RecoverConfig{DisableStackAll: true, LogErrorFunc: s.logPanic})
	e.Match([]string{http.MethodGet, http.MethodHead}, "/healthz", safe(s.healthz))
	e.Match([]string{http.MethodGet, http.MethodHead}, "/readyz", safe(s.readyz))
	e.GET("/metrics", safe(echo.WrapHandler(promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{}))))
	e.GET("/openapi.yaml", safe(func(c echo.Context) error {
		return c.Blob(http.StatusOK, "application/yaml", openAPI)
	}))
	v1 := e.Group("/v1")
	v1.POST("/check", safe(s.check))
	v1.POST("/check/batch", safe(s.checkBatch))
	v1.GET("/policies", safe(s.listPolicies))
	v1.GET("/policies/:policy", safe(s.showPolicy))
	v1.GET("/policies/:policy/clients/:client", safe(s.peekClient))
	v1.DELETE("/policies/:policy/clients/:client", safe(s.resetClient))
	// Any would leave out all but the common methods.
	v1.RouteNotFound("/auth/:policy", safe(s.forwardAuth))
	v1.RouteNotFound("/auth/:policy/*", safe(s.forwardAuth))
	return s
}

// HTTPServer returns an http.Server for this service whose timeouts keep slow
// or silent peers from holding connections for ever.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler: s,
		// The two being equal saves setting a deadline in each request.
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// SetPolicies replaces all policies at once. Checks under way end with those
// they began with.
func (s *Server) SetPolicies(policies Policies) {
	active := &activePolicies{byName: policies, metrics: make(map[string]*policyMetrics, len(policies))}
	for name, p := range policies {
		active.metrics[name] = s.cfg.Metrics.policy(p)
		if p.header == "" { // else the policy is in use already
			p.header = p.rateLimitPolicy()
		}
	}
	s.policies.Store(active)
}

// Drain makes /readyz say that the server is going away, and closes each
// connection after its next answer, so that nothing is lost when the server is
// shut down a moment later. Answers that are held are given at once.
func (s *Server) Drain() {
	if s.draining.CompareAndSwap(false, true) {
		close(s.drained)
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.closeWhenDraining(w.Header())
	s.echo.ServeHTTP(w, r)
}

// closeWhenDraining has the connection closed after the answer.
func (s *Server) closeWhenDraining(h http.Header) {
	if s.draining.Load() {
		h.Set(echo.HeaderConnection, "close")
	}
}

func (s *Server) logPanic(c echo.Context, err error, stack []byte) error {
	s.log.LogAttrs(c.Request().Context(), slog.LevelError, "panic",
		slog.String("path", c.Path()), slog.Any("error", err), slog.String("stack", string(stack)))
	return newProblem(http.StatusInternalServerError, "the request failed inside weir; its log says why")
}

func (s *Server) requestLogger() echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogURIPath: true, LogStatus: true, LogLatency: true, LogRemoteIP: true, LogRequestID: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			s.log.LogAttrs(c.Request().Context(), slog.LevelDebug, "request",
				slog.String("method", v.Method), slog.String("path", v.URIPath), slog.Int("status", v.Status),
				slog.Duration("took", v.Latency), slog.String("peer", v.RemoteIP), slog.String("id", v.RequestID))
			return nil
		},
	})
}

// storeContext bounds the store operations of one check. Its deadline needs no
// timer because limiters and stores read it. It doesn't end with the request: a
// check that has begun is worth the moment that it may still take.
type storeContext struct {
	context.Context
	deadline time.Time
}

func (c *storeContext) Deadline() (time.Time, bool) { return c.deadline, true }

// storeContext returns the context of a check that begins at start.
func (s *Server) storeContext(start time.Time) context.Context {
	return s.bound(new(storeContext), start)
}

// bound makes c what storeContext returns.
func (s *Server) bound(c *storeContext, start time.Time) context.Context {
	*c = storeContext{Context: context.Background(), deadline: start.Add(s.cfg.StoreTimeout)}
	return c
}

// decide answers q by the policies in force, and counts it. The error is a
// problem.
func (s *Server) decide(ctx context.Context, q check, now time.Time) (*answer, error) {
	return s.decideBy(ctx, s.policies.Load(), q, now)
}

// decideBy is decide by policies that the caller has read already.
func (s *Server) decideBy(ctx context.Context, active *activePolicies, q check, now time.Time) (*answer, error) {
	p, err := active.policy(q.policy)
	if err != nil {
		return nil, err
	}
	a, err := p.check(ctx, q, now)
	if err != nil {
		return nil, err
	}
	active.metrics[q.policy].count(a, s.now().Sub(now))
	if a.refused {
		return a, reducedCapacity(a)
	}
	return a, nil
}

func (s *Server) check(c echo.Context) error {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return err
	}
	defer b.release()
	q, err := b.decodeCheck()
	if err != nil {
		return err
	}
	now := s.now()
	a, err := s.decide(s.bound(&b.context, now), q, now)
	if err != nil {
		return err
	}
	if wait := a.wait(); wait > 0 && a.policy.Hold && !a.policy.Shadow {
		s.hold(c.Request().Context(), wait-s.now().Sub(now))
		a.held = s.now().Sub(now)
		s.closeWhenDraining(c.Response().Header())
	}
	return a.write(c, http.StatusTooManyRequests)
}

// hold returns when the wait is over, or earlier: after maxHold, when the caller
// is gone, when the server drains, and at once when maxHeld others are held. A
// caller that is gone keeps its slot, because those behind it have got theirs:
// given back, it would be dealt to a newcomer as the last in the queue, and
// that one is taken.
func (s *Server) hold(ctx context.Context, wait time.Duration) {
	defer s.held.Add(-1)
	if s.held.Add(1) > maxHeld {
		return
	}
	timer := time.NewTimer(min(wait, maxHold))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.drained:
	}
}

// write answers with the headers and body of a; denied is the status of a
// denial.
func (a *answer) write(c echo.Context, denied int) error {
	out := outputs.Get().(*[]byte)
	*out = a.setHeaders(c.Response().Header(), *out)
	outputs.Put(out)
	return a.writeBody(c, a.status(denied))
}

// writeBody answers with the body of a, which must not be used any more.
func (a *answer) writeBody(c echo.Context, status int) error {
	out := outputs.Get().(*[]byte)
	defer outputs.Put(out)
	defer a.release()
	*out = append(a.appendJSON((*out)[:0], 0), '\n')
	return c.Blob(status, echo.MIMEApplicationJSON, *out)
}

func (a *answer) status(denied int) int {
	if a.allowed {
		return http.StatusOK
	}
	return denied
}

var outputs = sync.Pool{New: func() any { return new([]byte) }}

// checkBatch answers many checks. Those of one client are made in their order;
// a check that can't be made has the status of its problem and doesn't keep the
// others from being made.
func (s *Server) checkBatch(c echo.Context) error {
	b, err := readBody(c.Request(), maxBatchBytes)
	if err != nil {
		return err
	}
	defer b.release()
	batch, err := b.decodeBatch()
	if err != nil {
		return err
	}
	results := s.decideBatch(c, batch)
	out := append([]byte(nil), `{"results":[`...)
	for i := range results {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, results[i]...)
	}
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, append(out, "]}\n"...))
}

// decideBatch returns the encoded results of a batch, in its order.
func (s *Server) decideBatch(c echo.Context, batch []check) [][]byte {
	// The checks of one client of one policy are a group: after one that the
	// store didn't answer, the rest needn't wait for the same server again.
	type groupKey struct{ policy, client string }
	groups := make(map[groupKey][]int)
	for i, q := range batch {
		k := groupKey{q.policy, q.client}
		groups[k] = append(groups[k], i)
	}
	results := make([][]byte, len(batch))
	queue := make(chan []int, len(groups))
	for _, group := range groups {
		queue <- group
	}
	close(queue)
	var workers sync.WaitGroup
	for range min(batchWorkers, len(groups)) {
		workers.Go(func() {
			for group := range queue {
				s.decideGroup(c, batch, group, results)
			}
		})
	}
	workers.Wait()
	return results
}

func (s *Server) decideGroup(c echo.Context, batch []check, group []int, results [][]byte) {
	var ctx context.Context
	for _, i := range group {
		now := s.now()
		if ctx == nil {
			ctx = s.storeContext(now)
		}
		a, err := s.decideInBatch(c, ctx, batch[i], now)
		if err != nil {
			results[i] = problemResult(err)
		} else {
			results[i] = a.appendJSON(nil, a.status(http.StatusTooManyRequests))
		}
		if a != nil && !a.degraded {
			ctx = nil
		}
	}
}

// decideInBatch is decide on a goroutine of the batch's, where nothing else
// would keep a panic from ending the process.
func (s *Server) decideInBatch(c echo.Context, ctx context.Context, q check, now time.Time) (a *answer, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.logPanic(c, fmt.Errorf("%v", v), debug.Stack())
		}
	}()
	return s.decide(ctx, q, now)
}

// problemResult returns the result of a check in a batch that couldn't be made.
func problemResult(err error) []byte {
	out, err := json.Marshal(err)
	if err != nil {
		panic(err) // a problem is made of strings and numbers
	}
	return out
}

func (s *Server) peekClient(c echo.Context) error {
	p, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.now()
	a, err := p.peek(s.storeContext(now), client, now)
	if err != nil {
		return err
	}
	if a.refused {
		return reducedCapacity(a)
	}
	return a.writeBody(c, http.StatusOK)
}

func (s *Server) resetClient(c echo.Context) error {
	p, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.now()
	if err := p.reset(s.storeContext(now), client, now); err != nil {
		return storeFailed("the client was not reset in all limits; do it again: %v", err)
	}
	return c.NoContent(http.StatusNoContent)
}

// clientOfPath returns the policy and the client that the path names.
func (s *Server) clientOfPath(c echo.Context) (*Policy, string, error) {
	p, err := s.policyOfPath(c)
	if err != nil {
		return nil, "", err
	}
	client := c.Param("client")
	// echo matches the escaped path if it differs from the usual escaping.
	if c.Request().URL.RawPath != "" {
		if client, err = url.PathUnescape(client); err != nil {
			return nil, "", badRequest("the client in the path is not well escaped: %v", err)
		}
	}
	return p, client, validateClient(client)
}

func (s *Server) policyOfPath(c echo.Context) (*Policy, error) {
	return s.policies.Load().policy(c.Param("policy"))
}

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

// policyView is what GET /v1/policies shows of a policy. Clients are only
// counted: their names may be secrets.
type policyView struct {
	Name         string       `json:"name"`
	Description  string       `json:"description,omitempty"`
	Limits       []limitView  `json:"limits"`
	CountDenied  bool         `json:"count_denied"`
	OnStoreError OnStoreError `json:"on_store_error"`
	Hold         bool         `json:"hold,omitempty"`
	Mode         string       `json:"mode"`
	Clients      int          `json:"clients"`
}

type limitView struct {
	Name       string  `json:"name"`
	Algorithm  string  `json:"algorithm"`
	Limit      int64   `json:"limit"`
	Window     float64 `json:"window"` // seconds
	SubWindows int     `json:"sub_windows,omitempty"`
	Estimate   string  `json:"estimate,omitempty"`
	Burst      int64   `json:"burst,omitempty"`
}

func (p *Policy) view() policyView {
	v := policyView{
		Name: p.Name, Description: p.Description, CountDenied: p.CountDenied,
		OnStoreError: p.OnStoreError, Hold: p.Hold, Mode: "enforce", Clients: len(p.Clients),
	}
	if p.Shadow {
		v.Mode = "shadow"
	}
	for _, l := range p.Limits {
		v.Limits = append(v.Limits, limitView{
			Name: l.Name, Algorithm: l.Algorithm, Limit: l.Limit, Window: l.Window.Seconds(),
			SubWindows: l.SubWindows, Estimate: l.Estimate, Burst: l.Burst,
		})
	}
	return v
}

func (s *Server) listPolicies(c echo.Context) error {
	views := []policyView{}
	for _, p := range s.policies.Load().byName.sorted() {
		views = append(views, p.view())
	}
	return c.JSON(http.StatusOK, map[string][]policyView{"policies": views})
}

func (s *Server) showPolicy(c echo.Context) error {
	p, err := s.policyOfPath(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, p.view())
}
