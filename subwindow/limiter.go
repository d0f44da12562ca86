package subwindow

import (
	"context"
	"slices"
	"sync"
	"time"

	"weir/counters"
)

// Config configures a Limiter.
type Config struct {
	// Keys is where the limit's counters are kept.
	Keys counters.Namespace
	// Window is the sliding window; see NewWindow.
	Window Window
	// ClockSkew is the largest difference between the clocks of instances, the
	// time in which a count reaches the store included.
	ClockSkew time.Duration
	// CountDenied makes denied requests count too.
	CountDenied bool
}

// A Limiter admits requests while Window.Estimate stays within the limit. It
// counts first and reads the other slots after that, so of two requests that
// race for the last place, from whichever instances, at least one sees the
// other: never more than the estimate allows are admitted. In such a race both
// may be denied. It is safe for concurrent use.
type Limiter struct {
	store counters.Store
	cfg   Config
	spare sync.Pool // of *slots
}

// New returns a limiter on the given store.
func New(store counters.Store, cfg Config) *Limiter {
	return &Limiter{store: store, cfg: cfg, spare: sync.Pool{New: func() any { return new(slots) }}}
}

// Take admits r and counts it, or denies it. A denied cost is counted only
// with CountDenied. The error is one of a Store's; after one the cost may have
// been counted.
func (l *Limiter) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if r.Cost == 0 {
		return l.Peek(ctx, r)
	}
	s := l.slots(r)
	defer l.spare.Put(s)
	n, err := l.store.Add(ctx, s.key, r.Cost, l.ttl(s.elapsed), s.others, s.counts[1:])
	if err != nil {
		return counters.Decision{}, err
	}
	s.place(n - r.Cost)
	w := l.cfg.Window
	allowed := w.Admits(s.counts, s.elapsed, r)
	if allowed || l.cfg.CountDenied {
		s.counts[s.ahead] = n
	} else {
		// A give-back that fails leaves the count too high until the slot has
		// left the window; the denial stands either way.
		_ = l.store.Subtract(ctx, s.key, r.Cost)
	}
	return w.Decision(s.counts, s.elapsed, r, allowed), nil
}

// Peek decides r without counting it. The error is one of a Store's.
func (l *Limiter) Peek(ctx context.Context, r counters.Request) (counters.Decision, error) {
	s := l.slots(r)
	defer l.spare.Put(s)
	// The current slot is read last, into a place behind the others.
	s.others = append(s.others, s.key)
	s.counts = append(s.counts, 0)
	if err := l.store.Read(ctx, s.others, s.counts[1:]); err != nil {
		return counters.Decision{}, err
	}
	last := len(s.counts) - 1
	current := s.counts[last]
	s.counts = s.counts[:last]
	s.place(current)
	w := l.cfg.Window
	return w.Decision(s.counts, s.elapsed, r, w.Admits(s.counts, s.elapsed, r)), nil
}

// GiveBack takes back a request that Take admitted. The error is one of a
// Store's; after one the count may stay too high until the slot has left the
// window.
func (l *Limiter) GiveBack(ctx context.Context, r counters.Request) error {
	if r.Cost == 0 {
		return nil
	}
	bucket := counters.Calendar(r.Now, l.cfg.Window.Width).Number
	return l.store.Subtract(ctx, counters.CounterKey(l.cfg.Keys.Client(r.Client), bucket), r.Cost)
}

// Reset forgets what the client has used: in every slot of the window, and in
// the next, which instances with faster clocks may count in already. The error
// is one of a Store's.
func (l *Limiter) Reset(ctx context.Context, client string, now time.Time) error {
	w := l.cfg.Window
	prefix := l.cfg.Keys.Client(client)
	newest := counters.Calendar(now.Add(max(w.Width, l.cfg.ClockSkew)), w.Width).Number
	oldest := counters.Calendar(now, w.Width).Number - int64(w.Slots)
	keys := make([]string, 0, newest-oldest+1)
	for bucket := newest; bucket >= oldest; bucket-- {
		keys = append(keys, counters.CounterKey(prefix, bucket))
	}
	return l.store.Delete(ctx, keys)
}

// ttl returns how long a slot must be kept that has been open for elapsed: until
// it has been the oldest slot to its end.
func (l *Limiter) ttl(elapsed time.Duration) time.Duration {
	w := l.cfg.Window
	return counters.TTL(time.Duration(w.Slots+1)*w.Width-elapsed, l.cfg.ClockSkew)
}

// slots is what one check handles of a window's slots.
type slots struct {
	elapsed time.Duration // of the current slot
	ahead   int           // slots that have begun on a clock that is ahead by the skew
	key     string        // of the current slot
	others  []string      // keys of all other slots, newest first
	counts  []int64       // as Window wants them: newest first, counts[ahead] is the current slot
}

// slots returns the slots for r, with room for the others' counts in
// counts[1:].
func (l *Limiter) slots(r counters.Request) *slots {
	w := l.cfg.Window
	current := counters.Calendar(r.Now, w.Width)
	newest := current.Number + int64((current.Elapsed+l.cfg.ClockSkew)/w.Width)
	oldest := current.Number - int64(w.Slots)
	prefix := l.cfg.Keys.Client(r.Client)

	s := l.spare.Get().(*slots)
	s.elapsed = current.Elapsed
	s.ahead = int(newest - current.Number)
	s.key = counters.CounterKey(prefix, current.Number)
	s.others = s.others[:0]
	for bucket := newest; bucket >= oldest; bucket-- {
		if bucket != current.Number {
			s.others = append(s.others, counters.CounterKey(prefix, bucket))
		}
	}
	s.counts = slices.Grow(s.counts[:0], len(s.others)+1)[:len(s.others)+1]
	return s
}

// place puts the current slot's count between those of the slots ahead, which
// were read into counts[1:], and the older ones.
func (s *slots) place(current int64) {
	copy(s.counts[:s.ahead], s.counts[1:])
	s.counts[s.ahead] = current
}
