package pipeline

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// givenUp sends a request, which the server reads, and gives it up.
func givenUp(t *testing.T, s *Pool, server func() net.Conn, request string) (*Conn, net.Conn) {
	t.Helper()
	h := post(t, s, request)
	conn := server()
	expect(t, conn, request)
	require.NoError(t, h.SetDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := answer(h)
	requireTimeout(t, err)
	return h, conn
}

// outcome returns where the outcome of what h has given up goes.
func outcome(h *Conn) chan error {
	told := make(chan error, 2)
	h.Late(func(_ context.Context, err error) { told <- err })
	return told
}

func TestLateReplyIsTold(t *testing.T) {
	t.Parallel()
	for _, askedBefore := range []bool{true, false} {
		scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
			h, server := givenUp(t, s, func() net.Conn { return <-accept }, "incr k 1\r\n")
			require.NoError(t, h.Close())
			var told chan error
			if askedBefore {
				told = outcome(h)
				synctest.Wait()
				require.Empty(t, told)
			}
			next := post(t, s, "incr k 1\r\n")
			expect(t, server, "incr k 1\r\n")
			say(t, server, "7\r\n8\r\n")
			requireReply(t, next, "8\r\n")
			if !askedBefore {
				told = outcome(h)
			}
			require.NoError(t, <-told)
			require.Equal(t, "7\r\n", string(h.Reply(0)))
			synctest.Wait()
			require.Empty(t, told, "it is told once")
		})
	}
}

func TestOutcomeOfWhatWasNeverSent(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		first := post(t, s, "incr first 1\r\n")
		server := <-accept
		expect(t, server, "i") // the rest keeps the writer busy
		h := post(t, s, "incr given 1\r\n")
		require.NoError(t, h.Close())
		told := outcome(h)
		expect(t, server, "ncr first 1\r\n")
		require.ErrorIs(t, <-told, ErrNotSent)
		say(t, server, "1\r\n")
		requireReply(t, first, "1\r\n")
	})
}

func TestOutcomeOfWhatWasLost(t *testing.T) {
	t.Parallel()
	for _, lose := range []func(s *Pool, server net.Conn){
		func(_ *Pool, server net.Conn) { _ = server.Close() },
		func(s *Pool, _ net.Conn) { _ = s.Close() },
	} {
		scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
			h, server := givenUp(t, s, func() net.Conn { return <-accept }, "incr k 1\r\n")
			told := outcome(h)
			lose(s, server)
			err := <-told
			requireLost(t, err)
			require.NotErrorIs(t, err, ErrNotSent)
		})
	}
}

// A server that was silent is dialed anew, and tells later what became of what
// it was asked before.
func TestSilentConnectionTellsLater(t *testing.T) {
	t.Parallel()
	scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
		h, old := givenUp(t, s, func() net.Conn { return <-accept }, "incr k 1\r\n")
		told := outcome(h)
		reads, waits := post(t, s, "get k\r\n"), post(t, s, "incr k 5\r\n")
		expect(t, old, "get k\r\nincr k 5\r\n")
		dropped, _ := givenUp(t, s, func() net.Conn { return old }, "incr k 2\r\n")
		second, _ := givenUp(t, s, func() net.Conn { return old }, "incr k 3\r\n")
		told2 := outcome(second)
		for _, h := range []*Conn{reads, waits} {
			_, err := answer(h)
			require.ErrorIs(t, err, ErrDown, "who waits still learns it within two seconds")
			require.NoError(t, h.Close())
		}

		next := post(t, s, "version\r\n")
		replaced := <-accept
		expect(t, replaced, "version\r\n")
		say(t, replaced, "VERSION 1\r\n")
		requireReply(t, next, "VERSION 1\r\n")

		time.Sleep(lingerTime / 2)
		told3 := outcome(waits)
		require.Empty(t, told)
		say(t, old, "1\r\nVALUE k 0 1\r\n")
		require.NoError(t, <-told)
		require.Equal(t, "1\r\n", string(h.Reply(0)))
		synctest.Wait()
		require.Empty(t, told3)
		say(t, old, "1\r\nEND\r\n6\r\n8\r\n11\r\n")
		require.NoError(t, <-told3, "who waited, too")
		require.Equal(t, "6\r\n", string(waits.Reply(0)))
		require.NoError(t, <-told2)
		require.Equal(t, "11\r\n", string(second.Reply(0)))
		require.NoError(t, dropped.Close())
		_, err := old.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "nobody waits any more")
		go serve(replaced, "VERSION 1\r\n")
		requireAsk(t, next, "version\r\n", "VERSION 1\r\n")
	})
}

func TestSilentConnectionIsNotReadForever(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		end  func(s *Pool, server net.Conn)
		most time.Duration
	}{
		"time":   {func(*Pool, net.Conn) {}, lingerTime},
		"close":  {func(s *Pool, _ net.Conn) { _ = s.Close() }, 0},
		"server": {func(_ *Pool, server net.Conn) { _ = server.Close() }, 0},
		"nonsense": {func(_ *Pool, server net.Conn) {
			_, _ = io.WriteString(server, "1\r\n2\r\n")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scene(t, func(t *testing.T, s *Pool, accept chan net.Conn) {
				h, old := givenUp(t, s, func() net.Conn { return <-accept }, "incr k 1\r\n")
				told := outcome(h)
				time.Sleep(patience)
				start := time.Now()
				end.end(s, old)
				err := <-told
				require.LessOrEqual(t, time.Since(start), end.most)
				if name == "nonsense" {
					require.NoError(t, err)
				} else {
					requireLost(t, err)
				}
				synctest.Wait()
				_, err = old.Read(make([]byte, 1))
				require.Error(t, err)
			})
		})
	}
}
