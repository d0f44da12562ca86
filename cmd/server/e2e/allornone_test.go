package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
)

// However many ask however many processes, for limits on two servers: exactly
// the limit is admitted, and what is denied has taken nothing from the other.
func TestAllOrNoneIsExactAcrossServers(t *testing.T) {
	t.Parallel()
	policies := servertest.WriteFile(t, "policies.yaml", `
policies:
  wide: {limits: [{algorithm: sliding_window, limit: 2000, window: 30d, estimate: strict}]}
  fixed: {limits: [{algorithm: fixed_window, limit: 100, window: 366d}]}
  bucket: {limits: [{algorithm: token_bucket, limit: 100, window: 366d}]}
  log: {limits: [{algorithm: sliding_log, limit: 100, window: 366d}]}
`)
	servers := memcachedtest.Start(t).Addr + "," + memcachedtest.Start(t).Addr
	processes := startProcesses(racing{t}, []string{servers, servers, servers, servers}, "-config", policies)
	ask := func(p *process, narrow, wide string) bool {
		body := fmt.Sprintf(`{"all":true,"checks":[{"policy":"wide","client":%q},{"policy":%q,"client":"a"}]}`, wide, narrow)
		status, _, answer, err := p.Send(http.MethodPost, "/v1/check/batch", "application/json", body)
		require.NoError(t, err)
		require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, status, "%s", answer)
		return status == http.StatusOK
	}
	left := func(p *process, policy, client string) int64 {
		_, data := p.Get(t, "/v1/policies/"+policy+"/clients/"+client)
		var answer struct{ Limits []struct{ Remaining int64 } }
		require.NoError(t, json.Unmarshal([]byte(data), &answer))
		return answer.Limits[0].Remaining
	}
	for _, narrow := range []string{"fixed", "bucket", "log"} {
		// The others are kept on several servers, whichever has the narrow one.
		wide := []string{narrow + "-1", narrow + "-2", narrow + "-3", narrow + "-4"}
		admitted := limitertest.Race(64, 6, func(i, _ int) bool { return ask(processes[i%4], narrow, wide[i/4%4]) })
		t.Logf("%s: %d in the storm", narrow, admitted)
		for ask(processes[0], narrow, wide[0]) { // others were faster each time
			admitted++
		}
		assert.EqualValues(t, 100, admitted, narrow)
		assert.Zero(t, left(processes[1], narrow, "a"), narrow)
		var taken int64
		for _, client := range wide {
			taken += 2000 - left(processes[2], "wide", client)
		}
		assert.EqualValues(t, 100, taken, "%s: what was denied took nothing", narrow)
	}
}
