package policyfile

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memory"
)

// However large the limit of an exact log becomes, no more clients are remembered than
// have room for its logs in 64 MiB. Other limits keep what they remember.
func TestALargerLogRemembersFewerClients(t *testing.T) {
	t.Parallel()
	limiters := NewLimiters(memory.New(nil), counters.Options{Clients: 100_000}, telemetry.NewMetrics(nil, "v"), slog.Default())
	load := func(algorithm string, limit int) (clients int, limiter any) {
		p, err := Parse("p.yaml", fmt.Appendf(nil, "policies:\n  p:\n    limits:\n      - {algorithm: %s, limit: %d, window: 1m}\n", algorithm, limit))
		require.NoError(t, err)
		require.NoError(t, limiters.Bind(p))
		return limiters.ClientLimit(), p["p"].Limits[0].Limiter
	}
	clients, _ := load("sliding_log", 10)
	assert.Equal(t, 100_000, clients)
	clients, _ = load("sliding_log", 10_000)
	assert.Less(t, clients, 1000)
	_, before := load("token_bucket", 10)
	_, after := load("token_bucket", 10_000)
	assert.Same(t, before, after)
}
