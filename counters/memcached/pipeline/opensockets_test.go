package pipeline

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// What was read may be sent back on each socket that was open by then, of either
// pool, and on none that was opened later.
func TestSocketsThatWereOpenByThen(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	first, _ := startPool(t)
	second := first.Beside(first.dial)
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	a, b := newConn(t, first, "tcp", server.Addr), newConn(t, second, "tcp", server.Addr)
	version := []byte("version\r\n")
	assert.Zero(t, first.Newest())
	assert.Zero(t, a.Open())

	require.NoError(t, a.Exchange(0, version))
	assert.EqualValues(t, 1, a.Socket())
	require.ErrorIs(t, b.Exchange(first.Newest(), version), ErrOtherSocket)
	assert.EqualValues(t, 2, b.Open())
	assert.EqualValues(t, 2, first.Newest(), "it counts those of the other pool")
	for range 2 {
		require.NoError(t, a.Exchange(2, version))
		require.NoError(t, b.Exchange(2, version))
	}

	server.Kill()
	server.Restart()
	require.Eventually(t, func() bool { return a.Exchange(0, version) == nil && b.Exchange(0, version) == nil }, time.Minute, time.Millisecond)
	assert.ErrorIs(t, a.Exchange(2, version), ErrOtherSocket)
	assert.ErrorIs(t, b.Exchange(2, version), ErrOtherSocket)
	assert.NoError(t, a.Exchange(first.Newest(), version))
}

// A pool isn't ready when the server has closed its connection, even if nobody has used it since.
func TestNotReadyWhenTheServerHasClosedAnIdleConnection(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, "tcp", server.Addr)
	requireAsk(t, h, "get k\r\n", "END\r\n")
	open := h.link.open.Load()
	require.Eventually(t, open.unread.Load, time.Minute, time.Millisecond)
	require.True(t, s.Ready("tcp", server.Addr))
	require.True(t, open.unread.Load())
	server.Kill()
	require.False(t, s.Ready("tcp", server.Addr))
}

// Who found no socket open a moment ago doesn't have another opened: the first would be
// held open for nobody.
func TestNoSecondSocketIsDialed(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "incr k 1\r\n")
		server := <-accept
		expect(t, server, "incr k 1\r\n")
		h.link.dialAgain()
		synctest.Wait()
		require.Empty(t, accept)
		say(t, server, "1\r\n")
		requireReply(t, h, "1\r\n")
	})
}
