package pipeline

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// writePublic writes a file that the user Memcached runs as can read.
func writePublic(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(memcachedtest.PublicDir(t), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

func TestTLSWithAuthentication(t *testing.T) {
	t.Parallel()
	cert, key, trusted := memcachedtest.NewCertificate(t)
	users := writePublic(t, "users", "weir:secret\n")
	m := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert, "-o", "ssl_key="+key, "-Y", users)
	s := New(Dialer(&tls.Config{RootCAs: trusted}, "weir", "secret"), time.Minute)
	defer s.Close()
	_, err := ask(newConn(t, s, m.Network(), m.Addr), "set n 0 0 1\r\n0\r\n")
	require.NoError(t, err)
	large := strings.Repeat("x", 500000)
	var callers sync.WaitGroup
	errs := make(chan error, 50)
	for i := range cap(errs) {
		h := newConn(t, s, m.Network(), m.Addr)
		callers.Go(func() {
			if _, err := ask(h, "incr n 1\r\n"); err != nil {
				errs <- err
				return
			}
			reply, err := ask(h, fmt.Sprintf("set k%d 0 0 %d\r\n%s\r\n", i%5, len(large), large))
			if err == nil && reply != "STORED\r\n" {
				err = errors.New(reply)
			}
			errs <- err
		})
	}
	callers.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	reply, err := ask(newConn(t, s, m.Network(), m.Addr), "get n\r\n")
	require.NoError(t, err)
	require.Equal(t, "VALUE n 0 2\r\n50\r\nEND\r\n", reply)

	strangers := New(Dialer(&tls.Config{RootCAs: x509.NewCertPool()}, "", ""), time.Minute)
	defer strangers.Close()
	_, err = ask(newConn(t, strangers, m.Network(), m.Addr), "version\r\n")
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t, "-Y", writePublic(t, "users", "weir:secret\n"))
	for _, test := range []struct{ user, password, want string }{
		{"weir", "secret", ""},
		{"weir", "wrong", "refused the credentials"},
		{"nobody", "secret", "refused the credentials"},
	} {
		s := New(Dialer(nil, test.user, test.password), time.Minute)
		reply, err := ask(newConn(t, s, m.Network(), m.Addr), "version\r\n")
		if test.want == "" {
			require.NoError(t, err)
			require.Equal(t, "VERSION 1.6.18\r\n", reply)
		} else {
			require.ErrorContains(t, err, test.want)
			require.NotContains(t, err.Error(), test.password)
		}
		require.NoError(t, s.Close())
	}
}

// A server that accepts and never answers holds up neither a dial nor Close.
func TestAuthenticationEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error)
	go func() {
		_, err := Dialer(nil, "weir", "secret")(ctx, "tcp", l.Addr().String())
		failed <- err
	}()
	conn, err := l.Accept()
	require.NoError(t, err)
	defer conn.Close()
	expect(t, conn, "set auth 0 0 11\r\nweir secret\r\n")
	cancel()
	require.Error(t, <-failed)
}

// lateConn is a server that accepts a login just as the dial's time ends.
type lateConn struct {
	net.Conn
	cancel      context.CancelFunc
	interrupted chan struct{}
	resume      chan struct{}
}

func (c *lateConn) Write(p []byte) (int, error) { return len(p), nil }

func (c *lateConn) Read(p []byte) (int, error) {
	c.cancel()
	<-c.interrupted
	return copy(p, "STORED\r\n"), nil
}

func (c *lateConn) SetDeadline(time.Time) error {
	close(c.interrupted)
	<-c.resume
	return nil
}

// When authenticate returns, nobody else uses the connection.
func TestAuthenticationAwaitsItsInterruption(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		conn := &lateConn{cancel: cancel, interrupted: make(chan struct{}), resume: make(chan struct{})}
		var err error
		returned := false
		go func() {
			err = authenticate(ctx, conn, "weir", "secret")
			returned = true
		}()
		synctest.Wait()
		require.False(t, returned, "while the interruption goes on")
		close(conn.resume)
		synctest.Wait()
		require.True(t, returned)
		require.ErrorIs(t, err, context.Canceled, "the connection has no deadline left")
	})
}
