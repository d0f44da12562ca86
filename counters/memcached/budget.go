package memcached

import (
	"slices"
	"sync"
	"time"
)

const (
	// maxPiece is about how many bytes of the additions of many clients are sent
	// in one piece, and pieceTime about how long Memcached takes for them.
	maxPiece  = 16 << 10
	pieceTime = 300 * time.Microsecond
	// minPieces and maxPieces are how many pieces of all callers may be under way
	// on a server at once. Those near by need a few; more only make other
	// goroutines wait for those that deal out the replies. Over a network more are
	// needed to keep the server busy. The most is a quarter of what may queue on a
	// socket: a piece waits for 6,000 keys of others, some milliseconds. With a
	// round trip of 10 ms, 2,000 clients who are new are then counted within the
	// default timeout.
	minPieces = 4
	maxPieces = 16
)

// A budget bounds what is under way of AddMany on a server. Callers get their
// part in the order of their arrival. The zero budget is one of a server of which
// nothing is known.
type budget struct {
	mu       sync.Mutex
	under    int             // bytes that are under way
	waiting  []chan struct{} // closed when maxPiece has been taken for who waits
	distance time.Duration   // how long a piece takes that is alone; 0 if that isn't known
}

// pieces returns how many may be under way.
func (b *budget) pieces() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.most()
}

// pause returns about how long a piece is under way.
func (b *budget) pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.distance, pieceTime)
}

// most is pieces with b.mu held.
func (b *budget) most() int {
	if b.distance == 0 {
		return maxPieces
	}
	return int(min(max(minPieces, 2+b.distance/pieceTime), maxPieces))
}

// room reports whether another piece may be under way. b.mu is held.
func (b *budget) room() bool { return b.under+maxPiece <= b.most()*maxPiece }

// take takes maxPiece bytes, and reports whether it could by the deadline, and
// whether nothing else is under way.
func (b *budget) take(deadline time.Time) (ok, alone bool) {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.room() {
		defer b.mu.Unlock()
		b.under += maxPiece
		return true, b.under == maxPiece
	}
	taken := make(chan struct{})
	b.waiting = append(b.waiting, taken)
	b.mu.Unlock()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-taken:
		return true, false
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiting, taken)
	if i < 0 {
		return true, false // just now
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	return false, false
}

// give gives back n bytes.
func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.under -= n; len(b.waiting) > 0 && b.room(); b.under += maxPiece {
		close(b.waiting[0])
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

// measured notes how long a piece took that was alone when it began. One that
// took long may have been held up by other things.
func (b *budget) measured(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if took > b.distance && b.distance > 0 {
		took = b.distance + (took-b.distance)/8
	}
	b.distance = took
}
