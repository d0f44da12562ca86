package counters

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Three at once; and while they are held up, three more each second.
func TestWorkersBeginMoreWhenTheyAreHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := Workers{AtOnce: 3, Patience: time.Second}
		var running, most atomic.Int64
		hold := make(chan struct{})
		for range 10 {
			w.Go(func() {
				most.Store(max(most.Load(), running.Add(1)))
				<-hold
				running.Add(-1)
			})
		}
		synctest.Wait()
		assert.EqualValues(t, 3, running.Load())
		time.Sleep(1500 * time.Millisecond)
		assert.EqualValues(t, 6, running.Load())
		time.Sleep(3 * time.Second)
		assert.EqualValues(t, 10, running.Load())
		close(hold)
		w.Wait()
		assert.Zero(t, running.Load())
	})
}

// Those that end make room, in the order of arrival, for what they begin too.
func TestWorkersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := Workers{AtOnce: 1}
		var order []int
		for i := range 3 {
			w.Go(func() {
				time.Sleep(time.Second)
				order = append(order, i)
				w.Go(func() { order = append(order, 10*(i+1)) })
			})
		}
		w.Wait()
		assert.Equal(t, []int{0, 1, 2, 10, 20, 30}, order)
	})
}
