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
func (m *Server) Far(roundTrip time.Duration) string {
	t := m.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
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
			passing.Go(func() { passOn(&passing, near, far, roundTrip/2) })
			passing.Go(func() { passOn(&passing, far, near, roundTrip/2) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
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
func passOn(passing *sync.WaitGroup, from, to net.Conn, delay time.Duration) {
	type part struct {
		bytes []byte
		due   time.Time
	}
	parts := make(chan part, 1<<16)
	passing.Go(func() {
		for p := range parts {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.bytes) // one that is closed is noticed by who reads
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
