package cas

import (
	"context"
	"strings"
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
)

// openMemcached returns a store of its own on the servers, which has to answer
// within the timeout.
func openMemcached(t testing.TB, timeout time.Duration, servers ...string) *memcached.Store {
	t.Helper()
	m, err := memcached.New(memcached.Config{Servers: servers, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// everyAlgorithm makes limiters of a limit in the longest window.
var everyAlgorithm = map[string]func(s counters.StateStore, limit int64, cfg Config) (limiter, error){
	"token bucket": func(s counters.StateStore, _ int64, cfg Config) (limiter, error) {
		return NewTokenBucket(s, counters.MaxWindow, 0, cfg)
	},
	"leaky bucket": func(s counters.StateStore, _ int64, cfg Config) (limiter, error) {
		return NewLeakyBucket(s, counters.MaxWindow, 0, cfg)
	},
	"sliding log": func(s counters.StateStore, limit int64, cfg Config) (limiter, error) {
		return NewSlidingLog(s, counters.MaxWindow, limit, cfg)
	},
	"counting log": func(s counters.StateStore, _ int64, cfg Config) (limiter, error) {
		return NewCountingLog(s, counters.MaxWindow, MinLogEntries, cfg)
	},
}

func TestOverlappingBatchesFillEachLimitExactly(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range everyAlgorithm {
		t.Run(name, func(t *testing.T) {
			limitertest.RacingBatches(t, clock(t, "12:00:10"), func(t *testing.T, addresses ...string) limitertest.ManyLimiter {
				l, err := newLimiter(openMemcached(t, counters.MaxTimeout, addresses...), 20, testConfig(1000))
				require.NoError(t, err)
				return l
			})
		})
	}
}

func TestABatchWhoseServerFallsSilentConsumesOnce(t *testing.T) {
	t.Parallel()
	// Each is read and then written. However these take turns, some are written, and some aren't.
	limitertest.FallsSilent(t, time.Now(), 0.75, func(t *testing.T, address string, lost func()) limitertest.ManyLimiter {
		cfg := testConfig(20_000)
		cfg.StoreTimeout, cfg.RefundFailed = limitertest.SilentTimeout, lost
		cfg.Policy, cfg.Limit = strings.Repeat("p", 63), strings.Repeat("l", 63) // so that few are under way at once
		l, err := NewTokenBucket(openMemcached(t, limitertest.SilentTimeout, address), counters.MaxWindow, 0, cfg)
		require.NoError(t, err)
		return l
	})
}

// The server forgets everything in the middle of batches, again and again. What
// the process knows is put back: no client has more than its limit.
func TestBatchesOnAServerThatForgets(t *testing.T) {
	t.Parallel()
	const clients, limit = 500, 8
	for _, name := range []string{"token bucket", "leaky bucket", "sliding log"} {
		newLimiter := everyAlgorithm[name]
		t.Run(name, func(t *testing.T) {
			server := memcachedtest.Start(t)
			cfg := testConfig(20 * clients)
			var reseeded atomic.Int64
			cfg.Reseeded = func(n int) { reseeded.Add(int64(n)) }
			l, err := newLimiter(openMemcached(t, 0, server.Addr), limit, cfg)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			now := time.Now()
			var admitted [clients]int64
			for round := range 2 * limit {
				var forgetting sync.WaitGroup
				if round%2 == 1 {
					forgetting.Go(func() { server.Do("flush_all", "OK") })
				}
				for i, taken := range limitertest.TakeAll(ctx, l, manyRequests(clients, now, limit)) {
					require.NoError(t, taken.Err)
					if taken.Allowed {
						admitted[i]++
					}
				}
				forgetting.Wait()
			}
			for i, n := range admitted {
				require.EqualValues(t, limit, n, "client %d", i)
			}
			assert.Positive(t, reseeded.Load())
		})
	}
}

// Foreign values are replaced, and states that are too large for the server are
// errors of their own clients only.
func TestBatchesWithForeignAndLargeValues(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, "-I", "1k", "-o", "slab_chunk_max=1024")
	store := openMemcached(t, 0, server.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := testConfig(1000)
	var foreign atomic.Int64
	cfg.Foreign = func() { foreign.Add(1) }
	l, err := NewSlidingLog(store, time.Hour, MaxLogLimit, cfg)
	require.NoError(t, err)
	const clients, large = 200, 7
	now := time.Now()
	asked := manyRequests(clients, now, MaxLogLimit)
	require.Eventually(t, func() bool { // until batches have a connection of their own
		limitertest.TakeMany(ctx, l, []counters.Request{{Client: "other", Cost: 1, Limit: MaxLogLimit, Now: now}})
		return server.Stat("curr_connections") >= 3 // with the one that asks
	}, time.Minute, 10*time.Millisecond)
	for i := 0; i < clients; i += 10 {
		require.NoError(t, store.Put(ctx, l.limiter.(*limiterOf[logState]).family.keys.StateKey(asked[i].Client), []byte("apple"), time.Minute))
	}
	for _, taken := range limitertest.TakeMany(ctx, l, asked) {
		require.True(t, taken.Done)
		require.NoError(t, taken.Err)
		require.EqualValues(t, MaxLogLimit-1, taken.Remaining)
	}
	found := foreign.Load() // what is read again, on another connection, may be found again
	assert.GreaterOrEqual(t, found, int64(clients/10))
	for i := range 40 {
		for j := range asked {
			asked[j].Now = now.Add(time.Duration(i) * 1234567 * time.Microsecond)
			if j == large {
				for range 20 { // each at a time of its own
					asked[j].Now = asked[j].Now.Add(76543 * time.Nanosecond)
					if _, err := l.Take(ctx, asked[j]); err != nil {
						require.ErrorContains(t, err, "too large")
					}
				}
			}
		}
		for j, taken := range limitertest.TakeMany(ctx, l, asked) {
			if j == large && !taken.Done { // it is being asked for whether it was written
				taken.Decision, taken.Err = l.Take(ctx, asked[j])
			} else {
				require.True(t, taken.Done)
			}
			if j != large {
				require.NoError(t, taken.Err)
				require.EqualValues(t, MaxLogLimit-2-i, taken.Remaining)
			} else if i == 39 {
				require.ErrorContains(t, taken.Err, "too large")
			}
		}
	}
	fresh, err := NewSlidingLog(store, time.Hour, MaxLogLimit, cfg) // which reads them
	require.NoError(t, err)
	for i := 0; i < clients; i += 10 {
		d, err := fresh.Peek(ctx, asked[i])
		require.NoError(t, err)
		require.EqualValues(t, MaxLogLimit-41, d.Remaining)
	}
	assert.Equal(t, found, foreign.Load(), "all were replaced")
}
