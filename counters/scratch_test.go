package counters_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// Whatever was put, what is got is zero, as far as it is long, and as far as it can be appended to.
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
