package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// lastLook is how long Accept may take, past its deadline, for a connection
// that waits.
const lastLook = 10 * time.Millisecond

// A listener stops listening without cutting connections.
type listener struct{ socket }

// A socket is a *net.TCPListener or a *net.UnixListener.
type socket interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// listenGRPC listens on an address, or on the socket whose path follows unix:, in the place
// of one that a process has left behind.
func listenGRPC(address string) (listener, error) {
	path, isPath := strings.CutPrefix(address, "unix:")
	if !isPath {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return listener{}, err
		}
		return listener{l.(*net.TCPListener)}, nil
	}
	// Dialing a file or a folder is refused as dialing a socket that was left behind is.
	if at, err := os.Lstat(path); err == nil && at.Mode().Type() != os.ModeSocket {
		return listener{}, fmt.Errorf("%s is no socket, and stays; give a path where nothing stands", path)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return listener{}, err
	}
	return listener{l.(*net.UnixListener)}, nil
}

// drain refuses new connections. Accept goes on until the given time, for those
// that clients have begun to open, or ends at once if the system can't tell
// these from new ones.
func (l listener) drain(until time.Time) error {
	var err error
	if unix, ok := l.socket.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // by then another process may have put its own there
		err = os.Remove(unix.Addr().String())
	} else {
		err = refuse(l.socket)
	}
	if err != nil {
		return l.Close()
	}
	return l.SetDeadline(until)
}

// Accept implements net.Listener. Past the deadline it returns the connections
// that wait, then net.ErrClosed.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.socket.Accept()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return conn, err
	}
	for errors.Is(err, os.ErrDeadlineExceeded) && waiting(l.socket) {
		_ = l.SetDeadline(time.Now().Add(lastLook)) // else Accept fails at once
		conn, err = l.socket.Accept()
	}
	if err != nil {
		return nil, net.ErrClosed
	}
	return conn, nil
}
