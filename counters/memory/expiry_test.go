package memory

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/racetest"
)

// awaited returns how many expiries the store waits for.
func (m *Store) awaited() int {
	n := 0
	for i := range m.shards {
		n += len(m.shards[i].expiries)
	}
	return n
}

// What is deleted and created anew leaves nothing behind, however far its
// expiry was.
func TestDeletedItemsAreForgottenAtOnce(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const keys = 100_000
	ctx := context.Background()
	now := time.Unix(1_700_000_000, 0)
	m := New(func() time.Time { return now })
	names := make([]string, keys)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	for round := range 5 {
		for i, name := range names {
			if i%2 == 0 {
				_, err := m.Add(ctx, counters.Addition{Key: name, Delta: 1, TTL: time.Hour})
				require.NoError(t, err)
			} else {
				require.NoError(t, m.Put(ctx, name, []byte("v"), time.Hour))
			}
		}
		require.Equal(t, keys, m.awaited(), "round %d", round)
		require.NoError(t, m.Delete(ctx, names))
		require.Zero(t, m.awaited(), "round %d", round)
	}
}

// What lives shorter than what it replaces makes room when its own time has come.
func TestReplacedItemsExpireInTheirOwnTime(t *testing.T) {
	t.Parallel()
	const keys, others = 10_000, 2000 // so that each shard has enough of the others
	ctx := context.Background()
	for name, replace := range map[string]func(m *Store, key string) error{
		"Put": func(m *Store, key string) error { return m.Put(ctx, key, []byte("v"), time.Second) },
		"Swap": func(m *Store, key string) error {
			state, err := m.Load(ctx, key)
			require.NoError(t, err)
			_, _, err = m.Swap(ctx, key, state, []byte("v"), time.Second)
			return err
		},
		"Raise": func(m *Store, key string) error {
			return m.Raise(ctx, []counters.Floor{{Key: key, Count: 1, TTL: time.Second}})
		},
	} {
		now := time.Unix(1_700_000_000, 0)
		m := New(func() time.Time { return now })
		for i := range keys {
			require.NoError(t, m.Put(ctx, strconv.Itoa(i), []byte("v"), time.Hour))
			require.NoError(t, replace(m, strconv.Itoa(i)))
		}
		now = now.Add(2 * time.Second)
		for i := range 4 * keys {
			_, err := m.Add(ctx, counters.Addition{Key: fmt.Sprint("other", i%others), Delta: 1, TTL: time.Second})
			require.NoError(t, err)
		}
		assert.Equal(t, others, m.Len(), name)
		assert.Equal(t, others, m.awaited(), name)
	}
}

// Whatever is done, each item held waits for one expiry, which isn't after its
// own, and the earliest is first.
func TestExpiriesAreThoseOfTheItems(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		m := New(func() time.Time { return now })
		type alive struct {
			count   int64
			expires time.Time
		}
		want := make(map[string]alive)
		for range rapid.IntRange(1, 300).Draw(t, "operations") {
			key := strconv.Itoa(rapid.IntRange(0, 300).Draw(t, "key"))
			ttl := time.Duration(rapid.IntRange(1, 50).Draw(t, "ttl")) * time.Second
			is := want[key]
			if !is.expires.After(now) {
				is = alive{}
			}
			switch rapid.IntRange(0, 4).Draw(t, "operation") {
			case 0:
				require.NoError(t, m.Delete(ctx, []string{key}))
				delete(want, key)
			case 1:
				require.NoError(t, m.Put(ctx, key, nil, ttl))
				want[key] = alive{is.count, now.Add(ttl)}
			case 2:
				_, err := m.Add(ctx, counters.Addition{Key: key, Delta: 3, TTL: ttl})
				require.NoError(t, err)
				if is.expires.IsZero() {
					is.expires = now.Add(ttl)
				}
				want[key] = alive{is.count + 3, is.expires}
			case 3:
				require.NoError(t, m.Raise(ctx, []counters.Floor{{Key: key, Count: 5, TTL: ttl}}))
				if is.count < 5 {
					is = alive{5, now.Add(ttl)}
				}
				want[key] = is
			case 4:
				now = now.Add(ttl)
			}
			require.Equal(t, m.Len(), m.awaited())
			for i := range m.shards {
				require.True(t, m.shards[i].sound())
			}
		}
		for key, is := range want {
			var counts [1]int64
			require.NoError(t, m.Read(ctx, []string{key}, counts[:]))
			if !is.expires.After(now) {
				is.count = counters.Absent
			}
			require.Equal(t, is.count, counts[0])
		}
	})
}

// sound reports whether the expiries are a heap, of the items.
func (s *shard) sound() bool {
	for i, e := range s.expiries {
		if s.items[e.item.key] != e.item || e.item.place != i || e.item.expires < e.at || s.expiries[(max(i, 1)-1)/2].at > e.at {
			return false
		}
	}
	return true
}

func BenchmarkStore(b *testing.B) {
	ctx := context.Background()
	keys := make([]string, 1<<18)
	for i := range keys {
		keys[i] = fmt.Sprintf("weir:policy:limit:client-%d:28333", i)
	}
	// step is how much time passes between two operations.
	run := func(name string, step, ttl time.Duration, f func(m *Store, key string, ttl time.Duration)) {
		b.Run(name, func(b *testing.B) {
			now := time.Unix(1_700_000_000, 0)
			m := New(func() time.Time { return now })
			for _, key := range keys {
				f(m, key, ttl)
				now = now.Add(step)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f(m, keys[i%len(keys)], ttl)
				now = now.Add(step)
			}
		})
	}
	add := func(m *Store, key string, ttl time.Duration) {
		_, _ = m.Add(ctx, counters.Addition{Key: key, Delta: 1, TTL: ttl})
	}
	put := func(m *Store, key string, ttl time.Duration) { _ = m.Put(ctx, key, []byte("0123456789abcdef"), ttl) }
	run("add", 0, time.Hour, add)
	run("put", 0, time.Hour, put)
	// All have expired, and begin anew, when it is their turn again.
	run("add and expire", time.Millisecond, time.Minute, add)
	run("put and expire", time.Millisecond, time.Minute, put)
	// Each is written anew before it expires.
	run("put and extend", time.Millisecond, 5*time.Minute, put)
	run("put and delete", 0, time.Hour, func(m *Store, key string, ttl time.Duration) {
		put(m, key, ttl)
		_ = m.Delete(ctx, []string{key})
	})
}
