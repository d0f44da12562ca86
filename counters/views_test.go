package counters_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
)

func TestViewsAreRemembered(t *testing.T) {
	v := counters.NewViews[int](100)
	assert.Nil(t, v.Find("a"))
	assert.Zero(t, *v.Get("a"), "a new view is zero")
	*v.Get("a") = 7
	assert.Equal(t, 7, *v.Get("a"))
	assert.Same(t, v.Get("a"), v.Find("a"))
	assert.Equal(t, 1, v.Len())
	v.Forget("a")
	v.Forget("b")
	assert.Nil(t, v.Find("a"))
	assert.Zero(t, v.Len())
	assert.Zero(t, *v.Get("a"))

	none := counters.NewViews[int](0)
	*none.Get("a") = 7
	assert.Zero(t, *none.Get("a"))
	assert.Zero(t, none.Len())
}

// Clients that come once must not push out those that come again and again.
func TestViewsKeepTheBusyOnes(t *testing.T) {
	const most, busy = 3200, 1000
	v := counters.NewViews[int](most)
	for i := range busy {
		*v.Get(fmt.Sprint("busy", i)) = i + 1
	}
	kept := 0
	for i := range 100_000 {
		v.Get(fmt.Sprint("once", i))
		if view := v.Find(fmt.Sprint("busy", i%busy)); view != nil {
			kept++
		}
	}
	assert.LessOrEqual(t, v.Len(), most)
	assert.Greater(t, kept, 99_000)
}

// The links hold together whatever comes and goes.
func TestViewsAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 64 // two in each shard
		v := counters.NewViews[int](most)
		last := make(map[string]int)
		for i := range rapid.IntRange(1, 300).Draw(t, "operations") {
			client := fmt.Sprint(rapid.IntRange(0, 150).Draw(t, "client"))
			switch rapid.IntRange(0, 4).Draw(t, "operation") {
			case 0:
				v.Forget(client)
				require.Nil(t, v.Find(client))
			case 1:
				if view := v.Find(client); view != nil {
					require.Equal(t, last[client], *view)
				}
			default:
				view := v.Get(client)
				if *view != 0 {
					require.Equal(t, last[client], *view, "a view is that of its client")
				}
				*view, last[client] = i+1, i+1
				require.Same(t, view, v.Find(client))
			}
			require.LessOrEqual(t, v.Len(), most)
		}
	})
}
