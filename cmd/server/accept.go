package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// acceptWarnInterval is the time between two warnings of a loudListener.
const acceptWarnInterval = 10 * time.Second

// A loudListener accepts no more connections than it has places, until one is closed: so the
// process keeps file descriptors for its connections to Memcached. It warns when all places are
// taken, and when it can't accept connections. The http.Server goes on trying.
type loudListener struct {
	net.Listener
	log         *slog.Logger
	places      chan struct{}
	full        chan struct{} // closed when Accept is to fail rather than wait for a place
	stopWaiting func()        // closes it
	close       func() error
	warned      time.Time
}

func newLoudListener(l net.Listener, places int, log *slog.Logger) *loudListener {
	loud := &loudListener{Listener: l, log: log, places: make(chan struct{}, places), full: make(chan struct{})}
	loud.stopWaiting = sync.OnceFunc(func() { close(loud.full) })
	loud.close = sync.OnceValue(func() error {
		loud.stopWaiting()
		return l.Close()
	})
	return loud
}

// Accept implements net.Listener. One goroutine at a time may call it.
func (l *loudListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	default:
		l.warn(fmt.Errorf("too many open files: %d connections are open, and the others are kept for Memcached", cap(l.places)))
		select {
		case l.places <- struct{}{}:
		case <-l.full:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		if !errors.Is(err, net.ErrClosed) {
			l.warn(err)
		}
		return nil, err
	}
	return &placedConn{conn, sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *loudListener) warn(err error) {
	if time.Since(l.warned) >= acceptWarnInterval {
		l.warned = time.Now()
		l.log.Warn("no connection can be accepted", slog.Any("error", err))
	}
}

func (l *loudListener) Close() error { return l.close() }

// A placedConn leaves its place when it is closed.
type placedConn struct {
	net.Conn
	leave func()
}

func (c *placedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite lets net/http close its own side first where it refuses a client: one that still
// sends would be reset, and might lose the answer.
func (c *placedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *placedConn) SyscallConn() (syscall.RawConn, error) {
	file, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, syscall.EINVAL
	}
	return file.SyscallConn()
}

// maxFiles is taken as the most files that the process may have open if it may have more, or if
// that isn't known.
const maxFiles = 1 << 20

// places returns how many connections each of the listeners may have, if the process
// may have so many files, and as many processors.
func places(files, processors int) (http, grpc int) {
	// For Memcached, the log, files that are read, and the epoll of each processor.
	kept := max(10, min(24, files/4), files/16) + processors
	grpc = max(1, files/8)
	return max(1, files-kept-grpc), grpc
}
