package cas

import (
	"errors"

	"weir/counters"
	"weir/counters/combiner"
)

// A debt is what a process has consumed without the store.
type debt[S any] struct {
	// after is the state that the process decides by; before is that state
	// without the debt. What the store may have consumed already, as its answer
	// is missing, is in both.
	before, after S
	// base is the store's state that both began from, if that is known.
	base  counters.State
	based bool
	// sent says that the store may have consumed something already. Then the
	// store is read before it is written.
	sent   bool
	number int // of the last change; 0 if there is no debt
}

// TakeLocal decides r after a Take that failed with err: by the state that the
// process has seen last, however old that is, and what it has admitted since.
// It consumes the cost of r here, and the next check that the store answers
// consumes it there first. A client that isn't remembered is a new one. The
// error is counters.ErrRequest.
func (l *Limiter[S]) TakeLocal(r counters.Request, err error) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	v := l.views.Get(r.Client)
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.believe()
	next, decision := l.algorithm.step(l.algorithm.clone(d.after), r)
	l.bound(&decision, next, r)
	decision.Local = true
	if r.Cost > 0 && (decision.Allowed || l.cfg.CountDenied) {
		decision.Owed = notSent(err)
		d.after = next
		if !decision.Owed {
			d.before, _ = l.algorithm.step(l.algorithm.clone(d.before), r)
			// If the store has answered since, it may have consumed r by then.
			d.sent, d.based = true, d.based && d.number > 0
		}
		d.number++
		v.debt = d
	}
	return decision, nil
}

// notSent reports whether a Take that failed with err has surely consumed
// nothing.
func notSent(err error) bool {
	return errors.Is(err, counters.ErrNotSent) || errors.Is(err, combiner.ErrWithdrawn)
}

// Recall decides r by what the process remembers of the client, however old
// that is, and consumes nothing. It reports whether that is anything; of a
// wrong request it isn't.
func (l *Limiter[S]) Recall(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil || r.Check() != nil {
		return counters.Decision{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	d := l.peek(v.believe().after, r)
	d.Local = true
	return d, v.last.known || v.debt.number > 0
}

// refundLocal takes back from the debt what TakeLocal has admitted, and reports
// whether nothing is left to be done.
func (l *Limiter[S]) refundLocal(r counters.Request, taken counters.Decision) bool {
	v := l.views.Get(r.Client)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.debt.number > 0 {
		v.debt.after = l.algorithm.refund(l.algorithm.clone(v.debt.after), r, taken)
		v.debt.number++
		return true
	}
	// The store may not have consumed it.
	return !taken.Owed
}

// believe returns the debt, or one of nothing. v is locked.
func (v *view[S]) believe() debt[S] {
	if v.debt.number > 0 {
		return v.debt
	}
	return v.last.debt()
}

// owed returns the debt.
func (v *view[S]) owed() debt[S] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.debt
}

// debt returns one of nothing.
func (s snapshot[S]) debt() debt[S] {
	return debt[S]{before: s.decoded, after: s.decoded, base: s.state, based: true}
}

// repaid notes that the store has consumed the debt d: what has come since is
// left.
func (v *view[S]) repaid(d debt[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.debt.number == d.number {
		v.debt = debt[S]{}
	} else {
		v.debt.before, v.debt.based = d.after, false
	}
}

// unanswered notes that the store may have replaced the state that was seen by
// one that consumes the debt d and more.
func (v *view[S]) unanswered(d debt[S], seen snapshot[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.number == 0 {
		d = seen.debt()
	}
	if v.debt.number == 0 {
		v.debt = d
	}
	v.debt.before, v.debt.sent = d.after, true
	v.debt.number++
}

// with returns the state that was seen and what the debt consumes.
func (l *Limiter[S]) with(d debt[S], seen snapshot[S], r counters.Request) S {
	switch {
	case d.number == 0:
		return seen.decoded
	case d.based && seen.state.Version == d.base.Version && seen.state.Life == d.base.Life:
		return d.after // nobody has written since, be it this process
	}
	return l.algorithm.carry(l.algorithm.clone(seen.decoded), d.before, d.after, r)
}
