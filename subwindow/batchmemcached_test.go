package subwindow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/racetest"
	"weir/subwindow"
)

func TestOverlappingBatchesFillEachLimitExactly(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 10, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			limitertest.RacingBatches(t, at("12:00:10.2"), func(t *testing.T, addresses ...string) limitertest.ManyLimiter {
				l, err := subwindow.New(openMemcached(t, addresses...), newWindow(t, time.Minute, slots, false),
					counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
				require.NoError(t, err)
				return l
			})
		})
	}
}

func TestABatchWhoseServerFallsSilentCountsOnce(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(6 * time.Minute).Add(time.Minute)
	limitertest.FallsSilent(t, now, 0.5, func(t *testing.T, address string, lost func()) limitertest.ManyLimiter {
		l, err := subwindow.New(openMemcached(t, address), newWindow(t, time.Hour, 10, false),
			counters.Options{Policy: "p", Limit: "l", StoreTimeout: limitertest.SilentTimeout, RefundFailed: lost})
		require.NoError(t, err)
		return l
	})
}

// The server stalls again and again, in the middle of whatever batches send:
// counts, what is owed, and what tells of resets. Whatever was admitted without
// it counts once in the end, and beyond that at most what couldn't be given back.
func TestBatchesRepayWhileTheirServerStalls(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			const timeout, clients, limit, connections = 250 * time.Millisecond, 400, 1_000_000, 3
			server := memcachedtest.Start(t)
			var notGivenBack atomic.Int64
			store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: timeout})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, store.Close()) })
			l, err := subwindow.New(store, newWindow(t, time.Hour, slots, false),
				counters.Options{Policy: "p", Limit: "l", StoreTimeout: timeout, RefundFailed: func() { notGivenBack.Add(1) }})
			require.NoError(t, err)
			var admitted [clients]atomic.Int64
			var together, alone atomic.Int64 // decided with the server, and without it
			var over atomic.Bool
			var asking sync.WaitGroup
			for range connections {
				asking.Go(func() {
					for !over.Load() {
						numbers := rand.Perm(clients)[:clients/2]
						asked, now := make([]counters.Request, len(numbers)), time.Now()
						for i, n := range numbers {
							asked[i] = counters.Request{Client: fmt.Sprint("c", n), Cost: 1, Limit: limit, Now: now}
						}
						for i, taken := range limitertest.TakeAll(&counters.Deadline{At: now.Add(timeout)}, l, asked) {
							if taken.Err == nil {
								together.Add(1)
							} else {
								taken.Decision, taken.Err = l.TakeLocal(asked[i], taken.Err)
								alone.Add(1)
							}
							if assert.NoError(t, taken.Err) && taken.Allowed {
								admitted[numbers[i]].Add(1)
							}
						}
					}
				})
			}
			awaitUpTo := func(most int64, decided *atomic.Int64) {
				end := decided.Load() + rand.Int64N(most+1)
				require.Eventually(t, func() bool { return decided.Load() >= end }, time.Minute, time.Millisecond)
			}
			defer over.Store(true)
			for range racetest.Some(10) {
				awaitUpTo(4*clients, &together)
				server.Pause()
				awaitUpTo(2*clients, &alone)
				server.Resume()
			}
			over.Store(true)
			asking.Wait()
			require.Eventually(t, func() bool { l.Flush(); return l.Owing() == 0 }, 30*time.Second, 10*time.Millisecond)
			fresh, err := subwindow.New(openMemcached(t, server.Addr), newWindow(t, time.Hour, slots, false),
				counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
			require.NoError(t, err)
			// What was counted late for callers who were refused is still to be given back.
			require.EventuallyWithT(t, func(t *assert.CollectT) {
				over := int64(0)
				for client := range clients {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					d, err := fresh.Peek(ctx, counters.Request{Client: fmt.Sprint("c", client), Cost: 1, Limit: limit, Now: time.Now()})
					cancel()
					require.NoError(t, err)
					more := limit - d.Remaining - admitted[client].Load()
					require.GreaterOrEqual(t, more, int64(0), "client %d", client)
					over += more
				}
				require.LessOrEqual(t, over, notGivenBack.Load())
			}, 10*time.Second, 10*time.Millisecond)
		})
	}
}
