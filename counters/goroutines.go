package counters

import (
	"runtime"
	"sync"
)

// Goroutines go on after the calls that began them. Unlike those of a
// sync.WaitGroup they can be waited for while others begin. In the zero value none
// is running. It is safe for concurrent use.
type Goroutines struct {
	mu      sync.Mutex
	running int
	ended   chan struct{} // closed when none is running any more
}

// Go runs f in a goroutine.
func (g *Goroutines) Go(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running == 0 {
		g.ended = make(chan struct{})
	}
	g.running++
	go func() {
		defer g.end()
		f()
	}()
}

func (g *Goroutines) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 {
		close(g.ended)
	}
}

// Wait returns when none is running.
func (g *Goroutines) Wait() {
	g.mu.Lock()
	running, ended := g.running, g.ended
	g.mu.Unlock()
	if running > 0 {
		<-ended
	}
}

// Grown returns a function that calls f on a stack that is large enough to ask a limiter. The
// small stack of a new goroutine would grow in steps, and be copied with all that is on it at each.
func Grown(f func()) func() {
	return func() {
		growStack()
		f()
	}
}

//go:noinline
func growStack() {
	var room [8 << 10]byte
	runtime.KeepAlive(&room)
}
