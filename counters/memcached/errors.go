package memcached

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

var errOverdue = fmt.Errorf("%w, %w", counters.ErrTimeout, counters.ErrNotSent)

var errNoServers = fmt.Errorf("%w, %w: no Memcached server is known", counters.ErrUnavailable, counters.ErrNotSent)

var errLeft = fmt.Errorf("%w: the server has left", counters.ErrUnavailable)

var errNoCAS = errors.New("the server runs without compare-and-swap (its option -C)")

func foreignValue(key string) error {
	return fmt.Errorf("%w: %q", counters.ErrForeignValue, key)
}

// replyError returns the error that gomemcache gives for a reply that it
// doesn't expect.
func replyError(line []byte) error {
	return fmt.Errorf("memcache: %.100s", strings.TrimSuffix(string(line), "\r\n"))
}

// changeError is replyError for a reply to a command that counts or stores. It is an
// ErrRefused if Memcached says that it has no memory: then the command wasn't done.
// After any other error, such as a proxy's, nobody knows whether it was.
func changeError(line []byte) error {
	err := replyError(line)
	if bytes.HasPrefix(line, []byte("SERVER_ERROR out of memory")) || bytes.HasPrefix(line, []byte("SERVER_ERROR object too large")) {
		return fmt.Errorf("%w: %w", counters.ErrRefused, err)
	}
	return err
}

// translate turns any error of gomemcache or a connection into one of a
// store's.
func translate(err error) error {
	if err == nil || errors.Is(err, counters.ErrForeignValue) {
		return err
	}
	kind := counters.ErrUnavailable
	if errors.Is(err, counters.ErrRefused) {
		return fmt.Errorf("%w, %w", kind, err)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		kind = counters.ErrTimeout
	}
	if errors.Is(err, pipeline.ErrNotSent) {
		return fmt.Errorf("%w, %w: %v", kind, counters.ErrNotSent, err)
	}
	return fmt.Errorf("%w: %v", kind, err)
}
