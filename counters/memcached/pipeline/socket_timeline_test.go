package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// scene runs a test in fake time, with a server that the test plays: every dial
// hands the server's end of a connection to accept.
func scene(t *testing.T, play func(t *testing.T, s *Pool, accept chan net.Conn)) {
	sceneOver(t, func(conn net.Conn) net.Conn { return conn }, play)
}

// sceneOver is scene with connections that the client uses as wrap returns
// them.
func sceneOver(t *testing.T, wrap func(net.Conn) net.Conn, play func(t *testing.T, s *Pool, accept chan net.Conn)) {
	sceneOf(t, 0, wrap, play)
}

// sceneOf is sceneOver with requests that may wait for timeout.
func sceneOf(t *testing.T, timeout time.Duration, wrap func(net.Conn) net.Conn, play func(t *testing.T, s *Pool, accept chan net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		accept := make(chan net.Conn, 10)
		s := New(func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			accept <- server
			return wrap(client), nil
		}, timeout)
		defer s.Close()
		play(t, s, accept)
	})
}

// post writes a request, whose reply nobody reads yet.
func post(t *testing.T, s *Pool, request string) *Conn {
	t.Helper()
	h := newConn(t, s, "tcp", "a")
	send(t, h, request)
	return h
}

// expect reads what the client sends, which must be want.
func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func say(t *testing.T, conn net.Conn, reply string) {
	t.Helper()
	_, err := io.WriteString(conn, reply)
	require.NoError(t, err)
}

// serve gives every request that comes the same reply, until the connection
// ends.
func serve(conn net.Conn, reply string) {
	var pending []byte
	for p := make([]byte, 1<<16); ; {
		n, err := conn.Read(p)
		if err != nil {
			return
		}
		pending = append(pending, p[:n]...)
		for {
			n, _, err := parseCommand(pending)
			if n == 0 || err != nil {
				break
			}
			pending = pending[n:]
			if _, err := io.WriteString(conn, reply); err != nil {
				return
			}
		}
	}
}

func TestGivenUpRequestIsNotSent(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		first := post(t, s, "incr first 1\r\n")
		server := <-accept
		expect(t, server, "i") // the rest keeps the writer busy
		given := newConn(t, s, "tcp", "a")
		require.NoError(t, given.SetDeadline(time.Now().Add(50*time.Millisecond)))
		start := time.Now()
		_, err := ask(given, "incr given 1\r\n")
		requireTimeout(t, err)
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		closed := post(t, s, "incr closed 1\r\n")
		require.NoError(t, closed.Close())
		last := post(t, s, "incr last 1\r\n")
		expect(t, server, "ncr first 1\r\nincr last 1\r\n")
		say(t, server, "1\r\n2\r\n")
		requireReply(t, first, "1\r\n")
		requireReply(t, last, "2\r\n")
	})
}

func TestDeadlineInThePastSendsNothing(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := newConn(t, s, "tcp", "a")
		require.NoError(t, h.SetDeadline(time.Now()))
		_, err := h.Write([]byte("incr k 1\r\n"))
		requireTimeout(t, err)
		synctest.Wait()
		require.Empty(t, accept)
		require.NoError(t, h.SetDeadline(time.Time{}))
		_, err = h.Write([]byte("incr k 1\r\n"))
		requireTimeout(t, err) // a connection that has given up stays so
	})
}

func TestEachDeadlineCountsForItsOwn(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "incr k 1\r\n")
		go serve(<-accept, "1\r\n")
		require.NoError(t, h.SetWriteDeadline(time.Now()))
		requireReply(t, h, "1\r\n")
		_, err := h.Write([]byte("incr k 1\r\n"))
		requireTimeout(t, err)
	})
}

// The deadline counts as it is when it passes, however often it was moved.
func TestDeadlineThatMoves(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		move time.Duration // 10 ms after the start, from then
		want time.Duration
	}{
		{20 * time.Millisecond, 30 * time.Millisecond},
		{90 * time.Millisecond, 100 * time.Millisecond},
		{0, 10 * time.Millisecond},
	} {
		scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
			start := time.Now()
			h := newConn(t, s, "tcp", "a")
			require.NoError(t, h.SetWriteDeadline(start.Add(time.Millisecond)))
			require.NoError(t, h.SetReadDeadline(start.Add(50*time.Millisecond)))
			time.AfterFunc(10*time.Millisecond, func() { _ = h.SetReadDeadline(time.Now().Add(test.move)) })
			_, err := ask(h, "incr k 1\r\n")
			requireTimeout(t, err)
			require.Equal(t, test.want, time.Since(start))
		})
	}
}

func TestFullSocketMakesCallersWait(t *testing.T) {
	t.Parallel()
	small := "incr k 1\r\n"
	large := fmt.Sprintf("set k 0 0 %d\r\n%s\r\n", maxQueued, strings.Repeat("x", maxQueued))
	for _, test := range []struct {
		request string
		fill    int
	}{
		{small, maxInFlight},
		{large, 2}, // one is being written, one is in the queue
	} {
		scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
			for range test.fill {
				post(t, s, test.request)
				synctest.Wait()
			}
			late := newConn(t, s, "tcp", "a")
			require.NoError(t, late.SetDeadline(time.Now().Add(50*time.Millisecond)))
			start := time.Now()
			_, err := late.Write([]byte(small))
			requireTimeout(t, err)
			require.Equal(t, 50*time.Millisecond, time.Since(start))

			go serve(<-accept, "1\r\n")
			requireReply(t, post(t, s, small), "1\r\n")
		})
	}
}

// patience is how long a server may stay silent, at most.
const patience = stallLooks * lookInterval

func TestSilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "incr k 1\r\n")
		server := <-accept
		expect(t, server, "incr k 1\r\n")
		time.Sleep(patience - lookInterval - time.Millisecond)
		say(t, server, "1\r\n")
		requireReply(t, h, "1\r\n")
		time.Sleep(10 * patience) // silence is no fault while no reply is due
		require.NoError(t, h.SetDeadline(time.Time{}))

		start := time.Now()
		send(t, h, "incr k 1\r\n")
		expect(t, server, "incr k 1\r\n")
		_, err := answer(h)
		requireLost(t, err)
		require.ErrorContains(t, err, errStalled.Error())
		require.ErrorIs(t, err, ErrDown)
		require.GreaterOrEqual(t, time.Since(start), patience-lookInterval)
		require.LessOrEqual(t, time.Since(start), patience)
		require.Empty(t, accept)

		h = post(t, s, "incr k 1\r\n")
		go serve(<-accept, "2\r\n")
		requireReply(t, h, "2\r\n")
	})
}

// A request that may wait for five seconds gets the reply that comes after so long.
func TestASilentServerIsWaitedForAsLongAsRequestsWait(t *testing.T) {
	t.Parallel()
	const timeout = 5 * time.Second
	direct := func(conn net.Conn) net.Conn { return conn }
	sceneOf(t, timeout, direct, func(t *testing.T, s *Pool, accept chan net.Conn) {
		time.Sleep(lookInterval - time.Millisecond) // a look comes soon
		h := post(t, s, "incr k 1\r\n")
		server := <-accept
		expect(t, server, "incr k 1\r\n")
		time.Sleep(timeout)
		say(t, server, "1\r\n")
		requireReply(t, h, "1\r\n")

		start := time.Now()
		send(t, h, "incr k 1\r\n")
		expect(t, server, "incr k 1\r\n")
		_, err := answer(h)
		requireLost(t, err)
		require.ErrorIs(t, err, ErrDown)
		require.LessOrEqual(t, time.Since(start), timeout+2*lookInterval)
	})
}

// A heldUpConn is that of a process that gets no processor: the n-th read whose
// deadline passes returns later than that by a delay.
type heldUpConn struct {
	net.Conn
	delay    func(n int) time.Duration
	timeouts int
}

func (c *heldUpConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.timeouts++
		time.Sleep(c.delay(c.timeouts))
	}
	return n, err
}

// When this process is held up for ten seconds the server isn't to blame,
// whether it answers meanwhile or was held up itself.
func TestServerIsNotBlamedForAProcessThatIsHeldUp(t *testing.T) {
	t.Parallel()
	const holdUp = 10 * time.Second
	for look := 1; look <= stallLooks; look++ {
		heldUp := func(conn net.Conn) net.Conn {
			return &heldUpConn{Conn: conn, delay: func(n int) time.Duration {
				if n == look {
					return holdUp
				}
				return 0
			}}
		}
		began := time.Duration(look) * lookInterval
		for _, after := range []time.Duration{began + time.Second, began + holdUp + time.Second} {
			sceneOver(t, heldUp, func(t *testing.T, s *Pool, accept chan net.Conn) {
				h := post(t, s, "incr k 1\r\n")
				require.NoError(t, h.SetDeadline(time.Time{}))
				server := <-accept
				expect(t, server, "incr k 1\r\n")
				time.Sleep(after)
				say(t, server, "1\r\n")
				requireReply(t, h, "1\r\n")
			})
		}
	}
}

// A process that is held up again and again, but never for long, still gives up
// on a silent server, and so does one that has been for long.
func TestProcessThatIsHeldUpStillReplacesASilentConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ first, others, want time.Duration }{
		{lookInterval, lookInterval, 2 * patience},
		{10 * time.Second, 0, lookInterval + 10*time.Second + patience},
	} {
		heldUp := func(conn net.Conn) net.Conn {
			return &heldUpConn{Conn: conn, delay: func(n int) time.Duration {
				if n == 1 {
					return test.first
				}
				return test.others
			}}
		}
		sceneOver(t, heldUp, func(t *testing.T, s *Pool, accept chan net.Conn) {
			start := time.Now()
			h := post(t, s, "incr k 1\r\n")
			require.NoError(t, h.SetDeadline(time.Time{}))
			expect(t, <-accept, "incr k 1\r\n")
			_, err := answer(h)
			requireLost(t, err)
			require.ErrorContains(t, err, errStalled.Error())
			require.Equal(t, test.want, time.Since(start))
		})
	}
}

func TestLostConnectionFailsWhatIsNotYetSent(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		first := post(t, s, "incr k 1\r\n")
		server := <-accept
		expect(t, server, "i") // the rest keeps the writer busy
		second := post(t, s, "incr k 1\r\n")
		require.NoError(t, server.Close())
		for _, h := range []*Conn{first, second} {
			_, err := answer(h)
			requireLost(t, err)
		}
	})
}

// The kernel, too, calls a connection timed out; callers must not take that for
// their own deadline.
func TestConnectionThatTimesOutIsLost(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "incr k 1\r\n")
		h.link.open.Load().fail(syscall.ETIMEDOUT)
		_, err := answer(h)
		requireLost(t, err)
		require.ErrorContains(t, err, syscall.ETIMEDOUT.Error())
	})
}

func TestSlowReplyIsNoSilence(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "get k\r\n")
		server := <-accept
		expect(t, server, "get k\r\n")
		go func() {
			for _, b := range []byte("VALUE k") {
				time.Sleep(patience / 2)
				_, _ = server.Write([]byte{b})
			}
			_, _ = io.WriteString(server, " 0 1\r\n1\r\nEND\r\n")
		}()
		requireReply(t, h, "VALUE k 0 1\r\n1\r\nEND\r\n")
	})
}

// A server that takes long to read all that it is sent isn't silent.
func TestSlowWriteIsNoSilence(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		request := setRequest("k", maxRecord/2)
		first := post(t, s, "incr k 1\r\n")
		server := <-accept
		expect(t, server, "i") // the rest keeps the writer busy
		large := make([]*Conn, 10)
		for i := range large {
			large[i] = post(t, s, request)
		}
		expect(t, server, "ncr k 1\r\n")
		for range large {
			time.Sleep(patience / 2)
			expect(t, server, request)
		}
		say(t, server, "1\r\n"+strings.Repeat("STORED\r\n", len(large)))
		requireReply(t, first, "1\r\n")
		for _, h := range large {
			requireReply(t, h, "STORED\r\n")
		}
	})
}

func TestUnaskedBytesCloseTheSocket(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := post(t, s, "version\r\n")
		server := <-accept
		expect(t, server, "version\r\n")
		say(t, server, "VERSION 1\r\n5\r\n")
		requireReply(t, h, "VERSION 1\r\n")
		_, err := server.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestCallersShareADial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		results := make(chan error)
		s := New(func(context.Context, string, string) (net.Conn, error) {
			dials++
			if err := <-results; err != nil {
				return nil, err
			}
			client, server := net.Pipe()
			go serve(server, "1\r\n")
			return client, nil
		}, time.Second)
		defer s.Close()
		refused := errors.New("refused")
		for i, want := range []error{refused, nil} {
			errs := make(chan error, 100)
			for range cap(errs) {
				h := newConn(t, s, "tcp", "a")
				go func() {
					_, err := ask(h, "incr k 1\r\n")
					errs <- err
				}()
			}
			hasty := newConn(t, s, "tcp", "a")
			require.NoError(t, hasty.SetDeadline(time.Now().Add(time.Millisecond)))
			_, err := hasty.Write([]byte("incr k 1\r\n"))
			requireTimeout(t, err)
			synctest.Wait()
			require.Empty(t, errs, "one caller's deadline is no other's")
			results <- want
			for range cap(errs) {
				require.ErrorIs(t, <-errs, want)
			}
			require.Equal(t, i+1, dials)
		}
	})
}

func TestDialIsBounded(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{time.Millisecond: dialTimeout, 5 * time.Second: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := New(func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, timeout)
			start := time.Now()
			_, err := ask(newConn(t, s, "tcp", "a"), "version\r\n")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			require.ErrorIs(t, err, ErrDown)
			require.Equal(t, want, time.Since(start))

			time.AfterFunc(time.Millisecond, func() { _ = s.Close() })
			_, err = ask(newConn(t, s, "tcp", "a"), "version\r\n")
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestExchangeSendsAllAtOnce(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h := newConn(t, s, "tcp", "a")
		const requests = "add k 0 0 1\r\n0\r\nincr k 1\r\nget j k\r\n"
		var server net.Conn
		for range 2 {
			done := make(chan error)
			go func() { done <- h.Exchange(0, []byte(requests)) }()
			if server == nil {
				server = <-accept
			}
			p := make([]byte, 1000)
			n, err := server.Read(p)
			require.NoError(t, err)
			require.Equal(t, requests, string(p[:n]), "in one write")
			say(t, server, "NOT_STORED\r\n8\r\nVALUE k 0 1\r\n8")
			synctest.Wait()
			require.Empty(t, done, "the last reply isn't complete")
			say(t, server, "\r\nEND\r\n")
			require.NoError(t, <-done)
			require.Equal(t, "NOT_STORED\r\n", string(h.Reply(0)))
			require.Equal(t, "8\r\n", string(h.Reply(1)))
			require.Equal(t, "VALUE k 0 1\r\n8\r\nEND\r\n", string(h.Reply(2)))
		}
	})
}
