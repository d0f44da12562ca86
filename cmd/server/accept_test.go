package main

import (
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// failingListener fails as often as one likes.
type failingListener struct {
	net.Listener
	err error
}

func (l *failingListener) Accept() (net.Conn, error) { return nil, l.err }

func TestAcceptErrorsAreToldOnceInAWhile(t *testing.T) {
	t.Parallel()
	log := servertest.NewLog()
	inner := &failingListener{err: syscall.EMFILE}
	l := newLoudListener(inner, 1, slog.New(slog.NewTextHandler(log, nil)))
	for range 10 {
		_, err := l.Accept()
		require.ErrorIs(t, err, syscall.EMFILE)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	l.warned = l.warned.Add(-acceptWarnInterval)
	inner.err = net.ErrClosed
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "closing is no fault")
	inner.err = syscall.EMFILE
	_, _ = l.Accept()
	assert.Equal(t, 2, strings.Count(log.String(), "\n"))
}

func TestPlacesOfConnections(t *testing.T) {
	t.Parallel()
	for files, want := range map[int][2]int{24: {9, 3}, 64: {40, 8}, 1024: {832, 128}, 1 << 20: {851_968, 131_072}, 4: {1, 1}} {
		http, grpc := places(files)
		assert.Equal(t, want, [2]int{http, grpc}, files)
	}
}
