package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/cmd/server/servertest"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
)

// Instances in several regions share their limits over links of 100 ms.
func TestLimitsHoldFarFromMemcached(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "deny")
	far := memcachedtest.Start(t).Far(100 * time.Millisecond)
	instances := startProcesses(t, []string{far, far, far}, "-config", file, "-store-timeout", "5s")
	for _, policy := range policies {
		admitted := limitertest.Race(64, 4, func(i, _ int) bool {
			return instances[i%len(instances)].Check(t, policy, "c", 1).Status == http.StatusOK
		})
		assert.LessOrEqual(t, admitted, int64(100), policy)
		// Where several raced for the last places, all may have been denied.
		for instances[0].Check(t, policy, "c", 1).Status == http.StatusOK {
			admitted++
		}
		assert.EqualValues(t, 100, admitted, policy)
	}
}
