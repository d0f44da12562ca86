package cas

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// BenchmarkTake is a check against an embedded store: of distinct clients, of one
// after the other, and of one that callers share.
func BenchmarkTake(b *testing.B) {
	for _, algorithm := range []string{"token bucket", "sliding log"} {
		open := func(b *testing.B) taker {
			cfg := testConfig(100_000)
			if algorithm == "token bucket" {
				l, err := NewTokenBucket(memory.New(nil), time.Second, 0, cfg)
				require.NoError(b, err)
				return l
			}
			l, err := NewSlidingLog(memory.New(nil), time.Second, 100, cfg)
			require.NoError(b, err)
			return l
		}
		take := func(l taker, client string, limit int64) {
			now := time.Now()
			_, _ = l.Take(&counters.Deadline{At: now.Add(time.Minute)}, counters.Request{Client: client, Cost: 1, Limit: limit, Now: now})
		}
		clients := make([]string, 20_000)
		for i := range clients {
			clients[i] = fmt.Sprint("client-", i)
		}
		b.Run(algorithm+"/distinct", func(b *testing.B) {
			l := open(b)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				take(l, clients[i%len(clients)], 100)
			}
		})
		limit := int64(counters.MaxLimit)
		if algorithm != "token bucket" {
			limit = 10
		}
		b.Run(algorithm+"/one", func(b *testing.B) {
			l := open(b)
			b.ReportAllocs()
			for b.Loop() {
				take(l, "c", limit)
			}
		})
		b.Run(algorithm+"/denied", func(b *testing.B) {
			l := open(b)
			b.ReportAllocs()
			for b.Loop() {
				take(l, "c", 1)
			}
		})
		b.Run(algorithm+"/shared", func(b *testing.B) {
			l := open(b)
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					take(l, "c", limit)
				}
			})
		})
		b.Run(algorithm+"/alone", func(b *testing.B) {
			l := open(b).(interface {
				TakeLocal(counters.Request, error) (counters.Decision, error)
			})
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.TakeLocal(counters.Request{Client: "c", Cost: 1, Limit: limit, Now: time.Now()}, context.DeadlineExceeded)
			}
		})
	}
}
