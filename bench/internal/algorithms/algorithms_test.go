package algorithms

import (
	"image/color"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Only algorithms of one kind share a color.
func TestColorsTellAlgorithmsApart(t *testing.T) {
	t.Parallel()
	named := make(map[color.Color][]string)
	for _, a := range All {
		named[a.Color()] = append(named[a.Color()], a.Name)
	}
	var kinds [][]string
	for _, names := range named {
		kinds = append(kinds, names)
	}
	assert.ElementsMatch(t, [][]string{
		{Fixed}, {Sliding1}, {Sliding4, Sliding5, Sliding10}, {Sliding60}, {Strict60}, {Capped10, Capped60}, {Token, Leaky}, {Log, Counting64, Counting32},
	}, kinds)
}
