package testbed

import (
	"bytes"
	"net"
	"sync"
	"time"

	"weir/bench/internal/loadgen"
)

// A Proxy makes the way to a server longer: in either direction each byte comes
// half the round trip later, and in order. It doesn't limit how many may be
// under way. When one side closes a connection, the other side's end is closed
// too, once it has got what was under way to it.
type Proxy struct {
	Addr     string
	target   string
	oneWay   time.Duration
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   []net.Conn
}

// StartProxy starts one before the server at the host:port target.
func StartProxy(target string, roundTrip time.Duration) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, oneWay: roundTrip / 2, listener: l}
	p.running.Go(p.accept)
	return p, nil
}

// Stop closes all connections, and returns when what was under way would have
// arrived.
func (p *Proxy) Stop() {
	p.mu.Lock()
	p.stopped = true
	p.listener.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // it was stopped
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.join(client, server)
	}
}

// join passes on what either of the two sends.
func (p *Proxy) join(client, server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, client, server)
	if p.stopped {
		client.Close()
		server.Close()
	}
	p.pass(client, server)
	p.pass(server, client)
}

// A piece is what was read at once.
type piece struct {
	due   time.Time
	bytes []byte
}

// underWay is how many pieces may be under way in one direction: more than
// there can be at any delay that the bench has.
const underWay = 1 << 14

func (p *Proxy) pass(from, to net.Conn) {
	pieces := make(chan piece, underWay)
	p.running.Go(func() {
		defer close(pieces)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return // either side has closed it
			}
			pieces <- piece{time.Now().Add(p.oneWay), bytes.Clone(buffer[:n])}
		}
	})
	p.running.Go(func() {
		loadgen.RaisePriority()
		for piece := range pieces {
			for early := time.Until(piece.due); early > 0; early = time.Until(piece.due) {
				loadgen.Pause(early)
			}
			// Where nobody reads any more, the rest is dropped.
			if _, err := to.Write(piece.bytes); err != nil {
				from.Close()
			}
		}
		to.Close()
	})
}
