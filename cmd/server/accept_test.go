package main

import (
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

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

// Whoever has a place may keep it for as long as an idle connection lasts: a shutdown doesn't
// wait for that.
func TestDrainingWaitsForNoPlace(t *testing.T) {
	t.Parallel()
	inner, err := listenGRPC("127.0.0.1:0")
	require.NoError(t, err)
	l := newLoudListener(inner, 1, slog.New(slog.DiscardHandler))
	defer l.Close()
	caller, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	defer caller.Close()
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	p := &program{cfg: &config{shutdownGrace: time.Second}}
	require.NoError(t, p.drain(inner, l))
	select {
	case err := <-ended:
		assert.ErrorIs(t, err, net.ErrClosed)
	case <-time.After(servertest.Patience):
		assert.Fail(t, "it waits")
	}
}

func TestPlacesOfConnections(t *testing.T) {
	t.Parallel()
	for of, want := range map[[2]int][2]int{
		{24, 2}: {9, 3}, {64, 2}: {38, 8}, {1024, 2}: {830, 128}, {1 << 20, 2}: {851_966, 131_072}, {4, 2}: {1, 1},
		{256, 64}: {136, 32},
	} {
		http, grpc := places(of[0], of[1])
		assert.Equal(t, want, [2]int{http, grpc}, of)
	}
}
