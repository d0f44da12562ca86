package main

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// A StatsD server gets what was counted, by the names of envoyproxy/ratelimit, at the latest
// when the program ends.
func TestStatsdGetsMetricsByEnvoysNames(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer conn.Close()
	limits := servertest.WriteFile(t, "limits.yaml", `
domain: d
descriptors:
- {key: k, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {weir: {count_denied: false}}}
- {key: "10.0.0.1|x:y\nz", rate_limit: {unit: day, requests_per_unit: 2}}
`)
	r := startProgram(t, "-envoy-config", limits, "-envoy-statsd", conn.LocalAddr().String(), "-envoy-statsd-tags", "env:prod,az:a")
	for range 2 {
		require.Equal(t, http.StatusOK, r.envoyStatus(t, "k"))
	}
	require.Equal(t, http.StatusTooManyRequests, r.envoyStatus(t, "k"))
	require.Equal(t, http.StatusOK, r.envoyStatus(t, `10.0.0.1|x:y\nz`))
	r.reloadWith(t, limits, func(s string) string { return s + "#\n" })
	require.NoError(t, r.end())

	const loads = "ratelimit.service.config_load_success:"
	var lines []string
	buffer := make([]byte, 1<<16)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(servertest.Patience)))
	for len(lines) < 8 {
		n, _, err := conn.ReadFrom(buffer)
		require.NoError(t, err, "%q", lines)
		for line := range strings.Lines(string(buffer[:n])) {
			name, ok := strings.CutSuffix(strings.TrimSpace(line), "|c|#env:prod,az:a")
			require.True(t, ok, line)
			if strings.HasPrefix(name, loads) {
				name = loads // once or twice
			}
			lines = append(lines, name)
		}
	}
	assert.ElementsMatch(t, []string{
		"ratelimit.service.rate_limit.d.k.total_hits:3",
		"ratelimit.service.rate_limit.d.k.within_limit:2",
		"ratelimit.service.rate_limit.d.k.near_limit:1",
		"ratelimit.service.rate_limit.d.k.over_limit:1",
		"ratelimit.service.rate_limit.d.k.over_limit_with_local_cache:1",
		"ratelimit.service.rate_limit.d.10_0_0_1_x_y_z.total_hits:1",
		"ratelimit.service.rate_limit.d.10_0_0_1_x_y_z.within_limit:1",
		loads,
	}, lines)
}
