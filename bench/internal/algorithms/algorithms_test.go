package algorithms

import (
	"image/color"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Only algorithms of one kind share a color.
func TestColorsTellAlgorithmsApart(t *testing.T) {
	t.Parallel()
	named := make(map[color.Color][]string)
	for _, a := range All {
		named[a.Color] = append(named[a.Color], a.Name)
	}
	var kinds [][]string
	for _, names := range named {
		kinds = append(kinds, names)
	}
	assert.ElementsMatch(t, [][]string{
		{Fixed}, {Sliding1}, {Sliding4, sliding5, Sliding10}, {Sliding60}, {Strict60}, {Capped10, Capped60}, {Token, Leaky}, {Log, Counting64, Counting32},
	}, kinds)
}

// A window takes the bytes of its counters in all slots that Memcached keeps:
// two more than the window has, or four if a slot is a second.
func TestBytes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{
		Fixed: 2 * 120, Sliding1: 3 * 120, Sliding4: 6 * 120, Sliding10: 12 * 120, Sliding60: 64 * 120, Strict60: 64 * 120, Capped10: 12 * 120,
		Token: 120, Log: 5680, Counting64: 480, Counting32: 384,
	} {
		got, err := Named(name).Bytes(time.Minute, 1000)
		require.NoError(t, err)
		assert.Equal(t, want, got, name)
	}
}
