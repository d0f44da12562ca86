package cas

import (
	"context"
	"errors"
	"slices"

	"weir/counters"
	"weir/counters/ledger"
)

// A family is the ledger.Family of a limiter.
type family[S any] struct {
	rules[S]
	store counters.StateStore
	keys  counters.Namespace
	book  *ledger.Book[account[S]]
}

// Recall implements ledger.Family.
func (f *family[S]) Recall(a *account[S], r counters.Request) (d counters.Decision, known, fresh bool) {
	if due, _ := a.othersDueAt(r.Now, f.cfg.Telling()); due == 0 && !a.owes() && a.last.fresh(r.Now) {
		return f.peek(a.last.decoded, r), true, true
	}
	known = a.last.unexpired()
	s, b := f.believed(a, &r)
	return f.decideAlone(s, b, &r), known || slices.ContainsFunc(a.due, func(d *debt) bool { return d.kind != back }), false
}

// shareOf returns the process's share of the client of r.
func (f *family[S]) shareOf(a *account[S], r *counters.Request) float64 {
	return f.book.Of(&a.share, r.Cost)
}

// believed returns the state by which r is decided alone, and the belief in it.
func (f *family[S]) believed(a *account[S], r *counters.Request) (S, belief[S]) {
	b := a.believe(&f.rules, f.shareOf(a, r))
	s, _ := f.heal(a.underWay(&f.rules, f.clone(b.state)), r.Now)
	due, _ := a.othersDueAt(r.Now, f.cfg.Telling())
	return f.fill(s, *r, due), b
}

// othersDue returns how much others are thought to tell the store, as far as r finds it in use,
// and whether they may. told is the state with what is due.
func (f *family[S]) othersDue(a *account[S], told S, r *counters.Request) (due int64, may bool) {
	if due, may = a.othersDueAt(r.Now, f.cfg.Telling()); !a.admittedAlone() {
		return due, may
	}
	b := a.believe(&f.rules, f.shareOf(a, r))
	return max(due, f.peek(told, *r).Remaining-f.peek(b.state, *r).Remaining), true
}

// decideAlone decides r in the state that the process believes in, if others admit
// their share too. Of what is admitted alone the first stands for itself.
func (f *family[S]) decideAlone(s S, b belief[S], r *counters.Request) counters.Decision {
	var none S
	if b.alone > 0 {
		if d, denied := f.denyBeside(s, r, min(ledger.StandsFor(r.Cost, b.share), f.peek(none, *r).Remaining)); denied {
			return d
		}
	}
	return f.peek(s, *r)
}

// denyBeside denies r if so much doesn't fit, for which it stands while others admit their share
// too. A renewal stands for itself, as its lease is held.
func (f *family[S]) denyBeside(s S, r *counters.Request, all int64) (d counters.Decision, denied bool) {
	if all <= r.Cost || f.cfg.CountDenied || r.Renews != 0 {
		return d, false
	}
	beside := *r
	beside.Cost = all
	d = f.peek(s, beside)
	d.Remaining = min(d.Remaining, max(0, r.Cost-1))
	return d, !d.Allowed
}

// Alone implements ledger.Family.
func (f *family[S]) Alone(a *account[S], r counters.Request, ref any) counters.Decision {
	was, _ := ref.(*flight[S])
	switch {
	case was == nil || was.account != a: // the client may have been forgotten since
		was = nil
	case was == a.flight:
		was.leave(&r) // else it would be in its own way, as it is under way
	}
	s, b := f.believed(a, &r)
	if d := f.decideAlone(s, b, &r); r.Cost == 0 || !d.Allowed && !f.cfg.CountDenied {
		return d
	}
	after, d := f.step(s, r)
	due := f.debtAlone(after, d, &r, was)
	// A flight that was taken for done, or is from before a reset, is in flights no longer: Learn
	// says what of it is due.
	if due.flights == 0 || was == a.flight || slices.Contains(a.flights, was) {
		a.owe(&f.rules, due)
		a.tidy(&f.rules)
	}
	d.Receipt = counters.Receipt{Alone: due, Position: due.position}
	f.besideOthers(a, b.share, &r, &d)
	return d
}

// debtAlone returns the debt that r becomes, which d has admitted alone, or counts as denied:
// that of its flight, if it was part of one. The state after it is after.
func (f *family[S]) debtAlone(after S, d counters.Decision, r *counters.Request, was *flight[S]) *debt {
	due := newDebt(*r, d)
	if failed := was.failed(r, due.kind); failed != nil {
		due = failed
		due.lower(-r.Cost)
	}
	// It isn't consumed yet.
	due.generation = 0
	if level, drains := any(after).(bucketState); drains { // behind all that is believed to be in it
		window := int64(level.window)
		due.now, due.remaining, due.part = max(due.now, level.time), d.Remaining, (window-level.part)%window
	}
	return due
}

// besideOthers has d, which has admitted r alone, say what is left beside what others are
// thought to have admitted, by a process with such a share.
func (f *family[S]) besideOthers(a *account[S], share float64, r *counters.Request, d *counters.Decision) {
	b := a.believe(&f.rules, share)
	if !d.Allowed || b.others() == 0 {
		return
	}
	left := f.peek(a.underWay(&f.rules, f.clone(b.state)), *r)
	d.Remaining, d.ResetAfter = left.Remaining, left.ResetAfter
	if f.cfg.CountDenied {
		d.FitsAfter = max(left.FitsAfter, left.RetryAfter)
	}
}

// Leave implements ledger.Family: it answers if others have held the process up.
func (f *family[S]) Leave(a *account[S], q ledger.Request[account[S]], err error) (d counters.Decision, answered bool) {
	if !errors.Is(err, context.DeadlineExceeded) || !a.pace.contended(f.cfg.StoreTimeout) {
		return d, false
	}
	return f.contend(a, &q), true
}

// contend answers q by a state that couldn't be replaced. Of a lease that isn't in it nobody
// knows whether another instance has given it since.
func (f *family[S]) contend(a *account[S], q *ledger.Request[account[S]]) counters.Decision {
	d := f.peek(a.last.decoded, q.Request)
	if q.Kind == ledger.Takes && (d.Allowed || q.Renews != 0) {
		d.Allowed, d.Contended, d.RetryAfter, d.Wait = false, true, contendedRetry, 0
	}
	return d
}

// Refund implements ledger.Family. What a flight without an answer may have told is given back
// once it turns out to be done.
func (f *family[S]) Refund(a *account[S], r counters.Request, taken counters.Decision) (tell bool) {
	own, d := debtOf(taken)
	if d == nil && a.releasedAlone(&f.rules, &r, taken.Receipt.Position) {
		return false
	}
	if d == nil {
		d = newDebt(r, taken)
		d.kind = back
		a.owe(&f.rules, d)
		return true
	}
	cost := min(r.Cost, d.cost)
	if b, drains := any(f.algorithm).(bucket); drains && own != d {
		cost = min(cost, b.undrained(own, d.now, 0).whole)
		own.lower(cost)
	}
	d.lower(cost)
	if i := slices.Index(a.due, d); i >= 0 {
		given := *d
		given.cost, given.remaining = cost, counters.MaxLimit
		var none S
		used := f.tell(none, &given)
		for _, later := range a.due[i+1:] {
			if later.consumes() { // what hadn't left by then isn't in front of it any more
				r := later.request()
				if less := f.peek(none, r).Remaining - f.peek(used, r).Remaining; less > 0 {
					later.remaining, later.part = later.remaining+less, 0 // less may be a part too much
				}
			}
		}
	}
	a.belief = nil
	switch {
	case cost == 0: // the client was reset
	case d.outcome == ledger.Done:
		a.owe(&f.rules, d.giveBack(cost))
		return true
	case d.outcome == ledger.Unknown:
		f.cfg.RefundFailed()
	case d.cost == 0:
		a.strike(d)
	}
	return false
}

// Charge implements ledger.Family.
func (f *family[S]) Charge(a *account[S], r counters.Request) {
	d := newDebt(r, counters.Decision{Allowed: true})
	d.kind = charged
	a.owe(&f.rules, d)
	a.tidy(&f.rules)
}

// Owes implements ledger.Family.
func (f *family[S]) Owes(a *account[S]) bool { return a.owes() }

// Learn implements ledger.Family.
func (f *family[S]) Learn(a *account[S], ref any, o ledger.Outcome) {
	was := ref.(*flight[S])
	was.outcome = o
	if i := slices.Index(a.flights, was); i >= 0 {
		if o != ledger.NotDone { // a state that is seen may tell more
			return
		}
		a.flights = slices.Delete(a.flights, i, i+1)
	}
	a.ended(&f.rules, was, o)
}
