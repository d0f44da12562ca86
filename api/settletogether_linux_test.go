package api

import (
	"fmt"
	"net/http"
	"strconv"
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
// from their loops, are settled once each, by the store that a server has. Who is told that
// the store can't tell sends it again; what becomes of that receipt the store may never tell.
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
	var first, untold [receipts]atomic.Int64
	allAtOnce(receipts*callers, func(i int) {
		n := i % receipts
		body := fmt.Sprintf(`{"receipt":%q,"cost":%d}`, all[n], n%5)
		status, text := postOnce(addresses[i%2], "/v1/settle", body)
		for ; status == http.StatusServiceUnavailable; status, text = postOnce(addresses[i%2], "/v1/settle", body) {
			untold[n].Add(1)
		}
		assert.Equal(t, http.StatusOK, status, text)
		assert.Contains(t, text, fmt.Sprintf(`"cost":%d`, n%5), "the answer is its own")
		if strings.Contains(text, `"already":false`) {
			first[n].Add(1)
		}
	})
	used, lost := make([]int64, clients), make([]int64, clients) // at most
	for n := range all {
		used[n%clients] += int64(n % 5)
		if untold[n].Load() > 0 && first[n].Load() == 0 {
			lost[n%clients] += 5 - int64(n%5)
			continue
		}
		assert.EqualValues(t, 1, first[n].Load(), "receipt %d", n)
	}
	stranger := instance()
	assert.EventuallyWithT(t, func(t *assert.CollectT) {
		var failed int64
		for _, s := range both {
			s.tells()
			failed += refundsFailed(t, s)
		}
		for i, used := range used {
			for _, l := range stranger.do(t, http.MethodGet, fmt.Sprintf("/v1/policies/llm/clients/c%d", i), "").Limits {
				notGivenBack := 10_000 - used - l.Remaining
				assert.GreaterOrEqual(t, notGivenBack, int64(0), "client %d, %s", i, l.Name)
				assert.LessOrEqual(t, notGivenBack, lost[i]+5*failed, "client %d, %s", i, l.Name)
			}
		}
	}, time.Minute, 10*time.Millisecond)
}

// postTo returns the text of an answer with status 200.
func postTo(t *testing.T, address, path, body string) string {
	status, text := postOnce(address, path, body)
	assert.Equal(t, http.StatusOK, status, text)
	return text
}

func postOnce(address, path, body string) (status int, text string) {
	c := callerAt(address)
	defer c.Close()
	return c.post(path, body)
}

// refundsFailed returns how often an instance couldn't give back what it had to.
func refundsFailed(t require.TestingT, s *service) int64 {
	_, after, _ := strings.Cut(s.do(t, http.MethodGet, "/metrics", "").Body, "\nweir_refunds_failed_total ")
	text, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseInt(text, 10, 64)
	must(err)
	return n
}
