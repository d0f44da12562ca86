package memcached

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

const (
	// maxPiece is about how many bytes of the commands for many clients are sent in
	// one piece, with the values that come back, and pieceTime about how long
	// Memcached takes for them.
	maxPiece  = 16 << 10
	pieceTime = 300 * time.Microsecond
	// minPieces and maxPieces are how many pieces of all callers may be under way
	// on a server at once. Those near by need a few; more only make other
	// goroutines wait for those that deal out the replies. Over a network more are
	// needed to keep the server busy. The most is a quarter of what may queue on a
	// socket: a piece waits for 6,000 keys of others, some milliseconds. With a
	// round trip of 10 ms, 2,000 clients who are new are then counted within the
	// default timeout. With two instead of four, single checks beside batches of new
	// clients are a sixth faster (p90), but the batches take the whole timeout.
	minPieces = 4
	maxPieces = 16
)

// The margin is at most a maxMargin-th of an operation's timeout: a server that was
// slow for a moment is asked again, so that it can show that it isn't.
const maxMargin = 4

// A budget bounds what is under way of AddMany and SwapMany on a server. Who has
// the least time left gets a part first: batches that share the server evenly
// would all end late. The zero budget is one of a server of which nothing is
// known.
type budget struct {
	timeout time.Duration // of an operation

	mu       sync.Mutex
	underway int           // bytes
	waiting  []*waiter     // by deadline, and then by arrival
	distance time.Duration // how long a piece takes that is alone; 0 if that isn't known
	usual    time.Duration // how long pieces take; 0 if that isn't known
}

// A waiter waits for a part of a budget.
type waiter struct {
	deadline time.Time
	acquired chan struct{} // closed when it has maxPiece
}

// pieces returns how many may be under way.
func (b *budget) pieces() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.piecesLocked()
}

// pause returns about how long a piece is under way.
func (b *budget) pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.distance, pieceTime)
}

// piecesLocked is pieces with b.mu held.
func (b *budget) piecesLocked() int {
	if b.distance == 0 {
		return maxPieces
	}
	return int(min(max(minPieces, 2+b.distance/pieceTime), maxPieces))
}

// room reports whether another piece may be under way. b.mu is held.
func (b *budget) room() bool { return b.underway+maxPiece <= b.piecesLocked()*maxPiece }

// acquire acquires maxPiece bytes, and reports whether it could while a piece may still
// be answered by the deadline, and whether nothing else is under way.
func (b *budget) acquire(deadline time.Time) (ok, alone bool) {
	b.mu.Lock()
	left := time.Until(deadline) - b.margin()
	if left < 0 {
		b.mu.Unlock()
		return false, false
	}
	if len(b.waiting) == 0 && b.room() {
		defer b.mu.Unlock()
		b.underway += maxPiece
		return true, b.underway == maxPiece
	}
	w := &waiter{deadline, make(chan struct{})}
	i, _ := slices.BinarySearchFunc(b.waiting, w, func(o, w *waiter) int { return cmp.Or(o.deadline.Compare(w.deadline), -1) })
	b.waiting = slices.Insert(b.waiting, i, w)
	b.mu.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-w.acquired:
		return true, false
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i = slices.Index(b.waiting, w)
	if i < 0 {
		return true, false // just now
	}
	b.waiting = slices.Delete(b.waiting, i, i+1)
	return false, false
}

// margin returns how much time must be left for a piece to be sent: what is answered
// late has only to be refunded. b.mu is held.
func (b *budget) margin() time.Duration { return min(2*b.usual, b.timeout/maxMargin) }

// give gives back n bytes.
func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.underway -= n; len(b.waiting) > 0 && b.room(); b.underway += maxPiece {
		close(b.waiting[0].acquired)
		b.waiting = slices.Delete(b.waiting, 0, 1)
	}
}

// measured notes how long a piece took that was answered, and whether it was alone
// when it began. One that took long may have been held up by other things.
func (b *budget) measured(took time.Duration, alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.usual == 0 {
		b.usual = took
	}
	b.usual += (took - b.usual) / 8
	if !alone {
		return
	}
	if took > b.distance && b.distance > 0 {
		took = b.distance + (took-b.distance)/8
	}
	b.distance = took
}
