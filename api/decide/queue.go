package decide

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxBatch is how many checks a batch may have.
const MaxBatch = 1000

const (
	// A batch that takes more than 1/lateParts of the store timeout is late. After it,
	// 1/shrinkParts fewer checks are decided at once, though never fewer than those of
	// one large batch; after one in time, more by 1/growParts of its checks. So nearly
	// all batches are in time.
	lateParts, shrinkParts, growParts = 2, 8, 64
	// turnTime is how much a batch's turn moves back for each of its checks.
	turnTime = 50 * time.Microsecond
	// While a server is silent, all waiting batches begin once nothing was decided for
	// 1/idleParts of the store timeout, or for maxIdle if that is less: the batches ahead
	// of them may be held up by that server.
	maxIdle   = 10 * time.Millisecond
	idleParts = 5
	// waitTimeouts is how many store timeouts a batch waits at most, and maxWait
	// how long: its caller has a timeout too, and so have its connection and a
	// shutdown, of 10 s.
	waitTimeouts = 2
	maxWait      = 4 * time.Second
)

// A Queue has batches wait before they begin while others keep the processors or
// the store busy. Their store timeout begins after the wait, so no check fails
// because of it. Small batches wait less. Make one with NewQueue; it is safe for
// concurrent use.
type Queue struct {
	most float64       // checks at once, when batches are in time
	late time.Duration // how long a batch takes that is late
	idle time.Duration // after how long without a decision all may begin
	// longest is how long a batch waits at most.
	longest time.Duration
	// silent reports whether a server has answered nothing since it was called
	// last. q.mu is held.
	silent func() bool

	decided atomic.Int64 // checks that the store has decided

	mu      sync.Mutex
	current float64 // checks at once by now, as room has it
	inside  int
	waiting []*waiter // in the order of their turns
	timer   *time.Timer
	seen    int64 // decided at the last look
}

// A waiter is a batch in a queue.
type waiter struct {
	turn   time.Time
	checks int
	begin  chan struct{} // closed when it is inside
	silent bool          // as a server is
}

// NewQueue returns the queue of batches that decide so many checks at once at most,
// within the store timeout. silent reports whether a server of the store has answered
// nothing since it was called last; one goroutine at a time calls it.
func NewQueue(most int, timeout time.Duration, silent func() bool) *Queue {
	return &Queue{
		most: float64(most), current: float64(most), late: timeout / lateParts, idle: min(timeout/idleParts, maxIdle),
		longest: min(waitTimeouts*timeout, maxWait), silent: silent,
	}
}

// enter waits until a batch of so many checks may begin. leave has to be called
// when it has ended. held is how much of the wait counts as time of the batch: how
// long it waited for a server that turned out to be silent. What it waited for
// other batches doesn't count. If its caller leaves meanwhile, the batch begins at
// once and takes no room.
func (q *Queue) enter(ctx context.Context, checks int) (held time.Duration, leave func()) {
	began := time.Now()
	leave = func() { q.leave(checks, time.Since(began)) }
	w := &waiter{turn: began.Add(time.Duration(checks) * turnTime), checks: checks, begin: make(chan struct{})}
	q.mu.Lock()
	if q.room(checks) && (len(q.waiting) == 0 || w.turn.Before(q.waiting[0].turn)) {
		q.inside += checks
		q.mu.Unlock()
		return 0, leave
	}
	i := slices.IndexFunc(q.waiting, func(other *waiter) bool { return other.turn.After(w.turn) })
	if i < 0 {
		i = len(q.waiting)
	}
	q.waiting = slices.Insert(q.waiting, i, w)
	if q.timer == nil {
		_ = q.silent()
		q.seen, q.timer = q.decided.Load(), time.AfterFunc(q.idle, q.look)
	}
	q.mu.Unlock()
	waited := time.NewTimer(q.longest)
	defer waited.Stop()
	select {
	case <-w.begin:
		if w.silent {
			held = min(time.Since(began), q.idle)
		}
		began = time.Now()
		return held, leave
	case <-waited.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	began = time.Now()
	i = slices.Index(q.waiting, w)
	if i < 0 {
		return 0, leave // it is inside since just now
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if ctx.Err() == nil {
		q.inside += checks
	} else {
		leave = func() {}
	}
	q.admitMore() // who waited behind it
	return 0, leave
}

// room reports whether another batch may begin: a large one while fewer checks
// than current are inside, and the smallest while fewer than twice as many are. q.mu
// is held.
func (q *Queue) room(checks int) bool {
	small := 1 - float64(checks)/MaxBatch
	return q.inside == 0 || float64(q.inside) < q.current*(1+small)
}

func (q *Queue) leave(checks int, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inside -= checks
	if took > q.late {
		q.current = max(q.current-q.current/shrinkParts, min(MaxBatch, q.most))
	} else {
		q.current = min(q.current+float64(checks)/growParts, q.most)
	}
	q.admitMore()
}

// admitMore lets in the next batches while there is room. q.mu is held.
func (q *Queue) admitMore() {
	for len(q.waiting) > 0 && q.room(q.waiting[0].checks) {
		q.admit()
	}
}

// admit lets in whose turn it is. q.mu is held.
func (q *Queue) admit() {
	w := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	q.inside += w.checks
	close(w.begin)
}

// look lets all batches in if nothing has been decided since it looked last and a server is
// silent. While all servers answer, batches go on waiting, so that the servers get less load.
func (q *Queue) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	seen, silent := q.seen, q.silent()
	q.seen = q.decided.Load()
	for len(q.waiting) > 0 && q.seen == seen && silent {
		q.waiting[0].silent = true
		q.admit()
	}
	if q.timer = nil; len(q.waiting) > 0 {
		q.timer = time.AfterFunc(q.idle, q.look)
	}
}
