//go:build unix

package pipeline

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// A fullConn is one whose kernel has no room, and takes its time to say so.
type fullConn struct {
	net.Conn
	raw    fullRawConn
	writes atomic.Int64
}

type fullRawConn struct {
	syscall.RawConn
	conn        net.Conn
	asked, full chan struct{}
}

func (c *fullConn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

func (c fullRawConn) Control(func(fd uintptr)) error {
	close(c.asked)
	<-c.full
	return nil
}

// Read waits until there is something, or never will be.
func (c fullRawConn) Read(func(fd uintptr) bool) error {
	_, err := c.conn.Read(make([]byte, 1))
	return err
}

func (c *fullConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// Close waits for all goroutines, and a caller that is writing meanwhile begins no other.
func TestNobodyWritesAfterClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer server.Close()
		conn := &fullConn{Conn: client, raw: fullRawConn{conn: client, asked: make(chan struct{}), full: make(chan struct{})}}
		s := New(func(context.Context, string, string) (net.Conn, error) { return conn, nil }, 0)
		h := newConn(t, s, "tcp", "a")
		var asking sync.WaitGroup
		asking.Go(func() {
			_, err := ask(h, "incr k 1\r\n")
			requireLost(t, err)
		})
		<-conn.raw.asked
		require.NoError(t, s.Close())
		close(conn.raw.full)
		asking.Wait()
		synctest.Wait()
		require.Zero(t, conn.writes.Load())
	})
}
