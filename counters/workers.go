package counters

import (
	"sync"
	"time"
)

// Workers run functions in a bounded number of goroutines, in the order of
// their arrival. None of them may wait for one that comes later. Set the fields
// before the first Go.
type Workers struct {
	// AtOnce is how many functions run at once, at least 1.
	AtOnce int
	// Patience is after how long as many more begin, and so on while functions
	// wait: those that run may all be held up by a server that is silent. 0
	// means never.
	Patience time.Duration

	mu      sync.Mutex
	waiting []func()
	running int
	most    int // how many may run
	timer   *time.Timer
	ended   sync.WaitGroup
}

// Go runs f in a goroutine, now or later.
func (w *Workers) Go(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, w.AtOnce)
	w.waiting = append(w.waiting, f)
	w.begin()
	if len(w.waiting) > 0 && w.Patience > 0 && w.timer == nil {
		w.timer = time.AfterFunc(w.Patience, w.more)
	}
}

// begin has as many functions run as may. w.mu is held.
func (w *Workers) begin() {
	for w.running < w.most && len(w.waiting) > 0 {
		f := w.next()
		w.running++
		w.ended.Go(Grown(func() { w.work(f) }))
	}
}

// next takes out the function that waits longest, or returns nil. w.mu is held.
func (w *Workers) next() (f func()) {
	if len(w.waiting) > 0 {
		f, w.waiting[0] = w.waiting[0], nil
		w.waiting = w.waiting[1:]
	}
	return f
}

// work runs f, and then what waits.
func (w *Workers) work(f func()) {
	for f != nil {
		f()
		w.mu.Lock()
		if f = w.next(); f == nil {
			w.running--
		}
		w.mu.Unlock()
	}
}

// more lets more functions run if some wait.
func (w *Workers) more() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		w.timer = nil
		return
	}
	w.most += w.AtOnce
	w.begin()
	w.timer.Reset(w.Patience)
}

// Wait returns when all functions have ended. No other may be given from then
// on, but by one of them.
func (w *Workers) Wait() {
	w.ended.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}
