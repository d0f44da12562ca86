package counters

import "sync"

// A Group is goroutines that go on after the calls that began them. Unlike a
// sync.WaitGroup it can be waited for while others begin. The zero Group has
// none. It is safe for concurrent use.
type Group struct {
	mu      sync.Mutex
	running int
	ended   chan struct{} // closed when none is running any more
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
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

func (g *Group) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 {
		close(g.ended)
	}
}

// Wait returns when none of the group's goroutines is running.
func (g *Group) Wait() {
	g.mu.Lock()
	running, ended := g.running, g.ended
	g.mu.Unlock()
	if running > 0 {
		<-ended
	}
}
