package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// Whatever was taken and released, the item of a client is as small in the end as an empty
// one, and Memcached forgets it.
func TestReleasedPlacesLeaveAnEmptyItem(t *testing.T) {
	t.Parallel()
	server, now := memcachedtest.Start(t), &clock{time: epoch}
	on := storeOn(t, server)
	var instances []*service
	for range 3 {
		p := newPolicy("llm", places("in-flight", 8, time.Second))
		p.SettleWithin = time.Second
		instances = append(instances, anInstance(on, now, p))
	}
	var open []string
	for i := range 1000 {
		now.set(now.now().Add(time.Millisecond))
		r := instances[i%3].acquire(t)
		require.True(t, r.Allowed)
		if open = append(open, r.Receipt); len(open) == 8 || i == 999 {
			for j, receipt := range open {
				require.Equal(t, http.StatusOK, instances[(i+j)%3].release(t, receipt).Code)
			}
			open = nil
		}
	}
	state, err := on.Load(t.Context(), "weir:llm/in-flight:concurrency:team-a")
	require.NoError(t, err)
	require.True(t, state.Exists())
	assert.Less(t, len(state.Value), 32, "a mark that something was given back, and no lease: %x", state.Value)
	for _, by := range instances {
		assert.EqualValues(t, 8, by.remains(t))
	}
	require.Eventually(t, func() bool {
		server.Do("lru_crawler crawl all", "OK", "BUSY")
		return server.Stat("curr_items") == 0
	}, 30*time.Second, 100*time.Millisecond)
}
