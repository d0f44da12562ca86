package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// An instance whose clock is a minute ahead has served a client and is gone. The next one
// takes what it has written as of now, and says so.
func TestAnInstanceThatWasAhead(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	policies := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(policies, []byte(`policies:
  p:
    limits: [{name: bucket, algorithm: token_bucket, limit: 10, window: 2s}]
`), 0o600))
	arguments := append([]string{"-memcached", server.Addr, "-config", policies}, unhurried...)
	fast := startShifted(t, time.Minute, arguments...)
	require.True(t, fast.Check(t, "p", "c", 10).Allowed)
	fast.terminate(t)

	p := startProcess(t, arguments...)
	a := p.Check(t, "p", "c", 10)
	require.False(t, a.Allowed)
	assert.Less(t, a.RetryAfter, 3.0)
	assert.Contains(t, p.log.Wait(t, "a client's state is from a clock that is ahead of this one"), "policy=p limit=bucket")
	_, metrics := p.Get(t, "/metrics")
	assert.Contains(t, metrics, "weir_cas_ahead_total 1\n")
	time.Sleep(time.Duration(a.RetryAfter * float64(time.Second)))
	assert.True(t, p.Check(t, "p", "c", 10).Allowed)
}
