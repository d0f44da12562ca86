package architecture

import (
	"time"

	"weir/bench/traffic"
)

// Later checks first and counts afterwards: an instance reads the count from a
// store that all share, decides, answers, and increments it in the background.
// How many instances do so makes no difference.
type Later struct {
	limit   Limit
	delay   time.Duration
	clients perClient[news]
}

// NewLater returns instances whose increments reach the store the delay after
// the count was read.
func NewLater(limit Limit, delay time.Duration) *Later {
	return &Later{limit: limit, delay: delay, clients: newPerClient(limit.newNews)}
}

// Take implements Architecture.
func (l *Later) Take(a traffic.Arrival) (Outcome, error) {
	client := l.clients.of(a.Client)
	if client.count(a.At) >= l.limit.Requests {
		return Outcome{Messages: 1}, nil // the read
	}
	client.add(a.At, a.At+l.delay)
	return Outcome{Admitted: true, Messages: 2}, nil
}

// Bounds implements Architecture: all that come before the increment of the
// last that the limit allows are admitted.
func (l *Later) Bounds(rate float64) (least, most float64) {
	all := min(float64(l.limit.Requests)+rate*l.delay.Seconds(), l.limit.inWindow(rate))
	return all, all
}
