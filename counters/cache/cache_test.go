package cache_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/cache"
)

func TestValuesAreRemembered(t *testing.T) {
	t.Parallel()
	v := cache.New[int](100)
	assert.Nil(t, v.Find("a"))
	assert.Zero(t, *v.Get("a"), "a new value is zero")
	*v.Get("a") = 7
	assert.Equal(t, 7, *v.Get("a"))
	assert.Same(t, v.Get("a"), v.Find("a"))
	assert.Equal(t, 1, v.Len())
	v.Forget("a")
	v.Forget("b")
	assert.Nil(t, v.Find("a"))
	assert.Zero(t, v.Len())
	assert.Zero(t, *v.Get("a"))

	none := cache.New[int](0)
	*none.Get("a") = 7
	assert.Zero(t, *none.Get("a"))
	assert.Zero(t, none.Len())
}

// A cache holds as many keys as it may, up to the largest number there is.
func TestBounds(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]int{
		math.MinInt: 0, -1: 0, 0: 0, 1: 32, 32: 32, 33: 64, math.MaxInt: 1000,
	} {
		v := cache.New[int](most)
		for i := range 1000 {
			*v.Get(fmt.Sprint(i)) = i
		}
		assert.Equal(t, want, v.Len(), "%d", most)
		if most < 1000 {
			assert.Equal(t, want, v.Cap(), "%d", most)
		}
	}
	assert.Greater(t, cache.New[int](math.MaxInt).Cap(), math.MaxInt/2)
}

// Clients that come once must not push out those that come again and again.
func TestCacheKeepsTheBusyOnes(t *testing.T) {
	t.Parallel()
	const most, busy = 3200, 1000
	v := cache.New[int](most)
	for i := range busy {
		*v.Get(fmt.Sprint("busy", i)) = i + 1
	}
	kept := 0
	for i := range 100_000 {
		v.Get(fmt.Sprint("once", i))
		if value := v.Find(fmt.Sprint("busy", i%busy)); value != nil {
			kept++
		}
	}
	assert.LessOrEqual(t, v.Len(), most)
	assert.Greater(t, kept, 99_000)
}

// The links hold together whatever comes and goes.
func TestCacheAgainstAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const most = 64 // two in each shard
		v := cache.New[int](most)
		last := make(map[string]int)
		for i := range rapid.IntRange(1, 300).Draw(t, "operations") {
			key := fmt.Sprint(rapid.IntRange(0, 150).Draw(t, "key"))
			switch rapid.IntRange(0, 4).Draw(t, "operation") {
			case 0:
				v.Forget(key)
				require.Nil(t, v.Find(key))
			case 1:
				if value := v.Find(key); value != nil {
					require.Equal(t, last[key], *value)
				}
			default:
				value := v.Get(key)
				if *value != 0 {
					require.Equal(t, last[key], *value, "a value is that of its key")
				}
				*value, last[key] = i+1, i+1
				require.Same(t, value, v.Find(key))
			}
			require.LessOrEqual(t, v.Len(), most)
		}
	})
}
