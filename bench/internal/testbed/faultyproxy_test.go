package testbed

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const line = "0123456789\r\n"

// faulty returns a proxy before an echo, and a connection that has answered
// once.
func faulty(t *testing.T) (*FaultyProxy, net.Conn) {
	p, err := StartFaultyProxy(echo(t))
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

func TestAFaultyProxyDelays(t *testing.T) {
	t.Parallel()
	p, conn := faulty(t)
	p.Set(Fault{Delay: 30 * time.Millisecond})
	start := time.Now()
	say(t, conn)
	hear(t, conn)
	assert.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
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

func TestMemcachedThatIsStoppedAndKilled(t *testing.T) {
	t.Parallel()
	m := started(t)
	_, err := m.Do("incr a 1", "NOT_FOUND")
	require.NoError(t, err)
	require.NoError(t, m.Signal(syscall.SIGSTOP))
	_, err = io.WriteString(m.Conn, "version\r\n")
	require.NoError(t, err)
	require.NoError(t, m.Conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = m.Conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, m.Signal(syscall.SIGCONT))
	_, err = m.Do("set a 0 0 1\r\n1", "STORED") // after the version
	require.NoError(t, err)

	m.Stop()
	require.NoError(t, m.Restart(t.Context()))
	_, err = m.Do("incr a 1", "NOT_FOUND")
	require.NoError(t, err, "it is empty")
}
