package pipeline

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/counters/memcachedtest"
)

func TestMain(m *testing.M) {
	memcachedtest.Overlap(2)
	goleak.VerifyTestMain(m)
}

// dials counts the connections that a dial function opens.
type dials struct {
	count atomic.Int32
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
}

func (d *dials) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d.count.Add(1)
	return d.dial(ctx, network, address)
}

// startPool returns sockets that are closed when the test ends, one to a
// server, and the count of their dials.
func startPool(t testing.TB) (*Pool, *dials) {
	d := &dials{dial: Dialer(nil, "", "")}
	s := New(d.DialContext, time.Minute)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, d
}

func newConn(t testing.TB, s *Pool, network, address string) *Conn {
	t.Helper()
	h, err := s.Conn(network, address)
	require.NoError(t, err)
	require.NoError(t, h.SetDeadline(time.Now().Add(time.Minute)))
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// ask sends a request and returns the whole reply.
func ask(h *Conn, request string) (string, error) {
	if _, err := h.Write([]byte(request)); err != nil {
		return "", err
	}
	return answer(h)
}

func answer(h *Conn) (string, error) {
	var b bytes.Buffer
	p := make([]byte, 1<<16)
	for {
		n, err := h.Read(p)
		if err == errNothingSent && b.Len() > 0 {
			return b.String(), nil
		}
		if err != nil {
			return "", err
		}
		b.Write(p[:n])
	}
}

// send sends a request, whose reply nobody reads yet.
func send(t *testing.T, h *Conn, request string) {
	t.Helper()
	_, err := h.Write([]byte(request))
	require.NoError(t, err)
}

func requireReply(t *testing.T, h *Conn, want string, message ...any) {
	t.Helper()
	reply, err := answer(h)
	require.NoError(t, err)
	require.Equal(t, want, reply, message...)
}

func requireAsk(t *testing.T, h *Conn, request, want string, message ...any) {
	t.Helper()
	send(t, h, request)
	requireReply(t, h, want, message...)
}

// newTestClient returns a client that has one connection per server, as a
// client of the store has.
func newTestClient(s *Pool, address string, timeout time.Duration) *memcache.Client {
	c := memcache.New(address)
	c.MaxIdleConns = 1
	c.Timeout = timeout
	c.DialContext = func(_ context.Context, network, address string) (net.Conn, error) { return s.Conn(network, address) }
	return c
}

// proxy stands between the sockets and a server, and passes bytes on in small
// pieces.
type proxy struct {
	listener net.Listener
	target   string
	piece    int
	pause    func() // between pieces
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func startProxy(t testing.TB, target string, piece int, pause func()) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, target: target, piece: piece, pause: pause}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.running.Go(func() { p.pass(client, server) })
		p.running.Go(func() { p.pass(server, client) })
	}
}

func (p *proxy) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, p.piece)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.pause()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func item(key, value string) *memcache.Item { return &memcache.Item{Key: key, Value: []byte(value)} }
