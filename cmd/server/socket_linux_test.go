package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"weir/cmd/server/servertest"
)

// slowHandshakes makes handshakes last, at the listener's end, until the client
// has sent something.
func slowHandshakes(t *testing.T, l listener) {
	t.Helper()
	var optionErr error
	require.NoError(t, control(l.socket, func(fd int) {
		optionErr = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 60)
	}))
	require.NoError(t, optionErr)
}

// However late it is accepted, a connection isn't cut whose handshake had begun
// before the drain.
func TestDrainedListenerAcceptsWhatHasBegun(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	l := listener{tcp.(*net.TCPListener)}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		return conn
	}
	waits := []net.Conn{dial(), dial()}
	slowHandshakes(t, l)
	waits = append(waits, dial())

	require.NoError(t, l.drain(time.Now()))
	_, err = net.Dial("tcp", l.Addr().String())
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	for i, conn := range waits {
		_, err := conn.Write([]byte{byte(i)})
		require.NoError(t, err)
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	}
	for i, conn := range waits {
		accepted, err := l.Accept()
		require.NoError(t, err)
		got, err := io.ReadAll(accepted)
		require.NoError(t, err)
		assert.Equal(t, []byte{byte(i)}, got)
		require.NoError(t, accepted.Close())
		_, err = io.ReadAll(conn)
		assert.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	_, err = l.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
}

// A check is answered whose connection is still being opened when the shutdown
// begins. Should the test itself need longer than drainPause, it runs again.
func TestShutdownAwaitsHandshakes(t *testing.T) {
	t.Parallel()
	run := func() (int, time.Duration, error) {
		cfg, err := parseConfig([]string{"-listen", "127.0.0.1:0"}, fromOutside(), io.Discard)
		require.NoError(t, err)
		log := servertest.NewLog()
		p, err := newProgram(cfg, log)
		require.NoError(t, err)
		slowHandshakes(t, p.listener)
		conn, err := net.Dial("tcp", p.listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		s := servertest.Service{URL: "http://weir", Client: &http.Client{Timeout: servertest.Patience, Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		}}}

		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- p.run(ctx, nil) }()
		begin := time.Now()
		cancel()
		require.Contains(t, log.Wait(t, "draining"), "connections=0")
		status, _, _, err := s.Send(http.MethodPost, "/v1/check", "", `{"policy":"fixed","client":"c"}`)
		took := time.Since(begin)
		require.NoError(t, <-ended)
		return status, took, err
	}
	status, took, err := run()
	for range 3 {
		if took > drainPause {
			status, took, err = run()
		}
	}
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, status)
}
