package subwindow

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"weir/counters"
	"weir/counters/combiner"
)

// A request is a counters.Request, and what is known of its client.
type request struct {
	counters.Request
	view   *view
	refund *refund // nil for a request that takes
	// late is an addition that the store has counted, if what was repaid, refused
	// or given back of it is to be refunded.
	late *addition

	// stage is how far the leader is with it, and alone how TakeLocal has
	// answered it meanwhile. The view's lock guards both.
	stage stage
	alone verdict
}

// A stage of a request.
type stage uint8

const (
	waiting  stage = iota
	counting       // what is reserved includes it
	answered       // by the leader
)

// A verdict on a request whose caller hasn't waited for the leader.
type verdict uint8

const (
	undecided verdict = iota
	consumed
	refused
)

// reach notes how far the leader, whose view is v, is with the request.
func (r *request) reach(v *view, s stage) {
	if r.view == v { // else it isn't guarded by v
		r.stage = s
	}
}

// verdict returns how TakeLocal has answered the request, as far as v, the
// leader's view, knows.
func (r *request) verdict(v *view) verdict {
	if r.view == v {
		return r.alone
	}
	return undecided
}

// left returns the call of a caller that has left with err, if v guards it.
func (v *view) left(err error) *call {
	var left *combiner.LeftError[request, counters.Decision]
	if errors.As(err, &left) && left.Call.Request.view == v {
		return left.Call
	}
	return nil
}

// leave returns the answer to a caller that fails with err. If it has left before
// its leader had one, that leader is to refuse it.
func (v *view) leave(d counters.Decision, err error) (counters.Decision, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	call := v.left(err)
	if call == nil {
		return d, err
	}
	if call.Request.stage == answered {
		return call.Result, call.Err
	}
	call.Request.alone = refused
	return d, err
}

// withdraw reports whether the request needs no answer. What was to be counted
// of it, and wasn't, is owed. v is locked.
func (r *request) withdraw(v *view, bucket int64) bool {
	gone := r.verdict(v)
	if gone == consumed && r.stage == counting {
		v.owe(debt{bucket: bucket, cost: r.Cost, at: r.Now.UnixMilli()})
	}
	r.reach(v, waiting)
	return gone != undecided
}

// A refund is a request to take back what a request has counted.
type refund struct {
	begun atomic.Bool // a leader has taken it up
	last  bool        // refundNow does it
}

// An attempt is the slots of one window as one decision finds them, and what it
// asks the store about them. Limiters use attempts again.
type attempt struct {
	prefix        string // of the client's keys
	generationKey string
	key           string // of the current slot, "" until it's needed
	bucket        int64  // the current slot's number
	elapsed       time.Duration
	now           int64 // Unix nanoseconds

	// counts are newest first, as Window wants them; counts[ahead] is that of
	// the current slot.
	counts []int64
	ahead  int
	gone   int // how many of the oldest counts have left every window
	// own and most are of counts[ownAt]; see snapshot.
	own, most int64
	ownAt     int
	doubted   int64 // when it was last looked into why there is less than most
	known     int   // how many of the oldest counts are settled and were read before

	fresh      bool  // what is known may be relied on
	asked      bool  // the store, for this decision
	generation int64 // of what is known, read at verified
	verified   int64

	keys []string // to read
	text []byte   // of the keys, one after the other
	ends []int    // where in text each of them ends
	read []int64  // what was read

	pending []*call
	chosen  []bool // which of pending are being counted
	denied  bool   // one of the calls

	// owed is what was admitted alone since debts were settled, and taken what
	// the store has counted of the calls.
	owed, taken int64
}

type call = combiner.Call[request, counters.Decision]

// begin makes a that of window w at now, of which nothing is known.
func (a *attempt) begin(w Window, now time.Time, prefix, generationKey string) {
	place := counters.Calendar(now, w.Width)
	*a = attempt{
		prefix: prefix, generationKey: generationKey, bucket: place.Number, elapsed: place.Elapsed,
		now: now.UnixNano(), ahead: w.ahead(place.Elapsed), gone: w.gone(place.Elapsed),
		counts: a.counts, keys: a.keys, text: a.text, ends: a.ends, read: a.read, pending: a.pending, chosen: a.chosen,
	}
	size := a.ahead + 1 + w.Slots + w.back()
	a.counts = slices.Grow(a.counts[:0], size)[:size]
	clear(a.counts)
}

// recall takes over what a snapshot knows.
func (a *attempt) recall(s *snapshot) {
	passed := a.bucket - s.bucket
	size := int64(len(s.counts))
	if size == 0 || passed <= size {
		a.generation = s.generation
	}
	if passed <= -size || passed >= size {
		return
	}
	a.ownAt, a.own, a.most = a.ahead+int(passed), s.own, s.most
	copy(a.counts[max(0, a.ownAt):], s.counts[max(0, -a.ownAt):])
	if passed == 0 {
		a.key = s.key
	}
	if passed >= 0 {
		a.known = int(max(0, min(s.settled, a.bucket-1)-a.oldest()+1))
	}
	a.verified, a.fresh, a.doubted = s.verified, s.fresh(a.now), s.doubted
}

// snapshot returns what the attempt knows of the current slot and those before
// it. A slot is settled when it has been closed for longer than the horizon.
func (a *attempt) snapshot(w Window) snapshot {
	if a.ownAt != a.ahead {
		a.own, a.most = 0, 0
	}
	return snapshot{
		bucket: a.bucket, key: a.currentKey(), counts: a.counts[a.ahead:], own: a.own, most: a.most, doubted: a.doubted,
		settled:    (a.now-int64(w.Horizon))/int64(w.Width) - 1,
		generation: a.generation, verified: a.verified,
	}
}

// oldest returns the number of the oldest slot that counts.
func (a *attempt) oldest() int64 { return a.bucket - int64(len(a.counts)-1-a.ahead) }

func (a *attempt) currentKey() string {
	if a.key == "" {
		a.key = counters.CounterKey(a.prefix, a.bucket)
	}
	return a.key
}

// prepare makes keys those of what has to be read besides the current slot: the
// generation if what is known isn't fresh, and the slots that aren't known. The
// generation comes first, so that counts from before a reset are never taken
// for those of the generation after it.
func (a *attempt) prepare() {
	a.keys, a.text, a.ends = a.keys[:0], a.text[:0], a.ends[:0]
	if a.verifies() {
		a.keys = append(a.keys, a.generationKey)
	}
	for i := range len(a.counts) - a.known {
		if i != a.ahead {
			a.text = counters.AppendCounterKey(a.text, a.prefix, a.bucket+int64(a.ahead-i))
			a.ends = append(a.ends, len(a.text))
		}
	}
	// The keys are parts of one string, so that many take one allocation.
	text, start := string(a.text), 0
	for _, end := range a.ends {
		a.keys = append(a.keys, text[start:end])
		start = end
	}
	a.read = slices.Grow(a.read[:0], len(a.keys)+1)[:len(a.keys)]
}

// verifies reports whether the next read is one of the generation too. A reset
// can end nothing where no older slots are remembered.
func (a *attempt) verifies() bool { return !a.fresh && len(a.counts) > a.ahead+1 }

// A finding is what there is to say of what was read.
type finding int

const (
	complete finding = iota
	changed          // what was known has changed; all has to be read
	lost             // what was known isn't there any more
)

// fill puts what was read of the prepared keys, and the current slot's count,
// where they belong, if that is complete. Otherwise what a remembers stays, but
// nothing is known if it has changed.
func (a *attempt) fill(current int64) finding {
	read, same := a.read, true
	if a.verifies() {
		generation := read[0]
		read = read[1:]
		if a.unmarked(generation) || a.putBack(generation) {
			return lost
		}
		reset := lastReset(generation) != lastReset(a.generation) // perhaps since current was read
		same = !reset && (a.known == 0 || max(0, generation) == a.generation)
		if a.turn(generation); !same {
			a.known, a.asked = 0, false
			return changed
		}
		a.most = 0 // what is missing has been taken back
	}
	if a.misses(a.ahead, current) {
		return lost
	}
	unread := read
	for i := range len(a.counts) - a.known {
		if i != a.ahead {
			if a.misses(i, unread[0]) {
				return lost
			}
			unread = unread[1:]
		}
	}
	for i := range len(a.counts) - a.known {
		if i != a.ahead {
			a.counts[i], read = max(0, read[0]), read[1:]
		}
	}
	a.counts[a.ahead] = max(0, current)
	a.asked = true
	if !a.fresh {
		a.verified, a.fresh = a.now, true
	}
	return complete
}

// doubtAfter is how long it isn't looked into why there is less than was known,
// since that was last done: mostly it is that others take back what they count.
const doubtAfter = 50 * time.Millisecond

// doubts reports whether the store may have lost counts of the current slot, and
// others may have put back less than a remembers.
func (a *attempt) doubts() bool {
	return a.ownAt == a.ahead && a.counts[a.ahead] < a.most && a.now-a.doubted >= int64(doubtAfter)
}

// putBack reports whether others have put back, at the given generation, what
// the store had lost of what a remembers, or less.
func (a *attempt) putBack(generation int64) bool {
	return lastReset(generation) == lastReset(a.generation) && lastPutBack(generation) != lastPutBack(a.generation) &&
		(a.most > 0 || slices.ContainsFunc(a.counts, func(n int64) bool { return n > 0 }))
}

// turn notes the generation that was read. What a remembers from before a reset
// is forgotten.
func (a *attempt) turn(generation int64) {
	if lastReset(generation) != lastReset(a.generation) {
		a.forget()
	}
	a.generation = max(0, generation)
}

// unmarked reports whether the store has lost the generation that a knows: the
// one that it has, if any, was begun since, and by no reset.
func (a *attempt) unmarked(generation int64) bool {
	return lastReset(generation) == 0 && lastReset(a.generation) > 0
}

// forget ends what a remembers.
func (a *attempt) forget() {
	clear(a.counts)
	a.own, a.most = 0, 0
	a.known = 0
}

// misses reports whether the store, which has a count of slot i, has lost what
// a remembers of it. Others may have taken back what they had counted there, and
// what has left every window may have expired.
func (a *attempt) misses(i int, count int64) bool {
	return i < len(a.counts)-a.gone && (count == counters.Absent && a.counts[i] > 0 || i == a.ownAt && max(0, count) < a.own)
}

// take takes over what the store has in all slots, the current one with the sum
// that a has counted there.
func (a *attempt) take(generation int64, counts []int64, sum int64) {
	for i, n := range counts {
		a.counts[i] = max(0, n)
	}
	a.counts[a.ahead] = max(0, a.counts[a.ahead]-sum)
	a.generation, a.verified, a.most = max(0, generation), a.now, 0
	a.fresh, a.asked = true, true
}

// admit adds what the store has counted of this process to the current slot.
func (a *attempt) admit(cost int64) {
	if a.ownAt != a.ahead {
		a.ownAt, a.own, a.most = a.ahead, 0, 0
	}
	a.counts[a.ahead] += cost
	a.own += cost
	a.taken += cost
}

// elapsedAt returns how long the current slot was open at now.
func (a *attempt) elapsedAt(now time.Time) time.Duration {
	return a.elapsed - time.Duration(a.now-now.UnixNano())
}

// earliest returns the earliest of the chosen requests.
func (a *attempt) earliest() counters.Request {
	var first counters.Request
	for i, call := range a.pending {
		if r := call.Request.Request; a.chosen[i] && (first.Now.IsZero() || r.Now.Before(first.Now)) {
			first = r
		}
	}
	return first
}

// fail answers the pending calls with an error. Those that were chosen are part
// of an addition, unless that is nil: then the store has surely counted nothing.
func (a *attempt) fail(v *view, err error, add *addition) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, call := range a.pending {
		r := &call.Request
		call.Err = err
		switch alone := r.verdict(v); {
		case add == nil || !a.chosen[i]:
			call.Err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
			r.withdraw(v, a.bucket)
		case alone == consumed:
			v.owe(debt{bucket: a.bucket, cost: r.Cost, sent: true, before: math.MinInt64, at: r.Now.UnixMilli()})
		case alone == refused || r.RefundUnanswered:
			add.twice += r.Cost
			add.refused++
		}
		r.reach(v, answered)
	}
	a.pending = a.pending[:0]
}

// count adds n to the count of a slot, if that is one of the attempt's, whose
// newest is given.
func (a *attempt) count(newest, bucket, n int64) bool {
	i := newest - bucket
	if size := int64(len(a.counts)); i >= size || i <= -size {
		return false
	}
	a.counts[max(0, i)] += n // a clock that has been set back forgets nothing
	return true
}
