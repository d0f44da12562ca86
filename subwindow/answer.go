package subwindow

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// choose answers what needs no counting. It claims the pending calls that fit beside what is
// known to be in use, in their order, and returns the sum of their costs. The others wait: they
// can't fit unless a chosen one is denied, and would be in the way of other instances' checks.
func (w *work) choose() int64 {
	a := w.a
	if w.sum = 0; slices.ContainsFunc(w.pending, func(c *call) bool { return c.Request.Kind != ledger.Tells }) {
		w.use = a.believe(&w.position, true, w.use)
	}
	w.pending = slices.DeleteFunc(w.pending, func(c *call) bool {
		r := &c.Request
		switch {
		case r.Kind == ledger.Tells:
			c.Answer(counters.Decision{}, nil)
		case r.Kind == ledger.Peeks && w.upToDate:
			c.Answer(w.decision(w.use, &w.position, &r.Request, w.fits(w.use, &w.position, &r.Request)), nil)
		default:
			return c.Left()
		}
		return true
	})
	if len(w.pending) == 0 {
		return 0
	}
	if w.spare == nil {
		w.spare = new(flight)
	}
	f := w.spare
	_, share := a.othersToTell()
	var at int64
	for i, c := range w.pending {
		r := &c.Request
		fits := func() bool {
			all := ledger.StandsFor(w.sum+r.Cost, share) - w.sum
			return w.fits(w.use, &w.position, standing(r.Request, all))
		}
		if w.chosen[i] = r.Kind == ledger.Takes && (w.options.CountDenied || fits()); !w.chosen[i] {
			continue
		}
		if r.Flight = f; !c.Claim() { // it has just left
			w.chosen[i] = false
			continue
		}
		if !c.Own() {
			w.spare = nil
		}
		w.sum += r.Cost
		w.use[w.ahead] += r.Cost
		at = max(at, r.Now.UnixNano())
	}
	if w.use[w.ahead] -= w.sum; w.sum > 0 {
		*f = flight{bucket: w.bucket, sum: w.sum, before: a.mayHave(w.bucket, a.at(w.bucket).count), at: max(at, a.forgottenTo(w.options.ClockSkew)+1)}
		a.flight = f
	}
	return w.sum
}

// deal answers the chosen calls, whose costs are in the store. What was denied is given back, and
// so is the cost of a caller that has left.
func (w *work) deal() {
	a := w.a
	w.use = a.believe(&w.position, true, w.use)
	w.use[w.ahead], w.counted = max(0, w.use[w.ahead]-w.sum), false
	rest := w.pending[:0]
	var back int64
	for i, c := range w.pending {
		if !w.chosen[i] {
			rest = append(rest, c)
			continue
		}
		r := &c.Request.Request
		allowed := w.fits(w.use, &w.position, r)
		stays := allowed || w.options.CountDenied
		if stays {
			w.use[w.ahead] += r.Cost
		}
		if !c.Answer(w.decision(w.use, &w.position, r, allowed), nil) {
			if stays {
				w.use[w.ahead] -= r.Cost
				stays = false
			}
			a.pastChanged = a.pastChanged || w.mayBeFinal(w.bucket) // perhaps it was admitted alone, and counted late
		}
		switch {
		case !stays:
			back += r.Cost // if it was admitted alone meanwhile, that is due too, and the two cancel out
		case r.Reserved: // from now on any process may give it back
			a.at(w.bucket).own -= r.Cost
		}
	}
	w.pending = rest
	// What others count in a fixed window after the process's last visit is never seen. So that its
	// share isn't noted as too large, its own first visit to one isn't noted either.
	kept := w.sum - back
	if a.visited && (w.again || !w.window.fixed()) {
		w.book.Note(&a.share, kept, kept)
	}
	a.visited = true
	if d, share := a.othersToTell(); d != nil { // they may admit as much meanwhile
		d.others += int64(min(float64(kept)/share, counters.MaxLimit)) - kept
	}
	if back > 0 {
		a.owe(w.bucket, -back, w.now)
	}
}

// deny answers the pending calls, which don't fit into what is in use.
func (w *work) deny() {
	expected, share := w.a.othersToTell()
	var without []int64 // what others may have still to tell
	if expected != nil {
		without = w.a.believe(&w.position, false, nil)
	}
	for _, c := range w.pending {
		r := &c.Request.Request
		d := w.decision(w.use, &w.position, standing(*r, ledger.StandsFor(r.Cost, share)), false)
		if expected != nil { // it fits as what it stands for, or once they have told
			told := cmp.Or(time.Duration(max(0, w.a.owed.until-r.Now.UnixNano())), w.options.Telling())
			d.Remaining = min(d.Remaining, r.Cost-1)
			d.RetryAfter = min(d.RetryAfter, max(told, w.decision(without, &w.position, r, false).RetryAfter))
		}
		c.Answer(d, nil)
	}
	w.pending = w.pending[:0]
}

// fail answers all calls with err. What the store has counted of them is given back,
// and what it may have when that is known.
func (w *work) fail(err error) {
	a := w.a
	var f *flight
	switch {
	case w.counted: // what the callers admit alone now is due by itself
		w.counted = false
		a.owe(w.bucket, -w.sum, w.now)
	case a.flight != nil && ledger.OutcomeOf(err) == ledger.Unknown:
		f, w.spare = a.unanswered(a.flight, w.options.ClockSkew), nil
		w.await(f, err)
	case a.flight != nil:
		a.flight, w.spare = nil, nil
	}
	a.pastChanged = a.pastChanged || w.step == stepRepair // it may have put back what is final to others
	a.staleGeneration = a.staleGeneration || a.owes()
	unsent := fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	left := int64(0)
	for i, c := range w.pending {
		switch {
		case f == nil || !w.chosen[i]:
			c.Answer(counters.Decision{}, unsent)
		case !c.Answer(counters.Decision{}, ledger.Failed(err, f)):
			left += c.Request.Cost
		}
	}
	if left > 0 && f.outcome == ledger.Unknown && f.alone < left { // some of it was refunded
		w.options.RefundFailed()
	}
	for _, c := range w.calls {
		c.Answer(counters.Decision{}, unsent)
	}
}
