// Package plain serves plain HTTP/1.1 requests at half the cost of net/http, and leaves
// all others to it.
//
// A request is plain if its head fits one narrow pattern, which no two servers read
// differently: see head.go. The first request of a connection that isn't plain, and
// all that follow it, are net/http's: it gets the connection with the bytes that have
// been read. So whatever is rare, odd or hostile is read by net/http alone, and nobody
// can tell the two apart but by their speed: answers are equal byte for byte.
//
// A connection has a goroutine, or on Linux, while its requests are those that Together
// answers, none: see loop.go.
//
// fasthttp is the way not taken. It costs a little more than this loop, brings a second
// http.Handler or an adaptor, and can't give away a connection of which it has read.
package plain

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"sync"
	"time"
)

// A Server answers plain requests, and leaves the others to an http.Server. Make one
// with NewServer. It is safe for concurrent use.
type Server struct {
	// Together, if it isn't nil, is called with requests that have come at the same
	// moment, of those that TakesTogether. It must Answer or Leave each before it returns,
	// as the Handler would answer it, and not ask the contexts of requests whether they are
	// done. Set both before Serve.
	Together      func([]*Exchange)
	TakesTogether func(*http.Request) bool

	shared
	takes        func(method, path string) bool
	others       *others
	othersServed sync.WaitGroup // until the http.Server accepts no more others

	mu       sync.Mutex
	listener net.Listener
	conns    map[*conn]struct{}
}

// NewServer returns a server that answers the plain requests that takes allows, and leaves
// all others to h. takes is called concurrently, with the path as in url.URL. Both answer by
// h's Handler, ReadTimeout, WriteTimeout, IdleTimeout, ErrorLog and ConnState, of which only
// the last may be missing. ReadHeaderTimeout must equal ReadTimeout, and h must take heads of
// 8 KiB.
//
// For a plain request, the Handler writes once at most, and then with a Content-Type. It must
// not use a request, or anything in it but strings, after it has returned.
func NewServer(h *http.Server, takes func(method, path string) bool) *Server {
	s := &Server{shared: shared{http: h, began: time.Now()}, takes: takes, conns: make(map[*conn]struct{})}
	s.others = &others{conns: make(chan *conn), closed: make(chan struct{}), hijacked: func(c *conn) { s.remove(c, http.StateHijacked) }}
	return s
}

// Serve serves the connections of l until l is closed, and returns the error of its
// Accept. Connections that are open then stay so until Shutdown or Close. It may be
// called once.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	s.othersServed.Go(func() { _ = s.http.Serve(s.others) })
	var loops []*loop
	if s.Together != nil {
		loops = newLoops(loop{shared: &s.shared, together: s.Together, takesTogether: s.TakesTogether, serve: s.serve, remove: s.remove})
		go s.tend(loops)
	}
	next := 0
	for pause := time.Duration(0); ; {
		accepted, err := l.Accept()
		if err == nil {
			pause = 0
			c := s.add(accepted)
			if next++; len(loops) == 0 || !s.join(loops[next%len(loops)], c) {
				go s.serve(c, nil)
			}
			continue
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		time.Sleep(pause)
	}
}

func (s *Server) add(accepted net.Conn) *conn {
	c := newConn(accepted, &s.shared, s.takes)
	s.mu.Lock()
	if s.conns[c] = struct{}{}; s.closing.Load() {
		_ = accepted.Close() // as Close hasn't seen it
	}
	s.mu.Unlock()
	c.tell(http.StateNew)
	return c
}

// join has c wait in l, and reports whether it can. Nobody takes it out before it is in.
func (s *Server) join(l *loop, c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closing.Load() && l.join(c)
}

// remove ends what the server has to do with c, which is closed or net/http's.
func (s *Server) remove(c *conn, state http.ConnState) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.tell(state)
}

// serve answers the plain requests of c until it is closed, net/http's or back in from, the
// loop that it has left, if any.
func (s *Server) serve(c *conn, from *loop) {
	handedOver := false
	defer func() {
		if v := recover(); v != nil {
			s.logPanic(c, v)
		}
		if !handedOver {
			_ = c.Close()
			s.remove(c, http.StateClosed)
		}
	}()
	for {
		plain, other := c.next()
		if other {
			c.busy.Store(true) // with what net/http will read
			handedOver = s.others.handOver(c)
		}
		if !plain || !c.answer() {
			return
		}
		if from != nil && from.returns(c) && s.join(from, c) {
			handedOver = true
			return
		}
	}
}

// Shutdown closes all connections, each when no request of it is being answered, and
// returns when all are closed. The error is that of ctx, or of the http.Server. It must
// be called after Serve has returned.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closing.Store(true)
	for ticks := time.Tick(5 * time.Millisecond); s.closeIdle() > 0; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks:
		}
	}
	_ = s.others.Close()
	s.othersServed.Wait() // before that, the http.Server would cut the last one
	return s.http.Shutdown(ctx)
}

// tend closes connections that wait for too long in the loops, and then the loops.
func (s *Server) tend(loops []*loop) {
	ticks := time.NewTicker(slack)
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			s.closeWaiting(now)
		case <-s.others.closed:
			for _, l := range loops {
				l.close()
			}
			return
		}
	}
}

// closeWaiting closes the connections that have waited in a loop for too long.
func (s *Server) closeWaiting(now time.Time) {
	var detached []*conn
	since := int64(now.Sub(s.began))
	s.mu.Lock()
	for c := range s.conns {
		if c.at.Load() == waiting && c.due.Load() <= since && c.detach() {
			detached = append(detached, c)
		}
	}
	s.mu.Unlock()
	for _, c := range detached {
		c.forget()
		_ = c.Close()
		s.remove(c, http.StateClosed)
	}
}

// closeIdle closes connections without a request and returns how many are open.
func (s *Server) closeIdle() int {
	s.closeWaiting(s.began.Add(math.MaxInt64))
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.at.Load() == detached && !c.busy.Load() {
			_ = c.Conn.Close()
		}
	}
	return len(s.conns)
}

// Close closes the listener and all connections at once.
func (s *Server) Close() error {
	s.closing.Store(true)
	s.mu.Lock()
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.conns {
		_ = c.Conn.Close()
	}
	s.mu.Unlock()
	s.closeWaiting(s.began.Add(math.MaxInt64))
	_ = s.others.Close()
	return s.http.Close()
}

// others are the connections that aren't plain: a net.Listener for the http.Server.
type others struct {
	conns    chan *conn
	closed   chan struct{}
	close    sync.Once
	hijacked func(*conn) // is told of those that the http.Server counts among its own
	last     *conn       // that Accept has returned
}

// handOver waits until the http.Server accepts c. It reports whether it does.
func (o *others) handOver(c *conn) bool {
	select {
	case o.conns <- c:
		return true
	case <-o.closed:
		return false
	}
}

// Accept implements net.Listener. One goroutine calls it.
func (o *others) Accept() (net.Conn, error) {
	if o.last != nil {
		o.hijacked(o.last)
		o.last = nil
	}
	select {
	case c := <-o.conns:
		o.last = c
		return &begunConn{Conn: c.Conn, rest: c.in.buf[c.in.start:c.in.end], err: c.in.err, until: c.in.until}, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *others) Close() error {
	o.close.Do(func() { close(o.closed) })
	return nil
}

func (o *others) Addr() net.Addr { return &net.TCPAddr{} }

// A begunConn is a connection of which something has been read already.
type begunConn struct {
	net.Conn
	rest  []byte    // first
	err   error     // then, unless it is nil
	until time.Time // the read deadline of the request that has begun, unless it is zero
}

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		if c.rest = c.rest[n:]; len(c.rest) > 0 {
			return n, nil
		}
		if c.rest = nil; n < len(p) && c.err == nil {
			// As much as net/http would have read at once: a client that it refuses is reset, and may
			// lose the answer, if something isn't read.
			n += readCome(c.Conn, p[n:])
		}
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

// SetReadDeadline gives net/http no more time for a request than what is left of that.
func (c *begunConn) SetReadDeadline(t time.Time) error {
	if t.IsZero() { // as the request has been read
		c.until = t
	} else if !c.until.IsZero() && t.After(c.until) {
		t = c.until
	}
	return c.Conn.SetReadDeadline(t)
}

// CloseWrite lets net/http close its own side first where it refuses a client: one that still
// sends would be reset, and might lose the answer.
func (c *begunConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
