package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// Instances in several regions share their limits over links of 100 ms.
func TestLimitsHoldFarFromMemcached(t *testing.T) {
	t.Parallel()
	const callers, requests = 64, 4
	file, policies := servertest.OneOfEach(t, "deny")
	far := memcachedtest.Start(t).Far(100 * time.Millisecond)
	instances := startProcesses(t, []string{far, far, far}, "-config", file, "-store-timeout", "5s")
	for _, policy := range policies {
		var admitted atomic.Int64
		var asking sync.WaitGroup
		for i := range callers {
			asking.Go(func() {
				for range requests {
					if instances[i%len(instances)].Check(t, policy, "c", 1).Status == http.StatusOK {
						admitted.Add(1)
					}
				}
			})
		}
		asking.Wait()
		assert.LessOrEqual(t, admitted.Load(), int64(100), policy)
		// Where several raced for the last places, all may have been denied.
		for instances[0].Check(t, policy, "c", 1).Status == http.StatusOK {
			admitted.Add(1)
		}
		assert.EqualValues(t, 100, admitted.Load(), policy)
	}
}
