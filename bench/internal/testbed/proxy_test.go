package testbed

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo starts a server that sends back what it gets.
func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn) // until the client has gone
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		<-ended
	})
	return l.Addr().String()
}

func proxied(t *testing.T, target string, roundTrip time.Duration) net.Conn {
	p, err := StartProxy(target, roundTrip)
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn
}

func TestAProxyAddsARoundTrip(t *testing.T) {
	t.Parallel()
	const roundTrip = 20 * time.Millisecond
	conn := proxied(t, echo(t), roundTrip)
	for range 3 {
		start := time.Now()
		_, err := conn.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 4))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(start), roundTrip)
	}
}

// Many numbers under way at a time arrive, in order, none before its time.
func TestAProxyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	const roundTrip, n = 50 * time.Millisecond, 1000
	conn := proxied(t, echo(t), roundTrip)
	sent := make([]time.Time, n)
	for i := range n {
		sent[i] = time.Now()
		require.NoError(t, binary.Write(conn, binary.BigEndian, uint32(i)))
	}
	for i := range n {
		var got uint32
		require.NoError(t, binary.Read(conn, binary.BigEndian, &got))
		require.Equal(t, uint32(i), got)
		require.GreaterOrEqual(t, time.Since(sent[i]), roundTrip)
	}
}

// If the pieces of 16 MB waited for one another, half a second each, they would
// take two minutes, and the connection has one.
func TestAProxyHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	conn := proxied(t, echo(t), time.Second)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	failed := make(chan error)
	go func() {
		_, err := conn.Write(sent)
		failed <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.NoError(t, <-failed)
	assert.True(t, bytes.Equal(sent, got))
}

func TestTheEndOfAProxiedServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conn := proxied(t, l.Addr().String(), time.Millisecond)
	server, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = server.Write([]byte("the last"))
	require.NoError(t, err)
	require.NoError(t, server.Close())
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "the last", string(got))

	// Nobody listens any more.
	again, err := net.Dial("tcp", conn.RemoteAddr().String())
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadAll(again)
	assert.NoError(t, err)
}

func TestAStoppedProxy(t *testing.T) {
	t.Parallel()
	p, err := StartProxy(echo(t), time.Millisecond)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	defer conn.Close()
	p.Stop()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}
