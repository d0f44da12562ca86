package pipeline

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// BenchmarkIncr counts on distinct keys, through gomemcache's own pool and
// through clients on one shared socket.
func BenchmarkIncr(b *testing.B) {
	address := memcachedtest.Start(b).Addr
	for _, callers := range []int{1, 2, 4, 16, 64, 256} {
		b.Run(fmt.Sprintf("pool/%d", callers), func(b *testing.B) { benchmarkPool(b, address, callers) })
		b.Run(fmt.Sprintf("shared/%d", callers), func(b *testing.B) { benchmarkShared(b, address, callers) })
	}
}

// BenchmarkAlone compares the latency of a caller on its own, pool and shared
// socket by turns: on a noisy machine two runs, one after the other, compare
// the noise.
func BenchmarkAlone(b *testing.B) {
	address := memcachedtest.Start(b).Addr
	s, _ := startPool(b)
	pool, shared := memcache.New(address), newTestClient(s, address, time.Second)
	b.Cleanup(func() { require.NoError(b, pool.Close()) })
	var took [2][]time.Duration
	require.NoError(b, pool.Set(item("n", "0")))
	for i := 0; b.Loop(); i++ {
		side := i / 100 % 2
		start := time.Now()
		_, err := []*memcache.Client{pool, shared}[side].Increment("n", 1)
		took[side] = append(took[side], time.Since(start))
		require.NoError(b, err)
	}
	for side, name := range []string{"pool", "shared"} {
		slices.Sort(took[side])
		for _, percent := range []int{10, 50, 90} {
			if n := len(took[side]); n > 0 {
				b.ReportMetric(float64(took[side][n*percent/100])/1e3, fmt.Sprintf("%s-p%d-us", name, percent))
			}
		}
	}
}

func benchmarkPool(b *testing.B, address string, callers int) {
	c := memcache.New(address)
	c.MaxIdleConns = 512
	b.Cleanup(func() { require.NoError(b, c.Close()) })
	benchmarkIncr(b, callers, func() *memcache.Client { return c })
}

func benchmarkShared(b *testing.B, address string, callers int) {
	s := New(Dialer(nil, "", ""), time.Second)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	benchmarkIncr(b, callers, func() *memcache.Client { return newTestClient(s, address, 500*time.Millisecond) })
}

func benchmarkIncr(b *testing.B, callers int, client func() *memcache.Client) {
	clients := make([]*memcache.Client, callers)
	for i := range clients {
		clients[i] = client()
		require.NoError(b, clients[i].Set(item(fmt.Sprintf("%s-%d", b.Name(), i), "0")))
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			key := fmt.Sprintf("%s-%d", b.Name(), i)
			for range (b.N + callers - 1 - i) / callers {
				if _, err := c.Increment(key, 1); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
