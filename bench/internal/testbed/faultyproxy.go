package testbed

import (
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"
)

// A Fault is what happens to the replies on their way from a server. The zero
// value is none.
type Fault struct {
	Delay   time.Duration // of what is read at once
	Trickle time.Duration // between two bytes
	// Cut ends a connection in the middle of a line, Reset by a TCP reset, each
	// with this probability wherever a reply would go through.
	Cut, Reset float64
	// Swallow lets a connection's replies vanish from now on, also when the
	// fault is over: no connection loses a part of its stream and goes on.
	Swallow bool
}

// A FaultyProxy passes on what either side sends, with the fault that is set.
// Set is safe for concurrent use.
type FaultyProxy struct {
	*Listener
	fault atomic.Pointer[Fault]
}

// StartFaultyProxy starts one without a fault before the server at the
// host:port target.
func StartFaultyProxy(target string) (p *FaultyProxy, err error) {
	p = new(FaultyProxy)
	p.Set(Fault{})
	p.Listener, err = Listen(func(l *Listener, client net.Conn) { l.join(client, target, p.serve) })
	return p, err
}

// Set replaces the fault, on all connections.
func (p *FaultyProxy) Set(f Fault) { p.fault.Store(&f) }

func (p *FaultyProxy) serve(client, server net.Conn) {
	go func() {
		_, _ = io.Copy(server, client) // until either side has gone
		server.Close()
	}()
	swallowed := false
	for buffer := make([]byte, 64<<10); ; {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		f := p.fault.Load()
		if swallowed = swallowed || f.Swallow; !swallowed && !p.pass(client.(*net.TCPConn), buffer[:n], *f) {
			return
		}
	}
}

// pass writes a piece of the replies. It reports whether the connection goes
// on.
func (p *FaultyProxy) pass(client *net.TCPConn, piece []byte, f Fault) bool {
	time.Sleep(f.Delay)
	switch {
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
