package testbed

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
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
	p, err := StartProxy(target, Fault{RoundTrip: roundTrip})
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
	p, err := StartProxy(echo(t), Fault{RoundTrip: time.Millisecond})
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

const line = "0123456789\r\n"

// faulty returns a proxy before an echo, and a connection that has answered
// once.
func faulty(t *testing.T) (*Proxy, net.Conn) {
	p, err := StartProxy(echo(t), Fault{})
	require.NoError(t, err)
	t.Cleanup(p.Stop)
	conn, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	say(t, conn)
	hear(t, conn)
	return p, conn
}

func say(t *testing.T, conn net.Conn) {
	_, err := io.WriteString(conn, line)
	require.NoError(t, err)
}

func hear(t *testing.T, conn net.Conn) {
	got := make([]byte, len(line))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, line, string(got))
}

func TestAFaultyProxyTrickles(t *testing.T) {
	t.Parallel()
	p, conn := faulty(t)
	p.Set(Fault{Trickle: 2 * time.Millisecond})
	start := time.Now()
	say(t, conn)
	hear(t, conn)
	assert.GreaterOrEqual(t, time.Since(start), time.Duration(len(line)-1)*2*time.Millisecond)
}

func TestAFaultyProxyCutsInMidLine(t *testing.T) {
	t.Parallel()
	for range 20 {
		p, conn := faulty(t)
		p.Set(Fault{Cut: 1})
		say(t, conn)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Less(t, len(got), len(line))
		require.True(t, strings.HasPrefix(line, string(got)))
	}
}

func TestAFaultyProxyResets(t *testing.T) {
	t.Parallel()
	p, conn := faulty(t)
	p.Set(Fault{Reset: 1})
	say(t, conn)
	_, err := io.ReadAll(conn)
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}

// A connection that has lost a reply never answers again; others do.
func TestAFaultyProxySwallows(t *testing.T) {
	t.Parallel()
	p, conn := faulty(t)
	p.Set(Fault{Swallow: true})
	say(t, conn)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")

	p.Set(Fault{})
	say(t, conn)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, conn.Close()) // the echo serves one at a time
	other, err := net.Dial("tcp", p.Addr)
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.SetDeadline(time.Now().Add(time.Minute)))
	say(t, other)
	hear(t, other)
}
