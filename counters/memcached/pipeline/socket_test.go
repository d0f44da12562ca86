package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

func requireTimeout(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
}

func requireLost(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, errConnectionLost)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "a lost connection must not look like a timeout: %v", err)
}

func TestConnAnswersEveryCommand(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	value := "END\r\nVALUE a 0 3\r\n"
	for _, step := range []struct{ request, reply string }{
		{"incr n 1\r\n", "NOT_FOUND\r\n"},
		{"add n 0 0 1\r\n7\r\n", "STORED\r\n"},
		{"add n 0 0 1\r\n7\r\n", "NOT_STORED\r\n"},
		{"incr n 5\r\n", "12\r\n"},
		{"decr n 2\r\n", "10\r\n"},
		{"touch n 60\r\n", "TOUCHED\r\n"},
		{"gat 60 n\r\n", "VALUE n 0 2\r\n10\r\nEND\r\n"},
		{fmt.Sprintf("set v 3 0 %d\r\n%s\r\n", len(value), value), "STORED\r\n"},
		{"get v n none\r\n", fmt.Sprintf("VALUE v 3 %d\r\n%s\r\nVALUE n 0 2\r\n10\r\nEND\r\n", len(value), value)},
		{"set empty 0 0 0\r\n\r\n", "STORED\r\n"},
		{"get empty\r\n", "VALUE empty 0 0\r\n\r\nEND\r\n"},
		{"incr v 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"},
		{"get " + strings.Repeat("k", 251) + "\r\n", "CLIENT_ERROR bad command line format\r\n"},
		{"gets \r\n", "ERROR\r\n"},
		{"cas none 0 0 1 5\r\n1\r\n", "NOT_FOUND\r\n"},
		{"append n 0 0 1\r\n1\r\n", "STORED\r\n"},
		{"prepend none 0 0 1\r\n1\r\n", "NOT_STORED\r\n"},
		{"replace n 0 0 1\r\n1\r\n", "STORED\r\n"},
		{"delete n\r\n", "DELETED\r\n"},
		{"version\r\n", "VERSION 1.6.18\r\n"},
		{"flush_all\r\n", "OK\r\n"},
	} {
		reply, err := ask(h, step.request)
		require.NoError(t, err, step.request)
		require.Equal(t, step.reply, reply, step.request)
	}
	stats, err := ask(h, "stats\r\n")
	require.NoError(t, err)
	require.Regexp(t, `^(STAT [^\r\n]*\r\n)*STAT curr_items \d+\r\n(STAT [^\r\n]*\r\n)*END\r\n$`, stats)
	reply, err := ask(h, "version\r\n")
	require.NoError(t, err)
	require.Equal(t, "VERSION 1.6.18\r\n", reply)
}

func TestRequestThatComesInPieces(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	for _, b := range []byte("set k 0 0 4\r\na\r\nb\r") {
		n, err := h.Write([]byte{b})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	requireAsk(t, h, "\n", "STORED\r\n")

	send(t, h, "get k\r\n")
	var got []byte
	for one := make([]byte, 1); !strings.HasSuffix(string(got), "END\r\n"); {
		n, err := h.Read(one)
		require.NoError(t, err)
		got = append(got, one[:n]...)
	}
	require.Equal(t, "VALUE k 0 4\r\na\r\nb\r\nEND\r\n", string(got))
}

func TestLongMultiGet(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	client := newTestClient(s, m.Addr, time.Minute)
	defer client.Close()
	for _, n := range []int{1, 100, 1000, 5000} { // 5000 keys are a line of 65 KiB
		keys := make([]string, n)
		for i := range keys {
			keys[i] = fmt.Sprintf("key-%08d", i)
		}
		require.NoError(t, client.Set(item(keys[n-1], "last")))
		items, err := client.GetMulti(keys)
		require.NoError(t, err)
		require.Equal(t, "last", string(items[keys[n-1]].Value))
	}
}

func TestTooLargeValueLeavesStreamInStep(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	for _, size := range []int{1<<20 - 100, 1 << 20, 3 << 20} {
		reply, err := ask(h, fmt.Sprintf("set k 0 0 %d\r\n%s\r\n", size, strings.Repeat("x", size)))
		require.NoError(t, err)
		if size < 1<<20 {
			require.Equal(t, "STORED\r\n", reply)
		} else {
			require.Equal(t, "SERVER_ERROR object too large for cache\r\n", reply)
		}
		requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
	}
	require.EqualValues(t, 1, d.count.Load())
	require.LessOrEqual(t, cap(h.text)+cap(h.reply.data), 2*maxKept, "large buffers are not kept")
}

// A request that the kernel takes only a part of is finished by a goroutine,
// and its caller doesn't wait.
func TestRequestLargerThanTheKernelTakes(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	large, small := newConn(t, s, m.Network(), m.Addr), newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, small, "version\r\n", "VERSION 1.6.18\r\n")
	m.Pause()
	_, err := fmt.Fprintf(large, "set k 0 0 %d\r\n%s\r\n", 32<<20, strings.Repeat("x", 32<<20))
	require.NoError(t, err)
	send(t, small, "version\r\n")
	m.Resume()
	requireReply(t, large, "SERVER_ERROR object too large for cache\r\n")
	requireReply(t, small, "VERSION 1.6.18\r\n")
	require.EqualValues(t, 1, d.count.Load())
}

func TestServerOutOfMemoryLeavesStreamInStep(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t, "-M", "-m", "4")
	s, d := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	full := false
	for i := range 20 {
		reply, err := ask(h, fmt.Sprintf("set k%d 0 0 500000\r\n%s\r\n", i, strings.Repeat("x", 500000)))
		require.NoError(t, err)
		full = full || strings.HasPrefix(reply, "SERVER_ERROR out of memory")
	}
	require.True(t, full)
	requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
	require.EqualValues(t, 1, d.count.Load())
}

// Memcached takes the data of a storage command it refuses for commands: here
// "version", whose reply must reach nobody.
func TestRefusedStorageCommandClosesTheSocket(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	bad, other := newConn(t, s, m.Network(), m.Addr), newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, other, "version\r\n", "VERSION 1.6.18\r\n")
	m.Pause()
	send(t, bad, "set k 0 soon 7\r\nversion\r\n")
	send(t, other, "get k\r\n")
	m.Resume()

	for _, h := range []*Conn{bad, other} {
		_, err := answer(h)
		requireLost(t, err)
	}
	requireAsk(t, other, "get k\r\n", "END\r\n")
	require.EqualValues(t, 2, d.count.Load())
}

func TestLateReplyIsDropped(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	late, later := newConn(t, s, m.Network(), m.Addr), newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, late, "set k 0 0 5\r\nhello\r\n", "STORED\r\n")
	m.Pause()
	require.NoError(t, late.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := ask(late, "get k\r\n")
	requireTimeout(t, err)
	_, err = late.Write([]byte("version\r\n"))
	requireTimeout(t, err)

	send(t, later, "incr k 1\r\n")
	m.Resume()
	reply, err := answer(later)
	require.NoError(t, err)
	require.Contains(t, reply, "non-numeric")
	require.EqualValues(t, 1, d.count.Load(), "the socket stays in use")
}

// A caller who reads for itself hands that over when it goes, to the benefit of
// those who wait.
func TestReaderWhoGivesUpLeavesOthersTheirReplies(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	reader, other := newConn(t, s, m.Network(), m.Addr), newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, reader, "set k 0 0 1\r\n7\r\n", "STORED\r\n")
	open := reader.link.open.Load()
	require.Eventually(t, open.unread.Load, time.Minute, time.Millisecond)
	m.Pause()
	answers := make(chan error, 2)
	for _, h := range []*Conn{reader, other} {
		send(t, h, "incr k 1\r\n")
		go func() {
			reply, err := answer(h)
			if err == nil && reply != "9\r\n" {
				err = errors.New(reply)
			}
			answers <- err
		}()
		require.Eventually(t, func() bool { return reader.reader.Load() == &open.conn }, time.Minute, time.Millisecond)
	}
	require.NoError(t, reader.Close())
	require.ErrorIs(t, <-answers, net.ErrClosed)
	m.Resume()
	require.NoError(t, <-answers)
	require.EqualValues(t, 1, d.count.Load())
}

func TestDeadlineThatPassesBetweenWriteAndRead(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
	open := h.link.open.Load()
	require.Eventually(t, open.unread.Load, time.Minute, time.Millisecond)
	m.Pause()
	require.NoError(t, h.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	send(t, h, "version\r\n")
	require.Eventually(t, func() bool { return !h.pending() }, time.Minute, time.Millisecond)
	require.NoError(t, open.conn.SetReadDeadline(time.Time{})) // whoever reads now does so for ever
	_, err := answer(h)
	requireTimeout(t, err)
	m.Resume()
}

func TestDeadlineThatChangesWhileReading(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	for _, end := range []func(h *Conn) error{
		func(h *Conn) error { return h.SetReadDeadline(time.Unix(1, 0)) },
		func(h *Conn) error { return h.SetDeadline(time.Now().Add(10 * time.Millisecond)) },
		(*Conn).Close,
	} {
		h := newConn(t, s, m.Network(), m.Addr)
		requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
		require.Eventually(t, h.link.open.Load().unread.Load, time.Minute, time.Millisecond)
		m.Pause()
		require.NoError(t, h.SetDeadline(time.Time{}))
		send(t, h, "version\r\n")
		require.NoError(t, h.SetWriteDeadline(time.Unix(1, 0)), "the write is over")
		read := make(chan error)
		go func() {
			_, err := answer(h)
			read <- err
		}()
		require.Eventually(t, func() bool { return h.reader.Load() != nil }, time.Minute, time.Millisecond)
		require.NoError(t, end(h))
		err := <-read
		require.True(t, errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed), "%v", err)
		m.Resume()
	}
}

func TestLostConnectionFailsAllInFlight(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	conns := make([]*Conn, 300)
	for i := range conns {
		conns[i] = newConn(t, s, m.Network(), m.Addr)
	}
	requireAsk(t, conns[0], "version\r\n", "VERSION 1.6.18\r\n")
	m.Pause()
	errs := make(chan error, len(conns))
	for _, h := range conns {
		send(t, h, "incr k 1\r\n")
		go func() {
			_, err := answer(h)
			errs <- err
		}()
	}
	m.Kill()
	for range conns {
		requireLost(t, <-errs)
	}
	m.Restart()
	for _, h := range conns {
		requireAsk(t, h, "incr k 1\r\n", "NOT_FOUND\r\n", "a connection outlives the connection")
	}
}

// A server that restarts while nothing is in flight costs no request: also not
// the caller who reads for itself, when nobody has read the end of the
// connection.
func TestRestartOfIdleServerFailsNothing(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	for range 3 {
		requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
		open := h.link.open.Load()
		require.Eventually(t, open.unread.Load, time.Minute, time.Millisecond)
		m.Kill()
		m.Restart()
	}
	requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
	require.EqualValues(t, 4, d.count.Load())
}

// A server that closes each new connection, as a proxy may whose own server is gone, isn't dialed
// again and again for a request.
func TestAServerThatClosesNewConnectionsIsDialedOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	s, d := startPool(t)
	d.dial = func(_ context.Context, network, address string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		require.NoError(t, err)
		other, err := l.Accept()
		require.NoError(t, err)
		return conn, other.Close()
	}
	for n := range 100 {
		_, err := ask(newConn(t, s, "tcp", l.Addr().String()), "version\r\n")
		require.Error(t, err)
		require.EqualValues(t, n+1, d.count.Load())
	}
}

// The read deadline of a connection passes while it is idle; that doesn't count
// against it.
func TestIdleConnectionIsKept(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, d := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	for range 3 {
		requireAsk(t, h, "version\r\n", "VERSION 1.6.18\r\n")
		require.NoError(t, h.link.open.Load().conn.SetReadDeadline(time.Unix(1, 0)))
	}
	require.EqualValues(t, 1, d.count.Load())
}

func TestServersHaveTheirOwnSockets(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.StartSocket(t)
	s, d := startPool(t)
	onA, onB := newConn(t, s, a.Network(), a.Addr), newConn(t, s, b.Network(), b.Addr)
	requireAsk(t, onA, "set k 0 0 1\r\n1\r\n", "STORED\r\n")
	requireAsk(t, onB, "incr k 1\r\n", "NOT_FOUND\r\n")
	require.EqualValues(t, 2, d.count.Load())
	require.Equal(t, b.Addr, onB.RemoteAddr().String())
	require.Equal(t, "unix", onB.LocalAddr().Network())
}

func TestCloseFailsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s := New(Dialer(nil, "", ""), time.Minute)
	conns := make([]*Conn, 10)
	for i := range conns {
		conns[i] = newConn(t, s, m.Network(), m.Addr)
		requireAsk(t, conns[i], "version\r\n", "VERSION 1.6.18\r\n")
	}
	m.Pause()
	errs := make(chan error)
	for _, h := range conns {
		send(t, h, "version\r\n")
		go func() {
			_, err := answer(h)
			errs <- err
		}()
	}
	require.NoError(t, s.Close())
	for range conns {
		requireLost(t, <-errs)
	}
	_, err := ask(conns[0], "version\r\n")
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = s.Conn(m.Network(), m.Addr)
	require.ErrorIs(t, err, net.ErrClosed)
	m.Resume()
}

func TestClosedConnIsOfNoUse(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
	_, err := h.Write([]byte("version\r\n"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = h.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestMisuseIsRefused(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	_, err := h.Read(make([]byte, 1))
	require.ErrorIs(t, err, errNothingSent)
	_, err = h.Write([]byte("version\r\nversion\r\n"))
	require.ErrorIs(t, err, errTwoCommands)
	_, err = h.Write([]byte("quit\r\n"))
	require.ErrorContains(t, err, `"quit"`)
	send(t, h, "version\r\n")
	_, err = h.Write([]byte("version\r\n"))
	require.ErrorIs(t, err, errOutstanding)
	requireReply(t, h, "VERSION 1.6.18\r\n")
	send(t, h, "version\r\n")
	require.ErrorIs(t, h.Exchange(0, []byte("version\r\n")), errOutstanding)
	_, err = answer(h)
	require.NoError(t, err)
}

func TestExchangeThatFails(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	for _, requests := range []string{"incr k 1", "incr k 1\r\nincr k", "incr k 1\r\nquit\r\n", "add k 0 0 1\r\nincr k 1\r\n"} {
		require.Error(t, h.Exchange(0, []byte(requests)))
		requireAsk(t, h, "incr k 1\r\n", "NOT_FOUND\r\n", "nothing of %q was sent", requests)
	}

	m.Pause()
	require.NoError(t, h.SetDeadline(time.Now().Add(10*time.Millisecond)))
	requireTimeout(t, h.Exchange(0, []byte("add k 0 0 1\r\n0\r\nincr k 1\r\n")))
	require.ErrorIs(t, h.Exchange(0, []byte("incr k 1\r\n")), os.ErrDeadlineExceeded, "it can only be closed")
	m.Resume()

	h = newConn(t, s, m.Network(), m.Addr)
	require.NoError(t, h.Exchange(0, []byte("version\r\n")))
	m.Pause()
	failed := make(chan error)
	go func() { failed <- h.Exchange(0, []byte("add j 0 0 1\r\n0\r\nincr j 1\r\n")) }()
	for h.state.Load() != pending {
		runtime.Gosched()
	}
	m.Kill()
	requireLost(t, <-failed)
	m.Restart()
	require.NoError(t, h.Exchange(0, []byte("incr j 1\r\n")))
	require.Equal(t, "NOT_FOUND\r\n", string(h.Reply(0)), "what was lost is not sent again")
}

func TestCommandsDoNotAllocate(t *testing.T) {
	m := memcachedtest.Start(t)
	s, _ := startPool(t)
	h := newConn(t, s, m.Network(), m.Addr)
	requireAsk(t, h, "set n 0 0 1\r\n0\r\n", "STORED\r\n")
	request, p := []byte("incr n 1\r\n"), make([]byte, 100)
	deadline := time.Now().Add(time.Hour)
	var err error
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = h.SetDeadline(deadline)
		_, err = h.Write(request)
		if err == nil {
			_, err = h.Read(p)
		}
	}))
	require.NoError(t, err)
	requests := []byte("incr n 1\r\nget n m\r\n")
	require.Zero(t, testing.AllocsPerRun(1000, func() { err = h.Exchange(0, requests) }))
	require.NoError(t, err)
}
