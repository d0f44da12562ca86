package accuracy

import "time"

// An exactLog is the events in (now-window, now], each of which has a cost. The zero
// value is empty.
type exactLog struct {
	events []event
	costs  int64
}

type event struct {
	at   time.Duration
	cost int64
}

// sum returns the costs of recent events and forgets the others. Times must not
// go back.
func (l *exactLog) sum(now time.Duration) int64 {
	for len(l.events) > 0 && now-l.events[0].at >= window {
		l.costs -= l.events[0].cost
		l.events = l.events[1:]
	}
	return l.costs
}

// add adds an event that isn't before any other.
func (l *exactLog) add(at time.Duration, cost int64) {
	l.events = append(l.events, event{at, cost})
	l.costs += cost
}

// fullestWindow returns the most events in any (t-length, t]. The times must be in
// order.
func fullestWindow[T ~int64](times []T, length time.Duration) int64 {
	most, oldest := 0, 0
	for i, t := range times {
		for t-times[oldest] >= T(length) {
			oldest++
		}
		most = max(most, i-oldest+1)
	}
	return int64(most)
}
