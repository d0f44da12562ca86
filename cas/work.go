package cas

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A work is what the leader of a batch knows of it, attempt by attempt.
type work[S any] struct {
	*family[S]
	a        *account[S]
	client   string
	batch    *batch[S]
	deadline time.Time

	calls   []*call[S] // that are still to be answered
	heardAt time.Time  // when the store last answered in this batch; zero if it hasn't
	heldUp  bool       // by other instances, or by the wait for a turn among them
	// turn is when the turn comes that the process waits for, and wait for how long it
	// does, 0 if it doesn't.
	turn time.Time
	wait time.Duration
	// attempts is how often it tried to swap the state, and lostRaces how many of these
	// lost a race. A failed guess from a stale snapshot, or from none, isn't
	// counted as a lost race.
	attempts, lostRaces int

	// Of the attempt under way.
	next    transition[S]
	asks    counters.Replacement // of the store, but for its Key
	flight  *flight[S]
	escaped bool // a caller or the store may refer to the flight

	// What the store has said.
	now     counters.State
	swapped bool
	err     error
	flown   []ledger.Flown
}

// Begin implements ledger.Work.
func (w *work[S]) Begin(ctx context.Context, a *account[S], client string, b *batch[S]) {
	w.a, w.client, w.batch = a, client, b
	var ok bool
	if w.deadline, ok = ctx.Deadline(); !ok {
		w.deadline = time.Now().Add(counters.DefaultTimeout)
	}
	if w.flight != nil { // nobody else refers to it
		w.flight.account = a
	}
}

// End implements ledger.Work.
func (w *work[S]) End() {
	if f := w.a.flight; f != nil { // the leader has panicked
		w.a.flight = nil
		w.a.unanswered(&w.rules, f, ledger.Unknown)
	}
	if w.escaped { // after a panic nobody uses w
		w.flight, w.next.value = nil, nil
	}
	clear(w.calls)
	clear(w.flown)
	*w = work[S]{family: w.family, calls: w.calls[:0], flown: w.flown[:0], flight: w.flight, next: transition[S]{value: w.next.value[:0]}}
}

// Next implements ledger.Work.
func (w *work[S]) Next() ledger.Step {
	if w.wait > 0 {
		if time.Now().Before(w.turn) {
			return ledger.Waits
		}
		if w.heldUp = w.wait >= w.cfg.StoreTimeout/heldUpPart; w.heldUp {
			w.a.pace.heldUp = momentOf(time.Now())
		}
		w.wait = 0
	}
	for {
		w.asks, w.swapped = counters.Replacement{Size: int(w.a.last.size)}, false
		ask, take := w.gather()
		if !ask && !w.a.owes() {
			w.answer(nil)
			return ledger.Over
		}
		if w.looksFirst() {
			return ledger.Together
		}
		w.decide(ask, take)
		switch {
		case !w.next.changed: // read, as others may have changed what was seen
			if w.heard() {
				w.answer(nil)
				return ledger.Over
			}
		case w.awaitsTurn():
			return ledger.Waits
		case !w.claim():
			continue // without those who have left
		default:
			w.depart()
		}
		return ledger.Together
	}
}

// heard reports whether the store has answered in this batch: what it said then may be decided by.
func (w *work[S]) heard() bool { return !w.heardAt.IsZero() }

// looksFirst reports whether the store is read before anything is decided: a flight may have
// been done, or there is much to tell a store that may still be gone.
func (w *work[S]) looksFirst() bool {
	return !w.heard() && (len(w.a.flights) > 0 || len(w.a.due) > mostDebts)
}

// gather finds the calls to be answered, and reports whether some of them ask for a
// decision, and whether some take.
func (w *work[S]) gather() (ask, take bool) {
	calls := w.batch.Calls()
	// Once less than half of the time was left at the last answer, who comes later does better
	// by a batch of its own. So does who holds a lease that what was read before may lack.
	if w.deadline.Sub(w.heardAt) >= w.cfg.StoreTimeout/2 && (!w.leases || !w.heard()) {
		calls = w.batch.Join()
	}
	w.calls, w.next.latest, w.next.changed = w.calls[:0], nil, false
	for _, call := range calls {
		if call.Left() {
			w.escaped = true
			continue
		}
		if r := &call.Request.Request; w.next.latest == nil || r.Now.After(w.next.latest.Now) {
			w.next.latest = r
		}
		w.calls = append(w.calls, call)
		ask, take = ask || call.Request.Kind != ledger.Tells, take || call.Request.Kind == ledger.Takes
	}
	return ask, take
}

// awaitsTurn has the process wait before its first attempt if it isn't its turn, see pace,
// and reports whether it must.
func (w *work[S]) awaitsTurn() bool {
	if w.heard() || !w.turn.IsZero() {
		return false
	}
	if w.wait = w.a.pace.untilTurn(w.deadline); w.wait > 0 {
		w.turn = time.Now().Add(w.wait)
	}
	return w.wait > 0
}

// claim claims the calls that take, and reports whether all of their callers are
// still there.
func (w *work[S]) claim() bool {
	if w.flight == nil {
		w.flight = &flight[S]{account: w.a}
	}
	all := true
	for _, call := range w.calls {
		if call.Request.Kind != ledger.Takes {
			continue
		}
		if call.Request.Flight == nil {
			call.Request.Flight = w.flight
		}
		all = call.Claim() && all
	}
	return all
}

// decide answers the calls from what was seen and what is due, without telling
// them. What the store has lost is put back if some of them take.
func (w *work[S]) decide(ask, take bool) {
	a, l, next := w.a, &w.rules, &w.next
	next.origin, next.changed, next.admitted = a.last.origin, a.owes() || take && a.last.lost, 0
	next.to = l.clone(a.last.decoded)
	w.tellNext()
	next.othersDue, next.mayTell = w.othersDue(a, next.to, next.latest)
	if ask { // what is due is told as of when it was decided, which may be behind others' clocks
		w.healNext(take)
	}
	for _, call := range w.calls {
		q := &call.Request
		if q.Kind != ledger.Takes || w.denyForOthers(call) {
			continue
		}
		next.to, call.Result = l.step(next.to, q.Request)
		next.changed = next.changed || call.Result.Allowed || l.cfg.CountDenied
		if call.Result.Allowed {
			next.admitted += q.Cost
		}
	}
	if next.changed {
		w.encodeNext()
	}
}

// healNext has the next state be no later than now, and be written if some calls take.
func (w *work[S]) healNext(take bool) {
	var ahead time.Duration
	if w.next.to, ahead = w.rules.heal(w.next.to, w.next.latest.Now); ahead > 0 && take {
		w.next.changed = true
		if w.cfg.Ahead != nil {
			w.cfg.Ahead(ahead)
		}
	}
}

// denyForOthers denies a call that doesn't fit beside what the others are thought to have
// still to tell the store, and to admit meanwhile.
func (w *work[S]) denyForOthers(call *call[S]) bool {
	r := &call.Request.Request
	d, denied := w.denyBeside(w.next.to, r, r.Cost+w.forOthers())
	if denied {
		d.RetryAfter = max(w.peek(w.next.to, *r).RetryAfter, min(d.RetryAfter, w.cfg.Telling()))
		call.Result = d
	}
	return denied
}

// forOthers returns what the others are thought to have still to tell the store. Until they
// have, what is admitted stands for what they admit too, as it does alone.
func (w *work[S]) forOthers() int64 {
	next := &w.next
	if !next.mayTell {
		return 0
	}
	return next.othersDue + ledger.StandsFor(next.admitted, w.shareOf(w.a, next.latest)) - next.admitted
}

// tellNext has the next state be told of what is due. Its origin says if that takes something
// out, so that nobody takes that for lost.
func (w *work[S]) tellNext() {
	next := &w.next
	generation, at := w.began(next.to)
	for _, d := range w.a.due {
		if d.kind == back && generation != 0 && (d.generation == generation || w.leases) {
			next.origin = w.less(next.origin, at, w.ttl(next.to, d.request()))
		}
	}
	next.to = w.rules.tell(next.to, w.a.due...)
}

// encodeNext has the next state be what is written, and live for as long as it
// matters.
func (w *work[S]) encodeNext() {
	l, next := &w.rules, &w.next
	ttl := next.origin.left(next.latest.Now)
	if ttl <= 0 {
		next.origin, ttl = origin{putBack: next.origin.putBack}, 0
	}
	next.value = l.encode(next.origin.append(next.value[:0]), next.to)
	longest := next.latest // of those that have the same limit, the first lasts longest
	ttl = max(ttl, l.ttl(next.to, *longest))
	for _, call := range w.calls {
		q := &call.Request
		if q.Kind == ledger.Takes && (q.Limit != longest.Limit || q.Now.Before(longest.Now)) {
			longest = &q.Request
			ttl = max(ttl, l.ttl(next.to, *longest))
		}
	}
	for _, d := range w.a.due { // which may have another limit than the calls
		if d.kind != back && d.limit != longest.Limit {
			ttl = max(ttl, l.ttl(next.to, d.request()))
		}
	}
	next.ttl = counters.TTL(ttl, l.cfg.Horizon())
}

// depart begins the flight that writes the next state.
func (w *work[S]) depart() {
	a, f, next := w.a, w.flight, &w.next
	// f.account stays, as a caller who has left may be reading it.
	f.calls, f.told, f.value, f.latest, f.outcome = f.calls[:0], nil, next.value, math.MinInt64, ledger.Pending
	f.generation, _ = w.began(next.to)
	for _, call := range w.calls {
		if call.Request.Kind == ledger.Takes && (call.Result.Allowed || w.cfg.CountDenied) {
			f.calls = append(f.calls, call)
			f.latest = max(f.latest, call.Request.Now.UnixNano())
		}
	}
	for _, d := range a.due {
		d.flights++
		f.told = append(f.told, told{d, d.cost})
		f.latest = max(f.latest, d.now)
	}
	a.flight, w.asks.Value, w.asks.TTL = f, next.value, next.ttl
	w.asks.Old = counters.State{Version: a.last.token.version, Life: a.last.token.life}
}

// Exchange implements ledger.Work.
func (w *work[S]) Exchange(ctx context.Context) {
	if w.wait > 0 {
		time.Sleep(time.Until(w.turn))
		return
	}
	key := w.keys.StateKey(w.client)
	if w.swaps() {
		w.now, w.swapped, w.err = w.store.Swap(ctx, key, w.asks.Old, w.asks.Value, w.asks.TTL)
		return
	}
	w.now, w.err = w.store.Load(ctx, key)
}

// swaps reports whether the state is to be replaced, and not only loaded.
func (w *work[S]) swaps() bool { return w.asks.Value != nil }

// Finish implements ledger.Work.
func (w *work[S]) Finish() (more bool, flown []ledger.Flown) {
	if w.wait > 0 {
		return true, nil
	}
	a, f := w.a, w.a.flight
	a.flight = nil
	if w.swaps() {
		w.attempts++
	}
	if w.err == nil && !w.swapped && isNewer(w.now.Value) {
		w.err = errNewerState
	}
	if w.err != nil {
		w.fail(f)
		return false, w.flown
	}
	if w.swaps() && !w.swapped && w.heard() {
		w.lostRaces++
	}
	forestalled, before := w.forestalled(), w.heardAt
	w.expectOthers()
	if w.swapped {
		w.afterSwap(f)
	} else {
		w.afterRead(f)
	}
	var roundTrip time.Duration
	if !before.IsZero() {
		roundTrip = w.heardAt.Sub(before)
	}
	if forestalled {
		w.heldUp = true
		a.pace.heldUp = momentOf(w.heardAt)
	}
	w.book.Answered()
	if w.swapped {
		a.pace.won(w.attempts, roundTrip, w.heardAt)
		w.answer(nil)
		return false, nil
	}
	// What the deadline cuts off might have been written.
	if w.heldUp && w.deadline.Sub(w.heardAt) <= roundTrip {
		w.answer(ErrContended)
		return false, nil
	}
	return true, nil
}

// forestalled reports whether it is another instance that has kept an attempt
// from replacing what was seen. What was seen long ago, or never, may have been
// changed at leisure; and if the connection has been lost that it was seen on, the
// attempt has only asked what is there.
func (w *work[S]) forestalled() bool {
	recent := w.heard() || w.a.last.fresh(w.next.latest.Now)
	return w.swaps() && !w.swapped && recent && w.now.Exists() && w.now.Version != w.asks.Old.Version
}

// expectOthers notes that the store has answered: what was admitted alone stands for itself
// from now on, and what others are thought to have admitted beside it they have to tell.
func (w *work[S]) expectOthers() {
	a, l, next := w.a, &w.rules, &w.next
	if a.admittedAlone() {
		a.othersDue, _ = w.othersDue(a, l.tell(l.clone(a.last.decoded), a.due...), next.latest)
		a.from = next.latest.Now.UnixNano()
	}
	for _, d := range a.due {
		d.old = true
	}
	a.belief = nil
}

// afterSwap takes over the state that the flight has written.
func (w *work[S]) afterSwap(f *flight[S]) {
	a, l, next := w.a, &w.rules, &w.next
	if a.last.lost {
		w.cfg.Reseeded(1)
	}
	before := a.last.decoded
	var seen snapshot[S]
	w.heardAt = l.decodeWritten(w.now, next, &seen)
	if others := w.forOthers(); others > 0 {
		a.othersDue = others
	}
	if a.pace.lastWin > 0 && w.asks.Old.Exists() { // else what others have consumed before may be gone
		own := l.since(before, next.to, *next.latest)
		w.book.Note(&a.share, own, own)
	}
	a.noneDone(l) // as what they were to replace was there
	a.ended(l, f, ledger.Done)
	a.takeOver(l, &seen) // the client may have been reset right behind it
}

// afterRead takes over the state that was found, be it one that others have written. The
// flight, if there was one, wasn't done.
func (w *work[S]) afterRead(f *flight[S]) {
	a, l, next := w.a, &w.rules, &w.next
	if f != nil {
		a.ended(l, f, ledger.NotDone)
	}
	var seen snapshot[S]
	w.heardAt = l.decodeInto(w.now, next, &seen)
	present, _ := w.began(seen.decoded)
	if generation, _ := w.began(a.last.decoded); generation != present && len(a.flights) == 0 && !w.leases {
		a.last.decoded = a.forgo(l, l.clone(a.last.decoded), generation)
	}
	l.restore(&seen, &a.last, *next.latest)
	if len(a.flights) == 0 {
		more := l.since(a.last.decoded, seen.decoded, *next.latest)
		if a.othersDue = max(0, a.othersDue-more); a.pace.lastWin > 0 { // who only looks tells nothing of its share
			w.book.Note(&a.share, 0, more)
		}
	}
	a.takeOverRead(l, &seen, w.now.Value)
}

// fail ends a batch whose exchange has failed.
func (w *work[S]) fail(f *flight[S]) {
	err, outcome := w.err, ledger.Unknown
	w.escaped = true
	switch {
	case !w.swaps():
		err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	case ledger.OutcomeOf(err) == ledger.NotDone:
		w.a.ended(&w.rules, f, ledger.NotDone)
	default:
		if late := (*counters.Unanswered)(nil); errors.As(err, &late) {
			outcome = ledger.Pending
			w.flown = append(w.flown, ledger.Flown{Flight: f, Late: late})
		}
		w.a.unanswered(&w.rules, f, outcome)
		err = ledger.Failed(err, f)
	}
	// The other instances have taken the time in which the store might have answered.
	if w.heldUp && errors.Is(err, counters.ErrTimeout) {
		err = fmt.Errorf("%w: %w", ErrContended, err)
	}
	w.answer(err)
}

// answer ends the batch with err.
func (w *work[S]) answer(err error) {
	if w.cfg.Swaps != nil && w.attempts > 0 {
		w.cfg.Swaps(w.attempts, w.lostRaces)
	}
	for _, call := range w.calls {
		q, d, failed := &call.Request, &call.Result, err
		switch contended := errors.Is(err, ErrContended); {
		case q.Kind == ledger.Tells:
		case contended:
			*d, failed = w.contend(w.a, q), nil
		case err != nil:
			*d = counters.Decision{}
		case q.Kind == ledger.Peeks:
			*d = w.peek(w.next.to, q.Request)
			d.Receipt.Generation, _ = w.began(w.next.to)
		}
		if !call.Answer(*d, failed) {
			w.escaped = true
			// What the store has consumed for a caller that has left is given back. If the caller has
			// decided alone since, flight.leave has taken its call out, and ended has settled it.
			if w.swapped && d.Allowed && slices.Contains(w.flight.calls, call) {
				w.Refund(w.a, q.Request, *d)
			}
		}
	}
}
