package cas

import "weir/counters"

// TakeLocal decides r after a Take that failed with err: by the state that the
// process has seen last, however old that is, and what it has admitted since.
// It consumes the cost of r here, and as soon as the store answers it is
// consumed there, before it decides a check of this client again. A client that
// isn't remembered is a new one. The error is counters.ErrRequest.
func (l *Limiter[S]) TakeLocal(r counters.Request, err error) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	v := l.views.Get(r.Client)
	v.mu.Lock()
	defer v.mu.Unlock()
	own, unsent := own(err, v), notSent(err)
	if own != nil {
		switch own.Request.stage {
		case waiting: // and it won't be consumed
			unsent = true
		case consuming:
			return l.foretell(own), nil
		case answered:
			if own.Err == nil {
				return own.Result, nil
			}
			unsent = notSent(own.Err)
		}
	}
	d := v.believe(l.algorithm, r)
	step := func(s S) (S, counters.Decision) { return l.algorithm.step(l.algorithm.clone(s), r) }
	present := d.after
	if v.underWay {
		present = l.algorithm.carry(l.algorithm.clone(present), v.from, v.to, r)
	}
	next, decision := step(present)
	l.bound(&decision, next, r)
	decision.Local, decision.Pending = true, v
	if r.Cost > 0 && (decision.Allowed || l.cfg.CountDenied) {
		decision.Owed = unsent
		v.owe(func(s S) S {
			consumed, d := step(s)
			if decision.Allowed && !d.Allowed { // what is under way is of a later time
				consumed = l.algorithm.carry(l.algorithm.clone(s), present, next, r)
			}
			return consumed
		}, !unsent, l.algorithm, r)
		l.owing.Add(r)
	}
	if own != nil {
		own.Request.alone = withdrawn
	}
	return decision, nil
}

// foretell answers a call as its leader will. Its view is locked.
func (l *Limiter[S]) foretell(own *call) counters.Decision {
	own.Request.alone = withdrawn
	if own.Result.Allowed || l.cfg.CountDenied {
		own.Request.alone = promised
		l.owing.Add(own.Request.Request)
	}
	d := own.Result
	d.Local, d.Pending = true, own
	return d
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
	d := l.peek(v.believe(l.algorithm, r).after, r)
	d.Local = true
	return d, v.last.lasting().known || v.debt.number > 0
}
