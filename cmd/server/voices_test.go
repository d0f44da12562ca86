package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

func TestLogTellsWhichServersAreDownAndBack(t *testing.T) {
	t.Parallel()
	up, down := memcachedtest.Start(t), memcachedtest.Start(t)
	down.Kill()
	r := startProgram(t, "-memcached", up.Addr+","+down.Addr)
	line := r.log.wait(t, "a Memcached server is down")
	assert.Contains(t, line, "level=WARN")
	assert.Contains(t, line, " server="+down.Addr+" ")
	assert.Contains(t, line, "connection refused")
	down.Restart()
	line = r.log.wait(t, "a Memcached server answers again")
	assert.Contains(t, line, "level=INFO")
	assert.Contains(t, line, " server="+down.Addr+" ")
	assert.NotContains(t, r.log.String(), "server="+up.Addr)
}

// Checks are counted, not the operations that several of them share, nor those
// that begin again for one of them.
func TestLogTellsHowManyChecksAreDecidedWithoutAServer(t *testing.T) {
	t.Parallel()
	const clients, alike = 8, 5
	up, down := memcachedtest.Start(t), memcachedtest.Start(t)
	r := startProgram(t, "-memcached", up.Addr+","+down.Addr, "-store-timeout", "500ms")
	for i := range clients {
		r.check(t, "fixed", fmt.Sprint("c", i), 1)
	}
	without := make(map[string]*atomic.Int64) // checks of each client that the server keeps
	for _, key := range down.Keys() {
		without[counters.ClientPart(key)] = new(atomic.Int64)
	}
	require.NotEmpty(t, without)
	require.Less(t, len(without), clients)
	ask := func() {
		var asking sync.WaitGroup
		for i := range clients * alike {
			asking.Go(func() {
				a := r.check(t, "fixed", fmt.Sprint("c", i%clients), 1)
				if n := without[a.Client]; n != nil && a.Degraded {
					n.Add(1)
				}
			})
		}
		asking.Wait()
	}
	told := func(line string) (n int64) {
		_, text, _ := strings.Cut(line, " checks_without_it=")
		_, err := fmt.Sscan(text, &n)
		require.NoError(t, err, "%s", line)
		return n
	}

	down.Pause()
	require.Eventually(t, func() bool {
		ask()
		return strings.Contains(r.log.String(), "a Memcached server is down")
	}, patience, time.Millisecond)
	assert.Contains(t, r.log.wait(t, "a Memcached server is down"), " server="+down.Addr+" ")
	ask()
	ask()
	down.Resume()
	line := r.log.wait(t, "a Memcached server answers again")
	assert.Contains(t, line, " server="+down.Addr+" ")
	assert.GreaterOrEqual(t, told(line), int64(2*alike*len(without)))
	var all, sum int64
	for _, n := range without {
		all += n.Load()
	}
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, " checks_without_it=") {
			sum += told(line)
		}
	}
	assert.Equal(t, all, sum)
}

// A customer can be let in again while Memcached stands still. What the process
// that was asked can't tell it by its end, the log says.
func TestResetDuringAnOutage(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t)
	args := []string{"-memcached", memcached.Addr, "-store-timeout", "500ms"}
	r, other := startProgram(t, args...), startProgram(t, args...)
	reset := func(client string) int {
		status, _, _, err := r.send(http.MethodDelete, "/v1/policies/log/clients/"+client, "", "")
		require.NoError(t, err)
		return status
	}
	require.True(t, r.check(t, "log", "c", 100).Allowed)
	require.False(t, other.check(t, "log", "c", 100).Allowed)
	memcached.Pause()
	assert.Equal(t, http.StatusAccepted, reset("c"))
	assert.True(t, r.check(t, "log", "c", 1).Allowed)
	memcached.Resume()
	r.log.wait(t, "client reset, as asked before")
	require.Eventually(t, func() bool { return other.check(t, "log", "c", 90).Allowed }, patience, 10*time.Millisecond)

	memcached.Pause()
	assert.Equal(t, http.StatusAccepted, reset("d"))
	require.NoError(t, r.end())
	line := r.log.wait(t, "clients were reset in this process only")
	assert.Contains(t, line, "level=WARN")
	assert.Contains(t, line, " clients=1")
}

// A server that is full answers pings, and decides nothing about new clients.
func TestLogTellsOfAServerThatIsFull(t *testing.T) {
	t.Parallel()
	full := memcachedtest.Start(t, "-M", "-m", "4")
	var others strings.Builder // as long as counters, for which there is memory of its own
	for i := range 60_000 {
		fmt.Fprintf(&others, "set weir:fixed/fixed-window:60000:c0_%08d 0 0 1 noreply\r\n1\r\n", i)
	}
	full.Do(others.String()+"set weir:fixed/fixed-window:60000:c0_60000000 0 0 1\r\n1", "SERVER_ERROR")
	r := startProgram(t, "-memcached", full.Addr, "-store-timeout", "5s")
	const checks = 20
	for i := range checks {
		require.True(t, r.check(t, "fixed", fmt.Sprint("c", i), 1).Degraded)
	}
	line := r.log.wait(t, "a Memcached server left checks undecided")
	assert.Contains(t, line, "level=WARN")
	assert.Contains(t, line, " server="+full.Addr+" ")
	assert.Contains(t, line, "SERVER_ERROR out of memory")
	assert.Regexp(t, ` checks_without_it=([1-9]|1\d|20)\n?$`, line)
	_, metrics := r.get(t, "/metrics")
	assert.Contains(t, metrics, `weir_store_up{server="`+full.Addr+`"} 1`)
}

func TestLogTellsOfConnectionsThatCannotBeAccepted(t *testing.T) {
	t.Parallel()
	const files = "24"
	for _, listens := range []string{"http", "grpc"} {
		p := runProcess(t, exec.Command("sh", "-c", "ulimit -n "+files+
			` && exec "$0" -listen 127.0.0.1:0 -grpc-listen 127.0.0.1:0 -envoy-config "$1"`, binary, write(t, "shop.yaml", envoyShop)))
		address := p.address()
		if listens == "grpc" {
			address = grpcAddress.FindStringSubmatch(p.log.String())[1]
		}
		var conns []net.Conn
		for range 40 {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		line := p.log.wait(t, "no connection can be accepted")
		assert.Contains(t, line, "level=WARN")
		assert.Contains(t, line, "too many open files")
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		status, _ := p.get(t, "/healthz")
		assert.Equal(t, http.StatusOK, status)
	}
}

// failingListener fails as often as one likes.
type failingListener struct {
	net.Listener
	err error
}

func (l *failingListener) Accept() (net.Conn, error) { return nil, l.err }

func TestAcceptErrorsAreToldOnceInAWhile(t *testing.T) {
	t.Parallel()
	log := newLogLines()
	inner := &failingListener{err: syscall.EMFILE}
	l := newLoudListener(inner, 1, slog.New(slog.NewTextHandler(log, nil)))
	for range 10 {
		_, err := l.Accept()
		require.ErrorIs(t, err, syscall.EMFILE)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "\n"))
	l.warned = l.warned.Add(-acceptWarnInterval)
	inner.err = net.ErrClosed
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	assert.Equal(t, 1, strings.Count(log.String(), "\n"), "closing is no fault")
	inner.err = syscall.EMFILE
	_, _ = l.Accept()
	assert.Equal(t, 2, strings.Count(log.String(), "\n"))
}
