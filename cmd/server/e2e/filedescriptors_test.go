package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// Callers take all the descriptors that the process may have. Whoever has a connection
// is decided by the store all the same: batches too, which have no connection of
// their own then, and after Memcached was restarted.
func TestWithoutDescriptors(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	arguments := []string{"-c", `ulimit -n 64 && exec "$0" "$@"`, binary(t), "-listen", "127.0.0.1:0", "-memcached", server.Addr}
	p := runProcess(t, exec.Command("sh", append(arguments, unhurried...)...))
	caller := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: servertest.Patience}
	defer caller.CloseIdleConnections()
	degraded := func(path, body string) bool {
		resp, err := caller.Post("http://"+p.Address()+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		var a struct {
			Degraded bool                `json:"degraded"`
			Results  []servertest.Answer `json:"results"`
		}
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&a))
		for _, r := range a.Results {
			a.Degraded = a.Degraded || r.Degraded
		}
		return a.Degraded
	}
	require.False(t, degraded("/v1/check", `{"policy":"default","client":"c"}`))

	for range 100 {
		conn, err := net.Dial("tcp", p.Address())
		require.NoError(t, err)
		defer conn.Close()
		_, err = fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n") // or it is closed soon
		require.NoError(t, err)
	}
	p.log.Wait(t, "no connection can be accepted")
	var checks []string
	for i := range 300 {
		checks = append(checks, fmt.Sprintf(`{"policy":"default","client":"c%d"}`, i))
	}
	assert.False(t, degraded("/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`))

	server.Kill()
	require.True(t, degraded("/v1/check", `{"policy":"default","client":"c"}`)) // it has lost its connection
	// If its file weren't kept, a connection that waits to be accepted would have it within a second.
	time.Sleep(3 * time.Second)
	server.Restart()
	assert.Eventually(t, func() bool { return !degraded("/v1/check", `{"policy":"default","client":"c"}`) }, servertest.Patience, 100*time.Millisecond)

	p.terminate(t)
	p.requireExit(t) // while they stay connected
}
