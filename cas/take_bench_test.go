package cas

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// BenchmarkTake takes from each of many clients in turn, by a store that answers
// at once.
func BenchmarkTake(b *testing.B) {
	const clients = 20_000
	names := make([]string, clients)
	for i := range names {
		names[i] = fmt.Sprint("client-", i)
	}
	for name, open := range map[string]func(s counters.StateStore, cfg Config) (taker, error){
		"token": func(s counters.StateStore, cfg Config) (taker, error) { return NewTokenBucket(s, time.Minute, 0, cfg) },
		"leaky": func(s counters.StateStore, cfg Config) (taker, error) { return NewLeakyBucket(s, time.Minute, 0, cfg) },
		"count denied": func(s counters.StateStore, cfg Config) (taker, error) {
			cfg.CountDenied = true
			return NewTokenBucket(s, time.Minute, 0, cfg)
		},
	} {
		b.Run(name, func(b *testing.B) {
			now := time.Now()
			l, err := open(memory.New(func() time.Time { return now }), testConfig(2*clients))
			require.NoError(b, err)
			ctx := &counters.Deadline{At: now.Add(24 * time.Hour)}
			take := func(i int) {
				if _, err := l.Take(ctx, counters.Request{Client: names[i%clients], Cost: 1, Limit: 6000, Now: now}); err != nil {
					b.Fatal(err)
				}
			}
			for i := range clients {
				take(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				now = now.Add(time.Microsecond)
				take(i)
			}
		})
	}
}
