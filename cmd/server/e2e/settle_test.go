package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// reserve has p reserve 60 for a client of the policy, and returns the receipt.
func reserve(t *testing.T, p *process, policy, client string) string {
	t.Helper()
	_, _, body, err := p.Send(http.MethodPost, "/v1/check", "application/json", fmt.Sprintf(`{"policy":%q,"client":%q,"cost":60,"settle":true}`, policy, client))
	require.NoError(t, err)
	var check struct{ Receipt string }
	require.NoError(t, json.Unmarshal(body, &check))
	require.NotEmpty(t, check.Receipt, "%s", body)
	return check.Receipt
}

// settles has p settle a receipt with 18.
func settles(t *testing.T, p *process, receipt string) {
	t.Helper()
	a := p.Ask(t, http.MethodPost, "/v1/settle", "application/json", fmt.Sprintf(`{"receipt":%q,"cost":18}`, receipt))
	require.Equal(t, http.StatusOK, a.Status)
}

// used returns how much of its limit a client has in use.
func used(t *testing.T, p *process, policy, client string) int64 {
	t.Helper()
	return p.Ask(t, http.MethodPost, "/v1/check", "application/json", fmt.Sprintf(`{"policy":%q,"client":%q,"cost":0}`, policy, client)).Used(0)
}

var settledPolicies = []string{"fixed", "sliding", "token", "log"}

// startSettling starts processes that share a Memcached and have the settledPolicies.
func startSettling(t testing.TB, n int) []*process {
	t.Helper()
	config := servertest.WriteFile(t, "policies.yaml", `policies:
  fixed: {limits: [{name: tokens, algorithm: fixed_window, limit: 100, window: 24h}]}
  sliding: {limits: [{name: tokens, algorithm: sliding_window, sub_windows: 60, limit: 100, window: 24h}]}
  token: {limits: [{name: tokens, algorithm: token_bucket, limit: 100, window: 24h}]}
  log: {limits: [{name: tokens, algorithm: sliding_log, limit: 100, window: 24h}]}
`)
	return startProcesses(t, slices.Repeat([]string{memcachedtest.Start(t).Addr}, n), "-config", config)
}

// Whoever is terminated right after it has settled tells Memcached before it exits.
func TestTerminateTellsWhatWasSettled(t *testing.T) {
	t.Parallel()
	processes := startSettling(racing{t}, 3)
	admits, ends, stays := processes[0], processes[1], processes[2]
	receipts := make(map[string]string)
	for _, policy := range settledPolicies {
		for _, client := range []string{"a", "b", "c"} {
			receipts[policy+client] = reserve(t, admits, policy, client)
		}
	}
	for _, receipt := range receipts {
		settles(t, ends, receipt)
	}
	ends.terminate(t)
	ends.requireExit(t)
	for _, policy := range settledPolicies {
		for _, client := range []string{"a", "b", "c"} {
			assert.EqualValues(t, 18, used(t, stays, policy, client), policy)
		}
	}
}

// Whoever is killed right after it has settled leaves the client paying what it has used, or
// what it has reserved, and nobody gives more back.
func TestKilledAfterItHasSettled(t *testing.T) {
	t.Parallel()
	processes := startSettling(t, 2)
	dies, stays := processes[0], processes[1]
	receipts := make(map[string]string)
	for _, policy := range settledPolicies {
		receipts[policy] = reserve(t, dies, policy, "c")
	}
	for _, receipt := range receipts {
		settles(t, dies, receipt)
	}
	dies.kill()
	for policy, receipt := range receipts {
		settles(t, stays, receipt)
		assert.Contains(t, []int64{18, 60}, used(t, stays, policy, "c"), policy)
	}
}

// What one process gives back all see within a second, also those that have denied the client
// a moment before.
func TestProcessesSeeWhatWasSettled(t *testing.T) {
	t.Parallel()
	processes := startSettling(t, 3)
	for _, policy := range settledPolicies {
		receipt := reserve(t, processes[0], policy, "c")
		for _, p := range processes {
			require.False(t, p.Check(t, policy, "c", 80).Allowed)
		}
		settles(t, processes[1], receipt)
		for _, p := range []*process{processes[2], processes[0], processes[1]} {
			require.Eventually(t, func() bool { return used(t, p, policy, "c") == 18 }, servertest.Patience, 10*time.Millisecond, policy)
		}
		require.True(t, processes[2].Check(t, policy, "c", 80).Allowed, policy)
	}
}
