package combiner

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who leads several keys at a time waits for none of them, and others wait for
// it.
func TestBeginLeadsAnIdleKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		a, b := h.combiner.Begin("a", 1), h.combiner.Begin("b", 2)
		require.Equal(t, []int{1}, questions(a.Calls()))
		require.Equal(t, []int{2}, questions(b.Calls()))
		assert.Nil(t, h.combiner.Begin("a", 3), "it is in use")

		results := make(chan int, 1)
		go func() {
			result, err := h.combiner.Do(t.Context(), "a", 4)
			assert.NoError(t, err)
			results <- result
		}()
		synctest.Wait()
		assert.Empty(t, h.turns)
		require.Equal(t, []int{1}, questions(a.Calls()), "who comes later isn't led")
		a.Calls()[0].Result = 10
		result, err := h.combiner.End("a", a)
		assert.NoError(t, err)
		assert.Equal(t, 10, result)
		h.turn(t, 4).answerAll()
		assert.Equal(t, 40, <-results)

		_, err = h.combiner.End("b", b)
		assert.NoError(t, err)
		c := h.combiner.Begin("b", 5)
		require.NotNil(t, c)
		require.Equal(t, []int{5}, questions(c.Calls()))
		_, err = h.combiner.End("b", c)
		assert.NoError(t, err)
	})
}
