package memcached

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func takes(b *budget, within time.Duration) bool {
	ok, _ := b.take(time.Now().Add(within))
	return ok
}

// What is under way is bounded, who waits longest comes first, and who doesn't
// wait any more takes nothing.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget{under: (maxPieces - 2) * maxPiece}
		assert.True(t, takes(&b, 0))
		assert.True(t, takes(&b, 0))
		begin := time.Now()
		assert.False(t, takes(&b, time.Second))
		assert.Equal(t, time.Second, time.Since(begin))
		var order []int
		for i := range 3 {
			go func() {
				assert.True(t, takes(&b, time.Minute))
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
		assert.Equal(t, maxPieces*maxPiece, b.under)
	})
}

// Small pieces leave room for many of them.
func TestBudgetPaysWhatIsSent(t *testing.T) {
	t.Parallel()
	var b budget
	var sent int
	for ; b.room(); sent++ {
		ok, alone := b.take(time.Time{})
		assert.True(t, ok)
		assert.Equal(t, sent == 0, alone)
		b.give(maxPiece - 1000)
	}
	assert.Greater(t, sent, 200)
}

// The farther away a server is, the more may be under way.
func TestBudgetGoesByTheDistance(t *testing.T) {
	t.Parallel()
	var b budget
	assert.Equal(t, maxPieces, b.pieces())
	b.measured(100 * time.Microsecond)
	assert.Equal(t, minPieces, b.pieces())
	b.measured(5 * time.Millisecond) // it may be an exception
	assert.Equal(t, minPieces, b.pieces())
	for range 50 {
		b.measured(2300 * time.Microsecond)
	}
	assert.Equal(t, 9, b.pieces())
	b.measured(20 * time.Microsecond)
	assert.Equal(t, minPieces, b.pieces())
	b = budget{}
	b.measured(time.Second)
	assert.Equal(t, maxPieces, b.pieces())
}
