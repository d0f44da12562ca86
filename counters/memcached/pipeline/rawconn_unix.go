//go:build unix

package pipeline

import (
	"io"
	"net"
	"syscall"
)

// rawConn does on a socket what net.Conn can't: write and look without waiting, and read
// by a system call of which the scheduler isn't told.
type rawConn struct {
	conn syscall.RawConn

	// The system calls and their results. A closure made for each call would be
	// an allocation.
	write    func(fd uintptr)
	out      []byte
	written  int
	writeErr error
	look     func(fd uintptr)
	seen     [1]byte
	saw      int
	lookErr  error
	read     func(fd uintptr) (done bool)
	in       []byte
	got      int
	readErr  error
}

// newRawConn returns nil for a connection that isn't a plain socket, such as
// one over TLS.
func newRawConn(conn net.Conn) *rawConn {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	r := &rawConn{conn: raw}
	r.write = func(fd uintptr) { r.written, r.writeErr = write(fd, r.out) }
	r.look = func(fd uintptr) { r.saw, r.lookErr = read(fd, r.seen[:]) }
	r.read = func(fd uintptr) bool {
		for r.readErr = syscall.EINTR; r.readErr == syscall.EINTR; {
			r.got, r.readErr = read(fd, r.in)
		}
		return r.readErr != syscall.EAGAIN
	}
	return r
}

func notNow(err error) bool { return err == syscall.EAGAIN || err == syscall.EINTR }

// tryWrite returns how much of p the kernel took; less than all of it, even
// nothing, is not an error. Nil takes nothing. One goroutine at a time may call
// it.
func (r *rawConn) tryWrite(p []byte) (int, error) {
	if r == nil {
		return 0, nil
	}
	r.out = p
	err := r.conn.Control(r.write)
	r.out = nil
	switch {
	case err != nil:
		return 0, err
	case notNow(r.writeErr):
		return 0, nil
	}
	return max(r.written, 0), r.writeErr
}

// check returns an error when a connection on which no reply is due has ended
// or has bytes to read. One goroutine at a time may call it, while nobody
// reads.
func (r *rawConn) check() error {
	err := r.conn.Control(r.look)
	switch {
	case err != nil:
		return err
	case notNow(r.lookErr):
		return nil
	case r.lookErr != nil:
		return r.lookErr
	case r.saw == 0:
		return io.EOF
	}
	return errUnasked
}

// Read is net.Conn's. One goroutine at a time may call it.
func (r *rawConn) Read(p []byte) (int, error) {
	r.in = p
	err := r.conn.Read(r.read)
	r.in = nil
	switch {
	case err != nil:
		return 0, err
	case r.readErr != nil:
		return 0, r.readErr
	case r.got == 0:
		return 0, io.EOF
	}
	return r.got, nil
}
