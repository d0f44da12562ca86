package cas

import (
	"context"
	"errors"
	"math"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A family is the ledger.Family of a limiter.
type family[S any] struct {
	rules[S]
	store counters.StateStore
	many  counters.ManyStateStore // the store, or nil
	keys  counters.Namespace
	book  *ledger.Book[account[S]]
}

// Known implements ledger.Family.
func (f *family[S]) Known(a *account[S], r counters.Request) (d counters.Decision, known bool) {
	if !a.spent || f.cfg.CountDenied || a.owes() || !a.last.fresh(r.Now) {
		return d, false
	}
	if d = f.decide(a.last.decoded, &r); d.Allowed || d.Remaining > 0 {
		return counters.Decision{}, false
	}
	d.Local = true
	return d, true
}

// Recall implements ledger.Family.
func (f *family[S]) Recall(a *account[S], r counters.Request) (d counters.Decision, known, fresh bool) {
	if known = a.last.lasts(); known && !a.owes() && a.last.fresh(r.Now) {
		return f.decide(a.state(&f.rules, &r), &r), true, true
	}
	return f.decideAlone(a, a.belief(&f.rules, &r), &r), known || a.owes(), false
}

// decideAlone decides r in the state that the process believes in, if others admit
// their share too. Of what is admitted alone the first stands for itself.
func (f *family[S]) decideAlone(a *account[S], s S, r *counters.Request) counters.Decision {
	if due := a.due; due != nil && due.alone > 0 && !f.cfg.CountDenied {
		all := *r
		all.Cost = max(r.Cost, int64(math.Ceil(float64(r.Cost)/f.shareOf(a, r))))
		if d := f.decide(s, &all); !d.Allowed && d.RetryAfter != forever {
			return d
		}
	}
	return f.decide(s, r)
}

// Alone implements ledger.Family.
func (f *family[S]) Alone(a *account[S], r counters.Request, of any) counters.Decision {
	l := &f.rules
	was, _ := of.(*flight[S])
	if was != nil && was == a.flight {
		if p := was.find(&r, false); p != nil {
			p.kept = true
			d := p.taken
			d.Receipt.Alone = was
			return d
		}
		was = nil
	}
	s := a.belief(l, &r)
	if d := f.decideAlone(a, s, &r); r.Cost == 0 || !d.Allowed && !f.cfg.CountDenied {
		return d
	}
	next, d := f.step(f.clone(s), r)
	f.bound(&d, next, &r)
	add := func(to S) S { return f.add(to, &r, d.Allowed, s, next) }
	exact := a.flight == nil && (a.due == nil || len(a.due.back) == 0) // s is due.after, or due.wary
	due := a.oweState(l, &r)
	if was != nil && was.fate == pending && len(was.group.from(was)) == 1 && (a.flight == nil || was.group != due.group) { // no other includes it
		if p := was.find(&r, false); p != nil && p.taken.Allowed == d.Allowed {
			p.kept, d.Receipt.Alone = true, was
			if was.kept = add(was.kept); was.group == due.group {
				due.after = add(due.after)
			}
			f.share(a, due, &r, &d, s, next, exact)
			return d
		}
	}
	switch {
	case exact && due.others == 0:
		due.after = next
	case exact && d.Allowed:
		due.after = add(due.after)
	default:
		due.after = f.carry(due.after, s, next, r)
	}
	if due.open == nil {
		due.open = new(flight[S])
	}
	d.Receipt.Alone = due.open
	f.share(a, due, &r, &d, s, next, exact)
	return d
}

// shareOf returns the process's share of the client of r.
func (f *family[S]) shareOf(a *account[S], r *counters.Request) float64 {
	own, all := a.share.Counts()
	return f.book.Of(own, all, r.Cost)
}

// share notes that r was admitted alone, if it was: the others are thought to do so
// in the proportion in which they lately did.
func (f *family[S]) share(a *account[S], due *due[S], r *counters.Request, d *counters.Decision, before, next S, exact bool) {
	if exact && due.others > 0 {
		due.wary = next
	} else if due.others > 0 {
		due.wary = f.carry(due.wary, before, next, *r)
	}
	if share := f.shareOf(a, r); d.Allowed && share < 1 {
		due.admit(&f.rules, r, share)
		left := f.decide(due.wary, r)
		d.Remaining, d.ResetAfter = left.Remaining, left.ResetAfter
		if f.cfg.CountDenied {
			d.FitsAfter = max(left.FitsAfter, left.RetryAfter)
		}
	}
}

// Leave implements ledger.Family.
func (f *family[S]) Leave(a *account[S], r counters.Request, _ any, deadline time.Time, err error) (d counters.Decision, answered bool) {
	if deadline.IsZero() || !errors.Is(err, context.DeadlineExceeded) || !a.pace.contended(deadline, a.last.read, f.cfg.StoreTimeout) {
		return d, false
	}
	return f.contend(a.last.decoded, &r), true
}

// Refund implements ledger.Family.
func (f *family[S]) Refund(a *account[S], r counters.Request, taken counters.Decision) (tell bool) {
	b := refund{r, taken}
	of := flightOf[S](&b)
	a.giveBack(b)
	a.sort(&f.rules)
	return of == nil || of.fate == done
}

// Owes implements ledger.Family.
func (f *family[S]) Owes(a *account[S]) bool { return a.owes() }

// Learn implements ledger.Family.
func (f *family[S]) Learn(a *account[S], of any, o ledger.Outcome) {
	a.learn(&f.rules, of.(*flight[S]), o)
}
