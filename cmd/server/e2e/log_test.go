package e2e

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters"
	"weir/counters/memcachedtest"
)

func TestLogTellsWhichServersAreDownAndBack(t *testing.T) {
	t.Parallel()
	up, down := memcachedtest.Start(t), memcachedtest.Start(t)
	down.Kill()
	r := startProcess(t, "-memcached", up.Addr+","+down.Addr)
	line := r.log.Wait(t, "a Memcached server is down")
	assert.Contains(t, line, "level=WARN")
	assert.Contains(t, line, " server="+down.Addr+" ")
	assert.Contains(t, line, "connection refused")
	down.Restart()
	line = r.log.Wait(t, "a Memcached server answers again")
	assert.Contains(t, line, "level=INFO")
	assert.Contains(t, line, " server="+down.Addr+" ")
	assert.NotRegexp(t, "Memcached server (is down|answers again)\" server="+up.Addr, r.log.String())
}

// Checks are counted, not the operations that several of them share, nor those
// that begin again for one of them.
func TestLogTellsHowManyChecksAreDecidedWithoutAServer(t *testing.T) {
	t.Parallel()
	const clients, alike = 20, 5
	up, down := memcachedtest.Start(t), memcachedtest.Start(t)
	r := startProcess(t, "-memcached", up.Addr+","+down.Addr, "-store-timeout", "500ms")
	without := make(map[string]*atomic.Int64) // checks of each client
	for i := range clients {
		n := new(atomic.Int64)
		without[fmt.Sprint("c", i)] = n
		for r.Check(t, "fixed", fmt.Sprint("c", i), 1).Degraded { // on a busy machine
			n.Add(1)
		}
	}
	kept := keysOfClients(down)
	maps.DeleteFunc(without, func(client string, _ *atomic.Int64) bool {
		return !slices.ContainsFunc(kept, func(key string) bool { return counters.ClientPart(key) == client })
	})
	require.NotEmpty(t, without)
	require.Less(t, len(without), clients)
	ask := func() {
		var asking sync.WaitGroup
		for i := range clients * alike {
			asking.Go(func() {
				a := r.Check(t, "fixed", fmt.Sprint("c", i%clients), 1)
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

	// On a busy machine there may be lines about the other server, too.
	of := " server=" + down.Addr + " "
	isDown := `"a Memcached server is down"` + of
	down.Pause()
	require.Eventually(t, func() bool {
		ask()
		return strings.Contains(r.log.String(), isDown)
	}, servertest.Patience, time.Millisecond)
	r.log.Wait(t, isDown)
	ask()
	ask()
	down.Resume()
	line := r.log.Wait(t, `"a Memcached server answers again"`+of)
	assert.GreaterOrEqual(t, told(line), int64(2*alike*len(without)))
	var all, sum int64
	for _, n := range without {
		all += n.Load()
	}
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, of) && strings.Contains(line, " checks_without_it=") {
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
	r, other := startProcess(racing{t}, args...), startProcess(racing{t}, args...)
	reset := func(client string) int {
		status, _, _, err := r.Send(http.MethodDelete, "/v1/policies/log/clients/"+client, "", "")
		require.NoError(t, err)
		return status
	}
	require.True(t, r.Check(t, "log", "c", 100).Allowed)
	require.False(t, other.Check(t, "log", "c", 100).Allowed)
	memcached.Pause()
	assert.Equal(t, http.StatusAccepted, reset("c"))
	assert.True(t, r.Check(t, "log", "c", 1).Allowed)
	memcached.Resume()
	r.log.Wait(t, "client reset, as asked before")
	require.Eventually(t, func() bool { return other.Check(t, "log", "c", 90).Allowed }, servertest.Patience, 10*time.Millisecond)

	memcached.Pause()
	assert.Equal(t, http.StatusAccepted, reset("d"))
	r.terminate(t)
	r.requireExit(t)
	line := r.log.Wait(t, "clients were reset in this process only")
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
	r := startProcess(t, "-memcached", full.Addr, "-store-timeout", "5s")
	const checks = 20
	for i := range checks {
		require.True(t, r.Check(t, "fixed", fmt.Sprint("c", i), 1).Degraded)
	}
	line := r.log.Wait(t, "a Memcached server left checks undecided")
	assert.Contains(t, line, "level=WARN")
	assert.Contains(t, line, " server="+full.Addr+" ")
	assert.Contains(t, line, "SERVER_ERROR out of memory")
	assert.Regexp(t, ` checks_without_it=([1-9]|1\d|20)\n?$`, line)
	require.Eventually(t, func() bool {
		_, metrics := r.Get(t, "/metrics")
		return strings.Contains(metrics, `weir_store_up{server="`+full.Addr+`"} 1`)
	}, servertest.Patience, 10*time.Millisecond)
}

func TestLogTellsOfConnectionsThatCannotBeAccepted(t *testing.T) {
	t.Parallel()
	const files = "24"
	for _, listens := range []string{"http", "grpc"} {
		p := runProcess(t, exec.Command("sh", "-c", "ulimit -n "+files+
			` && exec "$0" -listen 127.0.0.1:0 -grpc-listen 127.0.0.1:0 -envoy-config "$1"`, binary(t), servertest.WriteFile(t, "shop.yaml", envoyShop)))
		address := p.Address()
		if listens == "grpc" {
			address = grpcAddress.FindStringSubmatch(p.log.String())[1]
		}
		var conns []net.Conn
		for range 40 {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		line := p.log.Wait(t, "no connection can be accepted")
		assert.Contains(t, line, "level=WARN")
		assert.Contains(t, line, "too many open files")
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		status, _ := p.Get(t, "/healthz")
		assert.Equal(t, http.StatusOK, status)
	}
}

// While the reader of its log stands still, or after it has ended, a process answers checks
// and ends at SIGTERM.
func TestAProcessEndsWhoseLogNobodyReads(t *testing.T) {
	t.Parallel()
	for _, reader := range []string{"stands still", "has ended"} {
		t.Run(reader, func(t *testing.T) {
			t.Parallel()
			endUnread(t, reader == "has ended")
		})
	}
}

func endUnread(t *testing.T, readerEnds bool) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = read.Close() }()
	cmd := exec.Command(binary(t), "-listen", "127.0.0.1:0", "-log-level", "debug")
	cmd.Stderr = write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var url string
	for lines := bufio.NewScanner(read); url == "" && lines.Scan(); { // and no more
		if greeting := servertest.GreetingURL.FindStringSubmatch(lines.Text()); greeting != nil {
			url = greeting[1]
		}
	}
	if readerEnds {
		require.NoError(t, read.Close())
	}
	s := servertest.NewService(t, url, nil)
	for range 2000 { // which the pipe has no room for
		status, _, _, err := s.Send("POST", "/v1/check", "application/json", `{"policy":"fixed","client":"alice","cost":0}`)
		require.NoError(t, err)
		require.Equal(t, 200, status)
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(servertest.Patience):
		assert.NoError(t, cmd.Process.Kill())
		t.Fatal("it goes on")
	}
}
