package peers

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/loadgen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWeirAlone(t *testing.T) {
	t.Parallel()
	var r Report
	_, printed, err := benchtest.Run(t, Run, "peers", &r, "-quick")
	require.NoError(t, err)
	assert.Contains(t, printed, "Over gRPC weir ran alone: -ratelimit PATH")
	assert.Empty(t, r.HTTP)
	require.Len(t, r.Rates, 2)
	for _, row := range r.Rates {
		assert.Equal(t, weirName, row.Product)
		assert.Positive(t, row.Rate)
		assert.Positive(t, row.CPU)
	}
	assert.Equal(t, []raceRow{{weirName, []int64{limit, limit}}}, r.Races)
	assert.InDelta(t, min(pacedRate, r.Rates[0].Rate/2, r.Rates[1].Rate/2), r.HalfLoad[0].Rate, 1e-9)
	assert.Zero(t, r.Stalls[0].Failed, r.Stalls[0].Failure)
	assert.Positive(t, r.Stalls[0].Rate)
	assert.NoError(t, r.Broken())
	r.Races[0].Admitted[1]++
	assert.EqualError(t, r.Broken(), "peers: weir admitted 101 of a limit of 100")
}

var modules = flag.String("node", "", "the `folder` of node_modules with rate-limiter-flexible and memcached (default: without)")

// Another weir stands in for envoyproxy/ratelimit, and has its environment variables.
func TestWeirBesideAnother(t *testing.T) {
	t.Parallel()
	server := benchtest.Build(t, "").Binary
	peer := filepath.Join(t.TempDir(), "ratelimit")
	require.NoError(t, os.WriteFile(peer, []byte(`#!/bin/sh
[ "$BACKEND_TYPE $USE_STATSD $LOG_LEVEL" = "memcache false error" ] || { echo wrong >&2; exit 1; }
headers=draft11
[ -z "$LIMIT_RESPONSE_HEADERS_ENABLED" ] || headers=RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset
exec `+server+` -envoy-headers $headers -listen "$HOST:$PORT" -grpc-listen "$GRPC_HOST:$GRPC_PORT" -memcached "$MEMCACHE_HOST_PORT" \
	-envoy-config "$RUNTIME_ROOT/$RUNTIME_SUBDIRECTORY/config" -key-prefix other
`), 0o755))
	r, err := measure(t.Context(), config{ratelimit: peer, node: *modules, duration: 200 * time.Millisecond, stall: 200 * time.Millisecond, races: 2, warmUp: 50 * time.Millisecond})
	require.NoError(t, err)
	var text strings.Builder
	r.Print(&text)
	printed := text.String()
	require.Len(t, r.Rates, 4)
	assert.Equal(t, []string{weirName, ratelimitName}, []string{r.Rates[2].Product, r.Rates[3].Product})
	assert.Regexp(t, `one hot client: \d+\.\d\d times the rate of envoyproxy/ratelimit, at least 3\.5: (ok|MISSED)\nat \d+ requests/s: 99% within .* of envoyproxy/ratelimit: (ok|MISSED)
over HTTP, 10,000 clients: \d+\.\d\d times the rate of envoyproxy/ratelimit, at least 4\.5: (ok|MISSED)\n`, printed)
	require.Len(t, r.Races, 2)
	assert.Equal(t, []int64{limit, limit}, r.Races[1].Admitted)
	others := []string{ratelimitName}
	if *modules != "" {
		others = append(others, flexibleName)
	}
	require.Len(t, r.HTTP, 3*len(others))
	for i, row := range r.HTTP {
		assert.Equal(t, others[i/3], row.Product)
		for _, figure := range []float64{row.Rate, row.Comparison.Other, row.Ratio, float64(row.Weir), float64(row.CPUTimes.Other)} {
			assert.Positive(t, figure, "%+v", row)
		}
		if row.Traffic == loadgen.Distinct.Name { // those who are denied need no store
			assert.Positive(t, row.Memcached)
			assert.Positive(t, row.OtherMemcached)
		}
		assert.Positive(t, leastOverHTTP[row.Product][row.Traffic])
	}
	assert.NoError(t, r.Broken())
}

func TestAPeerThatIsNotThere(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), []string{"-quick", "-ratelimit", filepath.Join(t.TempDir(), "none")}, io.Discard)
	assert.ErrorContains(t, err, "no such file")
	err = Run(t.Context(), []string{"-quick", "-node", t.TempDir()}, io.Discard)
	assert.ErrorContains(t, err, "node")
}
