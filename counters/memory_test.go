package counters_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	store := counters.NewMemory(nil)
	storetest.Run(t, func(*testing.T) counters.Store { return store })
}

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) Advance(d time.Duration) { c.now = c.now.Add(d) }

func TestMemoryExpiresToTheNanosecond(t *testing.T) {
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := counters.NewMemory(clock.Now)
	count := func() int64 {
		var counts [1]int64
		require.NoError(t, m.Read(ctx, []string{"a"}, counts[:]))
		return counts[0]
	}
	_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 5, TTL: time.Second})
	require.NoError(t, err)

	clock.Advance(time.Second - 1)
	assert.Equal(t, int64(5), count())
	clock.Advance(1)
	assert.Equal(t, int64(0), count())
	n, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 2, TTL: time.Second})
	require.NoError(t, err)
	assert.Equal(t, int64(2), n, "a counter that has expired begins anew")
	clock.Advance(time.Second - 1)
	assert.Equal(t, int64(2), count(), "and lives as long as a new one")
}

// Millions of counters that come and go must not stay.
func TestMemoryHoldsLittleMoreThanWhatIsAlive(t *testing.T) {
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := counters.NewMemory(clock.Now)
	most := 0
	for i := range 200_000 {
		_, err := m.Add(ctx, counters.Addition{Key: fmt.Sprint(i), Delta: 1, TTL: time.Second})
		require.NoError(t, err)
		clock.Advance(time.Millisecond)
		if i%100 == 0 {
			most = max(most, m.Len())
		}
	}
	assert.LessOrEqual(t, most, 1200, "1000 are alive at any time")
	assert.GreaterOrEqual(t, most, 1000)
}

func TestMemoryForgetsADeletedCountersExpiry(t *testing.T) {
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := counters.NewMemory(clock.Now)
	_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Second})
	require.NoError(t, err)
	require.NoError(t, m.Delete(ctx, []string{"a"}))
	_, err = m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
	require.NoError(t, err)

	clock.Advance(30 * time.Second) // past the first expiry
	n, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
	require.NoError(t, err)
	assert.Equal(t, int64(2), n)
	assert.Equal(t, 1, m.Len())
}
