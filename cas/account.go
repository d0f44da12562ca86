package cas

import (
	"bytes"
	"math"
	"slices"

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
	// spent hints that nothing remained when last was seen.
	spent bool
	// due is what the store must still be told; nil if that is nothing.
	due *due[S]
	// flight is under way to the store; nil if none is.
	flight *flight[S]
}

// A due is what a process has decided and the store must still be told.
type due[S any] struct {
	// after is the state by which the process decides: base, which it has seen, and
	// what it has decided alone since. Both say nothing unless based.
	based       bool
	after, base S
	token       casToken // of base
	// flights are those without an answer that were to replace base. What after
	// has beyond what the store has of them is still to be told.
	flights []*flight[S]
	// open has what was decided alone since the last exchange began; nil if nothing
	// was.
	open *flight[S]
	// back is what the next exchange gives back.
	back []refund
	// latest is the last request in all that, and reset when the client was reset
	// before it, as far as is known.
	latest counters.Request
	reset  int64
	// alone is what was admitted alone since the store has answered, and others
	// what the others are thought to have admitted meanwhile: wary is after with that.
	alone, others int64
	wary          S
}

// A flight is requests that the store is told of in one exchange, or will be.
// Receipts of what was decided alone refer to it.
type flight[S any] struct {
	fate fate
	// into is the flight that has its requests now, as it wasn't done; or nil.
	into *flight[S]
	// generation is that of the state which has consumed it, when it is done.
	generation int64
	// awaited says that the store may still tell what has become of it, and covered
	// that it was taken for done since, and what it was to replace for prior.
	awaited, covered bool

	// Of the exchange: it is to replace before, less what it gives back, by to,
	// which is value. calls are those that it consumes, and parts too, if they are
	// there. kept is what is in due.after of it when it has no answer.
	before, from, to, kept, prior S
	value                         []byte
	latest                        counters.Request
	backs                         int   // how many of due.back it gives back
	reset                         int64 // of the state it replaces
	owes                          bool  // before has requests that were decided alone
	calls                         []*call[S]
	parts                         []part
}

// mostFlights bounds how many flights without an answer are remembered of a client: of
// a store that reads but doesn't write, each check makes one more.
const mostFlights = 64

type fate uint8

const (
	pending fate = iota
	done
	unknown // and nobody will ever know
	void    // by a reset
)

// join has the requests of f be part of g.
func (f *flight[S]) join(g *flight[S]) {
	if f.parts = nil; f != g {
		f.into = g
	}
}

// fill notes the parts of an exchange, for those who don't wait for it.
func (f *flight[S]) fill() []part {
	if f.parts == nil {
		for _, call := range f.calls {
			f.parts = append(f.parts, part{refund: refund{call.Request.Request, call.Result}})
		}
	}
	return f.parts
}

// find returns the part of the request that is kept, or isn't; or nil. While the
// leader is at work, only what callers have left isn't its own to answer.
func (f *flight[S]) find(r *counters.Request, kept bool) *part {
	for i := range f.fill() {
		p := &f.parts[i]
		if p.kept == kept && p.request == *r && (kept || i >= len(f.calls) || f.calls[i].Left()) {
			return p
		}
	}
	return nil
}

// rest returns the parts that nobody has taken.
func (f *flight[S]) rest() (rest []refund) {
	for _, p := range f.parts {
		if !p.kept && p.taken.Allowed {
			rest = append(rest, p.refund)
		}
	}
	f.parts = nil
	return rest
}

// unlike reports whether no other process can have written the same. It may if the
// request is older than the state.
func (f *flight[S]) unlike(l *rules[S]) bool {
	_, before := l.began(f.from)
	_, at := l.began(f.to)
	return before < at && at == f.latest.Now.UnixNano()
}

// forget notes that nobody will know what has become of the flight.
func (f *flight[S]) forget(l *rules[S]) {
	f.fate = unknown
	for range f.rest() {
		l.cfg.RefundFailed()
	}
}

// did notes that the flight was done.
func (f *flight[S]) did(l *rules[S]) {
	f.fate, f.value = done, nil
	f.generation, _ = l.began(f.to)
}

// flightOf returns the flight that has what b is to take back; nil if a leader has
// answered that.
func flightOf[S any](b *refund) *flight[S] {
	f, _ := b.taken.Receipt.Alone.(*flight[S])
	for f != nil && f.into != nil {
		f = f.into
	}
	return f
}

// state returns the state by which the process decides r.
func (a *account[S]) state(l *rules[S], r *counters.Request) (s S) {
	switch {
	case a.due != nil && a.due.based:
		return a.due.after
	case a.last.lasts() && a.due != nil && len(a.due.back) > 0: // it may be above the limit by that
		return a.last.decoded
	case a.last.lasts():
		return l.within(a.last.decoded, *r)
	}
	return s
}

// belief returns that state with what others are thought to have admitted, and what
// is under way, and without what is to be given back.
func (a *account[S]) belief(l *rules[S], r *counters.Request) S {
	s := a.state(l, r)
	if a.due != nil {
		if a.due.others > 0 {
			s = a.due.wary
		}
		for _, b := range a.due.back {
			s = l.take(s, b)
		}
	}
	if f := a.flight; f != nil {
		s = l.carry(s, f.from, f.to, *r)
	}
	return s
}

func (a *account[S]) owes() bool { return a.due != nil }

// owe returns what is due, with r.
func (a *account[S]) owe(r *counters.Request) *due[S] {
	if a.due == nil {
		a.due = new(due[S])
	}
	if a.due.latest.Limit == 0 || r.Now.After(a.due.latest.Now) {
		a.due.latest = *r
	}
	return a.due
}

// oweState returns what is due, with r and a state to decide by.
func (a *account[S]) oweState(l *rules[S], r *counters.Request) *due[S] {
	s := a.state(l, r)
	d := a.owe(r)
	if !d.based {
		d.based, d.after, d.base, d.token, d.reset = true, s, s, a.last.token(), a.last.origin.reset
	}
	return d
}

// admit notes that r was admitted alone, by a process with such a share.
func (d *due[S]) admit(l *rules[S], r *counters.Request, share float64) {
	if d.alone += r.Cost; d.others == 0 {
		d.wary = d.after
	}
	more := int64(math.Ceil(float64(d.alone)/share)) - d.alone - d.others
	if more > 0 {
		others := *r
		others.Cost = min(more, l.peek(d.wary, *r).Remaining)
		d.wary, _ = l.step(l.clone(d.wary), others)
		d.others += more
	}
}

// giveBack has the next exchange do so.
func (a *account[S]) giveBack(refunds ...refund) {
	for _, b := range refunds {
		d := a.owe(&b.request)
		d.back = append(d.back, b)
	}
}

// drop forgets what was decided alone, as the client was reset. What is to be given
// back of a state from before that isn't found any more.
func (a *account[S]) drop() {
	d := a.due
	if d == nil {
		return
	}
	for _, f := range append(d.flights, d.open) {
		if f != nil {
			f.fate = void
		}
	}
	d.based, d.flights, d.open = false, nil, nil
	a.tidy()
}

// tidy forgets a due of nothing.
func (a *account[S]) tidy() {
	if d := a.due; d != nil && !d.based && len(d.back) == 0 {
		a.due = nil
	}
}

// sort finds what is to be given back of what was decided alone. Of what the store
// hasn't done, it isn't in the way any more; of what it may have done, it is given
// back if that turns out.
func (a *account[S]) sort(l *rules[S]) {
	d := a.due
	if d == nil {
		return
	}
	back := d.back[:0]
	for _, b := range d.back {
		f := flightOf[S](&b)
		switch {
		case f == nil || f == a.flight:
			back = append(back, b)
		case f.fate == done: // the rest of the state drains beside it
			b.taken.Remaining, b.taken.Receipt = counters.MaxLimit, counters.Receipt{Generation: f.generation}
			back = append(back, b)
		case f.fate == unknown:
			l.cfg.RefundFailed()
		case f.fate == void:
		case f == d.open:
			d.after, d.wary = l.take(d.after, b), l.take(d.wary, b)
			d.alone -= b.request.Cost
		default:
			if p := f.find(&b.request, true); p != nil {
				p.kept = false
			} else {
				f.parts = append(f.parts, part{refund: b})
			}
			a.change(f, func(s S) S { return l.take(s, b) })
		}
	}
	clear(d.back[len(back):])
	d.back = back
	a.tidy()
}

// change changes what is kept of a flight without an answer, of those that were to
// do more than it, and the state to decide by unless others have written since.
func (a *account[S]) change(f *flight[S], change func(S) S) {
	if f.covered {
		f.kept = change(f.kept)
		return
	}
	if i := slices.Index(a.due.flights, f); i >= 0 {
		for _, f := range a.due.flights[i:] {
			f.kept = change(f.kept)
		}
		a.due.after = change(a.due.after)
	}
}

// see takes over what the store has, the value of which is value. It finds what
// is due on top of that.
func (a *account[S]) see(l *rules[S], seen *snapshot[S], value []byte, r *counters.Request) {
	a.last = *seen
	d := a.due
	if d != nil {
		d.alone, d.others = 0, 0
	}
	switch {
	case d == nil || !d.based:
		return
	case a.resetSince(l, d.reset, &d.latest):
		a.drop()
		return
	case d.token == seen.token(): // nobody has written
		return
	}
	var rest []refund
	before := d.base
	i := slices.IndexFunc(d.flights, func(f *flight[S]) bool { return f.fate == done || bytes.Equal(f.value, value) })
	if i >= 0 {
		a.only(i)
	}
	for _, f := range d.flights {
		before, f.prior = f.kept, before
		switch {
		case i >= 0 && (f.fate == done || f.unlike(l)):
			f.did(l)
			rest = f.rest()
		case f.awaited: // others have written since: it is taken for done
			f.covered = true
		default:
			f.forget(l)
		}
	}
	a.rebase(l, before, r)
	a.giveBack(rest...)
	a.tidy()
}

// resetSince reports whether the client was reset after r, which came when it had
// been reset before.
func (a *account[S]) resetSince(l *rules[S], before int64, r *counters.Request) bool {
	reset := a.last.origin.reset
	return reset != before && r.Now.UnixNano() <= reset+int64(l.cfg.ClockSkew)
}

// rebase has what is due, which is what after has beyond before, be due on top of
// the last state seen.
func (a *account[S]) rebase(l *rules[S], before S, r *counters.Request) {
	d := a.due
	d.alone, d.others = 0, 0
	if d.flights, d.based = nil, d.open != nil; d.based {
		d.after = l.carry(a.last.decoded, before, d.after, *r)
		d.base, d.token, d.reset = a.last.decoded, a.last.token(), a.last.origin.reset
	}
}

// learn notes what has become of a flight without an answer.
func (a *account[S]) learn(l *rules[S], f *flight[S], o ledger.Outcome) {
	f.awaited = false
	if f.fate != pending || f.into != nil {
		return
	}
	i := -1
	if a.due != nil {
		i = slices.Index(a.due.flights, f)
	}
	switch {
	case i >= 0 && o == ledger.Done:
		a.only(i)
		f.did(l)
	case i >= 0 && o == ledger.NotDone:
		if a.due.flights = slices.Delete(a.due.flights, i, i+1); i < len(a.due.flights) {
			f.join(a.due.flights[i])
		} else {
			a.retell(f)
		}
	case i >= 0 || !f.covered:
	case o == ledger.Done:
		f.did(l)
		a.giveBack(f.rest()...)
	case o == ledger.Unknown:
		f.forget(l)
	case !a.resetSince(l, f.reset, &f.latest):
		d := a.oweState(l, &f.latest)
		d.after = l.carry(d.after, f.prior, f.kept, f.latest)
		d.reopen(f)
	}
	a.tidy()
}

// only notes that none of the told was done, nor will be, but the i-th. Those before
// it are part of it, and the store is to be told of those after it.
func (a *account[S]) only(i int) {
	d := a.due
	f := d.flights[i]
	for _, before := range d.flights[:i] {
		before.join(f)
	}
	for _, later := range d.flights[i+1:] {
		a.retell(later)
	}
	d.flights = []*flight[S]{f}
}

// retell has the store be told of what wasn't done, if that isn't on its way.
func (a *account[S]) retell(f *flight[S]) {
	if g := a.flight; g != nil {
		f.join(g)
		g.owes = true
		return
	}
	a.due.reopen(f)
}

// reopen has the store be told of the requests of f again.
func (d *due[S]) reopen(f *flight[S]) {
	if f.parts, f.covered = nil, false; d.open == nil {
		d.open = f
	}
	f.join(d.open)
}

// landed notes that the store has done the flight that was under way. What came
// since it began is still due, on top of the last state seen.
func (a *account[S]) landed(l *rules[S], f *flight[S]) {
	f.did(l)
	if d := a.due; d != nil {
		for _, flown := range d.flights {
			flown.join(f)
		}
		d.back = slices.Delete(d.back, 0, f.backs)
		if d.based {
			a.rebase(l, f.before, &f.latest)
		}
		a.tidy()
	}
}

// returned notes that the flight that was under way wasn't done. What callers have
// taken of it is due.
func (a *account[S]) returned(l *rules[S], f *flight[S]) {
	for _, p := range f.parts {
		if p.kept {
			d := a.oweState(l, &p.request)
			d.after, f.owes = l.addPart(d.after, &p), true
		}
	}
	f.parts, f.calls = nil, nil
	if f.owes && a.due != nil {
		if open := a.due.open; open != nil {
			open.join(f)
		}
		a.due.open = f
	}
}

// unanswered notes that nobody knows what has become of the flight that was under
// way. What it was to give back is taken for done, lest it be done twice.
func (a *account[S]) unanswered(l *rules[S], f *flight[S], awaited bool) {
	d := a.oweState(l, &f.latest)
	f.kept = f.before
	for _, b := range d.back[:f.backs] {
		f.kept, d.after = l.take(f.kept, b), l.take(d.after, b)
		l.cfg.RefundFailed()
	}
	d.back = slices.Delete(d.back, 0, f.backs)
	for i := range f.fill() {
		if p := &f.parts[i]; p.kept {
			f.kept, d.after = l.addPart(f.kept, p), l.addPart(d.after, p)
		}
	}
	f.awaited, f.calls = awaited, nil
	if d.flights = append(d.flights, f); len(d.flights) > mostFlights {
		d.flights[0].join(d.flights[1])
		d.flights = slices.Delete(d.flights, 0, 1)
	}
}
