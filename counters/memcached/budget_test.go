package memcached

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// What is under way is bounded, who waits longest comes first, and who doesn't
// wait any more takes nothing.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget{left: 2 * maxPiece}
		second := time.Now().Add(time.Second)
		assert.True(t, b.take(second))
		assert.True(t, b.take(second))
		assert.False(t, b.take(second))
		assert.Equal(t, second, time.Now())
		var order []int
		for i := range 3 {
			go func() {
				assert.True(t, b.take(time.Now().Add(time.Minute)))
				order = append(order, i)
			}()
			synctest.Wait()
		}
		b.give(maxPiece - 1)
		synctest.Wait()
		assert.Empty(t, order)
		b.give(1)
		synctest.Wait()
		assert.Equal(t, []int{0}, order)
		b.give(maxPiece)
		synctest.Wait()
		b.give(maxPiece)
		synctest.Wait()
		assert.Equal(t, []int{0, 1, 2}, order)
		assert.Zero(t, b.left)
	})
}

// Small pieces leave room for many of them, and one that is too large pays for
// it.
func TestBudgetPaysWhatIsSent(t *testing.T) {
	t.Parallel()
	b := budget{left: maxManyBytes}
	var sent int
	for b.left >= maxPiece {
		assert.True(t, b.take(time.Time{}))
		b.give(maxPiece - 1000)
		sent++
	}
	assert.Greater(t, sent, 200)
	b.give(-maxPiece)
	assert.Negative(t, b.left)
}
