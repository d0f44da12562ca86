package cas

import (
	"bytes"
	"math"
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
	// spent hints that nothing remained when last was seen.
	spent bool
	// due is what the store must still be told; nil if that is nothing.
	due *due[S]
	// flight is under way to the store; nil if none is.
	flight *flight[S]
	// share is of what was consumed since the process first saw the client.
	share ledger.Share
	// expected is what the others are thought to have admitted alone, and to tell
	// the store as late as this process, until a moment in Unix nanoseconds.
	expected, until int64
}

// A due is what a process has decided and the store must still be told.
type due[S any] struct {
	// after is the state by which the process decides: base, which it has seen, and
	// what it has decided alone since. Both say nothing unless based.
	based       bool
	after, base S
	token       casToken // of base
	// group is of the flights without an answer that were to replace base; nil if
	// there are none. What after has beyond what the store has of them is still to
	// be told.
	group *group[S]
	// open has what was decided alone since the last exchange began; nil if nothing
	// was.
	open *flight[S]
	// back is what the next exchange gives back.
	back []refund
	// latest is the last request in all that, and origin that of after.
	latest counters.Request
	origin origin
	// alone is what was admitted alone since the store has answered, and others
	// what the others are thought to have admitted meanwhile: wary is after with that.
	alone, others int64
	wary          S
}

// A group is flights without an answer that were to replace the same state, each
// with what is kept of those before it. At most one of them is done.
type group[S any] struct {
	base    S
	flights []*flight[S]
}

// before returns the state by which the process decided before the i-th flight.
func (g *group[S]) before(i int) S {
	if i == 0 {
		return g.base
	}
	return g.flights[i-1].kept
}

// from returns the flight and those after it.
func (g *group[S]) from(f *flight[S]) []*flight[S] {
	if g == nil {
		return nil
	}
	if i := slices.Index(g.flights, f); i >= 0 {
		return g.flights[i:]
	}
	return nil
}

// A flight is requests that the store is told of in one exchange, or will be.
// Receipts of what was decided alone refer to it.
type flight[S any] struct {
	fate fate
	// into is the flight that has its requests now, as it wasn't done; or nil.
	into *flight[S]
	// generation is that of the state which has consumed it, when it is done.
	generation int64
	// group is the one that it is in, without an answer, and awaited says that the
	// store may still tell what has become of it.
	group   *group[S]
	awaited bool

	// Of the exchange: it is to replace before, less what it gives back, by to,
	// which is value. calls are those that it consumes, and parts too, if they are
	// there. kept is what is in due.after of it when it has no answer.
	before, from, to, kept S
	value                  []byte
	latest                 counters.Request
	backs                  int   // how many of due.back it gives back
	reset                  int64 // of the state it replaces
	owes                   bool  // before has requests that were decided alone
	calls                  []*call[S]
	parts                  []part
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
// latest request is older than the state that was to be replaced.
func (f *flight[S]) unlike(l *rules[S]) bool {
	_, before := l.began(f.group.base)
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

// flights returns those of the group.
func (d *due[S]) flights() []*flight[S] {
	if d == nil || d.group == nil {
		return nil
	}
	return d.group.flights
}

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
		d.based, d.after, d.base, d.token, d.origin = true, s, s, a.last.token(), a.last.origin
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

// expect notes what the others are thought to tell the store within a time.
func (a *account[S]) expect(cost int64, now time.Time, within time.Duration) {
	if now.UnixNano() > a.until {
		a.expected = 0
	}
	a.expected, a.until = max(a.expected, cost), now.Add(within).UnixNano()
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
	for _, f := range d.flights() {
		f.fate = void
	}
	if d.open != nil {
		d.open.fate = void
	}
	d.based, d.group, d.open = false, nil, nil
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
		case f == nil || f.fate == pending && a.flight != nil: // what is under way may have it
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
			for i, f := range f.group.from(f) {
				if f.kept = l.take(f.kept, b); i > 0 { // it is part of what that does
					f.parts = append(f.parts, part{refund: b})
				}
			}
			if f.group == d.group && f.group != nil {
				d.after = l.take(d.after, b)
			}
		}
	}
	clear(d.back[len(back):])
	d.back = back
	a.tidy()
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
	case a.resetSince(l, d.origin.reset, &d.latest):
		a.drop()
		return
	case d.token == seen.token(): // nobody has written
		return
	}
	before, g := d.base, d.group
	var rest []refund
	if g != nil {
		i := slices.IndexFunc(g.flights, func(f *flight[S]) bool { return f.fate == done || bytes.Equal(f.value, value) })
		certain := i >= 0 && (g.flights[i].fate == done || g.flights[i].unlike(l))
		if i >= 0 {
			a.only(l, g, i)
		}
		for _, f := range g.flights {
			if before = f.kept; certain {
				f.did(l)
				rest = f.rest()
			} else if !f.awaited { // or it is taken for done until it's known, as others have written since
				f.forget(l)
			}
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
	if d.group, d.based = nil, d.open != nil; d.based {
		d.after = l.carry(a.last.decoded, before, d.after, *r)
		d.base, d.token, d.origin = a.last.decoded, a.last.token(), a.last.origin
	}
}

// learn notes what has become of a flight without an answer.
func (a *account[S]) learn(l *rules[S], f *flight[S], o ledger.Outcome) {
	f.awaited = false
	i := -1
	if f.fate == pending && f.into == nil && f.group != nil {
		i = slices.Index(f.group.flights, f)
	}
	g := f.group
	now := a.due != nil && g == a.due.group // it may still be seen to be done
	switch {
	case i < 0:
	case o == ledger.Unknown:
		if !now {
			f.forget(l)
		}
	case !now && a.resetSince(l, f.reset, &f.latest):
		f.fate = void
	case o == ledger.Done:
		if a.only(l, g, i); !now {
			a.giveBack(f.rest()...)
		}
		f.did(l)
	default:
		before := g.before(i)
		if g.flights = slices.Delete(g.flights, i, i+1); i < len(g.flights) {
			f.join(g.flights[i])
		} else {
			a.retell(l, f, before)
		}
	}
	a.tidy()
}

// only notes that none of a group was done, nor will be, but the i-th. Those before
// it are part of it, and the store is to be told of those after it.
func (a *account[S]) only(l *rules[S], g *group[S], i int) {
	f, before := g.flights[i], g.flights[i].kept
	for _, earlier := range g.flights[:i] {
		earlier.join(f)
	}
	later := g.flights[i+1:]
	g.flights = g.flights[i : i+1 : i+1]
	for _, f := range later {
		a.retell(l, f, before)
		before = f.kept
	}
}

// retell has the store be told of what wasn't done, beyond a state that is before
// it, if that isn't on its way.
func (a *account[S]) retell(l *rules[S], f *flight[S], before S) {
	switch under := a.flight; {
	case a.due == nil || f.group != a.due.group: // it was taken for done
		d := a.oweState(l, &f.latest)
		d.after = l.carry(d.after, before, f.kept, f.latest)
		d.reopen(f)
	case under != nil:
		f.join(under)
		under.owes = true
	default:
		a.due.reopen(f)
	}
}

// reopen has the store be told of the requests of f again.
func (d *due[S]) reopen(f *flight[S]) {
	if f.parts, f.group = nil, nil; d.open == nil {
		d.open = f
	}
	f.join(d.open)
}

// landed notes that the store has done the flight that was under way. What came
// since it began is still due, on top of the last state seen.
func (a *account[S]) landed(l *rules[S], f *flight[S]) {
	f.did(l)
	if d := a.due; d != nil {
		for _, flown := range d.flights() {
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
// way. What it was to give back is taken for done, lest it be done twice: the next
// state is of the same origin, and of what is missing nothing is lost.
func (a *account[S]) unanswered(l *rules[S], f *flight[S], o origin, awaited bool) {
	d := a.oweState(l, &f.latest)
	if f.backs > 0 {
		d.origin = o
	}
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
	if d.group == nil {
		d.group = &group[S]{base: d.base}
	}
	g := d.group
	if f.group, g.flights = g, append(g.flights, f); len(g.flights) > mostFlights {
		g.flights[0].join(g.flights[1])
		g.flights = slices.Delete(g.flights, 0, 1)
	}
}
