package cas

import (
	"cmp"
	"encoding/binary"
	"iter"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"weir/counters"
)

// MaxLogLimit bounds the limit of a sliding log: one client's log is at most
// this many entries, about 70 KB, all of which travel with each request.
const MaxLogLimit = 10_000

// mostLogged is how many entries an exact log may have: where denied requests count, one more
// than its limit. What is charged comes on top, and each may cost more than the limit.
const mostLogged = MaxLogLimit + 1

// log is the arithmetic of a log. In an exact one each entry is of one time; a counting
// one, which the package describes, joins entries when there are many.
type log struct {
	window      time.Duration
	entries     int64 // of a counting log, about; 0 if it is exact
	countDenied bool
}

// A logState is a log, its entries in the order in which they begin. Each
// ends before the next begins, but where debts or what was lost have come
// between. The zero value is the empty log, and the only state without entries.
// The memory of a state belongs to it: it must not be used any more once a step
// has returned another.
type logState struct {
	generation int64 // Unix times in nanoseconds
	time       int64 // of the last write, which may have been given back
	ends       int64 // when the last of the entries is
	sum        int64 // of their costs
	n          int   // how many there are
	newest     entry
	older      []byte // the others, see pack
	// The oldest is told from base, and the newest from end, where the one before ends.
	base, end int64
}

// An entry is a cost that was admitted from first to last. When first has left the
// window, so has at least 1 of it, unless it is 1 in all. An entry whose times
// are whole grains gets no more, but at that time. first, rounded up, tells an
// entry from others, in whatever process has seen how much of it.
type entry struct{ first, last, cost int64 }

// pack appends e to b: the nanoseconds to its first from a time, and its cost, in a counting
// log with those that it lasts before that.
func (l log) pack(b []byte, from int64, e entry) []byte {
	if l.exact() {
		b = binary.AppendUvarint(b, between(from, e.first))
	} else {
		b = binary.AppendUvarint(binary.AppendVarint(b, e.first-from), between(e.first, e.last))
	}
	return binary.AppendUvarint(b, uint64(e.cost))
}

// oldest returns the first entry, and how many bytes of older it is.
func (l log) oldest(s *logState) (e entry, size int) {
	if len(s.older) == 0 {
		return s.newest, 0
	}
	if l.exact() {
		gap, n := binary.Uvarint(s.older)
		cost, m := binary.Uvarint(s.older[n:])
		t := s.base + int64(gap)
		return entry{t, t, int64(cost)}, n + m
	}
	gap, n := binary.Varint(s.older)
	lasts, m := binary.Uvarint(s.older[n:])
	cost, k := binary.Uvarint(s.older[n+m:])
	first := s.base + gap
	return entry{first, first + int64(lasts), int64(cost)}, n + m + k
}

// drop removes the first entry, which is as oldest returned it.
func (s *logState) drop(e entry, size int) {
	s.base, s.sum, s.n, s.older = e.last, s.sum-e.cost, s.n-1, s.older[size:]
}

// push has e be the newest.
func (l log) push(s *logState, e entry) {
	if s.n == 0 {
		s.base, s.end, s.ends = e.first, e.first, e.last
	} else {
		s.older, s.end = l.pack(s.older, s.end, s.newest), s.newest.last
	}
	s.newest, s.n, s.sum, s.ends = e, s.n+1, s.sum+e.cost, max(s.ends, e.last)
}

// all yields the entries, oldest first.
func (l log) all(s logState) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for s.n > 0 {
			e, size := l.oldest(&s)
			if s.drop(e, size); !yield(e) {
				return
			}
		}
	}
}

// list returns the entries, oldest first, and room for more.
func (l log) list(s logState, more int) []entry {
	return slices.AppendSeq(make([]entry, 0, s.n+more), l.all(s))
}

// logOf returns the log of entries in their order, written at a time or, if it is exact, with the
// newest of them.
func (l log) logOf(entries []entry, generation, time int64) logState {
	s := logState{generation: generation, time: time}
	for _, e := range entries {
		if l.push(&s, e); l.exact() {
			s.time = max(s.time, e.last)
		}
	}
	return s
}

func (l log) exact() bool { return l.entries == 0 }

// limit returns what may be logged by a limit.
func (l log) limit(limit int64) int64 {
	if l.exact() {
		return min(limit, MaxLogLimit)
	}
	return limit
}

// step admits r if the window has room for its cost. When denied requests
// count, a denied cost is logged too, in place of the oldest: the log has at most one
// more than the limit, by which a cost of 0 is denied, or what it holds if that is more.
func (l log) step(s logState, r counters.Request) (logState, counters.Decision) {
	live, used := l.live(s, r)
	limit := l.limit(r.Limit)
	allowed := r.Cost <= limit-used
	switch {
	case r.Cost == 0:
	case allowed:
		live = l.add(live, r.Cost, limit)
		d := l.decision(live, l.used(live, live.time), r, allowed)
		if d.Receipt.Generation = live.generation; l.exact() {
			d.Receipt.Position = live.newest.last
		}
		return live, d
	case l.countDenied:
		most := max(limit+1, used)
		cost := min(r.Cost, most)
		live = l.add(l.without(live, math.MinInt64, cost-(most-used)), cost, limit)
		s, used = live, l.used(live, live.time)
	}
	return s, l.decision(live, used, r, allowed)
}

func (l log) peek(s logState, r counters.Request) counters.Decision {
	live, used := l.live(s, r)
	return l.decision(live, used, r, r.Cost <= l.limit(r.Limit)-used)
}

// refund takes back d, which step has admitted. In an exact log it does as far as d is still
// where the decision said that it stands: what the store has lost, or other denials have
// replaced, is no longer there, and what others were admitted stays. What a counting log has
// admitted stands nowhere: the cost is taken from the oldest entries that may have it or come
// before it, so that what stays may leave later than it should, never sooner.
func (l log) refund(s logState, d *debt) logState {
	switch {
	case s.generation != d.generation:
		return s
	case l.exact() && d.position != 0:
		s = l.changed(s, d.position, -d.cost)
	case !outside(d.now, s.time, l.window):
		s = l.without(s, d.now, d.cost)
	}
	if s.n == 0 {
		return logState{}
	}
	return s
}

// charge logs each at its own time, in an entry of its own if it is late.
func (l log) charge(s logState, debts ...*debt) logState {
	late := 0
	for s.n > 0 && late < len(debts) && debts[late].now < s.time {
		late++
	}
	if late > 0 {
		entries := l.list(s, late)
		for _, d := range debts[:late] {
			entries = append(entries, entry{d.now, d.now, d.cost})
		}
		s = l.of(entries, debts[0].limit, s.generation, s.time)
	}
	for _, d := range debts[late:] {
		s, _ = l.live(s, d.request())
		s = l.add(s, d.cost, d.limit)
	}
	return s
}

func (l log) merge(before, d *debt) { d.cost = min(d.cost+before.cost, counters.MaxLimit) }

// fuller returns the log with every entry of the two, with the higher cost and
// the later end if both have it.
func (l log) fuller(present, known logState, r counters.Request) (logState, bool) {
	known, _ = l.live(known, r)
	began := make(map[int64][2][]entry) // what the two have that began at a time
	for i, s := range [...]logState{present, known} {
		for e := range l.all(s) {
			same := began[l.rounded(e.first)]
			same[i] = append(same[i], e)
			began[l.rounded(e.first)] = same
		}
	}
	var both []entry
	more := false
	for _, same := range began {
		had, has := same[0], same[1]
		if costs(has) > costs(had) {
			had, has, more = has, had, true
		}
		both = append(both, had...)
		newest := &both[len(both)-1]
		for _, e := range has {
			more = more || l.rounded(e.last) > l.rounded(newest.last)
			newest.last = max(newest.last, e.last)
		}
	}
	if !more {
		return present, false
	}
	s := l.of(both, r.Limit, known.generation, max(known.time, present.time))
	s.newest = l.closed(s.newest) // others may have added to it what is lost
	s.ends = max(s.ends, s.newest.last)
	return s, true
}

// costs returns the sum of the costs.
func costs(entries []entry) (sum int64) {
	for _, e := range entries {
		sum += e.cost
	}
	return sum
}

func (l log) since(before, after logState, r counters.Request) int64 {
	return max(0, l.peek(before, r).Remaining-l.peek(after, r).Remaining)
}

func (l log) began(s logState) (generation, time int64) { return s.generation, s.time }

func (l log) asOf(s logState, now int64) logState {
	s.time, s.generation = min(s.time, now), min(s.generation, now)
	return l.moved(s, func(t int64) int64 { return min(t, now) })
}

// moved returns s with its entries at other times.
func (l log) moved(s logState, to func(int64) int64) logState {
	entries := l.list(s, 0)
	for i := range entries {
		e := &entries[i]
		e.first, e.last = to(e.first), to(e.last)
	}
	return l.logOf(l.inOrder(entries), s.generation, s.time)
}

func (l log) lasts() time.Duration { return l.window + time.Duration(l.grain()-1) }

// of returns the log of entries in any order, without what has left the window.
func (l log) of(entries []entry, limit, generation, time int64) logState {
	entries = l.inOrder(slices.DeleteFunc(entries, func(e entry) bool { return outside(e.last, time, l.window) }))
	if len(entries) == 0 {
		return logState{}
	}
	return l.short(l.logOf(entries, generation, time), limit)
}

// inOrder puts entries in order, closes all but the newest, and makes one of those of one time.
func (l log) inOrder(entries []entry) []entry {
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.first, b.first) })
	ordered := entries[:0]
	for _, e := range entries {
		if n := len(ordered); n > 0 {
			before := &ordered[n-1]
			*before = l.closed(*before)
			e.first, e.last = max(e.first, before.first), max(e.last, before.first)
			if before.last == e.last && before.first == e.last {
				before.cost += e.cost
				continue
			}
		}
		ordered = append(ordered, e)
	}
	return ordered
}

// ttl returns the time from r.Now until the log is empty. By how much r is
// behind the state is not part of it, so that a state from a clock far ahead
// expires as soon as any other.
func (l log) ttl(s logState, r counters.Request) time.Duration {
	live, used := l.live(s, r)
	if used == 0 {
		return 0
	}
	return leaves(live.ends, live.time, l.window)
}

// live returns s as r finds it, and how much of it is in use.
func (l log) live(s logState, r counters.Request) (live logState, used int64) {
	now := r.Now.UnixNano()
	if s.n == 0 {
		return logState{time: now, older: s.older}, 0
	}
	s.time = max(s.time, now)
	if outside(s.ends, s.time, l.window) {
		return logState{time: s.time, older: s.older[:0]}, 0
	}
	for {
		e, size := l.oldest(&s)
		if !outside(e.last, s.time, l.window) {
			return s, l.used(s, s.time)
		}
		s.drop(e, size)
	}
}

// used returns how much of s is in use at a time: never less than was admitted in
// the window.
func (l log) used(s logState, now int64) int64 {
	used := s.sum
	for s.n > 0 {
		e, size := l.oldest(&s)
		if !outside(e.first, now, l.window) {
			break // nor is any that begins later
		}
		used -= e.cost - l.inUse(e, now)
		s.drop(e, size)
	}
	return used
}

func (l log) inUse(e entry, now int64) int64 {
	switch {
	case outside(e.last, now, l.window):
		return 0
	case e.cost > 1 && outside(e.first, now, l.window):
		return e.cost - 1
	}
	return e.cost
}

// decision returns the answer to r as live finds it, of which so much is used.
func (l log) decision(live logState, used int64, r counters.Request, allowed bool) counters.Decision {
	limit, lag := l.limit(r.Limit), behind(live.time, r.Now)
	d := counters.Decision{Allowed: allowed, Remaining: max(0, limit-used)}
	if used > 0 {
		d.ResetAfter = after(lag, leaves(live.ends, live.time, l.window))
	}
	switch room := limit - r.Cost; {
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
func (l log) fits(s logState, used, room int64) time.Duration {
	excess := used - room
	for rest := s; rest.n > 0; {
		e, size := l.oldest(&rest)
		rest.drop(e, size)
		inUse := l.inUse(e, s.time)
		if e.cost > 1 && !outside(e.first, s.time, l.window) {
			inUse--
			if excess--; excess <= 0 {
				return leaves(e.first, s.time, l.window)
			}
		}
		if next, _ := l.oldest(&rest); rest.n > 0 && next.first < e.last { // they leave in another order
			return time.Duration(sort.Search(int(l.lasts()), func(wait int) bool {
				return l.used(s, s.time+int64(wait)) <= room
			}))
		}
		if excess -= inUse; excess <= 0 {
			return leaves(e.last, s.time, l.window)
		}
	}
	return forever
}

// grain is the unit of the times in a log, a power of two: about a 500,000th
// of the window, so that a time takes few bytes. In an exact log it is a nanosecond.
func (l log) grain() int64 {
	if l.exact() {
		return 1
	}
	return 1 << max(0, bits.Len64(uint64(l.window))-20)
}

// closed returns an entry that gets no more.
func (l log) closed(e entry) entry {
	e.first, e.last = l.rounded(e.first), l.rounded(e.last)
	return e
}

// rounded returns a time, rounded up to a grain.
func (l log) rounded(t int64) int64 {
	grain := l.grain()
	return (t + grain - 1) &^ (grain - 1)
}

// share is how much an entry may have of the limit.
func (l log) share(limit int64) int64 { return (limit + l.entries - 1) / l.entries }

// add logs a cost at the time of s, in the newest entry if that may get so much
// more.
func (l log) add(s logState, cost, limit int64) logState {
	t := s.time
	if s.n == 0 {
		s.generation = cmp.Or(s.generation, t) // all of it may have made room
	} else {
		e := &s.newest
		if e.first >= t || *e != l.closed(*e) && e.cost+cost <= l.share(limit) {
			e.last, e.cost = max(e.last, t), e.cost+cost
			s.ends, s.sum = max(s.ends, t), s.sum+cost
			return l.short(s, limit)
		}
		*e = l.closed(*e)
		t = max(t, e.last)
	}
	l.push(&s, entry{t, t, cost})
	return l.short(s, limit)
}

// short joins entries if there are more than there may be: in an exact log the oldest, which
// leave with the last of them; in a counting one neighbours that are together no more than an
// entry's share of the limit, or of all that is in use if that is more: not of what the oldest
// has lost.
func (l log) short(s logState, limit int64) logState {
	most := int64(mostLogged)
	if !l.exact() {
		most = 2*l.entries + 1
	}
	over := int64(s.n) - most
	if over <= 0 {
		return s
	}
	entries := l.list(s, 0)
	if l.exact() {
		entries[over].cost = costs(entries[:over+1])
		return l.logOf(entries[over:], s.generation, s.time)
	}
	left := entries[0].cost - l.inUse(entries[0], s.time)
	share := l.share(max(limit, s.sum-left))
	joined := entries[:1]
	for _, e := range entries[1:] {
		if before := &joined[len(joined)-1]; before.cost+e.cost <= share {
			before.last, before.cost = max(before.last, e.last), before.cost+e.cost
			continue
		}
		joined = append(joined, e)
	}
	return l.logOf(joined, s.generation, s.time)
}

// without returns s without a cost that was logged at from or later, of those first that end first. If
// that may be the first of an entry, what leaves with it isn't known any more: it all stays
// until the last.
func (l log) without(s logState, from, cost int64) logState {
	for cost > 0 && s.n > 0 {
		e, size := l.oldest(&s)
		inUse := l.inUse(e, s.time)
		rest := s
		rest.drop(e, size)
		next, _ := l.oldest(&rest)
		if e.last < from || inUse > cost || rest.n > 0 && next.first < e.last {
			return l.logOf(l.lessOf(s, from, cost), s.generation, s.time)
		}
		s, cost = rest, cost-inUse
	}
	return s
}

// lessOf returns the entries that without leaves.
func (l log) lessOf(s logState, from, cost int64) []entry {
	entries := make([]entry, 0, s.n)
	for _, e := range slices.SortedStableFunc(l.all(s), func(a, b entry) int { return cmp.Compare(a.last, b.last) }) {
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

// changed returns s with so much more, or less if that is below 0, at a time of an exact log.
func (l log) changed(s logState, at, by int64) logState {
	if by > 0 && (s.n == 0 || s.newest.first < at) {
		l.push(&s, entry{at, at, by})
		return s
	}
	rest := logState{generation: s.generation, time: s.time, older: make([]byte, 0, len(s.older)+2*binary.MaxVarintLen64)}
	for e := range l.all(s) {
		switch {
		case e.first == at:
			e.cost, by = e.cost+by, 0
		case e.first > at && by > 0:
			l.push(&rest, entry{at, at, by})
			by = 0
		}
		if e.cost > 0 {
			l.push(&rest, e)
		}
	}
	return rest
}

// clone returns a copy of s with memory of its own, and room for an entry.
func (l log) clone(s logState) logState {
	s.older = append(make([]byte, 0, len(s.older)+2*binary.MaxVarintLen64), s.older...)
	return s
}
