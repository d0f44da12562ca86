package testbed

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/internal/loadgen"
)

// A Fault is what happens on the way to a server and back. The zero value is
// nothing.
type Fault struct {
	// RoundTrip makes the way longer: in either direction each byte comes half of
	// it later, and in order. It doesn't limit how many may be under way.
	RoundTrip time.Duration
	Trickle   time.Duration // between two bytes of the replies
	// Cut ends a connection in the middle of a line, Reset by a TCP reset, each
	// with this probability wherever a reply would go through.
	Cut, Reset float64
	// Swallow lets a connection's replies vanish from now on, also when the
	// fault is over: no connection loses a part of its stream and goes on.
	Swallow bool
}

// A Proxy passes on what either side sends, with the fault that is set. When one
// side closes a connection, the other side's end is closed too, once it has got
// what was under way to it. Set is safe for concurrent use.
type Proxy struct {
	Addr     string
	target   string
	listener net.Listener
	fault    atomic.Pointer[Fault]
	running  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]bool
}

// StartProxy starts one before the server at the host:port target. When it is
// stopped, what is under way still arrives.
func StartProxy(target string, f Fault) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, conns: make(map[net.Conn]bool)}
	p.Set(f)
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // it was stopped
			}
			p.running.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	return p, nil
}

// serve connects a client to the server until both are gone.
func (p *Proxy) serve(client *net.TCPConn) {
	defer p.keep(client)()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.keep(server)()
	var both sync.WaitGroup
	both.Go(func() {
		p.pass(client, server, func(piece []byte) bool {
			_, err := server.Write(piece)
			return err == nil
		})
	})
	both.Go(func() { p.pass(server, client, p.replies(client)) })
	both.Wait()
}

// Stop closes all connections, and returns when they have been served.
func (p *Proxy) Stop() {
	p.mu.Lock()
	p.stopped = true
	p.listener.Close()
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

// keep notes a connection that Stop closes, at once if that is over. drop closes
// and forgets it.
func (p *Proxy) keep(c net.Conn) (drop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.stopped {
		c.Close()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		c.Close()
		delete(p.conns, c)
	}
}

// Set replaces the fault, on all connections.
func (p *Proxy) Set(f Fault) { p.fault.Store(&f) }

// A piece is what was read at once.
type piece struct {
	due   time.Time
	bytes []byte
}

// underWay is how many pieces may be under way in one direction: more than
// there can be at any delay that the bench has.
const underWay = 1 << 14

// pass delivers what from sends until that is closed, or until nobody takes it
// any more, and closes to after it.
func (p *Proxy) pass(from, to net.Conn, deliver func([]byte) bool) {
	pieces := make(chan piece, underWay)
	go func() {
		defer close(pieces)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return // either side has closed it
			}
			pieces <- piece{time.Now().Add(p.fault.Load().RoundTrip / 2), bytes.Clone(buffer[:n])}
		}
	}()
	if p.fault.Load().RoundTrip > 0 { // without a delay, a thread of its own costs more than it gains
		loadgen.RaisePriority()
	}
	gone := false
	for piece := range pieces {
		for early := time.Until(piece.due); early > 0; early = time.Until(piece.due) {
			loadgen.Pause(early)
		}
		// Where nobody reads any more, the rest is dropped.
		if !gone && !deliver(piece.bytes) {
			gone = true
			from.Close()
			to.Close()
		}
	}
	to.Close()
}

// replies returns a function that delivers pieces of the replies to a client. It
// reports whether the connection goes on.
func (p *Proxy) replies(client *net.TCPConn) func(piece []byte) bool {
	swallowed := false
	return func(piece []byte) bool {
		f := p.fault.Load()
		swallowed = swallowed || f.Swallow
		switch {
		case swallowed:
			return true
		case rand.Float64() < f.Reset:
			_ = client.SetLinger(0) // sends a reset in place of the end
			return false
		case rand.Float64() < f.Cut:
			// Before the line end, so that a number may look whole.
			_, _ = client.Write(piece[:len(piece)-1-rand.IntN(min(3, len(piece)))])
			return false
		}
		// Whoever ends the fault doesn't wait for the rest of a long piece.
		for ; f.Trickle > 0 && len(piece) > 0 && p.fault.Load().Trickle > 0; piece = piece[1:] {
			if _, err := client.Write(piece[:1]); err != nil {
				return false
			}
			time.Sleep(f.Trickle)
		}
		_, err := client.Write(piece)
		return err == nil
	}
}
