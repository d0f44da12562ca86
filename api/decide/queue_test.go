package decide

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func never() bool { return false }

// queueTimeline has batches of so many checks come, a millisecond apart, each of
// which takes as many milliseconds once it has begun. It returns when each began,
// in milliseconds since the first came.
func queueTimeline(q *Queue, took int, decides bool, batches ...int) []int {
	began := make([]int, len(batches))
	start := time.Now()
	var all sync.WaitGroup
	for i, checks := range batches {
		all.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			_, leave := q.enter(context.Background(), checks)
			defer leave()
			began[i] = int(time.Since(start).Milliseconds())
			for range took {
				time.Sleep(time.Millisecond)
				if decides {
					q.decided.Add(1)
				}
			}
		})
	}
	all.Wait()
	return began
}

// Batches begin as others end, and small ones wait less, but none waits forever.
func TestTheQueueHasBatchesWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(2000, time.Minute, never)
		q.late = time.Minute
		assert.Equal(t, []int{0, 1, 30, 31, 60, 61}, queueTimeline(q, 30, true, 1000, 1000, 1000, 1000, 1000, 1000))
		assert.Equal(t, []int{0, 1, 30, 3, 4}, queueTimeline(q, 30, true, 1000, 1000, 1000, 10, 900), "there is room for small ones")
		assert.Equal(t, []int{0, 1, 2, 31, 32, 30}, queueTimeline(q, 30, true, 1000, 1000, 900, 900, 900, 800), "but not without end")
		q.most, q.current = 1, 1
		assert.Equal(t, []int{0, 90, 60, 30, 120}, queueTimeline(q, 30, true, 1000, 1000, 400, 10, 990))
		assert.Zero(t, q.inside)
		assert.Empty(t, q.waiting)
	})
}

// As long as batches are late, fewer begin at once, down to a large one.
func TestTheQueueNarrowsWhenBatchesAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(2000, 50*time.Millisecond, never)
		for range 50 {
			queueTimeline(q, 26, true, 1000)
		}
		assert.Equal(t, []int{0, 26, 52}, queueTimeline(q, 26, true, 1000, 1000, 1000))
		for range 150 {
			queueTimeline(q, 24, true, 1000)
		}
		assert.Equal(t, []int{0, 1, 24}, queueTimeline(q, 24, true, 1000, 1000, 1000))
		assert.Equal(t, q.most, q.current)
	})
}

// While a server is silent nobody waits for those that wait for it. One that
// answers something is busy.
func TestTheQueueOpensWhenNothingIsDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := true
		q := NewQueue(2000, 50*time.Millisecond, func() bool { return silent })
		assert.Equal(t, []int{0, 1, 12, 12, 12, 12}, queueTimeline(q, 50, false, 1000, 1000, 1000, 1000, 1000, 1000))
		q.current = 2000
		assert.Equal(t, []int{0, 1, 50, 51}, queueTimeline(q, 50, true, 1000, 1000, 1000, 1000))
		silent = false
		q.current = 2000
		assert.Equal(t, []int{0, 1, 50, 51}, queueTimeline(q, 50, false, 1000, 1000, 1000, 1000))
	})
}

// No batch waits for longer than two store timeouts, however many there are, or
// for so long that its connection is closed before it ends.
func TestTheQueueHasABatchWaitOnlySoLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, 50*time.Millisecond, never)
		q.late = time.Minute
		assert.Equal(t, []int{0, 70, 102, 103}, queueTimeline(q, 70, true, 1000, 1000, 1000, 1000))
		q = NewQueue(1, 5*time.Second, never)
		q.late = time.Minute
		assert.Equal(t, []int{0, 4001}, queueTimeline(q, 5000, true, 1000, 1000))
		assert.Zero(t, q.inside)
		assert.Empty(t, q.waiting)
	})
}

// What a batch waits for a silent server is part of its time.
func TestTheQueueTellsHowLongABatchWasHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := true
		q := NewQueue(1, 50*time.Millisecond, func() bool { return silent })
		none, leave := q.enter(t.Context(), 1000)
		held, leaveHeld := q.enter(t.Context(), 1000)
		assert.Zero(t, none)
		assert.Equal(t, 10*time.Millisecond, held)
		leaveHeld()
		silent = false
		time.AfterFunc(30*time.Millisecond, leave)
		held, leave = q.enter(t.Context(), 1000)
		assert.Zero(t, held, "it waited for others")
		leave()
	})
}

// What a batch waited for others, before a server was silent, is no part of its
// time: it would have none left for the servers that answer.
func TestTheQueueTellsOnlyOfTheSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, 50*time.Millisecond, func() bool { return true })
		_, leave := q.enter(t.Context(), 1000)
		go func() {
			for range 100 {
				time.Sleep(time.Millisecond)
				q.decided.Add(1)
			}
		}()
		begin := time.Now()
		held, leaveHeld := q.enter(t.Context(), 1000)
		assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
		assert.LessOrEqual(t, held, 10*time.Millisecond)
		leaveHeld()
		leave()
	})
}

// Those who waited behind a caller who leaves begin if there is room for them.
func TestTheQueueWhenTheFirstToWaitLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1000, time.Minute, never)
		_, leave := q.enter(t.Context(), 1000)
		start := time.Now()
		time.AfterFunc(time.Second, leave)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		go q.enter(ctx, 1000)
		time.Sleep(100 * time.Millisecond)
		_, leaveSmall := q.enter(t.Context(), 10)
		assert.Equal(t, 200*time.Millisecond, time.Since(start))
		leaveSmall()
	})
}

// A caller who leaves takes nobody's place.
func TestTheQueueWhenACallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, time.Minute, never)
		_, leave := q.enter(t.Context(), 1000)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, leaveLater := q.enter(ctx, 1000)
		leaveLater()
		assert.Equal(t, 1000, q.inside)
		leave()
		assert.Zero(t, q.inside)
		assert.Empty(t, q.waiting)
	})
}
