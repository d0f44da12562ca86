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
	// checksInside is how many checks of batches are decided at once at most, for
	// each processor: that many keep it busy. If more share it, all batches end
	// late.
	checksInside = 1000
	// A batch that takes more than a lateParts-th of the store timeout is late. Then
	// fewer are decided at once, by a part of shrinkParts but never less than one
	// large batch, and after one that isn't late more, by a growParts-th of its
	// checks: nearly all are to be in time.
	lateParts, shrinkParts, growParts = 2, 8, 64
	// turnTime is how much earlier than a smaller batch by one check a batch must
	// have come to be decided first.
	turnTime = 50 * time.Microsecond
	// maxIdle and idleParts are after how long without a decision, while a server
	// answers nothing, all batches begin: at most, and as a part of the store
	// timeout. Those that have begun may be held up by that server.
	maxIdle   = 10 * time.Millisecond
	idleParts = 5
	// waitTimeouts is how many store timeouts a batch waits at most, and maxWait
	// how long: its caller has a timeout too, and so have its connection and a
	// shutdown, of 10 s.
	waitTimeouts = 2
	maxWait      = 4 * time.Second
)

// A gate has batches wait before they begin while others keep the processors or
// the store busy. Their time hasn't begun, so that waiting costs them no answers
// of the store. Small batches wait less. Make one with newGate.
type gate struct {
	most float64       // checks at once, when batches are in time
	late time.Duration // how long a batch takes that is late
	idle time.Duration // after how long without a decision all may begin
	// longest is how long a batch waits at most.
	longest time.Duration
	// silent reports whether a server has answered nothing since it was called
	// last. g.mu is held.
	silent func() bool

	decided atomic.Int64 // checks that the store has decided

	mu      sync.Mutex
	now     float64 // checks at once, as room has it
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
	silent bool          // as a server is
}

// newGate returns the gate of a server with this StoreTimeout.
func newGate(timeout time.Duration, silent func() bool) *gate {
	most := float64(checksInside * runtime.GOMAXPROCS(0))
	return &gate{
		most: most, now: most, late: timeout / lateParts, idle: min(timeout/idleParts, maxIdle),
		longest: min(waitTimeouts*timeout, maxWait), silent: silent,
	}
}

// enter waits until a batch of so many checks may begin, and returns what has to
// be called when it has ended. held is how long it waited for a server that
// turned out to be silent: that is part of its time, and what it waited for
// others before isn't. If its caller leaves before, it begins, too: it takes no
// time any more.
func (g *gate) enter(ctx context.Context, checks int) (held time.Duration, leave func()) {
	began := time.Now()
	leave = func() { g.leave(checks, time.Since(began)) }
	w := &waiter{turn: began.Add(time.Duration(checks) * turnTime), checks: checks, begin: make(chan struct{})}
	g.mu.Lock()
	if g.room(checks) && (len(g.waiting) == 0 || w.turn.Before(g.waiting[0].turn)) {
		g.inside += checks
		g.mu.Unlock()
		return 0, leave
	}
	after := func(other, w *waiter) int {
		if other.turn.After(w.turn) {
			return 1
		}
		return -1
	}
	i, _ := slices.BinarySearchFunc(g.waiting, w, after)
	g.waiting = slices.Insert(g.waiting, i, w)
	if g.timer == nil {
		_ = g.silent()
		g.seen, g.timer = g.decided.Load(), time.AfterFunc(g.idle, g.look)
	}
	g.mu.Unlock()
	waited := time.NewTimer(g.longest)
	defer waited.Stop()
	select {
	case <-w.begin:
		if w.silent {
			held = min(time.Since(began), g.idle)
		}
		began = time.Now()
		return held, leave
	case <-waited.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	began = time.Now()
	i = slices.Index(g.waiting, w)
	if i < 0 {
		return 0, leave // it is inside since just now
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	if ctx.Err() == nil {
		g.inside += checks
	} else {
		leave = func() {}
	}
	g.admitMore() // who waited behind it
	return 0, leave
}

// room reports whether another batch may begin: a large one while fewer checks
// than now are inside, and the smallest while fewer than twice as many are. g.mu
// is held.
func (g *gate) room(checks int) bool {
	small := 1 - float64(checks)/maxBatch
	return g.inside == 0 || float64(g.inside) < g.now*(1+small)
}

func (g *gate) leave(checks int, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside -= checks
	if took > g.late {
		g.now = max(g.now-g.now/shrinkParts, min(maxBatch, g.most))
	} else {
		g.now = min(g.now+float64(checks)/growParts, g.most)
	}
	g.admitMore()
}

// admitMore lets in those whose turn it is while there is room. g.mu is held.
func (g *gate) admitMore() {
	for len(g.waiting) > 0 && g.room(g.waiting[0].checks) {
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

// look lets all in if nothing has been decided since the last look, as a server
// is silent. One that answers has more to do than it can, and less if they wait.
func (g *gate) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen, silent := g.seen, g.silent()
	g.seen = g.decided.Load()
	for len(g.waiting) > 0 && g.seen == seen && silent {
		g.waiting[0].silent = true
		g.admit()
	}
	if g.timer = nil; len(g.waiting) > 0 {
		g.timer = time.AfterFunc(g.idle, g.look)
	}
}
