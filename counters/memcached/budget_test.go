package memcached

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func acquires(b *budget, within time.Duration) bool {
	ok, _ := b.acquire(time.Now().Add(within))
	return ok
}

// What is under way is bounded, who waits longest comes first, and who doesn't
// wait any more acquires nothing.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget{timeout: time.Second, underway: (maxPieces - 2) * maxPiece}
		assert.True(t, acquires(&b, 0))
		assert.True(t, acquires(&b, 0))
		begin := time.Now()
		assert.False(t, acquires(&b, time.Second))
		assert.Equal(t, time.Second, time.Since(begin))
		var order []int
		for i := range 3 {
			go func() {
				assert.True(t, acquires(&b, time.Minute))
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
		assert.Equal(t, maxPieces*maxPiece, b.underway)
	})
}

// Small pieces leave room for many of them.
func TestBudgetPaysWhatIsSent(t *testing.T) {
	t.Parallel()
	var b budget
	var sent int
	for ; b.room(); sent++ {
		ok, alone := b.acquire(time.Now().Add(time.Minute))
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
	b.measured(100*time.Microsecond, true)
	assert.Equal(t, minPieces, b.pieces())
	b.measured(5*time.Millisecond, true) // it may be an exception
	assert.Equal(t, minPieces, b.pieces())
	for range 50 {
		b.measured(2300*time.Microsecond, true)
		b.measured(time.Second, false)
	}
	assert.Equal(t, 9, b.pieces())
	b.measured(20*time.Microsecond, true)
	assert.Equal(t, minPieces, b.pieces())
	b = budget{}
	b.measured(time.Second, true)
	assert.Equal(t, maxPieces, b.pieces())
}

// Who has the least time left comes first.
func TestBudgetServesByDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := budget{timeout: time.Minute, underway: maxPieces * maxPiece}
		begin := time.Now()
		var order []int
		for i, second := range []int{30, 10, 20, 10, 5, 1} {
			go func() {
				if ok, _ := b.acquire(begin.Add(time.Duration(second) * time.Second)); ok {
					order = append(order, i)
				} else {
					assert.Equal(t, time.Second, time.Since(begin))
				}
			}()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		for range 5 {
			b.give(maxPiece)
			synctest.Wait()
		}
		assert.Equal(t, []int{4, 1, 3, 2, 0}, order)
	})
}

// What would be answered too late isn't sent, and who waits is told as soon as
// that is certain. A server that was slow is asked all the same.
func TestBudgetLeavesTimeForTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		b := budget{timeout: 40 * ms}
		assert.True(t, acquires(&b, 0)) // nothing is known
		b.measured(2*ms, true)
		assert.False(t, acquires(&b, 3*ms))
		assert.True(t, acquires(&b, 5*ms))
		b.underway = maxPieces * maxPiece
		begin := time.Now()
		assert.False(t, acquires(&b, 20*ms))
		assert.Equal(t, 16*ms, time.Since(begin))
		b.underway = 0
		for range 50 {
			b.measured(time.Second, false)
		}
		assert.False(t, acquires(&b, 9*ms))
		assert.True(t, acquires(&b, 11*ms))
		for range 50 {
			b.measured(ms, false)
		}
		assert.True(t, acquires(&b, 5*ms))
	})
}
