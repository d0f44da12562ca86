package memcached

import (
	"slices"
	"sync"
	"time"
)

const (
	// maxPiece is about how many bytes of the additions of many clients are sent
	// in one piece.
	maxPiece = 16 << 10
	// maxManyBytes is how much of such pieces, of all callers, is under way on a
	// server at once: a quarter of what may queue on a socket. A piece waits for
	// 6,000 keys of others at most, some milliseconds. Over a network with a round
	// trip of 10 ms, 2,000 clients who are new are counted within the default
	// timeout.
	maxManyBytes = 16 * maxPiece
)

// A budget bounds what is under way of AddMany on a server. Callers get their
// part in the order of their arrival. The zero budget has nothing left.
type budget struct {
	mu      sync.Mutex
	left    int             // bytes
	waiting []chan struct{} // closed when maxPiece has been taken for who waits
}

// take takes maxPiece bytes, and reports whether it could by the deadline.
func (b *budget) take(deadline time.Time) bool {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.left >= maxPiece {
		b.left -= maxPiece
		b.mu.Unlock()
		return true
	}
	taken := make(chan struct{})
	b.waiting = append(b.waiting, taken)
	b.mu.Unlock()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-taken:
		return true
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, taken)
	if i < 0 {
		return true // just now
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	return false
}

// give gives back n bytes.
func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.left += n; len(b.waiting) > 0 && b.left >= maxPiece; b.left -= maxPiece {
		close(b.waiting[0])
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}
