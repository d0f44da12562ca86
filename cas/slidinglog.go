package cas

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"weir/counters"
)

// MaxLogLimit bounds the limit of a sliding log: one client's log is at most
// this many entries, about 70 KB, all of which travel with each request.
const MaxLogLimit = 10_000

// mostLogged is what a log may have: where denied requests count, one more than its limit.
const mostLogged = MaxLogLimit + 1

// A SlidingLog is a Limiter that admits at most limit in any window, exactly:
// it keeps when each cost was admitted. A request that is exactly one window
// old no longer counts, so the window is half-open: (now-window, now]. It is
// exact by the clocks of its instances: with clocks d apart, at most limit are
// admitted in any window less d.
//
// Limit and window may change between two requests: the log is the same for all
// limits, and what a shorter window has dropped stays dropped. A request's own
// limit above MaxLogLimit counts as MaxLogLimit. Make one with NewSlidingLog;
// its methods are those of Limiter.
type SlidingLog struct{ limiter }

// NewSlidingLog returns a limiter by sliding log. limit is the one that most
// requests will have. It remembers fewer than cfg.Clients where their logs
// would take more than 64 MiB. The error says what is wrong with the window
// (see counters.CheckWindow), the limit or cfg.
func NewSlidingLog(store counters.StateStore, window time.Duration, limit int64, cfg Config) (*SlidingLog, error) {
	a, err := newSlidingLog(window, limit, cfg.CountDenied)
	l, err := newLimiter(store, a, err, "sliding_log", logEntryBytes*limit, cfg)
	return made(&SlidingLog{l}, err)
}

// logEntryBytes is what an entry of a log takes in memory.
const logEntryBytes = 7

// log is the arithmetic of a sliding log.
type log struct {
	window      time.Duration
	countDenied bool
}

// newSlidingLog returns a sliding log, or an error that says what is wrong with
// the window (see counters.CheckWindow) or with the limit that most requests
// will have.
func newSlidingLog(window time.Duration, limit int64, countDenied bool) (log, error) {
	err := counters.CheckWindow(window)
	if err == nil && (limit < 1 || limit > MaxLogLimit) {
		err = fmt.Errorf("limit %d of a sliding log must be from 1 to %d: it stores the time of each admitted request; "+
			"use a log with entries, or sliding_window, for larger limits", limit, MaxLogLimit)
	}
	return log{window: window, countDenied: countDenied}, err
}

// logState is a log in its packed form, which is also how it is stored: per
// entry, oldest first, the nanoseconds since the entry before (the first: since
// base) and the cost, as varints. Entries have different times and costs of at
// least 1, the sum of which is used, at most mostLogged.
//
// The zero value is the empty log, and the only state without entries. The
// memory of a state belongs to it: it must not be used any more once a step has
// returned another. One that is decoded takes over the bytes.
type logState struct {
	base       int64 // Unix times in nanoseconds
	generation int64 // after base if a debt has come that is older
	newest     int64 // of the last entry
	time       int64 // of the last write, which may have been given back
	used       int64
	entries    []byte
}

// step admits r if the window has room for its cost. When denied requests
// count, a denied cost is logged too, in place of the oldest: the log has at most one
// more than the limit, by which a cost of 0 is denied, or what it holds if that is more.
func (l log) step(s logState, r counters.Request) (logState, counters.Decision) {
	live := l.live(s, r)
	limit := logLimit(r)
	allowed := r.Cost <= limit-live.used
	switch {
	case r.Cost == 0:
	case allowed:
		live.add(live.time, r.Cost)
		d := l.decision(live, r, allowed)
		d.Receipt = counters.Receipt{Generation: live.generation, Position: live.newest}
		return live, d
	case l.countDenied:
		most := max(limit+1, live.used)
		cost := min(r.Cost, most)
		live.forget(cost - (most - live.used))
		live.add(live.time, cost)
		s = live
	}
	return s, l.decision(live, r, allowed)
}

func (l log) peek(s logState, r counters.Request) counters.Decision {
	live := l.live(s, r)
	return l.decision(live, r, r.Cost <= logLimit(r)-live.used)
}

// refund returns a new state without d, which step has admitted, as far as it is still
// where the decision said that it stands: what the store has lost, or other denials have
// replaced, is no longer there, and what others were admitted stays.
func (l log) refund(s logState, d *debt) logState {
	if s.generation != d.generation {
		return s
	}
	rest, _ := s.without(cmp.Or(d.position, d.now), d.cost)
	return rest
}

// without returns a new state without a cost of the entry of a time, as far as that has
// so much, and how much that is.
func (s *logState) without(at, cost int64) (rest logState, found int64) {
	rest = logState{generation: s.generation, time: s.time, entries: make([]byte, 0, len(s.entries))}
	for t, used := range s.all() {
		if t == at {
			found = min(used, cost)
			used -= found
		}
		if used > 0 {
			rest.add(t, used)
		}
	}
	if rest.used == 0 {
		return logState{}, found
	}
	return rest, found
}

// charge adds an entry for each that hasn't left the window.
func (l log) charge(s logState, debts ...*debt) logState {
	s = l.live(s, debts[len(debts)-1].request())
	for len(debts) > 0 && outside(debts[0].now, s.time, l.window) {
		debts = debts[1:]
	}
	if s.used == 0 || len(debts) > 0 && debts[0].now < s.newest {
		costs := maps.Collect(s.all())
		for _, d := range debts {
			costs[d.now] += d.cost
		}
		return l.of(costs, s.generation, s.time)
	}
	for _, d := range debts {
		s.charge(d.now, d.cost)
	}
	return s
}

// charge adds a cost at a time that is not before the newest, in the place of the oldest if
// there is no room.
func (s *logState) charge(t, cost int64) {
	cost = min(cost, mostLogged)
	s.forget(s.used + cost - mostLogged)
	s.add(t, cost)
}

func (l log) merge(before, d *debt) { d.cost = min(d.cost+before.cost, counters.MaxLimit) }

// fuller returns the log with every entry of the two, at the higher cost if both
// have it.
func (l log) fuller(present, known logState, r counters.Request) (logState, bool) {
	known = l.live(known, r)
	costs, more := maps.Collect(present.all()), false
	for t, cost := range known.all() {
		if cost > costs[t] {
			costs[t], more = cost, true
		}
	}
	if !more {
		return present, false
	}
	return l.of(costs, known.generation, max(known.time, present.time)), true
}

func (l log) since(before, after logState, r counters.Request) int64 {
	return max(0, l.peek(before, r).Remaining-l.peek(after, r).Remaining)
}

func (l log) began(s logState) (generation, time int64) { return s.generation, s.time }

func (l log) until(s logState, now int64) logState {
	s.time, s.generation = min(s.time, now), min(s.generation, now)
	return l.moved(s, func(t int64) int64 { return min(t, now) })
}

// moved returns s with its entries at other times.
func (l log) moved(s logState, to func(int64) int64) logState {
	costs := make(map[int64]int64)
	for t, cost := range s.all() {
		costs[to(t)] += cost
	}
	return l.of(costs, s.generation, s.time)
}

func (l log) lasts() time.Duration { return l.window }

// of returns the log of the given costs by their times, written at a time or after it. Its
// generation is that of its oldest cost if it is given as 0.
func (l log) of(costs map[int64]int64, generation, time int64) logState {
	s := logState{generation: generation}
	for _, t := range slices.Sorted(maps.Keys(costs)) {
		s.charge(t, costs[t])
	}
	if s.used == 0 {
		return logState{}
	}
	s.time = max(s.newest, time)
	return s
}

// ttl returns the time from r.Now until the log is empty. By how much r is
// behind the state is not part of it, so that a state from a clock far ahead
// expires as soon as any other.
func (l log) ttl(s logState, r counters.Request) time.Duration {
	live := l.live(s, r)
	if live.used == 0 {
		return 0
	}
	return leaves(live.newest, live.time, l.window)
}

func logLimit(r counters.Request) int64 { return min(r.Limit, MaxLogLimit) }

// live returns s as r finds it: as of r.Now and without the entries that have
// left the window.
func (l log) live(s logState, r counters.Request) logState {
	now := r.Now.UnixNano()
	if s.used == 0 {
		return logState{time: now}
	}
	s.time = max(s.time, now)
	if outside(s.newest, s.time, l.window) {
		return logState{time: s.time, entries: s.entries[:0]}
	}
	for {
		t, cost, size := s.oldest()
		if !outside(t, s.time, l.window) {
			return s
		}
		s.drop(t, cost, size)
	}
}

func (l log) decision(live logState, r counters.Request, allowed bool) counters.Decision {
	limit, lag := logLimit(r), behind(live.time, r.Now)
	d := counters.Decision{Allowed: allowed, Remaining: max(0, limit-live.used)}
	if live.used > 0 {
		d.ResetAfter = after(lag, leaves(live.newest, live.time, l.window))
	}
	switch excess := live.used + r.Cost - limit; {
	case allowed && (!l.countDenied || excess <= 0):
	case r.Cost > limit:
		d.RetryAfter = forever
	default:
		fits := &d.RetryAfter
		if allowed {
			fits = &d.FitsAfter
		}
		for t, cost := range live.all() {
			if excess -= cost; excess <= 0 {
				*fits = after(lag, leaves(t, live.time, l.window))
				break
			}
		}
	}
	return d
}

// add appends a cost at a time that is not before the newest.
func (s *logState) add(t, cost int64) {
	switch {
	case s.used == 0:
		s.base, s.generation = t, cmp.Or(s.generation, t) // all of it may have made room
		s.entries = append(s.entries, 0)
	case s.newest == t:
		// A varint's bytes before its last are 0x80 and above, so its beginning
		// is found from its end.
		start := len(s.entries) - 1
		for s.entries[start-1] >= 0x80 {
			start--
		}
		before, _ := binary.Uvarint(s.entries[start:])
		s.entries = binary.AppendUvarint(s.entries[:start], before+uint64(cost))
		s.used += cost
		return
	default:
		s.entries = binary.AppendUvarint(s.entries, between(s.newest, t))
	}
	s.entries = binary.AppendUvarint(s.entries, uint64(cost))
	s.newest = t
	s.used += cost
}

// put adds a cost at a time that may be before others.
func (s *logState) put(t, cost int64) {
	if s.used == 0 || t >= s.newest {
		s.add(t, cost)
		return
	}
	rest := logState{generation: s.generation, time: s.time, entries: make([]byte, 0, len(s.entries)+2*binary.MaxVarintLen64)}
	for at, used := range s.all() {
		if cost > 0 && t < at {
			rest.add(t, cost)
			cost = 0
		}
		rest.add(at, used)
	}
	*s = rest
}

// oldest returns the first entry and its size in bytes.
func (s *logState) oldest() (t, cost int64, size int) {
	gap, n := binary.Uvarint(s.entries)
	c, m := binary.Uvarint(s.entries[n:])
	return s.base + int64(gap), int64(c), n + m
}

// drop removes the first entry, which is as oldest returned it.
func (s *logState) drop(t, cost int64, size int) {
	s.base, s.used, s.entries = t, s.used-cost, s.entries[size:]
}

// forget takes the given cost from the oldest entries; nothing if it is below 0.
func (s *logState) forget(excess int64) {
	for excess > 0 {
		t, cost, size := s.oldest()
		if cost > excess {
			// What stays of the entry fits where it was, at the end: the first
			// entry needs no gap.
			var buf [1 + binary.MaxVarintLen64]byte
			first := binary.AppendUvarint(buf[:1], uint64(cost-excess))
			s.drop(t, excess, size-len(first))
			copy(s.entries, first)
			return
		}
		s.drop(t, cost, size)
		excess -= cost
	}
}

// all yields the time and the cost of each entry, oldest first.
func (s *logState) all() iter.Seq2[int64, int64] {
	return func(yield func(t, cost int64) bool) {
		rest := *s
		for len(rest.entries) > 0 {
			t, cost, size := rest.oldest()
			if !yield(t, cost) {
				return
			}
			rest.drop(t, cost, size)
		}
	}
}

// encode appends s to b: the format, and unless the log is empty its base, by
// how much its generation is before that, modulo 2^64, by how much its time is
// after the newest entry, and the entries.
func (l log) encode(b []byte, s logState) []byte {
	b = append(slices.Grow(b, 32+len(s.entries)), formatSlidingLog)
	if s.used == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, uint64(s.base))
	b = binary.AppendUvarint(b, between(s.generation, s.base))
	b = binary.AppendUvarint(b, between(s.newest, s.time))
	return append(b, s.entries...)
}

// clone returns a copy of s with memory of its own, and room for an entry.
func (l log) clone(s logState) logState {
	s.entries = append(make([]byte, 0, len(s.entries)+2*binary.MaxVarintLen64), s.entries...)
	return s
}

// decodeLog returns the state that log's encode made data of, and takes data
// over; any other data is errForeignState.
func decodeLog(data []byte) (logState, error) {
	if len(data) == 0 || data[0] != formatSlidingLog {
		return logState{}, errForeignState
	}
	if len(data) == 1 {
		return logState{}, nil
	}
	in := reader{rest: data[1:]}
	base, age, lag := in.time(), in.uvarint(), in.uvarint()
	s := logState{base: base, generation: base - int64(age), newest: base, entries: in.rest}
	for rest := in.rest; len(rest) > 0; { // a reader takes twice as long for many
		var gap, cost uint64
		var ok1, ok2 bool
		gap, rest, ok1 = cutUvarint(rest)
		cost, rest, ok2 = cutUvarint(rest)
		if !ok1 || !ok2 || gap == 0 && s.used > 0 || gap > between(s.newest, math.MaxInt64) ||
			cost == 0 || cost > uint64(mostLogged-s.used) {
			return logState{}, errForeignState
		}
		s.newest += int64(gap)
		s.used += int64(cost)
	}
	if s.used == 0 || lag > between(s.newest, math.MaxInt64) {
		return logState{}, errForeignState
	}
	s.time = s.newest + int64(lag)
	return s, nil
}
