package pipeline

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/memcachedtest"
)

func setRequest(key string, size int) string {
	return fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, size, strings.Repeat("x", size))
}

// Everything that is sent is answered at once, although the server reads a
// value, or what its buffer has room for, and forgets the rest of the record.
func TestNothingIsLeftInTheServersTLSBuffer(t *testing.T) {
	t.Parallel()
	cert, key, trusted := memcachedtest.NewCertificate(t)
	m := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert, "-o", "ssl_key="+key)
	long := strings.Repeat("k", 91)
	for _, test := range []struct {
		name     string
		before   int // bytes that were sent before: crypto/tls begins with small records
		requests string
	}{
		{"a value in small records, and a command", 0, setRequest("k", 10000) + "incr n 1\r\n"},
		{"a value in full records, and a command", 200000, setRequest("k", 20000) + "incr n 1\r\n"},
		{"a large value, and a command", 0, setRequest("k", 500000) + "incr n 1\r\n"},
		{"a value too large for the server, and a command", 0, setRequest("k", 2<<20) + "incr n 1\r\n"},
		{"values and commands", 0, strings.Repeat(setRequest("k", 300)+"incr n 1\r\n"+setRequest("k", 20), 200)},
		{"a value that begins at the end of a record", 200000, strings.Repeat("incr n 1\r\n", 1637) + setRequest("k", 0) + "incr n 1\r\n"},
		{"two records that end within a command", 200000, strings.Repeat("incr "+long+" 1\r\n", 327)},
		{"a line in many records, and a command", 200000, "get" + strings.Repeat(" "+long, 700) + "\r\nincr n 1\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(Dialer(&tls.Config{RootCAs: trusted}, "", ""), time.Minute)
			defer s.Close()
			h := newConn(t, s, m.Network(), m.Addr)
			require.NoError(t, h.Exchange(0, []byte(setRequest("before", test.before))))
			require.NoError(t, h.Exchange(0, []byte(test.requests)))
		})
	}
}

// Whatever is sent in one piece is answered.
func TestExchangesOverTLS(t *testing.T) {
	t.Parallel()
	cert, key, trusted := memcachedtest.NewCertificate(t)
	m := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert, "-o", "ssl_key="+key)
	s := New(Dialer(&tls.Config{RootCAs: trusted}, "", ""), time.Minute)
	defer s.Close()
	size := rapid.OneOf(rapid.IntRange(0, 500), rapid.IntRange(maxRecord/2, maxRecord), rapid.IntRange(maxRecord, 3*maxRecord))
	request := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) string { return setRequest("k", size.Draw(t, "size")) }),
		rapid.Custom(func(t *rapid.T) string {
			return "incr " + strings.Repeat("k", rapid.IntRange(1, maxKey).Draw(t, "key")) + " 1\r\n"
		}),
		rapid.Just("get"+strings.Repeat(" none", 10000)+"\r\n"),
	)
	rapid.Check(t, func(rt *rapid.T) {
		requests := rapid.SliceOfN(request, 2, 50).Draw(rt, "requests")
		require.NoError(rt, newConn(t, s, m.Network(), m.Addr).Exchange(0, []byte(strings.Join(requests, ""))))
	})
}

func TestRecordsHoldWholeCommandsOrAPartOfOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 500), rapid.IntRange(maxRecord-100, maxRecord+100), rapid.Just(3*maxRecord)), 1, 20).Draw(t, "sizes")
		var want, got []string
		for _, size := range sizes {
			request := setRequest("k", size)
			last := len(want) - 1
			if last >= 0 && len(want[last])+len(request) <= maxRecord {
				want[last] += request
			} else {
				want = append(want, request)
			}
		}
		for rest := strings.Join(want, ""); rest != ""; {
			n := recordLength([]byte(rest))
			got = append(got, rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, want, got)
	})
}

// A slowConn writes everything in two halves, with a pause between them.
type slowConn struct {
	net.Conn
	pause time.Duration
}

func (c *slowConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p[:len(p)/2])
	if err != nil {
		return n, err
	}
	time.Sleep(c.pause)
	m, err := c.Conn.Write(p[len(p)/2:])
	return n + m, err
}

// sceneOverTLS is scene with connections over TLS, and how the server uses its
// end of one.
func sceneOverTLS(t *testing.T, play func(t *testing.T, s *Pool, accept chan net.Conn, server func(net.Conn) net.Conn)) {
	cert, key, trusted := memcachedtest.NewCertificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	now := time.Now() // the certificate isn't valid in the scene's time
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: trusted, ServerName: "127.0.0.1", Time: func() time.Time { return now }}
	client := func(conn net.Conn) net.Conn { return recordConn{tls.Client(conn, config)} }
	server := func(conn net.Conn) net.Conn { return tls.Server(conn, config) }
	sceneOver(t, client, func(t *testing.T, s *Pool, accept chan net.Conn) { play(t, s, accept, server) })
}

// The reader looks for a stall while a record has come in part, and reads on.
func TestRecordThatComesInPieces(t *testing.T) {
	t.Parallel()
	sceneOverTLS(t, func(t *testing.T, s *Pool, accept chan net.Conn, tlsServer func(net.Conn) net.Conn) {
		h := post(t, s, "get k\r\n")
		slow := &slowConn{Conn: <-accept}
		server := tlsServer(slow)
		expect(t, server, "get k\r\n")
		slow.pause = patience - 2*lookInterval
		value := strings.Repeat("x", 1000)
		for range 3 {
			say(t, server, "VALUE k 0 1000\r\n"+value+"\r\n")
		}
		say(t, server, "END\r\n")
		requireReply(t, h, strings.Repeat("VALUE k 0 1000\r\n"+value+"\r\n", 3)+"END\r\n")
	})
}

// A silent server takes no leave either.
func TestSilentTLSConnectionIsReplacedInTime(t *testing.T) {
	t.Parallel()
	sceneOverTLS(t, func(t *testing.T, s *Pool, accept chan net.Conn, tlsServer func(net.Conn) net.Conn) {
		start := time.Now()
		h := post(t, s, "get k\r\n")
		expect(t, tlsServer(<-accept), "get k\r\n")
		_, err := answer(h)
		requireLost(t, err)
		require.ErrorContains(t, err, errStalled.Error())
		require.LessOrEqual(t, time.Since(start), patience)
	})
}
