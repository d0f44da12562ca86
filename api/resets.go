package api

import (
	"maps"
	"sync"
	"time"
)

// maxResets is how many resets wait for the store at most.
const maxResets = 1000

// A lateReset is the reset of a client of a policy, by a name that counts it, that the store
// couldn't do.
type lateReset struct{ policy, name string }

// lateResets are the resets that wait for the store, with the times at which they were
// asked for. The zero value has none.
type lateResets struct {
	mu    sync.Mutex
	asked map[lateReset]time.Time
}

// add has r wait, and reports whether it does: not if maxResets others wait. If r waits already,
// the later of the two times is kept.
func (l *lateResets) add(r lateReset, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.asked[r]; !waits && len(l.asked) >= maxResets {
		return false
	}
	if l.asked == nil {
		l.asked = make(map[lateReset]time.Time)
	}
	if now.After(l.asked[r]) {
		l.asked[r] = now
	}
	return true
}

// done notes that r was done as of now. It still waits if it was asked for again later.
func (l *lateResets) done(r lateReset, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked[r].After(now) {
		delete(l.asked, r)
	}
}

// waiting returns those that wait, and when they were asked for.
func (l *lateResets) waiting() map[lateReset]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.asked)
}
