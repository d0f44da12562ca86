package cas

import "weir/counters"

// TakeLocal decides r after a Take that failed with err: by the state that the
// process has seen last, however old that is, and what it has admitted since.
// It consumes the cost of r here, and as soon as the store answers it is consumed
// there, before it decides a check of this client again. A client that isn't
// remembered is a new one. The error is counters.ErrRequest.
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
		l.owing.Add(r)
	}
	return decision, nil
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
	return d, v.last.lasting().known || v.debt.number > 0
}
