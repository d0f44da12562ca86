package subwindow

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"weir/counters"
	"weir/counters/combiner"
)

// TakesMany reports whether the store is a counters.ManyStore, so that TakeMany
// can be called.
func (l *Limiter) TakesMany() bool { return l.many != nil }

// TakeMany does what Take would for the requests, of different clients each, and
// asks the store for many of them together. It calls done for each, with its
// number and what Take would return, as soon as that is known. The zero Taken is
// for a request that can't be decided in this way: nothing has been counted of
// it, and Take decides it. That is so if others are asking for the client, or if a
// denial that is remembered has to be confirmed, for instance. Calls of done may
// come concurrently, should be short, and must not panic. A client is in use, and
// others who ask for it wait, only while it is asked about. TakeMany returns after
// the last call of done. It panics unless TakesMany.
func (l *Limiter) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	if len(requests) == 0 {
		return
	}
	earliest := slices.MinFunc(requests, func(a, b counters.Request) int { return a.Now.Compare(b.Now) }).Now
	ctx, cancel := l.within(ctx, earliest)
	defer cancel()
	m := &many{
		Limiter: l, ctx: ctx, requests: requests, done: done,
		leads: make([]lead, 0, len(requests)), keys: make([]string, 0, len(requests)),
		slow: counters.SlowWorkers(l.options.StoreTimeout),
	}
	for i := range requests {
		m.know(i)
	}
	defer m.end()
	if len(m.keys) > 0 {
		l.many.AddMany(ctx, m.keys, m.begin, m.added)
	}
}

// many is one TakeMany.
type many struct {
	*Limiter
	ctx      context.Context
	requests []counters.Request
	done     func(i int, t counters.Taken)
	leads    []lead   // of those that the store is asked about
	keys     []string // one of each of the leads
	slow     *counters.Workers
	busy     counters.Busy
}

// A lead is a client of TakeMany that this process asks the store about, for
// nobody else.
type lead struct {
	number int // of the request
	view   *view
	batch  *combiner.Batch[request, counters.Decision] // while the client is led
	// repayment is of what the client owes, until that is counted: before the
	// request.
	repayment *repayment
	a         *attempt
	sum       int64 // being counted
	// subtraction is of what was counted, until that is given back: after the
	// request was denied.
	subtraction *subtraction
	tries       int // when others were asking about it
}

// know decides the request of that number if its answer is known, and else notes
// that the store is to be asked.
func (m *many) know(i int) {
	r := &m.requests[i]
	if r.Check() != nil || r.Cost == 0 {
		m.done(i, counters.Taken{})
		return
	}
	v := m.views.Get(r.Client)
	if d, ok := m.knownDenial(v, *r); ok {
		m.done(i, counters.Taken{Decision: d, Done: true})
		return
	}
	v.mu.Lock()
	m.name(v, r.Client)
	key := v.generationKey
	v.mu.Unlock()
	m.leads, m.keys = append(m.leads, lead{number: i, view: v}), append(m.keys, key)
}

// begin leads the client, and appends what the store is to do for it next, if
// anything.
func (m *many) begin(i int, to []counters.Addition) (_ []counters.Addition, turn counters.Turn) {
	led := &m.leads[i]
	defer m.rescue(led)
	if led.batch == nil {
		if turn := m.lead(led); turn != counters.Now {
			return to, turn
		}
	}
	if r := led.repayment; r != nil {
		return r.next(to), counters.Now
	}
	if s := led.subtraction; s != nil {
		return s.next(to), counters.Now
	}
	if !m.choose(led) {
		m.finish(led)
		return to, counters.Never
	}
	return append(to, m.addition(led.a, led.sum)), counters.Now
}

// lead begins to lead a client, unless others are asking about it.
func (m *many) lead(led *lead) counters.Turn {
	r, v := &m.requests[led.number], led.view
	led.batch = m.combiner.Begin(r.Client, request{Request: *r, view: v})
	if led.batch == nil {
		if m.busy.Later(&led.tries) {
			return counters.Later
		}
		m.done(led.number, counters.Taken{})
		return counters.Never
	}
	led.repayment = m.repayment(v, r.Client, r.Now)
	if led.repayment != nil && len(led.repayment.debts) > mostDebts {
		m.leave(led)
		return counters.Never
	}
	return counters.Now
}

// choose reports whether the store has to be asked about a client that owes
// nothing any more. If not, its request may have been answered.
func (m *many) choose(led *lead) bool {
	r, v := &m.requests[led.number], led.view
	a := m.recall(v, r.Client, r.Now)
	led.a = a
	a.pending = append(a.pending[:0], led.batch.Calls()...)
	a.chosen = slices.Grow(a.chosen[:0], 1)[:1]
	if led.sum = m.Limiter.choose(v, a); led.sum > 0 {
		return true
	}
	if a.fresh && m.full(a) {
		m.deny(v, a)
	}
	return false
}

// added goes on with a lead whose additions have ended, and reports whether it
// has more. What takes no store is done at once.
func (m *many) added(i int, added []counters.Added, err error) (more bool) {
	led := &m.leads[i]
	defer m.rescue(led)
	switch {
	case led.subtraction != nil:
		return m.subtractedTogether(led, added, err)
	case err == nil && led.repayment != nil:
		return m.repaid(led, added)
	case err == nil:
		return m.asked(led, added[0].Count, added[0].Err)
	case errors.Is(err, counters.ErrNotAdded) && led.batch == nil:
		m.done(led.number, counters.Taken{})
	case led.batch == nil:
		m.done(led.number, counters.Taken{Err: err, Done: true})
	default:
		m.fail(led, err)
	}
	return false
}

// repaid goes on with a lead that repays its debts, and reports whether the store
// is to be asked more.
func (m *many) repaid(led *lead, added []counters.Added) (more bool) {
	more, refunds, err := led.repayment.took(m.ctx, added, nil)
	for _, req := range refunds {
		m.refundLater(req)
	}
	switch {
	case more:
		return true
	case err != nil:
		m.fail(led, err)
		return false
	default:
		led.repayment = nil
		return true
	}
}

// asked goes on with a lead whose request was to be counted, and reports whether
// the store is to be asked more.
func (m *many) asked(led *lead, count int64, err error) (more bool) {
	found := changed
	if err == nil {
		found = led.a.fill(count - led.sum)
	}
	switch {
	case errors.Is(err, counters.ErrNotAdded):
		m.finish(led)
	case m.asksAgain(led.a, found, err):
		m.slow.Go(func() {
			defer m.rescue(led)
			denied := m.conclude(led, count, found, err)
			m.giveBack(m.ctx, led.a, denied)
			m.finish(led)
		})
	default:
		if denied := m.conclude(led, count, found, err); len(denied) > 0 {
			led.subtraction = m.subtraction(led.a.bucket, denied)
			return true
		}
		m.finish(led)
	}
	return false
}

// asksAgain reports whether the store has to be asked about the slots once more
// after an Add that has ended with err.
func (m *many) asksAgain(a *attempt, found finding, err error) bool {
	if err != nil {
		return errors.Is(err, counters.ErrLost)
	}
	return found != complete || a.doubts()
}

// conclude is counted for a lead.
func (m *many) conclude(led *lead, count int64, found finding, err error) (denied []*call) {
	return m.counted(m.ctx, led.view, led.a, count-led.sum, led.sum, found, err)
}

// subtractedTogether goes on with a lead whose request was denied and is given
// back, and reports whether the store is to be asked more.
func (m *many) subtractedTogether(led *lead, added []counters.Added, err error) (more bool) {
	s := led.subtraction
	more, sum, err := s.took(m.ctx, added, err)
	if !more {
		led.subtraction = nil
		m.gaveBack(led.a, s.calls, sum, err)
		m.finish(led)
	}
	return more
}

// finish ends a lead. If its call hasn't been answered, it is left to Take.
func (m *many) finish(led *lead) {
	answered := false
	if a := led.a; a != nil {
		answered, led.a = len(a.pending) == 0, nil
		m.remember(led.view, m.requests[led.number].Client, a)
	}
	if answered {
		m.answer(led)
	} else {
		m.leave(led)
	}
}

// fail ends a lead whose request the store hasn't been asked about, because of
// err. What Take can do about that is left to it.
func (m *many) fail(led *lead, err error) {
	led.repayment = nil
	if errors.Is(err, counters.ErrLost) || errors.Is(err, counters.ErrNotAdded) {
		m.leave(led)
		return
	}
	failUnasked(led.view, led.batch.Calls(), fmt.Errorf("%w: %w", counters.ErrNotSent, err))
	m.answer(led)
}

// leave ends a lead that is left to Take.
func (m *many) leave(led *lead) {
	led.repayment = nil
	_, _ = m.release(led)
	m.done(led.number, counters.Taken{})
}

// answer ends a lead whose call has been answered.
func (m *many) answer(led *lead) {
	m.options.Batch(1)
	d, err := m.release(led)
	m.done(led.number, counters.Taken{Decision: d, Err: err, Done: true})
}

// release hands the client of a lead over.
func (m *many) release(led *lead) (counters.Decision, error) {
	b := led.batch
	led.batch = nil
	return m.combiner.End(m.requests[led.number].Client, b)
}

// rescue answers a lead whose decision has panicked: the others go on.
func (m *many) rescue(led *lead) {
	cause := recover()
	if cause == nil {
		return
	}
	if led.batch == nil { // it has been answered
		panic(cause)
	}
	stack := debug.Stack()
	led.repayment = nil
	_, _ = m.release(led)
	m.done(led.number, counters.Taken{Panic: cause, Stack: stack})
}

// end returns when all leads have ended. Those that a panic of the store has
// cut short fail.
func (m *many) end() {
	m.slow.Wait()
	for i := range m.leads {
		if led := &m.leads[i]; led.batch != nil {
			if led.repayment != nil {
				led.repayment.lose()
			}
			_, _ = m.release(led)
		}
	}
}
