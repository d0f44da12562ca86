package main

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// acceptWarnInterval is the time between two warnings of a loudListener.
const acceptWarnInterval = 10 * time.Second

// A loudListener warns when it can't accept connections: most likely the
// process has too many open files. The http.Server goes on trying.
type loudListener struct {
	net.Listener
	log    *slog.Logger
	warned time.Time
}

// Accept implements net.Listener. One goroutine at a time may call it.
func (l *loudListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) && time.Since(l.warned) >= acceptWarnInterval {
		l.warned = time.Now()
		l.log.Warn("no connection can be accepted", slog.Any("error", err))
	}
	return conn, err
}
