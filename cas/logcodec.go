package cas

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// encode appends s to b, as an exact log or as a counting one, of which the format is all that
// there is of an empty one.
func (l log) encode(b []byte, s logState) []byte {
	format, encode := formatCountingLog, l.encodeCounted
	if l.exact() {
		format, encode = formatSlidingLog, l.encodeExact
	}
	if b = append(slices.Grow(b, 32+len(s.older)), format); s.n > 0 {
		b = encode(b, s)
	}
	return b
}

// decode returns the state that encode made data of; any other data is errForeignState. A new
// policy may give a limit the option entries, or take it away, while its clients have logs: so
// each kind of log reads the other's states.
func (l log) decode(data []byte) (logState, error) {
	switch {
	case len(data) > 0 && data[0] == formatSlidingLog:
		return l.decodeExact(data[1:])
	case len(data) > 0 && data[0] == formatCountingLog:
		return l.decodeCounted(data[1:])
	}
	return logState{}, errForeignState
}

// encodeExact appends s to b: its base, by how much its generation is before
// that, modulo 2^64, by how much its time is after the newest entry, and the entries, oldest
// first.
func (l log) encodeExact(b []byte, s logState) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(s.base))
	b = binary.AppendUvarint(b, between(s.generation, s.base))
	b = binary.AppendUvarint(b, between(s.ends, s.time))
	return l.pack(append(b, s.older...), s.end, s.newest)
}

// decodeExact returns the state that encodeExact made data of, and takes data over.
func (l log) decodeExact(data []byte) (logState, error) {
	if len(data) == 0 {
		return logState{}, nil
	}
	in := reader{rest: data}
	base, age, lag := in.time(), in.uvarint(), in.uvarint()
	s := logState{generation: base - int64(age), base: base, end: base, ends: base}
	for rest := in.rest; len(rest) > 0; { // a reader takes twice as long for many
		s.older = in.rest[:len(in.rest)-len(rest)] // but the newest
		var gap, cost uint64
		var ok1, ok2 bool
		gap, rest, ok1 = cutUvarint(rest)
		cost, rest, ok2 = cutUvarint(rest)
		if !ok1 || !ok2 || gap == 0 && s.sum > 0 || gap > between(s.ends, math.MaxInt64) ||
			cost == 0 || cost > uint64(math.MaxInt64/2-s.sum) || s.n == mostLogged {
			return logState{}, errForeignState
		}
		s.end, s.ends = s.ends, s.ends+int64(gap)
		s.n, s.sum, s.newest = s.n+1, s.sum+int64(cost), entry{s.ends, s.ends, int64(cost)}
	}
	if s.n == 0 || lag > between(s.ends, math.MaxInt64) {
		return logState{}, errForeignState
	}
	if s.time = s.ends + int64(lag); !l.exact() {
		s = l.logOf(slices.Collect(log{}.all(s)), s.generation, s.time)
	}
	return s, nil
}

// encodeCounted appends s to b: its time, by
// how much its generation is before that, and its newest entry: last, how long
// before that first is, and cost. If there are older ones, the unit of their
// times follows, as a power of two, the first of the oldest, and of each the
// gap from the last of the one before to its first, how long after that its
// last is, and the cost. A gap is twice as long, and 1 more if it is backwards.
func (l log) encodeCounted(b []byte, s logState) []byte {
	newest, older := s.newest, s
	older.n--
	b = binary.BigEndian.AppendUint64(b, uint64(s.time))
	b = binary.AppendUvarint(b, between(s.generation, s.time))
	b = binary.BigEndian.AppendUint64(b, uint64(newest.last))
	b = binary.AppendUvarint(b, between(newest.first, newest.last))
	b = binary.AppendUvarint(b, uint64(newest.cost))
	if older.n == 0 {
		return b
	}
	oldest, _ := l.oldest(&s)
	base := oldest.first
	var all uint64
	for e := range l.all(older) {
		all |= between(base, e.first) | between(base, e.last)
	}
	unit := min(bits.TrailingZeros64(all), maxUnit)
	b = append(b, byte(unit))
	b = binary.BigEndian.AppendUint64(b, uint64(base))
	for e := range l.all(older) {
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

// decodeCounted returns the state that encodeCounted made data of.
func (l log) decodeCounted(data []byte) (logState, error) {
	if len(data) == 0 {
		return logState{}, nil
	}
	in := reader{rest: data}
	at, age, ended, lasted, cost := in.time(), in.uvarint(), in.time(), in.uvarint(), in.uvarint()
	if in.wrong || age > between(math.MinInt64, at) || lasted > between(math.MinInt64, ended) || cost == 0 || cost > math.MaxInt64/2 {
		return logState{}, errForeignState
	}
	entries := make([]entry, 0, len(in.rest)/4+2)
	newest := entry{ended - int64(lasted), ended, int64(cost)}
	if len(in.rest) == 0 {
		return l.counted(append(entries, newest), at-int64(age), at), nil
	}
	unit, base := in.uvarint(), in.time()
	if unit > maxUnit || base > newest.first || len(in.rest) == 0 {
		return logState{}, errForeignState
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
		if in.wrong || gap == 1 || len(entries) == 0 && gap != 0 ||
			gap&1 == 0 && gap>>1 > end-last || gap&1 == 1 && gap>>1 > last-first ||
			span > end-begin || cost == 0 || cost > uint64(math.MaxInt64/2-used) {
			return logState{}, errForeignState
		}
		first, last = begin, begin+span
		all |= first | last
		used += int64(cost)
		entries = append(entries, entry{base + int64(first<<unit), base + int64(last<<unit), int64(cost)})
	}
	// A larger unit would do, or the newest begins too early.
	if all&1 == 0 && unit != maxUnit || first > between(base, newest.first)>>unit {
		return logState{}, errForeignState
	}
	return l.counted(append(entries, newest), at-int64(age), at), nil
}

// counted returns the log of entries of a counting one. An exact log has of each 1 at its
// first, and the rest at its last.
func (l log) counted(entries []entry, generation, time int64) logState {
	if !l.exact() {
		return l.logOf(entries, generation, time)
	}
	var each []entry
	for _, e := range entries {
		if e.cost > 1 {
			each = append(each, entry{e.first, e.first, 1})
			e.cost--
		}
		each = append(each, entry{e.last, e.last, e.cost})
	}
	return l.short(l.logOf(l.inOrder(each), generation, time), 0)
}
