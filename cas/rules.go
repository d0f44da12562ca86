package cas

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"weir/counters"
)

// ErrContended: other instances held the process up until the deadline, as they
// changed the client's state between each attempt's read and its write.
var ErrContended = errors.New("cas: other instances changed the state first at each attempt")

// Config configures a Limiter.
type Config struct {
	counters.Options
	// Swaps is called after each batch that changed a state, or tried to, if it
	// isn't nil: with the number of attempts, and how many of those lost a
	// race. It must not call the limiter.
	Swaps func(attempts, lost int)
	// Foreign is called for each value found that isn't a state, if it isn't
	// nil. The client then starts anew. It must not call the limiter.
	Foreign func()
	// Ahead is called for each state that was written by a clock so far ahead of a
	// request that it is taken as of then, if it isn't nil: with how far. It must not
	// call the limiter.
	Ahead func(by time.Duration)
}

// Rules are an algorithm, and what a limit's options make of it.
type rules[S any] struct {
	algorithm[S]
	cfg    Config
	leases bool // of which some may end at any moment: no denial is remembered
}

// drains reports whether the algorithm is a bucket's.
func (l *rules[S]) drains() bool {
	_, drains := any(l.algorithm).(bucket)
	return drains
}

// heal returns a state as of now if it was written, or is to be, by a clock that was
// further ahead of the request, and of this process, than clocks may be: until that time
// comes nothing would drain. It reports by how much; 0 if it wasn't, and it may change s.
func (l *rules[S]) heal(s S, request time.Time) (_ S, ahead time.Duration) {
	_, at := l.began(s)
	now, skew := request.UnixNano(), int64(l.cfg.ClockSkew)
	if at <= now+skew {
		return s, 0
	}
	if now = max(now, time.Now().UnixNano()); at <= now+skew { // the request has waited
		return s, 0
	}
	return l.asOf(s, now), time.Duration(min(between(now, at), uint64(forever)))
}

// tell returns the state in which the store has been told of debts, and takes over the
// memory of s. What was admitted alone is consumed at its own time, be there room or not.
func (l *rules[S]) tell(s S, debts ...*debt) S {
	for len(debts) > 0 {
		n := 0 // at the beginning
		for n < len(debts) && debts[n].consumes() {
			n++
		}
		if n > 0 {
			s, debts = l.charge(s, debts[:n]...), debts[n:]
			continue
		}
		if d := debts[0]; d.kind == back {
			s = l.refund(s, d)
		} else {
			s, _ = l.step(s, d.request())
		}
		debts = debts[1:]
	}
	return s
}

// fill returns s, whose memory it takes over, with what others are thought to have admitted by
// the time of r, as far as there is room for it.
func (l *rules[S]) fill(s S, r counters.Request, others int64) S {
	r.Renews, r.Cost = 0, min(others, l.peek(s, r).Remaining)
	s, _ = l.step(s, r)
	return s
}

// less returns the origin o of a state from which something was taken at a time, Unix nanoseconds,
// by a reset or a refund: so long as it lasts others may remember more.
func (l *rules[S]) less(o origin, at int64, lasts time.Duration) origin {
	o.until = max(o.until+1, at+int64(min(lasts, counters.MaxWindow)+l.cfg.Horizon()+l.cfg.ClockSkew))
	return o
}

// decoded returns the state that the store has, whose memory it takes over, and
// its origin. What is foreign is the initial state.
func (l *rules[S]) decoded(state counters.State) (s S, o origin, foreign bool) {
	if !state.Exists() {
		return s, o, false
	}
	o, data, err := cutOrigin(state.Value)
	if err == nil {
		s, err = l.decode(data)
	}
	return s, o, err != nil
}

// A snapshot is a state as it was seen. The zero value is none.
type snapshot[S any] struct {
	token   casToken // of the state that the store has
	decoded S        // which no one may change
	origin  origin
	at      int64  // Unix nanoseconds, of the request that asked for it; math.MaxInt64: it is never fresh
	expires moment // when the store forgets it at the latest
	size    int32  // of its value
	lost    bool   // the store has less, or nothing
}

// A casToken tells a state that a store has from all others; the zero value is
// that of none.
type casToken struct{ version, life uint64 }

// unexpired reports whether the store would still have it: one of a clock that was
// ahead mustn't outlast it here.
func (s *snapshot[S]) unexpired() bool { return momentOf(time.Now()) <= s.expires }

// fresh reports whether denials may rely on it at now.
func (s *snapshot[S]) fresh(now time.Time) bool {
	age := now.UnixNano() - s.at
	return age >= 0 && age <= int64(counters.MaxStaleness)
}

// decodeInto puts what the store has into seen, and returns when it did. next is the transition of
// the batch that has asked: a state that this has written needs no decoding.
func (l *rules[S]) decodeInto(state counters.State, next *transition[S], seen *snapshot[S]) (read time.Time) {
	read = time.Now()
	*seen = snapshot[S]{
		at: next.latest.Now.UnixNano(), size: int32(len(state.Value)),
		token: casToken{state.Version, state.Life},
	}
	ttl := next.ttl
	if next.changed && bytes.Equal(state.Value, next.value) {
		seen.decoded, seen.origin = next.to, next.origin
	} else {
		var foreign bool
		if seen.decoded, seen.origin, foreign = l.decoded(state); foreign && l.cfg.Foreign != nil {
			l.cfg.Foreign()
		}
		ttl = counters.TTL(max(l.ttl(seen.decoded, *next.latest), seen.origin.left(next.latest.Now)), l.cfg.Horizon())
	}
	seen.expires = momentOf(read.Add(ttl))
	if l.leases {
		seen.at = math.MaxInt64
	}
	return read
}

// decodeWritten is decodeInto after a swap that was done: if something else is there by now, what was
// written counts as known, and may be lost.
func (l *rules[S]) decodeWritten(state counters.State, next *transition[S], seen *snapshot[S]) (read time.Time) {
	read = l.decodeInto(state, next, seen)
	if !bytes.Equal(state.Value, next.value) { // it may be lost by now
		var written snapshot[S]
		l.decodeInto(counters.State{Value: next.value}, next, &written)
		l.restore(seen, &written, *next.latest)
	}
	return read
}

// restore adds to seen what known has and the store has lost, unless it was taken out on
// purpose since known was seen: by a reset, or by a refund. What it adds to gets a new putBack.
func (l *rules[S]) restore(seen, known *snapshot[S], r counters.Request) {
	generation, at := l.began(known.decoded)
	present, since := l.began(seen.decoded)
	latest := time.Unix(0, max(r.Now.UnixNano(), since)) // what was written since may have dropped a reset
	holds := known.origin.left(latest) > 0
	// What is there may be from before a reset, and in a bucket be remembered for longer than that.
	older := holds && seen.origin.putBack != 0 && seen.origin.reset < known.origin.reset && present <= known.origin.reset
	if !known.unexpired() || seen.origin.reset > known.origin.reset || seen.origin.until > known.origin.until && !(older && l.drains()) {
		return
	}
	if older || holds && known.origin.until > seen.origin.until {
		if seen.lost = true; older {
			var initial S
			seen.decoded, present, since = initial, 0, 0
		}
		seen.origin.until, seen.origin.reset = max(known.origin.until, seen.origin.until), known.origin.reset
	}
	if present == generation && since >= at && seen.origin.putBack == known.origin.putBack {
		return
	}
	// Requests that are under way may be older than r, and find more in use. They
	// are why the store keeps a state for the horizon longer, too.
	r.Now = time.Unix(0, max(r.Now.Add(-l.cfg.Horizon()).UnixNano(), since, at))
	more, isMore := l.fuller(seen.decoded, known.decoded, r)
	seen.decoded = more
	seen.expires = max(seen.expires, known.expires)
	if seen.lost = seen.lost || isMore; seen.lost {
		seen.origin.putBack = rand.Uint32() | 1
	}
}

// A transition is what a batch makes of a state.
type transition[S any] struct {
	changed bool
	to      S
	origin  origin
	value   []byte // which to is encoded as, if it has changed
	ttl     time.Duration
	latest  *counters.Request

	admitted int64 // of the calls
	// Others may have something still to tell the store, and are thought to have so much.
	mayTell   bool
	othersDue int64
}
