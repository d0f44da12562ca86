package cas

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"weir/counters"
)

// A CountingLog is a Limiter that admits at most limit in any window, as a
// SlidingLog does, in a few hundred bytes whatever the limit is: it doesn't
// keep when each cost was admitted, but of up to ceil(limit/entries) in a row
// when the first and the last were. The package says what it denies for that.
// Make one with NewCountingLog; its methods are those of Limiter.
type CountingLog struct{ Limiter[countingState] }

// The entries that a counting log can have.
const (
	MinLogEntries     = 8
	MaxLogEntries     = 1024
	DefaultLogEntries = 64
)

// NewCountingLog returns a limiter by a log of about so many entries,
// MinLogEntries to MaxLogEntries. It reads the states of a SlidingLog. The
// error says what is wrong with the window (see counters.CheckWindow), the
// entries or cfg.
func NewCountingLog(store counters.StateStore, window time.Duration, entries int64, cfg Config) (*CountingLog, error) {
	a, err := newCountingLog(window, entries, cfg.CountDenied)
	if err != nil {
		return nil, err
	}
	l := new(CountingLog)
	if err := l.init(store, a, "sliding_log", logViewBytes/int(countedBytes*entries), cfg); err != nil {
		return nil, err
	}
	return l, nil
}

// countedBytes is what an entry takes in memory.
const countedBytes = 24

// counting is the arithmetic of a counting log.
type counting struct {
	window      time.Duration
	entries     int64
	countDenied bool
}

// newCountingLog returns a counting log; the error is that of NewCountingLog.
func newCountingLog(window time.Duration, entries int64, countDenied bool) (counting, error) {
	if err := counters.CheckWindow(window); err != nil {
		return counting{}, err
	}
	if entries < MinLogEntries || entries > MaxLogEntries {
		return counting{}, fmt.Errorf("entries %d must be from %d to %d", entries, MinLogEntries, MaxLogEntries)
	}
	return counting{window, entries, countDenied}, nil
}

// A countingState is a log, the entry that leaves first before the others: none
// begins before the one before it has ended. The zero value is the empty log,
// and the only state without entries. Its memory belongs to it, as that of a
// logState does.
type countingState struct {
	generation int64 // Unix times in nanoseconds
	time       int64 // of the last write
	entries    []counted
}

// counted is a cost that was admitted until last. When first has left the
// window, so has at least 1 of it, unless it is 1 in all.
type counted struct{ first, last, cost int64 }

// step admits r if the window has room for its cost. When denied requests
// count, a denied cost is logged too, in place of the oldest.
func (l counting) step(s countingState, r counters.Request) (countingState, counters.Decision) {
	live, used := l.live(s, r)
	allowed := r.Cost <= r.Limit-used
	switch {
	case r.Cost == 0:
	case allowed:
		live = l.add(live, r.Cost, r.Limit)
		d := l.decision(live, r, allowed)
		d.Generation = live.generation
		return live, d
	case l.countDenied:
		most := max(r.Limit, used)
		cost := min(r.Cost, most)
		live.entries = l.take(live, math.MinInt64, cost-(most-used))
		live = l.add(live, cost, r.Limit)
		s = live
	}
	return s, l.decision(live, r, allowed)
}

func (l counting) within(s countingState, _ counters.Request) countingState { return s }

func (l counting) peek(s countingState, r counters.Request) counters.Decision {
	live, used := l.live(s, r)
	return l.decision(live, r, r.Cost <= r.Limit-used)
}

// refund returns a state without r, which step has admitted. The cost is taken
// from the oldest entries that may have it or come before it: what stays may
// leave later than it should, never sooner.
func (l counting) refund(s countingState, r counters.Request, taken counters.Decision) countingState {
	if s.generation != taken.Generation || behind(s.time, r.Now) >= uint64(l.window) {
		return s
	}
	s.entries = l.take(s, r.Now.UnixNano(), r.Cost)
	if len(s.entries) == 0 {
		return countingState{}
	}
	return s
}

// carry adds what was consumed last until after: as much more as is in use than
// in before.
func (l counting) carry(present, before, after countingState, r counters.Request) countingState {
	now := max(r.Now.UnixNano(), present.time, before.time, after.time)
	more := l.used(after.entries, now) - l.used(before.entries, now)
	entries := slices.Clone(present.entries)
	for _, e := range slices.Backward(after.entries) {
		if more <= 0 {
			break
		}
		part := min(more, e.cost)
		if part < e.cost {
			e.first = e.last
		}
		e.cost = part
		more -= part
		entries = append(entries, e)
	}
	return l.of(entries, r.Limit, present, after)
}

// most returns the log in which more is in use, or both if one was begun after
// the other.
func (l counting) most(present, known countingState, r counters.Request) (countingState, bool) {
	live, inUse := l.live(l.clone(known), r)
	switch {
	case inUse == 0:
		return present, false
	case len(present.entries) == 0:
		return known, true
	case live.entries[len(live.entries)-1].last < present.generation:
		return l.of(append(live.entries, present.entries...), r.Limit, live, present), true
	case inUse <= l.used(present.entries, live.time):
		return present, false
	}
	live.time = max(live.time, present.time)
	return live, true
}

func (l counting) began(s countingState) (generation, time int64) { return s.generation, s.time }

func (l counting) lasts() time.Duration { return l.window + time.Duration(l.grain()) }

// of returns the log of entries in any order, of the oldest generation of the
// states that they are from.
func (l counting) of(entries []counted, limit int64, first, second countingState) countingState {
	if len(entries) == 0 {
		return countingState{}
	}
	slices.SortStableFunc(entries, func(a, b counted) int { return cmp.Compare(a.last, b.last) })
	for i := range entries[1:] {
		entries[i+1].first = max(entries[i+1].first, entries[i].last)
	}
	s := countingState{generation: math.MaxInt64, time: max(first.time, second.time), entries: entries}
	for _, from := range []countingState{first, second} {
		if len(from.entries) > 0 {
			s.generation = min(s.generation, from.generation)
		}
	}
	s.entries = l.fewer(s.entries, limit)
	return s
}

// ttl returns the time from r.Now until the log is empty, but for that by which
// r is behind it, as a SlidingLog's.
func (l counting) ttl(s countingState, r counters.Request) time.Duration {
	live, used := l.live(s, r)
	if used == 0 {
		return 0
	}
	return l.leaves(live.entries[len(live.entries)-1].last, live.time)
}

// live returns s as r finds it, and how much of it is in use.
func (l counting) live(s countingState, r counters.Request) (live countingState, used int64) {
	now := r.Now.UnixNano()
	if len(s.entries) > 0 {
		s.time = max(s.time, now)
		for len(s.entries) > 0 && l.left(s.entries[0].last, s.time) {
			s.entries = s.entries[1:]
		}
	}
	if len(s.entries) == 0 {
		return countingState{time: now, entries: s.entries[:0]}, 0
	}
	return s, l.used(s.entries, s.time)
}

// used returns how much is in use at a time: never less than was admitted in
// the window.
func (l counting) used(entries []counted, now int64) (used int64) {
	for _, e := range entries {
		used += l.inUse(e, now)
	}
	return used
}

func (l counting) inUse(e counted, now int64) int64 {
	switch {
	case l.left(e.last, now):
		return 0
	case e.cost > 1 && l.left(e.first, now):
		return e.cost - 1
	}
	return e.cost
}

// left reports whether a time has left the window that ends now.
func (l counting) left(t, now int64) bool { return t <= now && between(t, now) >= uint64(l.window) }

// leaves returns the time from now until t leaves the window; 0 if it has.
func (l counting) leaves(t, now int64) time.Duration {
	switch {
	case t > now:
		return after(between(now, t), l.window)
	case between(t, now) >= uint64(l.window):
		return 0
	}
	return l.window - time.Duration(between(t, now))
}

func (l counting) decision(live countingState, r counters.Request, allowed bool) counters.Decision {
	used, lag := l.used(live.entries, live.time), behind(live.time, r.Now)
	d := counters.Decision{Allowed: allowed, Remaining: max(0, r.Limit-used)}
	if used > 0 {
		d.ResetAfter = after(lag, l.leaves(live.entries[len(live.entries)-1].last, live.time))
	}
	switch room := r.Limit - r.Cost; {
	case allowed && (!l.countDenied || used <= room):
	case room < 0:
		d.RetryAfter = forever
	case allowed:
		d.FitsAfter = after(lag, l.fits(live, used, room))
	default:
		d.RetryAfter = after(lag, l.fits(live, used, room))
	}
	return d
}

// fits returns the time from the state's until no more than room is in use,
// which more is than.
func (l counting) fits(s countingState, used, room int64) time.Duration {
	excess := used - room
	for _, e := range s.entries {
		if e.cost > 1 && !l.left(e.first, s.time) {
			if excess--; excess == 0 {
				return l.leaves(e.first, s.time)
			}
			e.cost--
		}
		if excess -= l.inUse(e, s.time); excess <= 0 {
			return l.leaves(e.last, s.time)
		}
	}
	return forever
}

// grain is the unit of the times in a log, a power of two: about a 500,000th
// of the window, so that a time takes few bytes.
func (l counting) grain() int64 { return 1 << max(0, bits.Len64(uint64(l.window))-20) }

// rounded returns a time, rounded up to a grain.
func (l counting) rounded(t int64) int64 {
	grain := l.grain()
	if t > math.MaxInt64-grain {
		return t
	}
	return (t + grain - 1) &^ (grain - 1)
}

// share is how much an entry may have of the limit.
func (l counting) share(limit int64) int64 { return (limit + l.entries - 1) / l.entries }

// add logs a cost at the time of s. The times of the entry before are rounded up
// when it gets no more.
func (l counting) add(s countingState, cost, limit int64) countingState {
	t := s.time
	if len(s.entries) == 0 {
		s.generation = t
	} else {
		e := &s.entries[len(s.entries)-1]
		if e.first >= t || e.cost+cost <= l.share(limit) {
			e.last = max(e.last, t)
			e.cost += cost
			return s
		}
		e.first, e.last = l.rounded(e.first), l.rounded(e.last)
		t = max(t, e.last)
	}
	s.entries = append(s.entries, counted{t, t, cost})
	if int64(len(s.entries)) > 2*l.entries+1 {
		s.entries = l.fewer(s.entries, limit)
	}
	return s
}

// fewer joins neighbours that are together no more than an entry's share of the
// limit, or of all that is logged if that is more.
func (l counting) fewer(entries []counted, limit int64) []counted {
	var logged int64
	for _, e := range entries {
		logged += e.cost
	}
	share := l.share(max(limit, logged))
	joined := entries[:1]
	for _, e := range entries[1:] {
		if before := &joined[len(joined)-1]; before.cost+e.cost <= share {
			before.last, before.cost = e.last, before.cost+e.cost
			continue
		}
		joined = append(joined, e)
	}
	return joined
}

// take returns the entries of s without a cost that was logged at from or
// later, of the oldest first. What of an entry leaves with its first isn't
// known any more: it all stays until its last.
func (l counting) take(s countingState, from, cost int64) []counted {
	entries := make([]counted, 0, len(s.entries)+1)
	for _, e := range s.entries {
		if part := min(cost, l.inUse(e, s.time)); part > 0 && e.last >= from {
			e.first, e.cost = e.last, l.inUse(e, s.time)-part
			cost -= part
		}
		if e.cost > 0 {
			entries = append(entries, e)
		}
	}
	return entries
}

// encode appends s to b: the format, and unless the log is empty its time, by
// how much its generation is before that, and its newest entry: last, how long
// before that first is, and cost. If there are older ones, the unit of their
// times follows, as a power of two, the first of the oldest, and of each how
// long after the one before first is, how long after that last, and the cost.
func (l counting) encode(b []byte, s countingState) []byte {
	b = append(slices.Grow(b, 32+8*len(s.entries)), formatCountingLog)
	if len(s.entries) == 0 {
		return b
	}
	newest, older := s.entries[len(s.entries)-1], s.entries[:len(s.entries)-1]
	b = binary.BigEndian.AppendUint64(b, uint64(s.time))
	b = binary.AppendUvarint(b, between(s.generation, s.time))
	b = binary.BigEndian.AppendUint64(b, uint64(newest.last))
	b = binary.AppendUvarint(b, between(newest.first, newest.last))
	b = binary.AppendUvarint(b, uint64(newest.cost))
	if len(older) == 0 {
		return b
	}
	end := older[0].first
	var all uint64
	for _, e := range older {
		all |= between(end, e.first) | between(e.first, e.last)
		end = e.last
	}
	unit := min(bits.TrailingZeros64(all), maxUnit)
	b = append(b, byte(unit))
	end = older[0].first
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	for _, e := range older {
		b = binary.AppendUvarint(b, between(end, e.first)>>unit)
		b = binary.AppendUvarint(b, between(e.first, e.last)>>unit)
		b = binary.AppendUvarint(b, uint64(e.cost))
		end = e.last
	}
	return b
}

// maxUnit is the largest power of two of nanoseconds that a time is told in.
const maxUnit = 40

// clone returns a copy of s with memory of its own, and room for an entry.
func (l counting) clone(s countingState) countingState {
	s.entries = append(make([]counted, 0, len(s.entries)+1), s.entries...)
	return s
}

// decode returns the state that encode made data of, or a SlidingLog's; any
// other data is errForeignState.
func (l counting) decode(data []byte) (countingState, error) {
	if len(data) > 0 && data[0] == formatSlidingLog {
		exact, err := log{}.decode(data)
		if err != nil || exact.used == 0 {
			return countingState{}, err
		}
		s := countingState{generation: exact.generation, time: exact.time}
		for t, cost := range exact.all() {
			s.entries = append(s.entries, counted{t, t, cost})
		}
		return s, nil
	}
	if len(data) == 0 || data[0] != formatCountingLog {
		return countingState{}, errForeignState
	}
	if len(data) == 1 {
		return countingState{}, nil
	}
	at, rest, ok := cutTime(data[1:])
	age, rest, ok1 := cutUvarint(rest)
	last, rest, ok2 := cutTime(rest)
	span, rest, ok3 := cutUvarint(rest)
	cost, rest, ok4 := cutUvarint(rest)
	if !ok || !ok1 || !ok2 || !ok3 || !ok4 || age > between(math.MinInt64, at) ||
		span > between(math.MinInt64, last) || cost == 0 || cost > math.MaxInt64/2 {
		return countingState{}, errForeignState
	}
	s := countingState{generation: at - int64(age), time: at, entries: make([]counted, 0, len(rest)/4+2)}
	newest := counted{last - int64(span), last, int64(cost)}
	if len(rest) == 0 {
		s.entries = append(s.entries, newest)
		return s, nil
	}
	unit := rest[0]
	end, rest, ok := cutTime(rest[1:])
	if !ok || unit > maxUnit || end > newest.first || len(rest) == 0 {
		return countingState{}, errForeignState
	}
	var all uint64
	used := newest.cost
	for first := true; len(rest) > 0; first = false {
		var gap, span, cost uint64
		gap, rest, ok = cutUvarint(rest)
		span, rest, ok1 = cutUvarint(rest)
		cost, rest, ok2 = cutUvarint(rest)
		most := between(end, newest.first) >> unit
		if !ok || !ok1 || !ok2 || first && gap != 0 || gap > most || span > most-gap ||
			cost == 0 || cost > uint64(math.MaxInt64/2-used) {
			return countingState{}, errForeignState
		}
		all |= gap | span
		used += int64(cost)
		begin := end + int64(gap<<unit)
		end = begin + int64(span<<unit)
		s.entries = append(s.entries, counted{begin, end, int64(cost)})
	}
	if all&1 == 0 && unit != maxUnit { // a larger unit would do
		return countingState{}, errForeignState
	}
	s.entries = append(s.entries, newest)
	return s, nil
}
