package counters

import "sync"

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
