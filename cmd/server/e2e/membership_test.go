package e2e

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// awaitReady waits until a process has found its servers, and has read the overrides there.
func awaitReady(t *testing.T, p *process) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, _ := p.Get(t, "/readyz")
		return status == http.StatusOK
	}, servertest.Patience, 10*time.Millisecond)
}

func TestServersAreFoundByTheAddressesOfAHost(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	_, port, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	p := startProcess(t, append([]string{"-memcached", "dns+localhost:" + port}, unhurried...)...)
	awaitReady(t, p)
	_, body := p.Get(t, "/readyz")
	assert.JSONEq(t, `{"ready":true,"draining":false,"servers":[{"server":"`+server.Addr+`","up":true}]}`, body)
	assert.False(t, p.Check(t, "fixed", "c", 1).Degraded)
	assert.Contains(t, p.log.Wait(t, "joined or left"), "joined=["+server.Addr+"] left=[]")
}

// An instance starts before its servers can be looked up, and follows them.
func TestInstancesFollowTheirServers(t *testing.T) {
	t.Parallel()
	cluster := memcachedtest.StartCluster(t)
	var servers [3]*memcachedtest.Server
	var names [3]string
	for i := range servers {
		servers[i] = memcachedtest.Start(t)
		names[i] = memcachedtest.NodeName(servers[i].Addr)
	}
	p := startProcess(racing{t}, append([]string{"-memcached", "cluster+" + cluster.Addr}, unhurried...)...)
	status, body := p.Get(t, "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, `"server":"cluster+`+cluster.Addr+`","up":false,"error":"the store is not available: config get cluster isn't answered`)
	assert.Contains(t, p.log.Wait(t, "are found by a name"), "level=WARN")
	a := p.Check(t, "fixed", "early", 1)
	assert.True(t, a.Allowed)
	assert.True(t, a.Degraded)

	cluster.Set(servers[0].Addr, servers[1].Addr)
	assert.Contains(t, p.log.Wait(t, "joined or left"), "left=[]")
	requireServers := func(want ...int) {
		t.Helper()
		awaitReady(t, p)
		status, body := p.Get(t, "/readyz")
		require.Equal(t, http.StatusOK, status, body)
		_, metrics := p.Get(t, "/metrics")
		for i, name := range names {
			present := slices.Contains(want, i)
			require.Equal(t, present, strings.Contains(body, `"`+name+`","up":true`), "%s in %s", name, body)
			require.Equal(t, present, strings.Contains(metrics, `weir_store_up{server="`+name+`"} 1`), name)
			if !present {
				require.NotContains(t, body+metrics, name)
			}
		}
		require.NotContains(t, body, "cluster+")
	}
	requireServers(0, 1)
	const clients = 30
	for i := range clients {
		a := p.Check(t, "fixed", fmt.Sprint("c", i), 60)
		require.True(t, a.Allowed)
		require.False(t, a.Degraded)
	}

	cluster.Set(servers[1].Addr, servers[2].Addr)
	line := p.log.Wait(t, "joined or left")
	assert.Contains(t, line, "level=INFO")
	assert.Contains(t, line, "joined=["+names[2]+"] left=["+names[0]+"]")
	servers[0].Kill()
	requireServers(1, 2)
	for i := range clients {
		require.False(t, p.Check(t, "fixed", fmt.Sprint("c", i), 1).Degraded)
	}
	assert.NotContains(t, p.log.String(), "is down")
}
