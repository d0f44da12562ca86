package cas

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"weir/counters"
)

// A CountingLog is a Limiter that admits at most limit in any window, as a
// SlidingLog does, in a few hundred bytes whatever the limit is: it doesn't
// keep when each cost was admitted, but of up to ceil(limit/entries) in a row
// when the first and the last were. The package says what it denies for that.
// Make one with NewCountingLog; its methods are those of Limiter.
type CountingLog struct{ limiter }

// The entries that a counting log can have.
const (
	MinLogEntries     = 8
	MaxLogEntries     = 1024
	DefaultLogEntries = 64
)

// NewCountingLog returns a limiter by a log of about so many entries,
// MinLogEntries to MaxLogEntries. It reads the states of a SlidingLog, which
// reads its states too. It remembers fewer than cfg.Clients where their entries
// would take more than 64 MiB. The error says what is wrong with the window
// (see counters.CheckWindow), the entries or cfg.
func NewCountingLog(store counters.StateStore, window time.Duration, entries int64, cfg Config) (*CountingLog, error) {
	a, err := newCountingLog(window, entries, cfg.CountDenied)
	l, err := newLimiter(store, a, err, "sliding_log", countedBytes*entries, cfg)
	return made(&CountingLog{l}, err)
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
	err := counters.CheckWindow(window)
	if err == nil && (entries < MinLogEntries || entries > MaxLogEntries) {
		err = fmt.Errorf("entries %d must be from %d to %d", entries, MinLogEntries, MaxLogEntries)
	}
	return counting{window, entries, countDenied}, err
}

// A countingState is a log, its entries in the order in which they begin. Each
// ends before the next begins, but where debts or what was lost have come
// between. The zero value is the empty log, and the only state without entries.
// Its memory belongs to it, as that of a logState does.
type countingState struct {
	generation int64 // Unix times in nanoseconds
	time       int64 // of the last write
	entries    []counted
}

// counted is a cost that was admitted until last. When first has left the
// window, so has at least 1 of it, unless it is 1 in all. An entry whose times
// are whole grains gets no more, but at that time. first, rounded up, tells an
// entry from others, in whatever process has seen how much of it.
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
		d.Receipt.Generation = live.generation
		return live, d
	case l.countDenied:
		most := max(r.Limit+1, used)
		cost := min(r.Cost, most)
		live.entries = l.without(live, math.MinInt64, cost-(most-used))
		live = l.add(live, cost, r.Limit)
		s = live
	}
	return s, l.decision(live, r, allowed)
}

func (l counting) peek(s countingState, r counters.Request) counters.Decision {
	live, used := l.live(s, r)
	return l.decision(live, r, r.Cost <= r.Limit-used)
}

// refund returns a state without d, which step has admitted. The cost is taken
// from the oldest entries that may have it or come before it: what stays may
// leave later than it should, never sooner.
func (l counting) refund(s countingState, d *debt) countingState {
	if s.generation != d.generation || outside(d.now, s.time, l.window) {
		return s
	}
	s.entries = l.without(s, d.now, d.cost)
	if len(s.entries) == 0 {
		return countingState{}
	}
	return s
}

// charge logs each as step does, or in an entry of its own if it is late.
func (l counting) charge(s countingState, debts ...*debt) countingState {
	late := 0
	for len(s.entries) > 0 && late < len(debts) && debts[late].now < s.time {
		d := debts[late]
		s.entries = append(s.entries, counted{d.now, d.now, d.cost})
		late++
	}
	if late > 0 {
		s = l.of(s.entries, debts[0].limit, s.generation, s.time)
	}
	for _, d := range debts[late:] {
		s, _ = l.live(s, d.request())
		s = l.add(s, d.cost, d.limit)
	}
	return s
}

func (l counting) merge(before, d *debt) { d.cost = min(d.cost+before.cost, counters.MaxLimit) }

// fuller returns the log with every entry of the two, with the higher cost and
// the later end if both have it.
func (l counting) fuller(present, known countingState, r counters.Request) (countingState, bool) {
	known, _ = l.live(known, r)
	began := make(map[int64][2][]counted) // what the two have that began at a time
	for i, entries := range [...][]counted{present.entries, known.entries} {
		for _, e := range entries {
			same := began[l.rounded(e.first)]
			same[i] = append(same[i], e)
			began[l.rounded(e.first)] = same
		}
	}
	var both []counted
	more := false
	for _, same := range began {
		had, has := same[0], same[1]
		if costs(has) > costs(had) {
			had, has, more = has, had, true
		}
		both = append(both, had...)
		if len(has) > 0 {
			newest, last := &both[len(both)-1], ends(has)
			more = more || l.rounded(last) > l.rounded(newest.last)
			newest.last = max(newest.last, last)
		}
	}
	if !more {
		return present, false
	}
	s := l.of(both, r.Limit, known.generation, max(known.time, present.time))
	newest := &s.entries[len(s.entries)-1]
	*newest = l.closed(*newest) // others may have added to it what is lost
	return s, true
}

// costs returns the sum of the costs.
func costs(entries []counted) (sum int64) {
	for _, e := range entries {
		sum += e.cost
	}
	return sum
}

func (l counting) since(before, after countingState, r counters.Request) int64 {
	return max(0, l.peek(before, r).Remaining-l.peek(after, r).Remaining)
}

func (l counting) began(s countingState) (generation, time int64) { return s.generation, s.time }

func (l counting) until(s countingState, now int64) countingState {
	for i := range s.entries {
		e := &s.entries[i]
		e.first, e.last = min(e.first, now), min(e.last, now)
	}
	s.time, s.generation = min(s.time, now), min(s.generation, now)
	return s
}

func (l counting) lasts() time.Duration { return l.window + time.Duration(l.grain()) }

// of returns the log of entries in any order, without what has left the window.
func (l counting) of(entries []counted, limit, generation, time int64) countingState {
	s := countingState{generation: generation, time: time}
	s.entries = l.inOrder(slices.DeleteFunc(entries, func(e counted) bool { return outside(e.last, s.time, l.window) }))
	if len(s.entries) == 0 {
		return countingState{}
	}
	return l.short(s, limit)
}

// inOrder puts entries in order, and closes all but the newest.
func (l counting) inOrder(entries []counted) []counted {
	slices.SortStableFunc(entries, func(a, b counted) int { return cmp.Compare(a.first, b.first) })
	for i := 1; i < len(entries); i++ {
		entries[i-1] = l.closed(entries[i-1])
		entries[i].first, entries[i].last = max(entries[i].first, entries[i-1].first), max(entries[i].last, entries[i-1].first)
	}
	return entries
}

// ttl returns the time from r.Now until the log is empty, but for that by which
// r is behind it, as a SlidingLog's.
func (l counting) ttl(s countingState, r counters.Request) time.Duration {
	live, used := l.live(s, r)
	if used == 0 {
		return 0
	}
	return leaves(ends(live.entries), live.time, l.window)
}

// ends returns when the last of the entries is, of which there are some.
func ends(entries []counted) int64 {
	last := entries[0].last
	for _, e := range entries[1:] {
		last = max(last, e.last)
	}
	return last
}

// live returns s as r finds it, and how much of it is in use.
func (l counting) live(s countingState, r counters.Request) (live countingState, used int64) {
	now := r.Now.UnixNano()
	s.time = max(s.time, now)
	for len(s.entries) > 0 && outside(s.entries[0].last, s.time, l.window) {
		s.entries = s.entries[1:]
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
	case outside(e.last, now, l.window):
		return 0
	case e.cost > 1 && outside(e.first, now, l.window):
		return e.cost - 1
	}
	return e.cost
}

func (l counting) decision(live countingState, r counters.Request, allowed bool) counters.Decision {
	used, lag := l.used(live.entries, live.time), behind(live.time, r.Now)
	d := counters.Decision{Allowed: allowed, Remaining: max(0, r.Limit-used)}
	if used > 0 {
		d.ResetAfter = after(lag, leaves(ends(live.entries), live.time, l.window))
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

// fits returns how long it takes from the state's time until no more than room is in use; now
// it is more.
func (l counting) fits(s countingState, used, room int64) time.Duration {
	for i, e := range s.entries[1:] {
		if e.first < s.entries[i].last { // they leave in another order
			return time.Duration(sort.Search(int(l.lasts()), func(wait int) bool {
				return l.used(s.entries, s.time+int64(wait)) <= room
			}))
		}
	}
	excess := used - room
	for _, e := range s.entries {
		rest := l.inUse(e, s.time)
		if e.cost > 1 && !outside(e.first, s.time, l.window) {
			rest--
			if excess--; excess <= 0 {
				return leaves(e.first, s.time, l.window)
			}
		}
		if excess -= rest; excess <= 0 {
			return leaves(e.last, s.time, l.window)
		}
	}
	return forever
}

// grain is the unit of the times in a log, a power of two: about a 500,000th
// of the window, so that a time takes few bytes.
func (l counting) grain() int64 { return 1 << max(0, bits.Len64(uint64(l.window))-20) }

// closed returns an entry that gets no more.
func (l counting) closed(e counted) counted {
	e.first, e.last = l.rounded(e.first), l.rounded(e.last)
	return e
}

// rounded returns a time, rounded up to a grain.
func (l counting) rounded(t int64) int64 {
	grain := l.grain()
	return (t + grain - 1) &^ (grain - 1)
}

// share is how much an entry may have of the limit.
func (l counting) share(limit int64) int64 { return (limit + l.entries - 1) / l.entries }

// add logs a cost at the time of s, in the newest entry if that may get so much
// more.
func (l counting) add(s countingState, cost, limit int64) countingState {
	t := s.time
	if len(s.entries) == 0 {
		s.generation = cmp.Or(s.generation, t) // all of it may have made room
	} else {
		e := &s.entries[len(s.entries)-1]
		if e.first >= t || e.cost+cost <= l.share(limit) && *e != l.closed(*e) {
			e.last = max(e.last, t)
			e.cost += cost
			return s
		}
		*e = l.closed(*e)
		t = max(t, e.last)
	}
	s.entries = append(s.entries, counted{t, t, cost})
	return l.short(s, limit)
}

// short joins neighbours if there are more entries than a log has: those that
// are together no more than an entry's share of the limit, or of all that is
// in use if that is more: not of what the oldest has lost.
func (l counting) short(s countingState, limit int64) countingState {
	if int64(len(s.entries)) <= 2*l.entries+1 {
		return s
	}
	left := s.entries[0].cost - l.inUse(s.entries[0], s.time)
	share := l.share(max(limit, costs(s.entries)-left))
	joined := s.entries[:1]
	for _, e := range s.entries[1:] {
		if before := &joined[len(joined)-1]; before.cost+e.cost <= share {
			before.last, before.cost = max(before.last, e.last), before.cost+e.cost
			continue
		}
		joined = append(joined, e)
	}
	s.entries = joined
	return s
}

// without returns the entries of s without a cost that was logged at from or
// later, of the oldest first. If that may be the first of an entry, what leaves
// with it isn't known any more: it all stays until the last.
func (l counting) without(s countingState, from, cost int64) []counted {
	entries := make([]counted, 0, len(s.entries)+1)
	for _, e := range s.entries {
		inUse := l.inUse(e, s.time)
		if part := min(cost, inUse); part > 0 && e.last >= from {
			cost -= part
			inUse -= part
			e.cost -= part
			if e.first >= from || inUse == 0 {
				e.first, e.cost = e.last, inUse
			}
		}
		if e.cost > 0 {
			entries = append(entries, e)
		}
	}
	return l.inOrder(entries)
}

// encode appends s to b: the format, and unless the log is empty its time, by
// how much its generation is before that, and its newest entry: last, how long
// before that first is, and cost. If there are older ones, the unit of their
// times follows, as a power of two, the first of the oldest, and of each the
// gap from the last of the one before to its first, how long after that its
// last is, and the cost. A gap is twice as long, and 1 more if it is backwards.
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
	base := older[0].first
	var all uint64
	for _, e := range older {
		all |= between(base, e.first) | between(base, e.last)
	}
	unit := min(bits.TrailingZeros64(all), maxUnit)
	b = append(b, byte(unit))
	b = binary.BigEndian.AppendUint64(b, uint64(base))
	for _, e := range older {
		gap := between(base, e.first) >> unit << 1
		if base > e.first {
			gap = between(e.first, base)>>unit<<1 | 1
		}
		b = binary.AppendUvarint(b, gap)
		b = binary.AppendUvarint(b, between(e.first, e.last)>>unit)
		b = binary.AppendUvarint(b, uint64(e.cost))
		base = e.last
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

// decodeCounted returns the state that counting's encode made data of; any other
// data is errForeignState.
func decodeCounted(data []byte) (countingState, error) {
	if len(data) == 0 || data[0] != formatCountingLog {
		return countingState{}, errForeignState
	}
	if len(data) == 1 {
		return countingState{}, nil
	}
	in := reader{rest: data[1:]}
	at, age, ended, lasted, cost := in.time(), in.uvarint(), in.time(), in.uvarint(), in.uvarint()
	if in.wrong || age > between(math.MinInt64, at) || lasted > between(math.MinInt64, ended) || cost == 0 || cost > math.MaxInt64/2 {
		return countingState{}, errForeignState
	}
	s := countingState{generation: at - int64(age), time: at, entries: make([]counted, 0, len(in.rest)/4+2)}
	newest := counted{ended - int64(lasted), ended, int64(cost)}
	if len(in.rest) == 0 {
		s.entries = append(s.entries, newest)
		return s, nil
	}
	unit, base := in.uvarint(), in.time()
	if unit > maxUnit || base > newest.first || len(in.rest) == 0 {
		return countingState{}, errForeignState
	}
	// What follows is told from base, in units.
	var first, last, all uint64
	end := between(base, math.MaxInt64) >> unit
	used := newest.cost
	for len(in.rest) > 0 {
		gap, span, cost := in.uvarint(), in.uvarint(), in.uvarint()
		begin := last + gap>>1
		if gap&1 == 1 {
			begin = last - gap>>1
		}
		if in.wrong || gap == 1 || len(s.entries) == 0 && gap != 0 ||
			gap&1 == 0 && gap>>1 > end-last || gap&1 == 1 && gap>>1 > last-first ||
			span > end-begin || cost == 0 || cost > uint64(math.MaxInt64/2-used) {
			return countingState{}, errForeignState
		}
		first, last = begin, begin+span
		all |= first | last
		used += int64(cost)
		s.entries = append(s.entries, counted{base + int64(first<<unit), base + int64(last<<unit), int64(cost)})
	}
	// A larger unit would do, or the newest begins too early.
	if all&1 == 0 && unit != maxUnit || first > between(base, newest.first)>>unit {
		return countingState{}, errForeignState
	}
	s.entries = append(s.entries, newest)
	return s, nil
}
