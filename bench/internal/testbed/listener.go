package testbed

import (
	"net"
	"sync"
)

// A Listener listens on loopback. Stop closes its connections, and those it was
// told to keep.
type Listener struct {
	Addr     string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]bool
}

// Listen lets serve have each connection, which is closed when that returns.
func Listen(serve func(*Listener, net.Conn)) (*Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Listener{Addr: l.Addr().String(), listener: l, conns: make(map[net.Conn]bool)}
	s.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was stopped
			}
			s.running.Go(func() {
				defer s.keep(conn)()
				serve(s, conn)
			})
		}
	})
	return s, nil
}

// Stop returns when all connections have been served.
func (s *Listener) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.listener.Close()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// keep notes a connection that Stop closes, at once if that is over. drop closes
// and forgets it.
func (s *Listener) keep(c net.Conn) (drop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = true
	if s.stopped {
		c.Close()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.Close()
		delete(s.conns, c)
	}
}

// join connects to the server at target for a client, until serve returns.
func (s *Listener) join(client net.Conn, target string, serve func(client, server net.Conn)) {
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer s.keep(server)()
	serve(client, server)
}
