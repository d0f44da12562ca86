package cas

import (
	"bytes"
	"cmp"
	"sync"
	"time"

	"weir/counters"
)

// A view is what a process has last seen of a client.
type view[S any] struct {
	mu   sync.Mutex
	last snapshot[S]
	debt debt[S]
	// assumed is when what TakeLocal has admitted was last taken for consumed
	// though the store hasn't answered, and others have written since, or though
	// the state had no room for it: Unix nanoseconds, of the last request of which
	// nobody may ever know.
	assumed int64
	// consumed is what the store has consumed last of what was owed.
	consumed consumed
	// underWay says that the store is to replace the state from by to.
	underWay bool
	from, to S
	// given takes from a state what was given back of the debt meanwhile.
	given []func(S) S
	// turn is when the process may write again, after it has won against
	// others; pause is how many round trips that is after the last win.
	turn      time.Time
	pause     float64
	roundTrip time.Duration
	// answered is when it has won last, and streak since when it has done so at
	// each first attempt, without a pause.
	answered, streak time.Time
	// heldUp is when another instance has come first, or the process has waited
	// long for its turn.
	heldUp time.Time
}

// consumed says that the store has consumed what was owed of requests until a
// time, in Unix nanoseconds, in a state of this generation.
type consumed struct{ generation, until int64 }

// A snapshot is a state as it was seen. The zero value is none.
type snapshot[S any] struct {
	state   counters.State // without its value
	size    int            // of its value
	had     casToken       // of the state that the store had last, if it has none
	decoded S              // which no one may change
	origin  origin
	known   bool
	lost    bool      // the store has less, or nothing
	at      int64     // Unix nanoseconds, of the request that asked for it
	read    time.Time // when the store answered
	expires time.Time // when the store forgets it at the latest
}

// A casToken tells a state that a store has from all others; the zero value is
// that of none.
type casToken struct{ version, life uint64 }

// token returns the cas token of the state that the store has, or has lost.
func (s snapshot[S]) token() casToken {
	if s.state.Exists() {
		return casToken{s.state.Version, s.state.Life}
	}
	return s.had
}

// lasting returns s, or none when the store would have forgotten it: one of a
// clock that was ahead mustn't outlast it here.
func (s snapshot[S]) lasting() snapshot[S] {
	if time.Now().After(s.expires) {
		return snapshot[S]{}
	}
	return s
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// fresh reports whether denials may rely on it at now.
func (s snapshot[S]) fresh(now time.Time) bool {
	age := now.UnixNano() - s.at
	return s.known && age >= 0 && age <= int64(counters.MaxStaleness)
}

func (v *view[S]) recall() snapshot[S] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last
}

// recallAll returns the debt too.
func (v *view[S]) recallAll() (snapshot[S], debt[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last, v.debt
}

func (v *view[S]) remember(s snapshot[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = s
}

// won notes that the process has won, at the given attempt, the last of which
// took roundTrip. It decides when its next turn is.
func (v *view[S]) won(attempts int, roundTrip time.Duration, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if attempts > 1 {
		// One that took long was mostly held up; the next will be faster.
		v.roundTrip = min(roundTrip, cmp.Or(v.roundTrip, roundTrip)*9/8)
	}
	// On average it pauses twice as long as it contends, so that a third of the
	// processes contend at a time: enough to leave no gaps, and few enough that
	// none loses for long. One win changes little, as who was unlucky shouldn't
	// pause longer than the others too; but who doesn't pause yet begins at
	// once, lest it beat the same ones again and again.
	period := now.Sub(v.answered)
	v.answered = now
	lost := float64(attempts - 1)
	v.pause = max(v.pause+0.2*(2*lost-v.pause), min(lost, v.pause+2))
	v.turn = time.Time{}
	if v.pause >= 1 {
		v.turn = now.Add(time.Duration(v.pause * float64(v.roundTrip)))
	}
	switch {
	case lost > 0 || v.pause >= 1 || period > longestStreak:
		v.streak = now
	case period >= shortestGap && now.Sub(v.streak) > max(longestStreak, 4*period):
		// Who wrote last knows the state, and wins again: another process that
		// comes right behind would never win, and this one never learn of it.
		v.turn, v.streak = now.Add(period*3/2), now
	}
}

// longestStreak is how long a process may win at each first attempt before it
// leaves a gap for others. Where its wins are closer together than shortestGap,
// it leaves none: what a batch takes varies by more than the round trip then,
// so that others come first now and then.
const (
	longestStreak = 20 * time.Millisecond
	shortestGap   = 500 * time.Microsecond
)

// awaitTurn waits for the process's turn, for half the time until the deadline
// at the most, and returns how long, or 0 if it needn't.
func (v *view[S]) awaitTurn(deadline time.Time) time.Duration {
	wait := v.untilTurn(deadline)
	time.Sleep(wait)
	return wait
}

// untilTurn returns how long awaitTurn would wait.
func (v *view[S]) untilTurn(deadline time.Time) time.Duration {
	v.mu.Lock()
	turn := v.turn
	v.mu.Unlock()
	if turn.IsZero() {
		return 0
	}
	now := time.Now()
	return max(0, min(turn.Sub(now), deadline.Sub(now)/2))
}

// hold notes that the process was held up by others until now.
func (v *view[S]) hold(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heldUp = now
}

// A debt is what a process has consumed without the store.
type debt[S any] struct {
	// after is the state that the process decides by; before is that state
	// without the debt. What the store may have consumed already, as its answer
	// is missing, is in both.
	before, after S
	// base is the state of the store that both began from, if that is known, and
	// baseToken its cas token.
	base      S
	baseToken casToken
	based     bool
	reset     int64 // when the client was reset last before it, as far as is known
	// sent says that the store may have consumed something already. Then the
	// store is read before it is written.
	sent bool
	// told is the state, encoded, that the store was told last to replace base by,
	// without an answer; nil if it can't have any more.
	told   []byte
	number int   // of the last change; 0 if there is no debt
	at     int64 // Unix nanoseconds, of the last request in it
	// undo is the debt as it was before the store was last told to consume it
	// without an answer; nil if there is an answer since.
	undo *debt[S]
	// unsure is, in Unix nanoseconds, the last request that the store was told to
	// consume without an answer.
	unsure int64
	// dropped says, of an undo, that the store has consumed a debt since, without
	// what it was assumed to have consumed: that is from before to after.
	dropped bool
	// whole says that nothing was assumed, as nobody had written; forgotten, that
	// the next state has no room for all of it. Both are set by begin.
	whole, forgotten bool
}

// believe returns the debt, or one of nothing. v is locked.
func (v *view[S]) believe(a algorithm[S], r counters.Request) debt[S] {
	if v.debt.number > 0 {
		return v.debt
	}
	return v.last.lasting().debt(a, r)
}

// debt returns one of nothing.
func (s snapshot[S]) debt(a algorithm[S], r counters.Request) debt[S] {
	kept := a.within(s.decoded, r)
	return debt[S]{before: kept, after: kept, base: s.decoded, baseToken: s.token(), based: true, reset: s.origin.reset}
}

// repaid notes that the store has consumed the debt d, and that v has what it
// has then: what has come since is left.
func (v *view[S]) repaid(d debt[S], a algorithm[S], r counters.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !d.whole {
		v.assumed = max(v.assumed, v.debt.unsure)
		if undo := v.debt.undo; undo != nil {
			undo.after, undo.dropped = v.debt.before, true
		}
	}
	if d.forgotten {
		v.assumed = max(v.assumed, d.at)
	}
	if d.number > 0 {
		generation, _ := a.began(v.last.decoded)
		v.consumed = consumed{generation, max(v.consumed.until, d.at)}
	}
	if v.debt.number == d.number {
		v.debt = debt[S]{}
		return
	}
	switch {
	case d.undo != nil && v.debt.undo == nil && !d.whole: // it was undone meanwhile
		v.debt.before = a.carry(a.clone(v.debt.before), d.before, d.after, r)
	case d.number > 0:
		v.debt.before = a.carry(a.clone(d.after), d.before, v.debt.before, r)
	}
	left := v.last.debt(a, r)
	v.debt.after = a.carry(a.clone(left.after), v.debt.before, v.debt.after, r)
	v.debt.before, v.debt.undo, v.debt.unsure, v.debt.told = left.before, nil, 0, nil
	v.debt.base, v.debt.baseToken, v.debt.based = left.base, left.baseToken, true
}

// owe adds something of r to the debt that is consumed without the store, or that
// the store may have consumed. v is locked.
func (v *view[S]) owe(add func(S) S, sent bool, a algorithm[S], r counters.Request) {
	d := v.believe(a, r)
	d.at = max(d.at, r.Now.UnixNano())
	d.after = add(d.after)
	if sent {
		d.before = add(d.before)
		// If the store has answered since, it may have consumed that by then.
		d.sent, d.based = true, d.based && d.number > 0
	}
	d.number++
	v.debt = d
}

// takeBack takes from the debt, if there is one, what refund takes from a state,
// of a request at the given moment. It reports whether there is one, and whether
// nobody may ever know if the store has consumed that: then what comes after it
// is owed in full all the same. v is locked.
func (v *view[S]) takeBack(refund func(S) S, at time.Time, unsent bool) (owed, unknown bool) {
	owed = v.debt.number > 0
	unknown = !unsent || at.UnixNano() <= max(v.assumed, v.debt.unsure)
	if owed {
		v.debt.after = refund(v.debt.after)
		switch {
		case unknown:
			v.debt.before = refund(v.debt.before)
		case v.underWay: // then it may be unknown too
			v.given = append(v.given, refund)
		}
		v.debt.number++
	}
	return owed, unknown
}

// unanswered notes that the store may have replaced the state that was seen by
// next, which consumes the debt d and more, of requests until r. It returns d for
// undone.
func (v *view[S]) unanswered(d debt[S], seen snapshot[S], next S, a algorithm[S], r counters.Request) *debt[S] {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.number == 0 {
		d = seen.debt(a, r)
		d.whole = true
	}
	if v.debt.number == 0 {
		v.debt = d
	}
	// Callers of the batch before may just have added to what is assumed.
	before, assumed := v.debt.before, a.carry(a.clone(d.after), d.before, v.debt.before, r)
	for _, refund := range v.given {
		assumed = refund(assumed)
	}
	v.given = nil
	if !d.whole { // what was assumed is settled: it is in what was seen, or never will be
		told := a.carry(a.clone(seen.decoded), d.before, d.after, r)
		v.debt.after = a.carry(a.clone(told), assumed, v.debt.after, r)
		before, assumed, d.after, d.told = seen.decoded, told, told, nil
		v.assumed = max(v.assumed, v.debt.unsure)
	}
	if !d.whole || !v.debt.based {
		v.debt.base, v.debt.baseToken, v.debt.based = seen.decoded, seen.token(), true
	}
	d.before, d.undo = before, nil
	v.debt.before, v.debt.sent, v.debt.undo, v.debt.told = assumed, true, &d, a.encode(nil, next)
	v.debt.unsure = max(v.debt.unsure, d.at)
	v.debt.at = max(v.debt.at, r.Now.UnixNano())
	v.debt.number++
	return &d
}

// undone notes that the store hasn't replaced the state: what was to be
// consumed with the debt d is owed, whatever others have written, and the store
// has answered since.
func (v *view[S]) undone(d *debt[S], a algorithm[S], r counters.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.debt.undo == d:
		v.debt.undone()
	case d.dropped:
		v.owe(func(s S) S { return a.carry(a.clone(s), d.before, d.after, r) }, false, a, r)
	}
}

// undone has what the store was told last be owed.
func (d *debt[S]) undone() {
	d.before, d.sent, d.unsure, d.told, d.undo = d.undo.before, d.undo.sent, d.undo.unsure, d.undo.told, nil
	d.number++
}

// compare looks at what the store has. If that is what it was told to have the
// time before the last, it hasn't done the last, which was to replace the same
// state, and never will.
func (d *debt[S]) compare(seen S, a algorithm[S]) {
	if d.undo == nil || d.undo.told == nil {
		return
	}
	if is := a.encode(nil, seen); bytes.Equal(is, d.undo.told) && !bytes.Equal(is, a.encode(nil, d.base)) {
		d.undone()
	}
}

// onto returns the state that was seen and what the debt consumes, and whether
// that is all of it.
func (d debt[S]) onto(seen snapshot[S], a algorithm[S], r counters.Request) (s S, whole bool) {
	switch {
	case d.number == 0:
		return seen.decoded, true
	case d.based && bytes.Equal(a.encode(nil, seen.decoded), a.encode(nil, d.base)):
		return d.after, true // nobody has written since, be it this process
	case d.based && !seen.state.Exists() && seen.had == d.baseToken:
		// What the store may have consumed since is lost too.
		return a.carry(a.clone(seen.decoded), a.within(d.base, r), d.after, r), true
	}
	return a.carry(a.clone(seen.decoded), d.before, d.after, r), false
}
