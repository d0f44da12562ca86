package cas

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"time"

	"weir/counters"
)

// A bucket is what token bucket and leaky bucket have in common: a level that
// each admitted cost raises, that drains at a constant rate, the request's
// limit per window. What is admitted never lifts it above the capacity. What is charged,
// was admitted without the store, or is denied and counted may: what is above drains first. All
// that is charged is in it. What else is in it is at most what drains in a window, or the largest
// cost in it if that is more: a client that has asked in vain for long, or was admitted too
// often while the store was away, waits no longer than for those.
//
// All arithmetic is exact: the level is kept in units of 1/window (in
// nanoseconds), of which exactly limit drain in a nanosecond.
//
// Limit, window and burst may change between two requests. What is in use stays
// in use; the time since the last write drains at the rate of the request that
// asks. A level above a smaller capacity is taken as that capacity and what was above, so
// that a smaller limit waits no longer than for a bucket of its own, and the excess is
// forgotten with the next write. A fraction that the units of a new window
// can't express is rounded up.
type bucket struct {
	format      byte
	window      time.Duration
	burst       int64 // capacity; 0 means the request's limit, whatever that is
	countDenied bool
}

// bucketState is a level at a time. The zero value is the empty bucket, and the
// only state whose level is 0.
type bucketState struct {
	time       int64 // Unix time in nanoseconds
	generation int64 // Unix time in nanoseconds, not after time
	window     time.Duration
	// The level is whole + part/window, with 0 <= part < window.
	whole, part int64
	above       int64 // how much of it was above the capacity, less what has drained
	// total is what was consumed since there was no state, denied costs that count too. What
	// has left the bucket, drained or given back, is total less the level at least.
	total int64
}

// step admits r if the level with its cost is within the capacity. When denied
// requests count, a denial raises the level by its cost: a client that asks again
// before that has drained stays denied.
func (b bucket) step(s bucketState, r counters.Request) (bucketState, counters.Decision) {
	now, level := r.Now.UnixNano(), s
	b.advance(&level, now, r.Limit)
	var d counters.Decision
	allowed := b.admits(&level, &d, &r)
	switch {
	case r.Cost == 0:
	case allowed:
		level.whole, level.total = level.whole+r.Cost, level.total+r.Cost
		d.Receipt.Generation, d.Receipt.Position = level.generation, level.total
		s = level
	case b.countDenied:
		b.raise(&level, r.Cost, 0, r.Limit, denied)
		level.total += r.Cost
		s = level
	}
	b.decide(&d, &level, now, &r, allowed)
	return s, d
}

func (b bucket) peek(s bucketState, r counters.Request) (d counters.Decision) {
	now := r.Now.UnixNano()
	b.advance(&s, now, r.Limit)
	b.decide(&d, &s, now, &r, b.admits(&s, &d, &r))
	return d
}

// refund takes off the level what hasn't drained of d. All that has left the bucket is taken to
// be of d or from before it, so that rather too little is given back than too much; but d has
// lost no more than what drains in the time since.
func (b bucket) refund(s bucketState, d *debt) bucketState {
	if s.generation != d.generation {
		return s
	}
	s = s.in(b.window)
	left := s
	left.lower(max(0, s.total-d.position), 0)
	if least := b.undrained(d, s.time, -counters.MaxLimit); !left.exceeds(&least) {
		left = least
	}
	left.atMost(d.cost)
	if s.lower(left.whole, left.part); s.empty() {
		return bucketState{}
	}
	return s
}

// charge raises the level by what hasn't drained of the debts, be it above the
// capacity: of each behind what was in the bucket before it, or of one after the other if
// that is more.
func (b bucket) charge(s bucketState, debts ...*debt) bucketState {
	s = s.in(b.window)
	inTurn, newest := s, debts[len(debts)-1]
	b.drain(&s, newest.now, newest.limit)
	for _, d := range debts {
		left := b.undrained(d, s.time, 0)
		b.raise(&s, left.whole, left.part, d.limit, d.kind)
		s.total += d.cost
		b.advance(&inTurn, d.now, d.limit)
		left = b.undrained(d, inTurn.time, -counters.MaxLimit)
		b.raise(&inTurn, left.whole, left.part, d.limit, d.kind)
	}
	if inTurn.exceeds(&s) {
		inTurn.total = s.total
		s = inTurn
	}
	if s.empty() {
		return bucketState{}
	}
	return s
}

// raise lifts the level by whole + part/window, be it above the capacity.
func (b *bucket) raise(s *bucketState, whole, part, limit int64, kind debtKind) {
	capacity, most := b.capacity(limit), int64(counters.MaxLimit)
	if kind != charged {
		most = min(capacity+max(s.above, whole, limit), most)
	}
	s.whole += whole
	if s.part += part; s.part >= int64(s.window) {
		s.whole, s.part = s.whole+1, s.part-int64(s.window)
	}
	s.atMost(most)
	s.above = max(s.above, s.ceil()-capacity)
}

// merge has d cost what hasn't drained of before besides, but no more than was in the
// bucket by then. Two denials count as they do in step.
func (b bucket) merge(before, d *debt) {
	if d.kind == denied {
		d.cost = max(d.cost, before.cost, min(d.cost+before.cost, d.limit))
		return
	}
	left, most := b.undrained(before, d.now, 0), int64(counters.MaxLimit)
	if d.kind == admitted {
		most = max(d.cost, b.capacity(d.limit)-d.remaining)
	}
	d.cost = min(d.cost+left.ceil(), most)
}

// undrained returns what hasn't drained by a time of the cost of d, if so much more was in the
// bucket before it than d says: that drains first. -counters.MaxLimit more is nothing at all.
func (b bucket) undrained(d *debt, at, more int64) bucketState {
	left := bucketState{whole: b.capacity(d.limit) - d.remaining + more, window: b.window}
	if left.lower(0, d.part); left.whole < d.cost {
		left.whole, left.part = d.cost, 0
	}
	if d.now < at {
		left.drain(between(d.now, at), d.limit)
	}
	left.atMost(d.cost)
	return left
}

// fuller returns the state with the higher level.
func (b bucket) fuller(present, known bucketState, r counters.Request) (bucketState, bool) {
	s, k := present.in(b.window), known.in(b.window) // whatever a lower limit would make of them
	b.drain(&s, r.Now.UnixNano(), r.Limit)
	b.drain(&k, r.Now.UnixNano(), r.Limit)
	if !k.exceeds(&s) {
		return present, false
	}
	if present.empty() {
		return known, true
	}
	k.time, k.total = max(k.time, s.time), max(k.total, s.total)
	return k, true
}

func (b bucket) since(before, after bucketState, _ counters.Request) int64 {
	if after.total < before.total { // there was no state in between
		return after.total
	}
	return after.total - before.total
}

func (b bucket) began(s bucketState) (generation, time int64) { return s.generation, s.time }

func (b bucket) asOf(s bucketState, now int64) bucketState {
	s.time, s.generation = min(s.time, now), min(s.generation, now)
	return s
}

// lasts returns how long a full bucket takes to drain: at a limit of 1 unless
// the capacity is the limit.
func (b bucket) lasts() time.Duration {
	full := bucketState{whole: max(1, b.burst), window: b.window}
	return min(full.drainTime(1), counters.MaxWindow)
}

// ttl returns the time from r.Now until the bucket is empty at r's limit, at
// most forever. By how much r is behind the state is not part of it, so that a
// state from a clock far ahead expires as soon as any other.
func (b bucket) ttl(s bucketState, r counters.Request) time.Duration {
	b.advance(&s, r.Now.UnixNano(), r.Limit)
	return s.drainTime(r.Limit)
}

func (b *bucket) capacity(limit int64) int64 {
	if b.burst == 0 {
		return limit
	}
	return b.burst
}

// advance makes s what a request with this limit finds: in the bucket's own units, within
// the capacity and drained until now, in Unix nanoseconds.
func (b *bucket) advance(s *bucketState, now, limit int64) {
	if s.window != b.window {
		*s = s.in(b.window)
	}
	s.atMost(b.capacity(limit) + s.above)
	b.drain(s, now, limit)
}

// drain drains s, in the bucket's own units, until now.
func (b *bucket) drain(s *bucketState, now, limit int64) {
	switch {
	case s.empty():
		s.time, s.generation = now, now
	case s.time < now:
		s.drain(between(s.time, now), limit)
		s.time = now
		if s.empty() {
			s.generation = now
		}
	}
}

// admits reports whether r fits, and puts into d how long it waits for its turn.
func (b *bucket) admits(level *bucketState, d *counters.Decision, r *counters.Request) bool {
	allowed := r.Cost <= b.capacity(r.Limit)-level.ceil()
	if allowed && b.format == formatLeakyBucket {
		d.Wait = level.drainTime(r.Limit)
	}
	return allowed
}

// decide fills d with what the client is told of the level as r finds it.
func (b *bucket) decide(d *counters.Decision, level *bucketState, now int64, r *counters.Request, allowed bool) {
	capacity, lag := b.capacity(r.Limit), between(now, level.time)
	d.Allowed = allowed
	d.Remaining = max(0, capacity-level.ceil())
	d.ResetAfter = after(lag, level.drainTime(r.Limit))
	if allowed && !b.countDenied {
		return
	}
	fits := &d.RetryAfter
	if allowed {
		fits = &d.FitsAfter
	}
	if *fits = forever; r.Cost <= capacity {
		*fits = 0
		excess := bucketState{whole: level.whole - (capacity - r.Cost), part: level.part, window: level.window}
		if excess.whole >= 0 {
			*fits = after(lag, excess.drainTime(r.Limit))
		}
	}
}

// in returns the state with its part in units of 1/window, rounded up.
func (s bucketState) in(window time.Duration) bucketState {
	if s.part != 0 && s.window != window {
		scaled := bucketState{whole: s.part, window: window} // drains in as many nanoseconds, rounded up
		if s.part = int64(scaled.drainTime(int64(s.window))); s.part == int64(window) {
			s.whole, s.part = s.whole+1, 0
		}
	}
	s.window = window
	return s
}

// drain lowers the level by what drains in the given nanoseconds.
func (s *bucketState) drain(elapsed uint64, limit int64) {
	hi, lo := bits.Mul64(elapsed, uint64(limit))
	if hi >= uint64(s.window) {
		s.whole, s.part, s.above = 0, 0, 0
		return
	}
	whole, part := bits.Div64(hi, lo, uint64(s.window))
	s.lower(int64(min(whole, math.MaxInt64)), int64(part))
}

// lower lowers the level by whole + part/window, to 0 at least: what was above goes first.
func (s *bucketState) lower(whole, part int64) {
	before := s.ceil()
	s.whole -= whole
	if s.part -= part; s.part < 0 {
		s.whole, s.part = s.whole-1, s.part+int64(s.window)
	}
	if s.whole < 0 {
		s.whole, s.part = 0, 0
	}
	s.above = max(0, s.above-(before-s.ceil()))
}

// atMost lowers the level to most if it is higher.
func (s *bucketState) atMost(most int64) {
	if s.whole >= most {
		s.whole, s.part = most, 0
	}
}

// exceeds reports whether the level is higher than another one of the same window.
func (s *bucketState) exceeds(other *bucketState) bool {
	return s.whole > other.whole || s.whole == other.whole && s.part > other.part
}

// empty reports whether the level is 0.
func (s *bucketState) empty() bool { return s.whole == 0 && s.part == 0 }

// drainTime returns how long the level takes to drain, rounded up to whole
// nanoseconds, at most forever.
func (s *bucketState) drainTime(limit int64) time.Duration {
	hi, lo := bits.Mul64(uint64(s.whole), uint64(s.window))
	lo, carry := bits.Add64(lo, uint64(s.part)+uint64(limit)-1, 0)
	hi += carry
	if hi >= uint64(limit) {
		return forever
	}
	ns, _ := bits.Div64(hi, lo, uint64(limit))
	return time.Duration(min(ns, uint64(forever)))
}

// ceil returns the level rounded up.
func (s *bucketState) ceil() int64 {
	if s.part > 0 {
		return s.whole + 1
	}
	return s.whole
}

// encode appends s to data: the format, and unless the bucket is empty its
// time, its generation, its window in milliseconds, its level, its total and what was
// above, if anything.
func (b bucket) encode(data []byte, s bucketState) []byte {
	data = append(slices.Grow(data, 32), b.format)
	if s == (bucketState{}) {
		return data
	}
	data = binary.BigEndian.AppendUint64(data, uint64(s.time))
	data = binary.AppendUvarint(data, between(s.generation, s.time))
	for _, v := range [...]int64{int64(s.window / time.Millisecond), s.whole, s.part, s.total} {
		data = binary.AppendUvarint(data, uint64(v))
	}
	if s.above > 0 { // mostly nothing is, and every byte is one of each client
		data = binary.AppendUvarint(data, uint64(s.above))
	}
	return data
}

// clone returns s.
func (b bucket) clone(s bucketState) bucketState { return s }

// decode returns the state that encode made data of, any other data is
// errForeignState.
func (b bucket) decode(data []byte) (bucketState, error) {
	if len(data) == 0 || data[0] != b.format {
		return bucketState{}, errForeignState
	}
	if len(data) == 1 {
		return bucketState{}, nil
	}
	in := reader{rest: data[1:]}
	t, age := in.time(), in.uvarint()
	ms, whole, part, total, above := in.uvarint(), in.uvarint(), in.uvarint(), in.uvarint(), uint64(0)
	if len(in.rest) > 0 {
		above = in.uvarint()
		in.wrong = in.wrong || above == 0
	}
	window := time.Duration(min(ms, uint64(forever/time.Millisecond))) * time.Millisecond
	if in.wrong || len(in.rest) > 0 || age > between(math.MinInt64, t) || total > 1<<62 ||
		counters.CheckWindow(window) != nil || whole > counters.MaxLimit || part >= uint64(window) || whole+part == 0 || above > whole+1 {
		return bucketState{}, errForeignState
	}
	return bucketState{time: t, generation: t - int64(age), window: window, whole: int64(whole), part: int64(part), above: int64(above), total: int64(total)}, nil
}
