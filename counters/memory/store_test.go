package memory_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/counters/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.RunInVirtualTime(t, func() storetest.Local { return memory.New(nil) })
}

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) Advance(d time.Duration) { c.now = c.now.Add(d) }

func TestMemoryExpiresToTheNanosecond(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := memory.New(clock.Now)
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
	assert.Equal(t, int64(counters.Absent), count())
	n, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 2, TTL: time.Second})
	require.NoError(t, err)
	assert.Equal(t, int64(2), n, "a counter that has expired begins anew")
	clock.Advance(time.Second - 1)
	assert.Equal(t, int64(2), count(), "and lives as long as a new one")
}

// Millions of counters that come and go must not stay.
func TestMemoryHoldsLittleMoreThanWhatIsAlive(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := memory.New(clock.Now)
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

// States that are renewed again and again leave nothing behind either.
func TestMemoryHoldsLittleMoreThanTheStatesThatAreAlive(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := memory.New(clock.Now)
	swap := func(key string, old counters.State, ttl time.Duration) counters.State {
		state, swapped, err := m.Swap(ctx, key, old, []byte("v"), ttl)
		require.NoError(t, err)
		require.True(t, swapped)
		return state
	}
	busy := swap("busy", counters.State{}, time.Second)
	most := 0
	for i := range 50_000 {
		swap(fmt.Sprint(i), counters.State{}, time.Second)
		busy = swap("busy", busy, time.Second)
		clock.Advance(time.Millisecond)
		most = max(most, m.Len())
	}
	assert.LessOrEqual(t, most, 1200, "1000 are alive at any time")
	assert.GreaterOrEqual(t, most, 1001)

	clock.Advance(time.Second - time.Millisecond - 1)
	state, err := m.Load(ctx, "busy")
	require.NoError(t, err)
	assert.Equal(t, busy, state, "1 ns before its time")
	clock.Advance(1)
	state, err = m.Load(ctx, "busy")
	require.NoError(t, err)
	assert.False(t, state.Exists())
	_, swapped, err := m.Swap(ctx, "busy", busy, []byte("v"), time.Second)
	require.NoError(t, err)
	assert.False(t, swapped, "what has expired can't be replaced")
}

func TestMemoryKeepsNoReferenceToAValue(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	m := memory.New(nil)
	value := []byte("value")
	_, _, err := m.Swap(ctx, "a", counters.State{}, value, time.Minute)
	require.NoError(t, err)
	value[0] = 'x'
	state, err := m.Load(ctx, "a")
	require.NoError(t, err)
	assert.Equal(t, "value", string(state.Value))
}

func TestMemoryForgetsADeletedCountersExpiry(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	clock := &clock{now: time.Unix(1_700_000_000, 0)}
	m := memory.New(clock.Now)
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
