package memcached

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// A piece that is alone tells how far away its server is, and no other does.
func TestAddManyMeasuresTheDistance(t *testing.T) {
	t.Parallel()
	const roundTrip = 20 * time.Millisecond
	s, err := New(Config{Servers: []string{memcachedtest.Start(t).Far(roundTrip)}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	add := func() {
		s.AddMany(ctx, []string{"k"}, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
			return append(to, counters.Addition{Key: "k", Delta: 1, TTL: time.Minute, New: true}), counters.Now
		}, func(_ int, added []counters.Added, err error) bool {
			assert.Equal(t, []counters.Added{{Count: added[0].Count}}, added)
			assert.NoError(t, err)
			return false
		})
	}
	b := &s.members.Load().backends[0].budget
	ok, _ := b.acquire(time.Now().Add(time.Second))
	require.True(t, ok)
	add()
	assert.Zero(t, b.distance)
	b.give(maxPiece)
	add()
	assert.Greater(t, b.distance, roundTrip*9/10)
	assert.Zero(t, b.underway)
}
