package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// Receipts that many callers settle at once, by two instances that read sets of requests
// from their loops, are settled once each, by the store that a server has.
func TestSetsOfSettlementsCountOnce(t *testing.T) {
	t.Parallel()
	const receipts, clients, callers = 30, 3, 3
	server := memcachedtest.Start(t)
	instance := func() *service {
		store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: 5 * time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, store.Close()) })
		return way{many: true}.newServiceOn(store, func(c *Config) {
			c.Now, c.StoreTimeout, c.Claims.Store, c.Claims.Horizon = time.Now, 5*time.Second, store, time.Second
			c.Policies = bindLimitersBy(counters.Options{Clients: viewClients, StoreTimeout: slowStore}, c.Metrics.InstrumentStore(store), c.Metrics,
				newPolicy("llm", fixed("a", 10_000, 24*time.Hour), sliding("b", 10_000, 24*time.Hour, 6, "weighted"), slidingLog("c", 10_000, 24*time.Hour)))
		})
	}
	both := []*service{instance(), instance()}
	addresses := []string{both[0].onLoopback(t), both[1].onLoopback(t)}
	var all [receipts]string
	for i := range all {
		all[i] = receiptIn(postTo(t, addresses[0], "/v1/check", fmt.Sprintf(`{"policy":"llm","client":"c%d","cost":5,"settle":true}`, i%clients)))
	}
	var first [receipts]atomic.Int64
	allAtOnce(receipts*callers, func(i int) {
		n := i % receipts
		text := postTo(t, addresses[i%2], "/v1/settle", fmt.Sprintf(`{"receipt":%q,"cost":%d}`, all[n], n%5))
		assert.Contains(t, text, fmt.Sprintf(`"cost":%d`, n%5), "the answer is its own")
		if strings.Contains(text, `"already":false`) {
			first[n].Add(1)
		}
	})
	used := make([]int64, clients)
	for n := range all {
		assert.EqualValues(t, 1, first[n].Load(), "receipt %d", n)
		used[n%clients] += int64(n % 5)
	}
	for _, s := range both {
		s.tells()
	}
	stranger := instance()
	for i, used := range used {
		for _, l := range stranger.do(t, http.MethodGet, fmt.Sprintf("/v1/policies/llm/clients/c%d", i), "").Limits {
			assert.Equal(t, 10_000-used, l.Remaining, "client %d, %s", i, l.Name)
		}
	}
}

// postTo returns the text of an answer with status 200.
func postTo(t *testing.T, address, path, body string) string {
	c := callerAt(address)
	defer c.Close()
	status, text := c.post(path, body)
	assert.Equal(t, http.StatusOK, status, text)
	return text
}
