package memcached

import (
	"testing"
	"time"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// BenchmarkIncrement compares gomemcache's incr with the codec's, both on the
// shared socket, alone and with 64 callers.
func BenchmarkIncrement(b *testing.B) {
	server := memcachedtest.Start(b)
	s, err := New(Config{Servers: []string{server.Addr}, Timeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	ctx := &counters.Deadline{At: time.Now().Add(time.Hour)}
	if _, err := s.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Hour, New: true}); err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name string
		incr func(*session) error
	}{
		{"gomemcache", func(c *session) error {
			_, err := c.Increment("a", 1)
			return err
		}},
		{"codec", func(c *session) error {
			a := counters.Addition{Key: "a", Delta: 1}
			err := c.exchange(0, appendAddition(c.text[:0], a))
			if err == nil {
				_, _, err = c.parseAddition(a, 0)
			}
			return err
		}},
	} {
		one := func(b *testing.B) {
			c, err := s.session(ctx, "a")
			if err == nil {
				err = way.incr(c)
				c.release()
			}
			if err != nil {
				b.Error(err)
			}
		}
		b.Run(way.name+"/alone", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				one(b)
			}
		})
		b.Run(way.name+"/callers=64", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					one(b)
				}
			})
		})
	}
}
