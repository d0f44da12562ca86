//go:build unix

package pipeline

import (
	"io"
	"net"
	"syscall"
)

// rawConn does on a socket what net.Conn can't: write and read without waiting.
type rawConn struct {
	conn syscall.RawConn

	// The system calls and their results. A closure made for each call would be
	// an allocation.
	write    func(fd uintptr)
	out      []byte
	written  int
	writeErr error
	read     func(fd uintptr)
	in       [1]byte
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
	r.write = func(fd uintptr) { r.written, r.writeErr = syscall.Write(int(fd), r.out) }
	r.read = func(fd uintptr) { r.got, r.readErr = syscall.Read(int(fd), r.in[:]) }
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
	err := r.conn.Control(r.read)
	switch {
	case err != nil:
		return err
	case notNow(r.readErr):
		return nil
	case r.readErr != nil:
		return r.readErr
	case r.got == 0:
		return io.EOF
	}
	return errUnasked
}
