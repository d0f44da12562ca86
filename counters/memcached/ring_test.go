package memcached

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func pick(r *ring, key string) string { return r.servers[r.pick(key)].name }

func newTestRing(t *testing.T, names ...string) *ring {
	t.Helper()
	m, err := newMembership(names, lookups{})
	require.NoError(t, err)
	return &ring{m.servers()}
}

func TestRingKeepsAClientOnOneServerWhateverTheOrder(t *testing.T) {
	t.Parallel()
	names := []string{"10.0.0.1:11211", "10.0.0.2:11211", "cache.internal:11211", "/run/memcached.sock"}
	r := newTestRing(t, names...)
	slices.Reverse(names)
	reversed := newTestRing(t, names...)
	clients := make(map[string]int)
	for i := range 4000 {
		client := fmt.Sprintf("client-%d", i)
		home := ""
		for _, policy := range []string{"api", "login"} {
			ns := counters.CounterNamespace("weir", policy, "limit", time.Second)
			for bucket := range int64(10) {
				key := counters.CounterKey(ns.Client(client), bucket)
				server := pick(r, key)
				if home == "" {
					home = server
				}
				if server != home || pick(reversed, key) != home {
					t.Fatalf("the keys of %s don't all live together", client)
				}
			}
		}
		clients[home]++
	}
	for name, n := range clients {
		assert.InDelta(t, 1000, n, 150, "%s has its share of the clients", name)
	}
	assert.Len(t, clients, 4)
}

func TestRingMovesOnlyTheClientsThatANewServerTakes(t *testing.T) {
	t.Parallel()
	three := newTestRing(t, "a:1", "b:1", "c:1")
	four := newTestRing(t, "a:1", "b:1", "c:1", "d:1")
	moved := 0
	for i := range 4000 {
		key := counters.CounterKey(counters.CounterNamespace("weir", "p", "l", time.Second).Client(fmt.Sprint(i)), 0)
		before, after := pick(three, key), pick(four, key)
		if before != after {
			require.Equal(t, "d:1", after)
			moved++
		}
	}
	assert.InDelta(t, 1000, moved, 150)
}
