package cas

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

type (
	call[S any]  = ledger.Call[account[S]]
	batch[S any] = ledger.Batch[account[S]]
)

// An account is what a process knows of a client.
type account[S any] struct {
	pace pace
	last snapshot[S]
	// due is what the store is still to be told. belief is the last state with that; nil if it
	// has to be made anew.
	due    []*debt
	belief *belief[S]
	// flights had no answer, and were to replace last: at most one of them is done. One that was
	// taken for done, as another state was there then, is in them no longer; Learn settles it.
	flights []*flight[S]
	// flight is under way to the store; nil if none is.
	flight *flight[S]
	share  ledger.Share // how much of the client's counts is this process's own
	// othersDue is what the others are thought to have still to tell the store, as of
	// from, in Unix nanoseconds; that ends with Options.Telling.
	othersDue, from int64
}

// A flight is what the store is told in one attempt to swap the state. A batch fills
// the same one anew for each attempt.
type flight[S any] struct {
	account *account[S]
	calls   []*call[S] // that it consumes, while it is under way
	told    []told     // the debts that it tells; once it had no answer, those of its calls too
	// value is what the store has if it was done: a state of that generation.
	value      []byte
	generation int64
	latest     int64 // of the requests that it consumes, in Unix nanoseconds
	outcome    ledger.Outcome
}

// told is what a flight tells of a debt: cost is what the store has consumed if it was done, and
// the debt's own cost what was admitted of that. The difference is given back.
type told struct {
	debt *debt
	cost int64
}

// mostDebts is how many debts a client has before neighbours become one.
// mostFlights bounds how many flights without an answer are remembered: of a store that
// reads but doesn't write, each check makes one more. More are taken for not done.
const (
	mostDebts   = 128
	mostFlights = 32
)

// owes reports whether the store is to be told something, or asked what has become of
// a flight.
func (a *account[S]) owes() bool { return len(a.due) > 0 || len(a.flights) > 0 }

// owe has the store be told of d.
func (a *account[S]) owe(l *rules[S], d *debt) {
	if slices.Contains(a.due, d) {
		return
	}
	if a.belief != nil {
		a.belief.add(l, d)
	}
	i, _ := slices.BinarySearchFunc(a.due, d.now+1, func(d *debt, now int64) int { return cmp.Compare(d.now, now) })
	a.due = slices.Insert(a.due, i, d)
}

// tidy makes one debt of neighbours of one kind if there are more than mostDebts: of those that
// no flight tells, and that are from the same 64th of the time that a state lasts, or older
// than that. Leases aren't joined: it drops those that have ended, and renewals that the
// newest debt repeats.
func (a *account[S]) tidy(l *rules[S]) {
	if len(a.due) <= mostDebts {
		return
	}
	newest := a.due[len(a.due)-1]
	old := newest.now - int64(l.lasts())
	if l.leases {
		a.due = slices.DeleteFunc(a.due, func(d *debt) bool {
			again := d != newest && d.renews != 0 && newest.renews != 0 && d.cost <= newest.cost && sameLease(d.position, newest.position)
			return d.kind == admitted && d.flights == 0 && (again || d.now <= old)
		})
		return
	}
	part := int64(l.lasts()) / (mostDebts / 2)
	var last [back + 1]*debt
	for _, d := range a.due {
		if before := last[d.kind]; before != nil && before.mergesWith(d) && (d.now <= old || before.now/part == d.now/part) {
			l.merge(before, d)
			before.into = d
		}
		last[d.kind] = d
	}
	a.due = slices.DeleteFunc(a.due, func(d *debt) bool { return d.into != nil })
}

// forgo applies the refunds that are due of a state of that generation, which the store doesn't
// have any more, to s, what is remembered of it: so only the rest is put back if it is lost. They
// aren't told any more.
func (a *account[S]) forgo(l *rules[S], s S, generation int64) S {
	a.due = slices.DeleteFunc(a.due, func(d *debt) bool {
		of := d.kind == back && d.generation == generation
		if of {
			s = l.tell(s, d)
		}
		return of
	})
	return s
}

// strike has the store not be told of d any more.
func (a *account[S]) strike(d *debt) {
	a.due, a.belief = slices.DeleteFunc(a.due, func(e *debt) bool { return e == d }), nil
}

// A belief is the state that was seen last, with what is due and what others are
// thought to have admitted since the store last answered.
type belief[S any] struct {
	state S
	share float64 // of the process
	alone int64   // what it has admitted alone since then
}

// others returns what others are thought to have admitted since then.
func (b *belief[S]) others() int64 { return ledger.StandsFor(b.alone, b.share) - b.alone }

// add adds d, which may be older than what else is due: clocks are read before the
// client is locked.
func (b *belief[S]) add(l *rules[S], d *debt) {
	if b.state = l.tell(b.state, d); !d.standsForMore() {
		return
	}
	before := b.others()
	b.alone += d.cost
	b.state = l.fill(b.state, d.request(), max(0, b.others()-before))
}

// believe returns the belief that is kept, or makes one, of a process with such a share
// of the client. Its state must not be changed.
func (a *account[S]) believe(l *rules[S], share float64) belief[S] {
	switch {
	case a.belief != nil:
		return *a.belief
	case len(a.due) > 0:
	case a.last.unexpired():
		return belief[S]{state: a.last.decoded, share: share}
	default: // drained, unless something is due behind it
		return belief[S]{share: share}
	}
	old := 0
	for old < len(a.due) && a.due[old].old {
		old++
	}
	a.belief = &belief[S]{state: l.tell(l.clone(a.last.decoded), a.due[:old]...), share: share}
	for _, d := range a.due[old:] {
		a.belief.add(l, d)
	}
	return *a.belief
}

// underWay adds the calls of the flight that is under way to a state, which it may
// change.
func (a *account[S]) underWay(l *rules[S], s S) S {
	if f := a.flight; f != nil {
		for _, call := range f.calls {
			s = l.tell(s, newDebt(call.Request.Request, call.Result))
		}
	}
	return s
}

// othersDueAt returns what the others are thought to have still to tell the store at now, and
// whether they may: from a.from on they do so within a time.
func (a *account[S]) othersDueAt(now time.Time, within time.Duration) (due int64, may bool) {
	if age := now.UnixNano() - a.from; age >= int64(within) || age < -int64(within) { // the clock may have been set back
		return 0, false
	}
	return a.othersDue, true
}

// admittedAlone reports whether the process has admitted anything without the store since that
// last answered, renewals aside: others are thought to have done so too.
func (a *account[S]) admittedAlone() bool { return slices.ContainsFunc(a.due, (*debt).standsForMore) }

// releasedAlone drops what is due of the lease that r gives back, which began at a time, and
// reports whether the store can't know that lease. What a flight tells of it isn't due again if
// the flight wasn't done.
func (a *account[S]) releasedAlone(l *rules[S], r *counters.Request, at int64) (unknown bool) {
	if !l.leases || at == counters.EarliestLeases {
		return false
	}
	a.belief = nil
	a.due = slices.DeleteFunc(a.due, func(d *debt) bool {
		if d.kind != admitted || d.cost > r.Cost || !sameLease(d.position, at) {
			return false
		}
		unknown = unknown || d.flights == 0 && d.renews == 0
		d.cost = 0
		return true
	})
	return unknown
}

// drop forgets what was decided until then, as the client was reset.
func (a *account[S]) drop(until int64) {
	a.belief = nil
	a.due = slices.DeleteFunc(a.due, func(d *debt) bool {
		if d.overByReset(until) {
			d.cost = 0
		}
		return d.cost == 0
	})
	if !slices.ContainsFunc(a.due, func(d *debt) bool { return d.kind == admitted && d.renews == 0 }) {
		a.othersDue = 0 // they were thought to have admitted it beside what is dropped
	}
}

// takeOver takes over what the store has, and reports whether the client was reset since it was seen
// before.
func (a *account[S]) takeOver(l *rules[S], seen *snapshot[S]) (anew bool) {
	if seen.token == a.last.token { // a higher limit keeps it no shorter
		seen.expires = max(seen.expires, a.last.expires)
	}
	anew = seen.origin.reset > a.last.origin.reset
	if a.last = *seen; anew {
		a.drop(seen.origin.reset + int64(l.cfg.ClockSkew))
	}
	return anew
}

// takeOverRead is takeOver of a state that was read as value, by which flights without an answer
// are settled. If somebody has written it since, and it is certain which flight did, no other was
// done. If it isn't, the flights that have this value, or all if none has, are taken for done
// until more is known.
func (a *account[S]) takeOverRead(l *rules[S], seen *snapshot[S], value []byte) {
	before := a.last
	if anew := a.takeOver(l, seen); anew || before.token.version != 0 && seen.token.version == 0 { // what flights were to replace is gone, and what they may have written
		a.noneDone(l)
	}
	if seen.token.version == 0 || before.token == seen.token { // nobody has written
		if len(a.due) > 0 { // and what was decided alone came on top of that
			a.last.decoded = before.decoded
		}
		return
	}
	flights := a.flights
	a.flights = nil
	has := func(f *flight[S]) bool { return bytes.Equal(f.value, value) }
	i := slices.IndexFunc(flights, has)
	certain := i >= 0 && flights[i].surelyWrote(l, before.decoded, seen.decoded)
	if done := slices.IndexFunc(flights, func(f *flight[S]) bool { return f.outcome == ledger.Done }); done >= 0 && !certain {
		i, certain = done, true
	}
	for j, f := range flights {
		switch {
		case certain && i == j:
			a.ended(l, f, ledger.Done)
		case i < 0 || !certain && has(f): // others may have written, so Learn may have to put this right
			for _, t := range f.told {
				a.strike(t.debt)
			}
			if f.outcome == ledger.Unknown {
				a.ended(l, f, ledger.Unknown)
			}
		default:
			a.ended(l, f, ledger.NotDone)
		}
	}
}

// noneDone notes that no flight without an answer was done.
func (a *account[S]) noneDone(l *rules[S]) {
	for _, f := range a.flights {
		a.ended(l, f, ledger.NotDone)
	}
	a.flights = nil
}

// ended settles what a flight tells. If it was done, what was refused of that is given back. If it
// wasn't and won't be, that is due, unless another flight tells it too or the client was reset
// since. If nobody will know, it isn't due.
func (a *account[S]) ended(l *rules[S], f *flight[S], o ledger.Outcome) {
	for _, t := range f.told {
		d := t.debt
		refused := t.cost > d.cost && d.kind == admitted
		switch {
		case o == ledger.Unknown:
			if d.outcome = max(d.outcome, o); refused || d.kind == back {
				l.cfg.RefundFailed()
			}
		case o == ledger.Done:
			d.outcome = o
			if d.generation != f.generation && !l.leases {
				d.generation = f.generation
				if l.drains() { // it is refunded as if nothing had been in the bucket before it
					d.remaining, d.position = counters.MaxLimit, 0
				}
			}
			if a.strike(d); refused {
				over := d.giveBack(t.cost - d.cost)
				over.renews = d.renews
				a.owe(l, over)
			}
		default:
			if d.flights--; d.flights > 0 || d.cost == 0 || d.outcome == ledger.Done {
				continue
			}
			if d.overByReset(a.last.origin.reset + int64(l.cfg.ClockSkew)) {
				d.cost = 0
				a.strike(d)
			} else {
				a.owe(l, d)
			}
		}
	}
	f.told = nil
}

// unanswered notes that the flight that was under way had no answer: its outcome is Pending if
// one may still come, else Unknown.
func (a *account[S]) unanswered(l *rules[S], f *flight[S], o ledger.Outcome) {
	for _, call := range f.calls {
		f.failCall(call)
	}
	f.calls, f.outcome = nil, o
	if len(a.flights) < mostFlights {
		a.flights = append(a.flights, f)
	} else {
		a.ended(l, f, ledger.NotDone)
	}
}

// failCall makes a call of f, which is refused, a debt: its cost is given back if f was done.
func (f *flight[S]) failCall(call *call[S]) {
	d := newDebt(call.Request.Request, call.Result)
	d.lower(d.cost)
	d.flights = 1
	f.told = append(f.told, told{d, call.Request.Cost})
}

// leave has the flight under way refuse r, the caller of which has left it.
func (f *flight[S]) leave(r *counters.Request) {
	left := func(call *call[S]) bool { return call.Request.Request == *r && call.Left() }
	if i := slices.IndexFunc(f.calls, left); i >= 0 {
		f.failCall(f.calls[i])
		f.calls = slices.Delete(f.calls, i, i+1)
	}
}

// failed returns the debt that failCall has made of r, if r hasn't been admitted alone since; nil
// if there is none, or no f. A call is known by its kind, cost, limit and time, and by what it renews.
func (f *flight[S]) failed(r *counters.Request, kind debtKind) *debt {
	if f == nil {
		return nil
	}
	for _, t := range f.told {
		d := t.debt
		if d.kind == kind && d.renews == r.Renews && d.cost == 0 && t.cost == r.Cost && d.limit == r.Limit && d.now == max(r.Now.UnixNano(), d.position) {
			return d
		}
	}
	return nil
}

// surelyWrote reports whether the state that was seen, which is the flight's value, can't be
// another process's. It may be if the latest request is older than the state before: several
// are then decided as of the same time.
func (f *flight[S]) surelyWrote(l *rules[S], before, seen S) bool {
	_, from := l.began(before)
	_, at := l.began(seen)
	return from < at && at == f.latest
}
