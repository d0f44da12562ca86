package counters

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestGoroutinesAreAllWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Goroutines
		g.Wait() // for nothing
		began := time.Now()
		g.Go(func() {
			time.Sleep(time.Second)
			g.Go(func() { time.Sleep(time.Second) })
		})
		g.Wait()
		assert.Equal(t, 2*time.Second, time.Since(began))
		g.Go(func() { time.Sleep(time.Second) })
		g.Wait()
		assert.Equal(t, 3*time.Second, time.Since(began))
	})
}

// Others begin while somebody waits, over and over: a sync.WaitGroup panics.
func TestGoroutinesAreWaitedForWhileOthersBegin(t *testing.T) {
	t.Parallel()
	const each = 2000
	var g Goroutines
	var ran atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range each {
				g.Go(func() { ran.Add(1) })
				g.Wait()
			}
		})
	}
	all.Wait()
	assert.Equal(t, int64(4*each), ran.Load())
}
