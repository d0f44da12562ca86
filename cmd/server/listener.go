package main

import (
	"errors"
	"net"
	"os"
	"time"
)

// lastLook is how long Accept may take, past its deadline, for a connection
// that waits.
const lastLook = 10 * time.Millisecond

// A listener stops listening without cutting connections.
type listener struct{ *net.TCPListener }

// drain refuses new connections. Accept goes on until the given time, for those
// that clients have begun to open, or ends at once if the system can't tell
// these from new ones.
func (l listener) drain(until time.Time) error {
	if refuse(l.TCPListener) != nil {
		return l.Close()
	}
	return l.SetDeadline(until)
}

// Accept implements net.Listener. Past the deadline it returns the connections
// that wait, then net.ErrClosed.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.TCPListener.Accept()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return conn, err
	}
	for errors.Is(err, os.ErrDeadlineExceeded) && waiting(l.TCPListener) {
		_ = l.SetDeadline(time.Now().Add(lastLook)) // else Accept fails at once
		conn, err = l.TCPListener.Accept()
	}
	if err != nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}
