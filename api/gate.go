package api

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// checksInside is how many checks of batches are decided at once, for each
	// processor: that many keep it busy. If more share it, all batches end late.
	checksInside = 1000
	// turnTime is how much earlier than a smaller batch by one check a batch must
	// have come to be decided first.
	turnTime = 50 * time.Microsecond
	// maxIdle and idleParts are after how long without a decision all batches
	// begin, at most, and as a part of the store timeout: those that have begun may
	// be held up by a server that is silent.
	maxIdle   = 10 * time.Millisecond
	idleParts = 5
)

// A gate has batches wait before they begin while others keep the processors
// busy. Their time hasn't begun, so that waiting costs them no answers of the
// store. Small batches wait less. Set the fields before use.
type gate struct {
	most int           // checks at once; one batch more may begin before they are
	idle time.Duration // after how long without a decision all may begin

	decided atomic.Int64 // checks that the store has decided

	mu      sync.Mutex
	inside  int
	waiting []*waiter // in the order of their turns
	timer   *time.Timer
	seen    int64 // decided at the last look
}

// A waiter is a batch before a gate.
type waiter struct {
	turn   time.Time
	checks int
	begin  chan struct{} // closed when it is inside
}

// newGate returns the gate of a server with this StoreTimeout.
func newGate(timeout time.Duration) *gate {
	return &gate{most: checksInside * runtime.GOMAXPROCS(0), idle: min(timeout/idleParts, maxIdle)}
}

// enter waits until a batch of so many checks may begin, and returns what has to
// be called when it has ended. If its caller leaves before, it begins, too: it
// takes no time any more.
func (g *gate) enter(ctx context.Context, checks int) (leave func()) {
	leave = func() { g.leave(checks) }
	g.mu.Lock()
	if len(g.waiting) == 0 && g.inside < g.most {
		g.inside += checks
		g.mu.Unlock()
		return leave
	}
	w := &waiter{time.Now().Add(time.Duration(checks) * turnTime), checks, make(chan struct{})}
	after := func(other, w *waiter) int {
		if other.turn.After(w.turn) {
			return 1
		}
		return -1
	}
	i, _ := slices.BinarySearchFunc(g.waiting, w, after)
	g.waiting = slices.Insert(g.waiting, i, w)
	if g.timer == nil {
		g.seen, g.timer = g.decided.Load(), time.AfterFunc(g.idle, g.look)
	}
	g.mu.Unlock()
	select {
	case <-w.begin:
		return leave
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, w); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		return func() {}
	}
	return leave // it is inside since just now
}

func (g *gate) leave(checks int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside -= checks
	for len(g.waiting) > 0 && g.inside < g.most {
		g.admit()
	}
}

// admit lets in whose turn it is. g.mu is held.
func (g *gate) admit() {
	w := g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	g.inside += w.checks
	close(w.begin)
}

// look lets all in if nothing has been decided since the last look.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := g.seen
	g.seen = g.decided.Load()
	for len(g.waiting) > 0 && g.seen == seen {
		g.admit()
	}
	if g.timer = nil; len(g.waiting) > 0 {
		g.timer = time.AfterFunc(g.idle, g.look)
	}
}
