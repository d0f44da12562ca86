package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/api"
	"weir/counters"
)

const (
	// reloadInterval is how often the policy file is looked at.
	reloadInterval = time.Second

	// drainPause is how long connections that are open at shutdown may send
	// one more request, which is answered and closes them.
	drainPause = 300 * time.Millisecond
)

// A program is the service with everything it needs, listening but not yet
// serving.
type program struct {
	cfg      *config
	log      *slog.Logger
	listener net.Listener
	server   *api.Server
	metrics  *api.Metrics
	wiring   *wiring
	close    func() error // closes the store

	policyData []byte // the policy file when it was last read
}

// newProgram reads all files, listens, and connects to nothing yet. The error
// says what is wrong.
func newProgram(cfg *config, logTo io.Writer) (*program, error) {
	p := &program{cfg: cfg, log: cfg.logger(logTo)}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.metrics = api.NewMetrics(registry, version())

	store, health, err := p.openStore()
	if err != nil {
		return nil, err
	}
	api.RegisterHealth(registry, health)
	p.wiring = &wiring{
		store: p.metrics.MeterStore(store), states: p.metrics.MeterStates(store), keyPrefix: cfg.keyPrefix,
		clockSkew: cfg.clockSkew, viewClients: cfg.viewClients, metrics: p.metrics,
	}
	api.RegisterViews(registry, p.wiring.views)
	policies, err := p.loadPolicies()
	if err != nil {
		return nil, err
	}
	var tokens []string
	if cfg.tokenFile != "" {
		if tokens, err = readTokens(cfg.tokenFile); err != nil {
			return nil, err
		}
	}
	p.server = api.NewServer(api.Config{
		Policies:       policies,
		StoreTimeout:   cfg.storeTimeout,
		Health:         health,
		Tokens:         tokens,
		TrustedProxies: cfg.proxies,
		Metrics:        p.metrics,
		Gatherer:       registry,
		Log:            p.log,
	})
	return p, p.listen()
}

// A store keeps all that limiters keep.
type store interface {
	counters.Store
	counters.StateStore
}

// openStore returns the store, and a function that tells which of its servers
// answer.
func (p *program) openStore() (store, func(context.Context) []counters.ServerStatus, error) {
	if len(p.cfg.memcached) == 0 {
		p.close = func() error { return nil }
		return counters.NewMemory(nil), func(context.Context) []counters.ServerStatus {
			return []counters.ServerStatus{{Server: "embedded"}}
		}, nil
	}
	memcachedConfig, err := p.cfg.memcachedConfig()
	if err != nil {
		return nil, nil, err
	}
	m, err := counters.NewMemcached(memcachedConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("-memcached: %w", err)
	}
	p.close = m.Close
	return m, m.Ping, nil
}

func (p *program) listen() error {
	tlsConfig, err := p.cfg.serverTLS()
	if err != nil {
		return err
	}
	if p.listener, err = net.Listen("tcp", p.cfg.listen); err != nil {
		return fmt.Errorf("-listen: %w", err)
	}
	if tlsConfig != nil {
		p.listener = tls.NewListener(p.listener, tlsConfig)
	}
	return nil
}

// loadPolicies returns the policies of the policy file, or the built-in ones,
// ready for use.
func (p *program) loadPolicies() (api.Policies, error) {
	policies := builtInPolicies()
	if p.cfg.policyFile != "" {
		data, err := os.ReadFile(p.cfg.policyFile)
		if err != nil {
			return nil, fmt.Errorf("-config: %w", err)
		}
		p.policyData = data
		if policies, err = parsePolicies(p.cfg.policyFile, data); err != nil {
			return nil, err
		}
	}
	return policies, p.wiring.equip(policies)
}

// run serves until ctx ends, then answers what is under way and returns nil, or
// an error if that took longer than the grace. It loads the policy file again
// on each hangup.
func (p *program) run(ctx context.Context, hangup <-chan os.Signal) error {
	defer p.close()
	p.log.Info(p.greeting())
	reloading, stopReloading := context.WithCancel(ctx)
	defer stopReloading()
	go p.reloadUntil(reloading, hangup)

	srv := p.server.HTTPServer()
	var open atomic.Int64
	srv.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving ended: %w", err)
	case <-ctx.Done():
	}
	return p.shutDown(srv, served, &open)
}

// shutDown refuses new connections, answers what is under way and what the open
// connections send in a last moment, and closes them.
func (p *program) shutDown(srv *http.Server, served <-chan error, open *atomic.Int64) error {
	p.log.Info("draining", slog.Int64("connections", open.Load()))
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.shutdownGrace)
	defer cancel()
	// Before the draining: who is told to close connects again at once, and must
	// be refused, not accepted by the kernel and then reset.
	if err := p.listener.Close(); err != nil {
		return err
	}
	<-served // or Shutdown would close the listener too, and fail
	p.server.Drain()
	// http.Server.Shutdown closes idle connections at once, and loses the
	// request that arrives on one in that moment.
	pause := time.NewTimer(drainPause)
	defer pause.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for over := false; !over && open.Load() > 0; {
		select {
		case <-look.C:
		case <-pause.C:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	if err := srv.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests were still under way after -shutdown-grace %v", p.cfg.shutdownGrace), srv.Close())
	}
	p.log.Info("stopped")
	return nil
}

// greeting says in one line where weir listens, what it limits and where it
// counts.
func (p *program) greeting() string {
	scheme, policies, store := "http", "the policies of "+p.cfg.policyFile, "on Memcached"
	if p.cfg.tlsCert != "" {
		scheme = "https"
	}
	if p.cfg.policyFile == "" {
		policies = "the built-in policies"
	}
	if len(p.cfg.memcached) == 0 {
		store = "in this process only, because -memcached names no server"
	}
	return fmt.Sprintf("weir listens on %s://%s with %s and counts %s", scheme, p.listener.Addr(), policies, store)
}

// reloadUntil loads the policy file again when its content changes, and on each
// hangup, until ctx ends.
func (p *program) reloadUntil(ctx context.Context, hangup <-chan os.Signal) {
	var changed <-chan time.Time
	if p.cfg.policyFile != "" {
		ticker := time.NewTicker(reloadInterval)
		defer ticker.Stop()
		changed = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			p.reload()
		case <-changed:
			if data, err := os.ReadFile(p.cfg.policyFile); err == nil && !bytes.Equal(data, p.policyData) {
				p.reload()
			}
		}
	}
}

// reload replaces the policies if the file is right as a whole; otherwise the
// old ones stay.
func (p *program) reload() {
	policies, err := p.loadPolicies()
	if err != nil {
		p.metrics.Reloads.WithLabelValues("error").Inc()
		p.log.Error("the policies stay as they were", slog.Any("error", err))
		return
	}
	p.server.SetPolicies(policies)
	p.metrics.Reloads.WithLabelValues("ok").Inc()
	p.log.Info("policies loaded", slog.Int("policies", len(policies)))
}
