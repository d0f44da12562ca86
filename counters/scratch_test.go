package counters_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// Whatever was put back, the elements that are got are zero, and so is the room behind them.
func TestScratchIsZero(t *testing.T) {
	t.Parallel()
	var s counters.Scratch[*int]
	for _, n := range []int{0, 3, 1000, 10, 5000, 2, 1000} {
		got := s.Get(n)
		assert.Equal(t, make([]*int, n), got)
		assert.Equal(t, make([]*int, cap(got)), got[:cap(got)])
		for i := range got {
			got[i] = new(int)
		}
		s.Put(append(got, new(int)))
	}
}
