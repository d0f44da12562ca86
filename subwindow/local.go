package subwindow

import (
	"math"

	"weir/counters"
)

// TakeLocal decides r after a Take that failed with err: by what the process
// remembers of the client, however old that is, and what it has admitted since.
// It counts r here, and as soon as the store answers it is counted there,
// before it decides a check of this client again. Of a client that isn't
// remembered it knows nothing. The error is counters.ErrRequest.
func (l *Limiter) TakeLocal(r counters.Request, err error) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	v := l.views.Get(r.Client)
	v.mu.Lock()
	defer v.mu.Unlock()
	// own is the request as its leader has it, if that is known.
	own, unsent := new(request), notSent(err)
	call := v.left(err)
	if call != nil {
		own = &call.Request
		switch own.stage {
		case answered:
			if call.Err == nil {
				return call.Result, nil
			}
			unsent = notSent(call.Err)
		case waiting: // and it won't be counted
			unsent = true
		}
	}
	if own.stage == counting {
		v.reserved -= r.Cost
	}
	a, _ := l.believe(v, r)
	defer l.spare.Put(a)
	allowed := l.estimate(a, r) <= r.Limit-r.Cost
	own.alone = refused
	if r.Cost > 0 && (allowed || l.options.CountDenied) {
		a.counts[a.ahead] += r.Cost
		l.owing.Add(r)
		own.alone = consumed
		if own.stage == counting {
			v.reserved += r.Cost
		} else {
			v.owe(debt{bucket: a.bucket, cost: r.Cost, sent: !unsent, before: math.MinInt64, at: r.Now.UnixMilli()})
		}
	}
	d := l.decision(a.counts, a.ahead, a.elapsed, r, allowed)
	d.Local, d.Owed, d.Pending = true, unsent, v
	if own.stage == counting {
		d.Pending = call
	}
	return d, nil
}

// Recall decides r by what the process remembers of the client, however old
// that is, and counts nothing. It reports whether that is anything; of a wrong
// request it isn't.
func (l *Limiter) Recall(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil || r.Check() != nil {
		return counters.Decision{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	a, known := l.believe(v, r)
	defer l.spare.Put(a)
	d := l.decide(a.counts, a.ahead, a.elapsed, r)
	d.Local = true
	return d, known
}

// believe returns an attempt at r with all that v knows, the debts too, and
// whether that is anything. v is locked.
func (l *Limiter) believe(v *view, r counters.Request) (a *attempt, known bool) {
	a = l.begin(r.Now, "")
	newest := a.bucket + int64(a.ahead)
	for i, n := range v.counts {
		known = a.count(newest, v.bucket-int64(i), n) || known
	}
	known = a.count(newest, v.passed, v.passedCount) || known
	a.count(newest, v.reservedIn, v.reserved)
	for _, d := range v.debts {
		known = a.count(newest, d.bucket, d.cost+d.counted) || known
	}
	return a, known
}
