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
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/api"
	"weir/api/console"
	"weir/api/decide"
	"weir/api/envoy"
	"weir/api/envoy/xds"
	"weir/api/fleet"
	"weir/api/overrides"
	"weir/api/policy"
	"weir/api/policyfile"
	"weir/api/receipt"
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
	cfg            *config
	log            *slog.Logger
	listener       listener
	tls            *tls.Config          // nil for HTTP
	registry       *prometheus.Registry // of all metrics
	server         *api.Server
	metrics        *telemetry.Metrics
	limiters       *policyfile.Limiters
	background     counters.Goroutines // what outlives its check
	overrides      *overrides.Overrides
	fleet          *fleet.Fleet
	decisionWriter *logWriter  // nil without -decision-log
	loadedAtStart  []slog.Attr // what was loaded at the start, for the log
	watchStore     func(context.Context)
	closeStore     func() error

	envoy        *envoy.Service // nil without -envoy-config and -envoy-xds
	grpc         *envoy.Server  // nil without -grpc-listen
	grpcListener listener       // of grpc

	xds      *xds.Config // nil without -envoy-xds
	sets     limitSets   // that the xDS server has sent
	setWrong bool        // the last set was refused
	limited  atomic.Bool // Envoy's limits are known, or were waited for long enough

	files    []*watchedFiles // beside those of the policies
	inForce  policyContent   // what the policies in force say
	lastRead policyContent   // what was last read
}

// A policyContent is the content of the policy file, and of the files of
// -envoy-config, or the limits that the server of -envoy-xds has sent, as files.
type policyContent struct {
	data   []byte
	envoy  []policyfile.EnvoyFile
	unread string // why there is nothing; else ""
}

func (c policyContent) equals(other policyContent) bool {
	return bytes.Equal(c.data, other.data) && sameFiles(c.envoy, other.envoy) && c.unread == other.unread
}

// sameFiles reports whether a and b have the same names and content.
func sameFiles(a, b []policyfile.EnvoyFile) bool {
	return slices.EqualFunc(a, b, func(a, b policyfile.EnvoyFile) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
}

// newProgram reads all files and listens. It doesn't connect to the store yet.
func newProgram(cfg *config, logTo io.Writer) (*program, error) {
	p := &program{cfg: cfg, log: cfg.logger(logTo), registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = telemetry.NewMetrics(p.registry, version())
	if w, ok := logTo.(*logWriter); ok {
		countDropped(p.registry, w, "weir_log_lines_dropped_total", "Lines of the log that nobody has read in time.")
	}
	decisions, w, err := openDecisionLog(cfg, p.registry)
	if err != nil {
		return nil, err
	}
	p.decisionWriter = w

	store, health, undecided, err := p.openStore()
	if err != nil {
		return nil, err
	}
	options := cfg.limiterOptions()
	options.Background, options.RefundFailed = &p.background, p.metrics.RefundFailed
	p.overrides = overrides.New(overrides.Config{
		Store: store, KeyPrefix: cfg.keyPrefix, Horizon: options.Horizon(), Now: now, Foreign: p.metrics.Foreign, Log: p.log,
	})
	telemetry.RegisterOverrides(p.registry, func(f func(policy, kind string)) {
		for _, o := range p.overrides.All() {
			f(o.Policy, o.Kind())
		}
	}, p.overrides.Age)
	p.fleet = fleet.New(fleet.Config{Store: store, KeyPrefix: cfg.keyPrefix, Now: now})
	store = p.metrics.InstrumentStore(store)
	p.limiters = policyfile.NewLimiters(store, options, p.metrics, p.log)
	telemetry.RegisterViews(p.registry, p.limiters.Clients, p.limiters.ClientLimit)
	if err := checkPolicyFiles(cfg); err != nil {
		return nil, err
	}
	if p.lastRead, err = p.readPolicies(); err != nil {
		return nil, err
	}
	loaded, err := p.load(p.lastRead)
	if err != nil {
		return nil, err
	}
	if err := p.readXDS(); err != nil {
		return nil, err
	}
	p.limited.Store(p.xds == nil)
	p.metrics.Loaded(time.Now())
	p.metrics.FilesRight(true)
	tokens, err := p.watchTokens()
	if err != nil {
		return nil, err
	}
	p.loadedAtStart = loaded.words()
	if loaded.envoy != nil {
		p.envoy = p.newEnvoy()
	}
	p.server = api.NewServer(api.Config{
		Policies:       loaded.policies,
		StoreTimeout:   cfg.storeTimeout,
		Claims:         decide.Claims{Store: store, KeyPrefix: cfg.keyPrefix, Horizon: options.Horizon(), Late: &p.background},
		Overrides:      p.overrides,
		Fleet:          p.fleet,
		Health:         health,
		Loaded:         p.limited.Load,
		Undecided:      undecided,
		Tokens:         tokens,
		TrustedProxies: cfg.proxies,
		Metrics:        p.metrics,
		Gatherer:       p.registry,
		Log:            p.log,
		LogClients:     cfg.logClients,
		Decisions:      decisions,
		Instance:       instance(cfg.listen),
		Version:        version(),
		Now:            now,
		Handlers:       p.handlers(),
		LocalOnly:      cfg.console && cfg.tokenFile == "",
	})
	p.setEnvoy(loaded)
	return p, p.listen()
}

// watchTokens returns the tokens of -token-file, and has the server take those that come later.
func (p *program) watchTokens() (tokens []api.Token, err error) {
	if p.cfg.tokenFile == "" {
		return nil, nil
	}
	err = p.watch(func() (err error) {
		if tokens, err = readTokens(p.cfg.tokenFile); err == nil && p.server != nil {
			p.server.SetTokens(tokens)
		}
		return err
	}, "-token-file", p.cfg.tokenFile)
	return tokens, err
}

// newEnvoy returns the service that answers Envoy, without limits yet.
func (p *program) newEnvoy() *envoy.Service {
	s := envoy.NewService(envoy.Headers(p.cfg.envoyHeaders), p.cfg.envoyMetadata, func() *receipt.Key { return p.server.ReceiptKey() })
	s.CountHits(func(limit string) func(envoy.Hits) {
		count := p.metrics.EnvoyHits(limit)
		return func(h envoy.Hits) { count(telemetry.Hits(h)) }
	})
	return s
}

// handlers answer what package api doesn't.
func (p *program) handlers() map[string]http.Handler {
	all := make(map[string]http.Handler)
	if p.envoy != nil {
		all["POST /json"] = p.envoy
		all["GET /rlconfig"] = http.HandlerFunc(p.envoy.ServeConfig)
		well := http.HandlerFunc(p.healthcheck)
		all["GET /healthcheck"], all["HEAD /healthcheck"] = well, well
	}
	if p.cfg.console {
		page := console.Handler()
		all["GET /console"], all["GET "+console.Path+"*"] = page, page
	}
	return all
}

// setEnvoy has Envoy's service decide by l, which the server has in force.
func (p *program) setEnvoy(l *loadedLimits) {
	if p.envoy == nil {
		return
	}
	d, _ := p.server.Find(envoy.PolicyName) // it is there with l.envoy
	p.envoy.SetConfig(l.envoy, d, func(limit string) { p.metrics.LimitDenied(envoy.PolicyName, limit) })
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

// watch reads files, given as pairs of a flag and the file that it names, and has reloadUntil read
// them again when they change. It leaves out empty names.
func (p *program) watch(read func() error, pairs ...string) error {
	w := &watchedFiles{read: read}
	var wrong checker
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			w.flags, w.names = append(w.flags, pair[0]), append(w.names, pair[1])
			err := policyfile.CheckFile(pair[1])
			wrong.require(err == nil, "%s: %w", pair[0], err)
		}
	}
	if len(wrong) > 0 {
		return errors.Join(wrong...)
	}
	p.files = append(p.files, w)
	_, err := w.look()
	return err
}

// watchTLS is watch for the files of a TLS configuration. last returns the configuration that was
// read last.
func (p *program) watchTLS(read func() (*tls.Config, error), pairs ...string) (last func() *tls.Config, err error) {
	var config atomic.Pointer[tls.Config]
	return config.Load, p.watch(func() error {
		c, err := read()
		if err == nil {
			config.Store(c)
		}
		return err
	}, pairs...)
}

// readXDS sets p.xds, which says how to connect to the xDS server, if there is one.
func (p *program) readXDS() (err error) {
	c := &p.cfg.envoyXDS
	if c.server == "" {
		return nil
	}
	p.sets = make(limitSets)
	p.xds = &xds.Config{Server: c.server, Node: c.node, Apply: p.sets.send, Log: p.log}
	if c.tls {
		p.xds.TLS, err = p.watchTLS(c.clientTLS, "-envoy-xds-ca", c.ca, "-envoy-xds-cert", c.cert, "-envoy-xds-key", c.key)
	}
	return err
}

// setLimited notes that Envoy's limits needn't be waited for any more, and has gRPC say that weir is
// ready. It reports whether that is new.
func (p *program) setLimited() bool {
	before := p.limited.Swap(true)
	if !before && p.grpc != nil {
		p.grpc.SetReady(true)
	}
	return !before
}

// readTLS returns a configuration that serves each connection with the certificates that were
// read last from the files, or nil if f names none.
func (p *program) readTLS(f serverFiles) (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil
	}
	last, err := p.watchTLS(f.read, f.flags+"-cert", f.cert, f.flags+"-key", f.key, f.flags+"-client-ca", f.clientCA)
	return &tls.Config{
		NextProtos:         nextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return last(), nil },
	}, err
}

func (p *program) listen() error {
	c := p.cfg
	var err error
	if p.tls, err = p.readTLS(serverFiles{"-tls", c.tlsCert, c.tlsKey, c.tlsClientCA}); err != nil {
		return err
	}
	grpcTLS := p.tls
	if c.grpcTLSCert != "" {
		if grpcTLS, err = p.readTLS(serverFiles{"-grpc-tls", c.grpcTLSCert, c.grpcTLSKey, c.grpcClientCA}); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	p.listener = listener{l.(*net.TCPListener)}
	if c.grpcListen == "" {
		return nil
	}
	if p.grpcListener, err = listenGRPC(c.grpcListen); err != nil {
		return errors.Join(fmt.Errorf("-grpc-listen: %w", err), l.Close())
	}
	p.grpc = envoy.NewServer(p.envoy, grpcTLS, c.grpcAge, c.shutdownGrace, p.log)
	p.grpc.SetReady(p.limited.Load())
	return nil
}

// loadedLimits are what the files say, with limiters.
type loadedLimits struct {
	policies policy.Policies // with that of envoy
	envoy    *envoy.Config   // nil without -envoy-config and -envoy-xds
}

// words says how much was loaded, for the log.
func (l *loadedLimits) words() []slog.Attr {
	if l.envoy == nil {
		return []slog.Attr{slog.Int("policies", len(l.policies))}
	}
	var patterns []string
	for _, limit := range l.envoy.All() {
		patterns = append(patterns, limit.Pattern)
	}
	return []slog.Attr{
		slog.Int("policies", len(l.policies)-1),
		slog.String("envoy", policyfile.DescribeEnvoy(l.envoy)), slog.String("envoy_limits", someOf(patterns)),
	}
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

// load returns what the content says, with limiters, and notes the content as that in force, as its
// caller puts it in force.
func (p *program) load(content policyContent) (*loadedLimits, error) {
	loaded, err := loadLimits(p.cfg, content, p.limiters)
	if err == nil {
		p.inForce = content
	}
	return loaded, err
}

// readPolicies reads the policy files; the limits that an xDS server has sent stay.
func (p *program) readPolicies() (policyContent, error) {
	c, err := readPolicyFiles(p.cfg, p.inForce.data)
	if p.cfg.envoyXDS.server != "" {
		c.envoy = p.inForce.envoy
	}
	return c, err
}

// checkPolicyFiles returns an error unless the policy file is a file or inherited, and Envoy's is a
// file or a folder.
func checkPolicyFiles(cfg *config) error {
	var all checker
	if !isInherited(cfg.policyFile) {
		err := policyfile.CheckFile(cfg.policyFile)
		all.require(err == nil, "policy file: %w", err)
	}
	if at, missing := os.Stat(cfg.envoyConfig); missing == nil && !at.IsDir() {
		err := policyfile.CheckFile(cfg.envoyConfig)
		all.require(err == nil, "-envoy-config: %w", err)
	}
	return errors.Join(all...)
}

// isInherited reports whether name is a pipe or the like that weir's parent process has opened for
// it: it can be read once, and reading it doesn't wait for somebody to open it for writing.
func isInherited(name string) bool {
	at, err := os.Stat(name)
	return err == nil && !at.Mode().IsRegular() && (name == "/dev/stdin" || strings.HasPrefix(name, "/dev/fd/"))
}

// readPolicyFiles reads the policy file and Envoy's. With an error, there is nothing but that.
// before is what was in the policy file, and still is if that can only be read once; nil at first.
func readPolicyFiles(cfg *config, before []byte) (c policyContent, err error) {
	if c.data = before; before == nil || !isInherited(cfg.policyFile) {
		c.data, err = policyfile.Read(cfg.policyFile)
	}
	if err == nil && cfg.envoyConfig != "" {
		if c.envoy, err = policyfile.ReadEnvoy(cfg.envoyConfig); err != nil {
			err = fmt.Errorf("-envoy-config: %w", err)
		}
	}
	if err != nil {
		return policyContent{unread: err.Error()}, err
	}
	return c, nil
}

// loadLimits returns what the content says, with limiters. The error names each
// mistake with its line.
func loadLimits(cfg *config, content policyContent, limiters *policyfile.Limiters) (*loadedLimits, error) {
	l := new(loadedLimits)
	var err, envoyErr error
	var taken []string
	if cfg.envoys() {
		taken = []string{envoy.PolicyName}
		l.envoy, envoyErr = policyfile.ParseEnvoy(content.envoy, cfg.envoyOptions)
	}
	l.policies, err = policyfile.Parse(cfg.policyFile, content.data, taken...)
	if err = errors.Join(err, envoyErr); err != nil {
		return nil, err
	}
	bind := func() {}
	if l.envoy != nil {
		l.policies[envoy.PolicyName], bind = policyfile.EnvoyPolicy(l.envoy, cfg.envoyOptions)
	}
	if err := limiters.Bind(l.policies); err != nil {
		return nil, err
	}
	bind()
	return l, nil
}

// healthcheck answers as envoyproxy/ratelimit does: OK, or status 500 when the
// process goes away or has no limits yet.
func (p *program) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if p.server.Draining() || !p.limited.Load() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte("OK"))
}

// instance names the process for operators: its host, and the address that it listens on.
func instance(listen string) string {
	host, _ := os.Hostname() // or nothing
	if _, port, err := net.SplitHostPort(listen); err == nil {
		return net.JoinHostPort(host, port)
	}
	return host
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
