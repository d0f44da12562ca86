package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/api"
	"weir/api/decide"
	"weir/api/envoy"
	"weir/api/overrides"
	"weir/api/policy"
	"weir/api/policyfile"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memory"
)

const (
	// reloadInterval is how often weir looks whether the policy file has
	// changed.
	reloadInterval = time.Second

	// resetInterval is how often resets are tried again that the store couldn't do.
	resetInterval = 500 * time.Millisecond

	// drainPause is how long, at shutdown, a connection whose handshake has
	// begun may take to open, and how long the open ones have to be quiet
	// until they are closed. Each is closed after its next answer.
	drainPause = 300 * time.Millisecond
)

// now is the clock that checks are limited by. Only tests change it, in
// processes that they start: to see what clocks do that differ.
var now = time.Now

// A program is the service with everything it needs, listening but not yet
// serving.
type program struct {
	cfg        *config
	log        *slog.Logger
	listener   listener
	tls        *tls.Config // nil for HTTP
	apiConfig  api.Config
	server     *api.Server
	metrics    *telemetry.Metrics
	limiters   *policyfile.Limiters
	refunds    counters.Group // that outlive their checks
	overrides  *overrides.Overrides
	watchStore func(context.Context)
	closeStore func() error

	envoy        *envoy.Service // nil without -envoy-config
	grpc         *envoy.Server  // nil without -grpc-listen
	grpcListener listener       // of grpc

	files   []*watchedFiles // beside those of the policies
	inForce policyContent   // what the policies in force say
	read    policyContent   // what was last read; without data if it couldn't be
}

// A policyContent is the content of the policy file, and of the files of
// -envoy-config.
type policyContent struct {
	data  []byte
	envoy []policyfile.EnvoyFile
}

func (c policyContent) equals(other policyContent) bool {
	return bytes.Equal(c.data, other.data) && sameFiles(c.envoy, other.envoy)
}

// sameFiles reports whether a and b have the same names and content.
func sameFiles(a, b []policyfile.EnvoyFile) bool {
	return slices.EqualFunc(a, b, func(a, b policyfile.EnvoyFile) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
}

// newProgram reads all files and listens. It doesn't connect to the store yet.
func newProgram(cfg *config, logTo io.Writer) (*program, error) {
	p := &program{cfg: cfg, log: cfg.logger(logTo)}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = telemetry.NewMetrics(registry, version())
	if w, ok := logTo.(*logWriter); ok {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "weir_log_lines_dropped_total", Help: "Lines of the log that nobody has read in time.",
		}, func() float64 { return float64(w.dropped.Load()) }))
	}

	store, health, undecided, err := p.openStore()
	if err != nil {
		return nil, err
	}
	options := cfg.limiterOptions()
	options.Refunds, options.RefundFailed = &p.refunds, p.metrics.RefundFailed
	p.overrides = overrides.New(overrides.Config{
		Store: store, KeyPrefix: cfg.keyPrefix, Horizon: options.Horizon(), Now: now, Foreign: p.metrics.Foreign, Log: p.log,
	})
	telemetry.RegisterOverrides(registry, func(f func(policy, kind string)) {
		for _, o := range p.overrides.All() {
			f(o.Policy, o.Kind())
		}
	}, p.overrides.Age)
	store = p.metrics.InstrumentStore(store)
	p.limiters = policyfile.NewLimiters(store, options, p.metrics, p.log)
	telemetry.RegisterViews(registry, p.limiters.Clients, p.limiters.ClientLimit)
	loaded, err := p.loadPolicies()
	if err != nil {
		return nil, err
	}
	p.metrics.Loaded(time.Now())
	p.metrics.FilesRight(true)
	var tokens []api.Token
	if cfg.tokenFile != "" {
		if err := p.watch(func() (err error) {
			if tokens, err = readTokens(cfg.tokenFile); err == nil && p.server != nil {
				p.server.SetTokens(tokens)
			}
			return err
		}, "-token-file", cfg.tokenFile); err != nil {
			return nil, err
		}
	}
	p.apiConfig = api.Config{
		Policies:       loaded.policies,
		StoreTimeout:   cfg.storeTimeout,
		Claims:         decide.Claims{Store: store, KeyPrefix: cfg.keyPrefix, Horizon: options.Horizon(), Late: &p.refunds},
		Overrides:      p.overrides,
		Health:         health,
		Undecided:      undecided,
		Tokens:         tokens,
		TrustedProxies: cfg.proxies,
		Metrics:        p.metrics,
		Gatherer:       registry,
		Log:            p.log,
		LogClients:     cfg.logClients,
		Now:            now,
	}
	if loaded.envoy != nil {
		p.envoy = envoy.NewService(envoy.Headers(cfg.envoyHeaders))
		p.envoy.SetConfig(p.envoyLimits(loaded))
		p.apiConfig.Handlers = map[string]http.Handler{
			"POST /json":       p.envoy,
			"GET /healthcheck": http.HandlerFunc(p.healthcheck),
		}
	}
	p.server = api.NewServer(p.apiConfig)
	return p, p.listen()
}

// envoyLimits returns what was loaded of envoy's limits, what decides by them, and
// what is told the names of those that deny.
func (p *program) envoyLimits(l *loaded) (*envoy.Config, *decide.Decider, func(limit string)) {
	checks := p.metrics.LimitChecks(l.envoyPolicy, telemetry.Listeners{Undecided: p.apiConfig.Undecided})
	return l.envoy, decide.NewDecider(decide.Config{StoreTimeout: p.cfg.storeTimeout, Now: now}, l.envoyPolicy, checks), checks.Denied
}

// openStore returns the store, a function that asks each of its servers whether
// it answers, and what is to be told of checks that it doesn't decide.
func (p *program) openStore() (telemetry.Store, func() []counters.ServerStatus, func(client string, err error), error) {
	if len(p.cfg.memcached) == 0 {
		p.watchStore, p.closeStore = func(context.Context) {}, func() error { return nil }
		return memory.New(nil), func() []counters.ServerStatus {
			return []counters.ServerStatus{{Server: "embedded"}}
		}, nil, nil
	}
	var m *memcached.Store
	var config memcached.Config
	if err := p.watch(func() (err error) {
		if config, err = p.cfg.memcachedConfig(); err == nil && m != nil {
			m.SetAccess(config.TLS, config.User, config.Password)
		}
		return err
	}, "-memcached-ca", p.cfg.memcachedCA, "-memcached-user-file", p.cfg.memcachedUser); err != nil {
		return nil, nil, nil, err
	}
	m, err := memcached.New(config)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-memcached: %w", err)
	}
	p.watchStore, p.closeStore = func(ctx context.Context) { m.Watch(ctx, p.log) }, m.Close
	return m, m.Ping, m.Undecided, nil
}

// watch reads files as they are now, and has reloadUntil read them again when they
// change.
func (p *program) watch(read func() error, pairs ...string) error {
	w, err := watch(read, pairs...)
	p.files = append(p.files, w)
	return err
}

// readTLS has p.tls serve each connection with the certificates that were read last.
func (p *program) readTLS() error {
	if p.cfg.tlsCert == "" {
		return nil
	}
	var last atomic.Pointer[tls.Config]
	p.tls = &tls.Config{
		NextProtos:         nextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return last.Load(), nil },
	}
	return p.watch(func() error {
		config, err := p.cfg.serverTLS()
		if err == nil {
			last.Store(config)
		}
		return err
	}, "-tls-cert", p.cfg.tlsCert, "-tls-key", p.cfg.tlsKey, "-tls-client-ca", p.cfg.tlsClientCA)
}

func (p *program) listen() error {
	if err := p.readTLS(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", p.cfg.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	p.listener = listener{l.(*net.TCPListener)}
	if p.cfg.grpcListen == "" {
		return nil
	}
	grpcListener, err := net.Listen("tcp", p.cfg.grpcListen)
	if err != nil {
		return errors.Join(fmt.Errorf("-grpc-listen: %w", err), l.Close())
	}
	p.grpcListener = listener{grpcListener.(*net.TCPListener)}
	p.grpc = envoy.NewServer(p.envoy, p.tls, p.log)
	return nil
}

// loaded is what the files say, with its limiters.
type loaded struct {
	policies    policy.Policies
	envoy       *envoy.Config  // nil without -envoy-config
	envoyPolicy *policy.Policy // that envoy's limits have in common
}

// loadPolicies reads the policies and the files of -envoy-config, and gives them
// their limiters.
func (p *program) loadPolicies() (*loaded, error) {
	var err error
	if p.read, err = readPolicies(p.cfg); err != nil {
		return nil, err
	}
	loaded, err := loadLimits(p.cfg, p.read, p.limiters)
	if err == nil {
		p.inForce = p.read
	}
	return loaded, err
}

// readPolicies reads what says what to limit. With an error, there is no data.
func readPolicies(cfg *config) (c policyContent, err error) {
	if c.data, err = policyfile.Read(cfg.policyFile); err == nil && cfg.envoyConfig != "" {
		if c.envoy, err = policyfile.ReadEnvoy(cfg.envoyConfig); err != nil {
			err = fmt.Errorf("-envoy-config: %w", err)
		}
	}
	if err != nil {
		return policyContent{}, err
	}
	return c, nil
}

// loadLimits returns what the content says, with limiters. The error names each
// mistake with its line.
func loadLimits(cfg *config, content policyContent, limiters *policyfile.Limiters) (*loaded, error) {
	l := new(loaded)
	var err, envoyErr error
	l.policies, err = policyfile.Parse(cfg.policyFile, content.data)
	if cfg.envoyConfig != "" {
		l.envoy, envoyErr = policyfile.ParseEnvoy(content.envoy, cfg.envoyDefault)
	}
	if err = errors.Join(err, envoyErr); err != nil {
		return nil, err
	}
	all, bind := maps.Clone(l.policies), func() {}
	if l.envoy != nil {
		if all[envoy.PolicyName] != nil {
			return nil, fmt.Errorf("%s: the policy %q must have another name: it is that of what -envoy-config limits", cfg.policyFile, envoy.PolicyName)
		}
		l.envoyPolicy, bind = policyfile.EnvoyPolicy(l.envoy, cfg.envoyDenied)
		all[envoy.PolicyName] = l.envoyPolicy
	}
	if err := limiters.Bind(all); err != nil {
		return nil, err
	}
	bind()
	return l, nil
}

// run serves until ctx ends, then answers the requests under way and returns
// nil, or an error if that took longer than the grace. It loads the policies
// again on each hangup. When it returns, all that has used the store has ended,
// and the store is closed.
func (p *program) run(ctx context.Context, hangup <-chan os.Signal) (err error) {
	working, stopWork := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { p.reloadUntil(working, hangup) })
	web := p.server.HTTPServer()
	var srv httpServer = web
	if p.cfg.http == plainHTTP && p.tls == nil {
		srv = p.server.PlainServer(web)
	}
	defer func() {
		stopWork()
		err = errors.Join(err, srv.Close()) // before waiting, as the grace is over
		work.Wait()
		// Close doesn't wait for handlers; their store timeout ends them.
		p.server.Await()
		if n := p.server.RetryResets(); n > 0 {
			p.log.Warn("clients were reset in this process only, as Memcached doesn't answer", slog.Int("clients", n))
		}
		if n := p.limiters.Flush(); n > 0 {
			p.log.Warn("what was admitted without Memcached is not counted there", slog.Int("clients", n))
		}
		err = errors.Join(err, p.closeStore())
	}()
	p.greet()
	work.Go(func() { p.watchStore(working) })
	work.Go(func() { p.retryResetsUntil(working) })
	work.Go(func() { p.overrides.Watch(working) })

	var open, changed atomic.Int64
	var silent sync.Map // keys are the connections that have sent nothing yet
	web.ConnState = func(c net.Conn, state http.ConnState) {
		changed.Add(1)
		switch state {
		case http.StateNew:
			open.Add(1)
			silent.Store(c, nil)
		case http.StateActive:
			silent.Delete(c)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
			silent.Delete(c)
		}
	}
	most, grpcMost := places(mostFiles())
	var incoming net.Listener = newLoudListener(p.listener, most, p.log)
	if p.tls != nil {
		incoming = tls.NewListener(incoming, p.tls)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(incoming) }()
	grpcServed, stopGRPC := p.serveGRPC(grpcMost)
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serving ended: %w", err), stopGRPC())
	case err := <-grpcServed:
		return fmt.Errorf("serving gRPC ended: %w", err)
	case <-ctx.Done():
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stopGRPC() }()
	err = p.shutDown(srv, served, &open, &changed, &silent)
	return errors.Join(err, <-stopped)
}

// An httpServer is an http.Server, or one that begins with another.
type httpServer interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

func (p *program) retryResetsUntil(ctx context.Context) {
	for ticks := time.Tick(resetInterval); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			p.server.RetryResets()
		}
	}
}

// serveGRPC serves the rate limit service, if there is one, until stop returns.
// It has that many connections at most. The channel has what ended it earlier.
func (p *program) serveGRPC(most int) (ended <-chan error, stop func() error) {
	if p.grpc == nil {
		return nil, func() error { return nil }
	}
	served, over := make(chan error, 1), make(chan struct{})
	go func() {
		served <- p.grpc.Serve(newLoudListener(p.grpcListener, most, p.log))
		close(over)
	}()
	return served, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), p.cfg.shutdownGrace)
		defer cancel()
		p.grpc.Drain()
		if err := p.grpcListener.drain(p.drainEnd()); err != nil {
			return errors.Join(err, p.grpc.Stop(ctx))
		}
		<-over // before that, Stop would cut connections that wait
		return p.grpc.Stop(ctx)
	}
}

// healthcheck answers as envoyproxy/ratelimit does: OK, or status 500 when the
// process goes away.
func (p *program) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if p.server.Draining() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK"))
}

// drainEnd returns until when connections may open whose handshake has begun.
func (p *program) drainEnd() time.Time {
	return time.Now().Add(min(drainPause, p.cfg.shutdownGrace))
}

// shutDown refuses new connections, answers the requests under way and what the
// open connections send, and closes them once all have been quiet for
// drainPause. changed counts what happens on connections, and silent are those
// that have sent nothing yet.
func (p *program) shutDown(srv httpServer, served <-chan error, open, changed *atomic.Int64, silent *sync.Map) error {
	p.log.Info("draining", slog.Int64("connections", open.Load()))
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.shutdownGrace)
	defer cancel()
	// Before Drain: a client that is told to close its connection connects
	// again at once, and must be refused.
	if err := p.listener.drain(p.drainEnd()); err != nil {
		return err
	}
	p.server.Drain()
	<-served // before that, Shutdown would cut connections that wait
	// Shutdown closes idle connections at once, and loses a request that
	// arrives on one of them at that moment. Ticks are counted, not time: where
	// this process had no turn, it has read nothing.
	const tick = 5 * time.Millisecond
	for quiet, seen := time.Duration(0), changed.Load(); open.Load() > 0 && quiet < drainPause && ctx.Err() == nil; quiet += tick {
		time.Sleep(tick)
		if n := changed.Load(); n != seen {
			quiet, seen = 0, n
		}
	}
	// Shutdown would wait for these for 5 s.
	silent.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
	if err := srv.Shutdown(ctx); err != nil {
		return fmt.Errorf("requests were still under way after -shutdown-grace %v", p.cfg.shutdownGrace)
	}
	p.log.Info("stopped")
	return nil
}

// greet says in one line where weir listens, what it limits, where it counts
// and how long it waits.
func (p *program) greet() {
	scheme, policies, store := "http", "the policies of "+p.cfg.policyFile, "on Memcached"
	if p.cfg.tlsCert != "" {
		scheme = "https"
	}
	if p.cfg.policyFile == "" {
		policies = "the built-in policies"
	}
	attributes := []slog.Attr{slog.String("version", version()), slog.Int("policies", len(p.apiConfig.Policies))}
	if len(p.cfg.memcached) == 0 {
		store = "in this process only, because -memcached names no server"
	} else {
		attributes = append(attributes, slog.String("memcached", strings.Join(p.cfg.memcached, ",")))
	}
	if p.grpc != nil {
		attributes = append(attributes, slog.String("grpc", p.grpcListener.Addr().String()))
	}
	attributes = append(attributes, slog.Duration("store_timeout", p.cfg.storeTimeout),
		slog.Duration("clock_skew", p.cfg.clockSkew), slog.Duration("shutdown_grace", p.cfg.shutdownGrace))
	p.log.LogAttrs(context.Background(), slog.LevelInfo,
		fmt.Sprintf("weir listens on %s://%s with %s and counts %s", scheme, p.listener.Addr(), policies, store), attributes...)
}

// reloadUntil loads the policies again when their file changes, and on each
// hangup, and reads the other files again when they change, until ctx ends.
func (p *program) reloadUntil(ctx context.Context, hangup <-chan os.Signal) {
	ticks := time.Tick(reloadInterval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			p.reload()
			p.readFiles()
		case <-ticks:
			p.readFiles()
			content, err := readPolicies(p.cfg)
			switch known := p.read.data != nil; {
			case err != nil && known:
				p.read = policyContent{} // what is readable again is loaded
				p.reloaded(false)
				p.log.Warn("the policy file can't be read; the policies stay as they were until it can", slog.Any("error", err))
			case err == nil && !(known && content.equals(p.read)):
				p.reload()
			}
		}
	}
}

// reloaded counts that files were read again, and judges all of them.
func (p *program) reloaded(ok bool) {
	p.metrics.Reloaded(ok)
	p.metrics.FilesRight(p.read.equals(p.inForce) && !slices.ContainsFunc(p.files, func(w *watchedFiles) bool { return w.wrong }))
}

// readFiles puts in force what has changed of the files beside those of the policies,
// if it is right.
func (p *program) readFiles() {
	for _, w := range p.files {
		changed, err := w.look()
		if !changed {
			continue
		}
		p.reloaded(err == nil)
		if err != nil {
			logMistakes(p.log, "a file that has changed is wrong; what was read before stays in force", err)
		} else {
			p.log.Info("a file is read again, as it has changed", slog.String("flags", w.String()))
		}
	}
}

// reload replaces all policies, or none if the file has a mistake. Each mistake
// is a line of its own in the log.
func (p *program) reload() {
	before := p.inForce
	loaded, err := p.loadPolicies()
	p.reloaded(err == nil)
	if err != nil {
		logMistakes(p.log, "the policies stay as they were", err)
		return
	}
	p.metrics.Loaded(time.Now())
	p.server.SetPolicies(loaded.policies)
	if p.envoy != nil {
		p.envoy.SetConfig(p.envoyLimits(loaded))
	}
	p.log.LogAttrs(context.Background(), slog.LevelInfo, "policies loaded",
		append([]slog.Attr{slog.Int("policies", len(loaded.policies))}, changes(p.cfg, before, p.inForce)...)...)
}

// changes names the policies that differ between two contents, both right. Where
// there are many it says how many more.
func changes(cfg *config, before, after policyContent) []slog.Attr {
	// Parsed again: policies in use have limiters, which differ where nothing has changed.
	was, _ := policyfile.Parse(cfg.policyFile, before.data)
	is, _ := policyfile.Parse(cfg.policyFile, after.data)
	var added, changed, removed []string
	for name, p := range is {
		if was[name] == nil {
			added = append(added, name)
		} else if !reflect.DeepEqual(p, was[name]) {
			changed = append(changed, name)
		}
	}
	for name := range was {
		if is[name] == nil {
			removed = append(removed, name)
		}
	}
	if !sameFiles(before.envoy, after.envoy) {
		changed = append(changed, envoy.PolicyName)
	}
	var attributes []slog.Attr
	for _, change := range []struct {
		what  string
		names []string
	}{{"added", added}, {"changed", changed}, {"removed", removed}} {
		if len(change.names) > 0 {
			attributes = append(attributes, slog.String(change.what, someOf(change.names)))
		}
	}
	return attributes
}

// someOf returns names in their order, or the first of them and how many more there are.
func someOf(names []string) string {
	const most = 10
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ","), more)
	}
	return strings.Join(names, ",")
}

// logMistakes logs an error that may name several mistakes, one line each.
func logMistakes(log *slog.Logger, message string, err error) {
	for mistake := range strings.SplitSeq(err.Error(), "\n") {
		log.Error(message, slog.String("error", mistake))
	}
}

// release is the version that the build names, by -ldflags "-X
// main.release=1.2.3".
var release string

// version returns the release or, if the build names none, the version of the
// module. It names the commit when the go command could find that out;
// otherwise it is "devel".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(release, "unknown")
	}
	return cmp.Or(release, strings.Trim(info.Main.Version, "()"), "devel")
}
