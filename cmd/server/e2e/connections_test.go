package e2e

import (
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// perConnection is how much memory a connection may take. Most of it are the stacks of
// goroutines.
const perConnection = 24 << 10

// Connections that are idle take little, and stay open.
func TestIdleConnectionsTakeLittle(t *testing.T) {
	t.Parallel()
	const connections = 3000
	p := startProcess(t)
	p.Check(t, "fixed", "c", 0)
	before := p.resident(t)
	clients := make([]rawClient, connections)
	for i := range clients {
		clients[i].address = p.Address()
		require.NoError(t, clients[i].dial())
		defer clients[i].conn.Close()
		_, err := clients[i].check(`{"policy":"fixed","client":"c"}`)
		require.NoError(t, err)
	}
	each := (p.resident(t) - before) / connections
	t.Logf("%d bytes a connection", each)
	assert.Less(t, each, perConnection)
	for _, c := range clients {
		require.False(t, c.closed())
	}
}

// Clients that send their requests byte by byte take as little as idle ones, and are
// closed when the time of a request is over.
func TestSlowConnectionsTakeLittleAndEnd(t *testing.T) {
	t.Parallel()
	const connections = 10_000
	p := startProcess(t)
	p.Check(t, "fixed", "c", 0)
	before := p.resident(t)
	begun := []string{"P", "POST /v1/check HTTP/1.1\r\nHost: we", "POST /v1/check/batch HTTP/1.1\r\nHost: weir\r\nContent-Length: 200000\r\n\r\n{", "GET /healthz HTTP/1.1\r\nX: "}
	conns := make([]net.Conn, connections)
	for i := range conns {
		var err error
		conns[i], err = net.Dial("tcp", p.Address())
		require.NoError(t, err)
		defer conns[i].Close()
		_, err = io.WriteString(conns[i], begun[i%len(begun)])
		require.NoError(t, err)
	}
	each := (p.resident(t) - before) / connections
	t.Logf("%d bytes a connection", each)
	assert.Less(t, each, perConnection)
	var closed sync.WaitGroup
	for _, c := range conns {
		closed.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(servertest.Patience))
			_, err := io.Copy(io.Discard, c)
			assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
	closed.Wait()
}

// resident returns how much memory the process has.
func (p *process) resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kilobytes << 10
}
