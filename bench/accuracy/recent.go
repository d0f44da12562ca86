package accuracy

import "time"

// recent is an exact sliding log: the times of all events of the last Window,
// (now-Window, now]. Its memory is what the fullest window needed. The zero
// value is empty.
type recent struct {
	ring  []time.Duration // its length is a power of two, or 0
	first int             // the oldest
	n     int
}

// count returns the number of events in (now-Window, now] and forgets those
// before. Times must not go back.
func (r *recent) count(now time.Duration) int64 {
	for r.n > 0 && now-r.ring[r.first] >= Window {
		r.first = (r.first + 1) & (len(r.ring) - 1)
		r.n--
	}
	return int64(r.n)
}

// add adds an event that isn't before any other.
func (r *recent) add(at time.Duration) {
	if r.n == len(r.ring) {
		larger := make([]time.Duration, max(16, 2*r.n))
		copy(larger[copy(larger, r.ring[r.first:]):], r.ring[:r.first])
		r.ring, r.first = larger, 0
	}
	r.ring[(r.first+r.n)&(len(r.ring)-1)] = at
	r.n++
}

// clear forgets all events.
func (r *recent) clear() { r.first, r.n = 0, 0 }

// fullest returns the most events in any (t-length, t]. The times must be in
// order.
func fullest(times []time.Duration, length time.Duration) int64 {
	most, oldest := 0, 0
	for i, t := range times {
		for t-times[oldest] >= length {
			oldest++
		}
		most = max(most, i-oldest+1)
	}
	return int64(most)
}
