package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/api/envoy/xds"
)

// run serves until ctx ends, then answers the requests under way and returns
// nil, or an error if that took longer than the grace. It loads the policies
// again on each hangup. When it returns, all that has used the store has ended,
// and the store is closed.
func (p *program) run(ctx context.Context, hangup <-chan os.Signal) (err error) {
	working, stopWork := context.WithCancel(context.WithoutCancel(ctx)) // while draining, too
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
		if p.decisionWriter != nil {
			p.decisionWriter.close()
		}
		err = errors.Join(err, p.closeStore())
	}()
	p.readOverrides(ctx)
	p.greet()
	work.Go(func() { p.watchStore(working) })
	work.Go(func() { p.watchXDS(working) })
	if p.cfg.envoyStatsd != "" {
		work.Go(func() { sendStatsd(working, p.cfg.envoyStatsd, p.cfg.envoyTags, p.registry, p.log) })
	}
	work.Go(func() { every(working, resetInterval, func() { p.server.RetryResets() }) })
	work.Go(func() { p.overrides.Watch(working) })
	work.Go(func() { every(working, time.Second, p.server.Sample) })
	work.Go(func() { p.fleet.Watch(working, p.server.Report) })

	var conns connections
	web.ConnState = conns.change
	most, grpcMost := places(mostFiles(), runtime.GOMAXPROCS(0))
	loud := newLoudListener(p.listener, most, p.log)
	var incoming net.Listener = loud
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
	err = p.shutDown(srv, loud, served, &conns)
	return errors.Join(err, <-stopped)
}

// connections are those of HTTP.
type connections struct {
	open, changes atomic.Int64 // how many are open, and how often one has changed its state
	silent        sync.Map     // its keys are those that have sent nothing yet
}

func (all *connections) change(c net.Conn, state http.ConnState) {
	all.changes.Add(1)
	switch state {
	case http.StateNew:
		all.open.Add(1)
		all.silent.Store(c, nil)
	case http.StateActive:
		all.silent.Delete(c)
	case http.StateClosed, http.StateHijacked:
		all.open.Add(-1)
		all.silent.Delete(c)
	}
}

// firstRead is how long the start waits for the overrides.
const firstRead = time.Second

// readOverrides reads them, if the store answers, before anybody is told that weir listens:
// without them it isn't ready.
func (p *program) readOverrides(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	_ = p.overrides.Read(ctx) // or soon
}

// watchXDS gets sets of limits until ctx ends, and says when weir is ready.
func (p *program) watchXDS(ctx context.Context) {
	if p.xds == nil {
		return
	}
	if wait := p.cfg.envoyXDS.wait; wait > 0 {
		over := time.AfterFunc(wait, func() {
			if p.setLimited() {
				p.log.Warn("no limits have come from the xDS server yet; all that Envoy asks is admitted until then", slog.String("server", p.xds.Server))
			}
		})
		defer over.Stop()
	}
	xds.Watch(ctx, *p.xds)
}

// An httpServer is an http.Server, or one that begins with another.
type httpServer interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

// serveGRPC serves the rate limit service, if there is one, until stop returns.
// It has that many connections at most. The channel has what ended it earlier.
func (p *program) serveGRPC(most int) (ended <-chan error, stop func() error) {
	if p.grpc == nil {
		return nil, func() error { return nil }
	}
	served, over := make(chan error, 1), make(chan struct{})
	loud := newLoudListener(p.grpcListener, most, p.log)
	go func() {
		served <- p.grpc.Serve(loud)
		close(over)
	}()
	return served, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), p.cfg.shutdownGrace)
		defer cancel()
		p.grpc.Drain()
		if err := p.drain(p.grpcListener, loud); err != nil {
			return errors.Join(err, p.grpc.Stop(ctx))
		}
		<-over // before that, Stop would cut connections that wait
		return p.grpc.Stop(ctx)
	}
}

// drain refuses new connections. For drainPause, those may open whose handshake has begun, and
// those that wait for a place may get one.
func (p *program) drain(l listener, loud *loudListener) error {
	pause := min(drainPause, p.cfg.shutdownGrace)
	time.AfterFunc(pause, loud.stopWaiting) // else Accept would wait for as long as others stay
	return l.drain(time.Now().Add(pause))
}

// shutDown refuses new connections, answers the requests under way and what the
// open connections send, and closes them once all have been quiet for
// drainPause.
func (p *program) shutDown(srv httpServer, loud *loudListener, served <-chan error, conns *connections) error {
	p.log.Info("draining", slog.Int64("connections", conns.open.Load()))
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.shutdownGrace)
	defer cancel()
	// Before Drain: a client that is told to close its connection connects
	// again at once, and must be refused.
	if err := p.drain(p.listener, loud); err != nil {
		return err
	}
	p.server.Drain()
	<-served // before that, Shutdown would cut connections that wait
	// Shutdown closes idle connections at once, and loses a request that
	// arrives on one of them at that moment. Ticks are counted, not time: where
	// this process had no turn, it has read nothing.
	const tick = 5 * time.Millisecond
	for quiet, seen := time.Duration(0), conns.changes.Load(); conns.open.Load() > 0 && quiet < drainPause && ctx.Err() == nil; quiet += tick {
		time.Sleep(tick)
		if n := conns.changes.Load(); n != seen {
			quiet, seen = 0, n
		}
	}
	// Shutdown would wait for these for 5 s.
	conns.silent.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
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
	for _, note := range p.cfg.envoyNotes {
		p.log.Warn("a variable of envoyproxy/ratelimit has no counterpart", slog.String("variable", note))
	}
	attributes := append([]slog.Attr{slog.String("version", version())}, p.loadedAtStart...)
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
