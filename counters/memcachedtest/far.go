package memcachedtest

import (
	"net"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
)

// Far returns the address of what passes everything on to the server, and back,
// as if it were far away: what is sent arrives half a round trip later, however
// much there is.
func (m *Server) Far(roundTrip time.Duration) string { return m.link(roundTrip, nil) }

// A Cut is where what is sent to a server stops short of it, though it is up. As many bytes
// get there before as its test says, however busy the machine is.
type Cut struct {
	// Addr is the address of the server behind it.
	Addr string

	mu     sync.Mutex
	passed int           // bytes that have got there
	left   int           // bytes that may still get there
	mended chan struct{} // closed when all others may; nil if nothing is cut
}

// Cut returns a Cut of connections to the server. Nothing is cut yet.
func (m *Server) Cut() *Cut {
	c := new(Cut)
	c.Addr = m.link(0, c)
	return c
}

// Passed returns how many bytes have got to the server.
func (c *Cut) Passed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

// After has so many more bytes get to the server, and none that come after these until Mend.
func (c *Cut) After(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.mended = bytes, make(chan struct{})
}

// Mend has the server get what has been held back, and all that follows.
func (c *Cut) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.mended)
	c.mended = nil
}

// enter returns how many of so many bytes may pass, and what those behind them wait for.
func (c *Cut) enter(bytes int) (may int, mended <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	may = bytes
	if c.mended != nil {
		may = min(bytes, c.left)
		c.left -= may
	}
	c.passed += may
	return may, c.mended
}

// link returns the address of what passes everything on to the server, and back, each half a
// round trip later; what it passes on enters cut, if there is one.
func (m *Server) link(roundTrip time.Duration, cut *Cut) string {
	t := m.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	var passing sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	passing.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := m.dial()
			if err != nil {
				_ = near.Close()
				continue
			}
			mu.Lock()
			open = append(open, near, far)
			mu.Unlock()
			write := far.Write
			if cut != nil {
				write = func(b []byte) (int, error) {
					for {
						n, mended := cut.enter(len(b))
						if _, err := far.Write(b[:n]); err != nil || n == len(b) {
							return n, err
						}
						b = b[n:]
						select {
						case <-mended:
						case <-ended:
							return 0, net.ErrClosed
						}
					}
				}
			}
			passing.Go(func() { passOn(&passing, near, far, write, roundTrip/2) })
			passing.Go(func() { passOn(&passing, far, near, near.Write, roundTrip/2) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(ended)
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		passing.Wait()
	})
	return l.Addr().String()
}

// passOn writes to one connection what it reads from another, a delay later.
func passOn(passing *sync.WaitGroup, from, to net.Conn, write func([]byte) (int, error), delay time.Duration) {
	type part struct {
		bytes []byte
		due   time.Time
	}
	parts := make(chan part, 1<<16)
	passing.Go(func() {
		for p := range parts {
			time.Sleep(time.Until(p.due))
			_, _ = write(p.bytes) // one that is closed is noticed by who reads
		}
		_ = to.Close()
	})
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		if n > 0 {
			parts <- part{append([]byte(nil), b[:n]...), time.Now().Add(delay)}
		}
		if err != nil {
			close(parts)
			return
		}
	}
}
