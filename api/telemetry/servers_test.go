package telemetry

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func TestServerMetricsAreWellFormed(t *testing.T) {
	t.Parallel()
	problems, err := testutil.CollectAndLint(new(Metrics).Servers(func() []counters.ServerStatus {
		return []counters.ServerStatus{{Server: "a:11211", Stats: &counters.ServerStats{}}}
	}, true))
	require.NoError(t, err)
	assert.Empty(t, problems)
}
