package subwindow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
	"weir/subwindow"
)

// takeAll decides the requests together, and those that can't be one by one.
func takeAll(ctx context.Context, l *subwindow.Limiter, requests []counters.Request) []counters.Taken {
	taken := takeMany(ctx, l, requests)
	for i := range taken {
		if t := &taken[i]; !t.Done {
			t.Decision, t.Err = l.Take(ctx, requests[i])
		}
	}
	return taken
}

// Batches of the same clients overlap, in two instances, beside single checks
// and with clients who are reset in between: each client has exactly its limit,
// and what was denied is given back.
func TestOverlappingBatchesFillEachLimitExactly(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	const instances, batches, size, clients, limit = 2, 12, 40, 60, 20
	for _, slots := range []int{1, 10, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			limiters := make([]*subwindow.Limiter, instances)
			for i := range limiters {
				l, err := subwindow.New(openMemcached(t, a.Addr, b.Addr), newWindow(t, time.Minute, slots, false),
					counters.Options{Policy: fmt.Sprint("p", slots), Limit: "l", StoreTimeout: -1})
				require.NoError(t, err)
				limiters[i] = l
			}
			now := at("12:00:10.2")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var admitted [clients]atomic.Int64
			// In the end nothing is passing through any more, and a second later
			// it isn't believed to be.
			storm := func(now time.Time) {
				var asking sync.WaitGroup
				for _, l := range limiters {
					for range batches {
						asking.Go(func() {
							numbers := rand.Perm(clients)[:size]
							asked := make([]counters.Request, size)
							for i, n := range numbers {
								asked[i] = counters.Request{Client: fmt.Sprint("c", n), Cost: 1 + int64(n%3), Limit: limit, Now: now}
							}
							for i, taken := range takeAll(ctx, l, asked) {
								if assert.NoError(t, taken.Err) && taken.Allowed {
									admitted[numbers[i]].Add(asked[i].Cost)
								}
							}
						})
						asking.Go(func() {
							n := rand.IntN(clients)
							r := counters.Request{Client: fmt.Sprint("c", n), Cost: 1, Limit: limit, Now: now}
							if d, err := l.Take(ctx, r); assert.NoError(t, err) && d.Allowed {
								admitted[n].Add(1)
							}
						})
					}
				}
				asking.Wait()
			}
			fill := func(now time.Time) {
				storm(now)
				for n := range clients {
					assert.LessOrEqual(t, admitted[n].Load(), int64(limit))
					for i := range 10 {
						l := limiters[i%instances]
						r := counters.Request{Client: fmt.Sprint("c", n), Cost: 1, Limit: limit, Now: now.Add(time.Second)}
						for d, err := l.Take(ctx, r); d.Allowed; d, err = l.Take(ctx, r) {
							require.NoError(t, err)
							admitted[n].Add(1)
						}
					}
					require.EqualValues(t, limit, admitted[n].Load(), "client %d", n)
				}
			}
			fill(now)
			for _, l := range limiters {
				l.Flush()
			}
			for n := range clients {
				d, err := limiters[0].Peek(ctx, counters.Request{Client: fmt.Sprint("c", n), Cost: 1, Limit: limit + 1, Now: now.Add(2 * time.Second)})
				require.NoError(t, err)
				require.EqualValues(t, 1, d.Remaining, "what was denied is given back")
				require.NoError(t, limiters[n%2].Reset(ctx, fmt.Sprint("c", n), now.Add(3*time.Second)))
				admitted[n].Store(0)
			}
			fill(now.Add(5 * time.Second))
		})
	}
}

// The server falls silent in the middle of a batch, and goes on later. Those whose
// answers are missing are limited by the process, and what they were admitted counts once, and what was refused not at all.
func TestABatchWhoseServerFallsSilentCountsOnce(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		t.Run(fmt.Sprint("refuse=", refuse), func(t *testing.T) {
			t.Parallel()
			// A busy machine may answer nobody in time.
			for end := time.Now().Add(time.Minute); !testSilentInABatch(t, refuse); {
				require.True(t, time.Now().Before(end), "some are answered, and some aren't")
			}
		})
	}
}

// testSilentInABatch reports whether some of the batch were answered in time, and some weren't:
// else it shows nothing.
func testSilentInABatch(t *testing.T, refuse bool) (some bool) {
	// Far more than it takes to be answered, and less than a silent connection is kept for.
	const timeout = 900 * time.Millisecond
	const clients, limit = 1000, 5
	cut := memcachedtest.Start(t).Cut()
	var notGivenBack atomic.Int64 // without an answer, which isn't done twice
	l, err := subwindow.New(openMemcached(t, cut.Addr), newWindow(t, time.Hour, 10, false),
		counters.Options{Policy: "p", Limit: "l", StoreTimeout: timeout, RefundFailed: func() { notGivenBack.Add(1) }})
	require.NoError(t, err)
	now := time.Now().Truncate(6 * time.Minute).Add(time.Minute)
	asked, others := requests(clients, now, limit), requests(clients, now, limit)
	for i := range others {
		others[i].Client = strings.Replace(others[i].Client, "-", "_", 1)
	}
	takeAll(t.Context(), l, others[:2]) // connects
	before := cut.Passed()
	takeAll(t.Context(), l, others)
	cut.After((cut.Passed() - before) / 2)

	taken := takeMany(&counters.Deadline{At: time.Now().Add(timeout)}, l, asked)
	admitted, failed := make([]bool, clients), 0
	for i, one := range taken {
		require.True(t, one.Done)
		admitted[i] = one.Allowed
		if one.Err != nil {
			failed++
			if !refuse {
				d, err := l.TakeLocal(asked[i], one.Err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				admitted[i] = true
			}
		}
	}
	cut.Mend()
	require.Eventually(t, func() bool { l.Flush(); return l.Owing() == 0 }, 30*time.Second, 10*time.Millisecond)
	if failed <= 100 || failed >= clients-100 {
		return false
	}
	fresh, err := subwindow.New(openMemcached(t, cut.Addr), newWindow(t, time.Hour, 10, false),
		counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
	require.NoError(t, err)
	for i, r := range asked {
		want := int64(limit)
		if admitted[i] {
			want--
		}
		require.EventuallyWithT(t, func(t *assert.CollectT) { // late answers are still coming
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			d, err := fresh.Peek(ctx, r)
			require.NoError(t, err)
			if d.Remaining == want-1 && notGivenBack.Load() > 0 {
				notGivenBack.Add(-1)
				return
			}
			require.Equal(t, want, d.Remaining, "client %d of %v", i, taken[i].Err)
		}, 10*time.Second, 5*time.Millisecond)
	}
	return true
}

// The server stalls again and again, in the middle of whatever batches send:
// counts, what is owed, and what tells of resets. Whatever was admitted without
// it counts once in the end, and beyond that at most what couldn't be given back.
func TestBatchesRepayWhileTheirServerStalls(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			const timeout, clients, limit, connections = 50 * time.Millisecond, 400, 1_000_000, 3
			server := memcachedtest.Start(t)
			var notGivenBack atomic.Int64
			l, err := subwindow.New(openMemcached(t, server.Addr), newWindow(t, time.Hour, slots, false),
				counters.Options{Policy: "p", Limit: "l", StoreTimeout: timeout, RefundFailed: func() { notGivenBack.Add(1) }})
			require.NoError(t, err)
			var admitted [clients]atomic.Int64
			begin := time.Now()
			var asking sync.WaitGroup
			for range connections {
				asking.Go(func() {
					for time.Since(begin) < 3*time.Second {
						numbers := rand.Perm(clients)[:clients/2]
						asked, now := make([]counters.Request, len(numbers)), time.Now()
						for i, n := range numbers {
							asked[i] = counters.Request{Client: fmt.Sprint("c", n), Cost: 1, Limit: limit, Now: now}
						}
						for i, taken := range takeAll(&counters.Deadline{At: now.Add(timeout)}, l, asked) {
							if taken.Err != nil {
								taken.Decision, taken.Err = l.TakeLocal(asked[i], taken.Err)
							}
							if assert.NoError(t, taken.Err) && taken.Allowed {
								admitted[numbers[i]].Add(1)
							}
						}
					}
				})
			}
			for time.Since(begin) < 2500*time.Millisecond {
				time.Sleep(time.Duration(rand.IntN(int(timeout))))
				server.Pause()
				time.Sleep(time.Duration(rand.IntN(int(3 * timeout))))
				server.Resume()
			}
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
