package cas

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"weir/counters"
)

// triesTogether is how many attempts of a client are made together with others:
// one that is forestalled as often is in a race with other instances, and faster
// alone.
const triesTogether = 3

// TakesMany reports whether the store is a counters.ManyStateStore, so that
// TakeMany can be called.
func (l *Limiter[S]) TakesMany() bool { return l.many != nil }

// TakeMany does what Take would for the requests, of different clients each, and
// asks the store for many of them together. It calls done for each, with its
// number and what Take would return, as soon as that is known. The zero Taken is
// for a request that can't be decided in this way: nothing has been consumed,
// and Take decides it. That is so if others are asking for the client, or if the
// request consumes nothing, for instance. Calls of done may come concurrently,
// should be short, and must not panic. A client is in use, and others who ask
// for it wait, only while it is asked about. TakeMany returns after the last
// call of done. It panics unless TakesMany.
func (l *Limiter[S]) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(counters.DefaultTimeout)
		ctx = &counters.Deadline{At: deadline}
	}
	m := &many[S]{
		Limiter: l, ctx: ctx, deadline: deadline, requests: requests, done: done,
		leads: make([]lead[S], 0, len(requests)), keys: make([]string, 0, len(requests)),
		slow: counters.SlowWorkers(l.cfg.StoreTimeout),
	}
	for i := range requests {
		m.know(i)
	}
	defer m.end()
	if len(m.keys) > 0 {
		l.many.SwapMany(ctx, m.keys, m.begin, m.swapped)
	}
}

// many is one TakeMany.
type many[S any] struct {
	*Limiter[S]
	ctx      context.Context
	deadline time.Time
	requests []counters.Request
	done     func(i int, t counters.Taken)
	leads    []lead[S] // of those that the store is asked about
	keys     []string  // of their states
	slow     *counters.Workers
	busy     counters.Busy
}

// A lead is a client of TakeMany that this process asks the store about.
type lead[S any] struct {
	number   int // of the request
	batch    *batch
	deciding *deciding[S]
	tries    int           // when others were asking about it
	wait     time.Duration // for the process's turn, from when it first might have begun
	turn     time.Time     // when that ends
}

// know decides the request of that number if its answer is known, and else notes
// that the store is to be asked.
func (m *many[S]) know(i int) {
	r := &m.requests[i]
	if r.Check() != nil || r.Cost == 0 {
		m.done(i, counters.Taken{})
		return
	}
	if !m.cfg.CountDenied {
		if d, known := m.PeekLocal(*r); known && !d.Allowed && d.Remaining == 0 {
			m.done(i, counters.Taken{Decision: d, Done: true})
			return
		}
	}
	m.leads, m.keys = append(m.leads, lead[S]{number: i}), append(m.keys, m.Limiter.keys.StateKey(r.Client))
}

// begin leads the client, unless it does already, and returns what the store is
// to do for it, if anything.
func (m *many[S]) begin(i int) (counters.Replacement, counters.Turn) {
	led := &m.leads[i]
	defer m.rescue(led)
	if led.batch != nil {
		return led.deciding.replacement(), counters.Now
	}
	r := &m.requests[led.number]
	v := m.views.Get(r.Client)
	if m.awaitsTurn(led, v) {
		return counters.Replacement{}, counters.Later
	}
	led.batch = m.combiner.Begin(r.Client, request{Request: *r, view: v})
	if led.batch == nil {
		if m.busy.Later(&led.tries) {
			return counters.Replacement{}, counters.Later
		}
		m.done(led.number, counters.Taken{})
		return counters.Replacement{}, counters.Never
	}
	d, _ := m.decisions.Get().(*deciding[S])
	if d == nil {
		d = new(deciding[S])
	}
	led.deciding = d
	d.start(m.Limiter, m.ctx, m.keys[i], led.batch)
	if d.waited = true; led.wait > 0 {
		d.hasWaited(led.wait)
	}
	if d.attempt() {
		m.conclude(led, nil)
		return counters.Replacement{}, counters.Never
	}
	return d.replacement(), counters.Now
}

// awaitsTurn reports whether it isn't yet the process's turn to write the state
// of the lead, whose view is v.
func (m *many[S]) awaitsTurn(led *lead[S], v *view[S]) bool {
	if led.turn.IsZero() {
		if led.wait = v.untilTurn(m.deadline); led.wait > 0 {
			led.turn = time.Now().Add(led.wait)
		}
		return led.wait > 0
	}
	return time.Now().Before(led.turn)
}

// replacement returns what exchange would ask the store.
func (d *deciding[S]) replacement() counters.Replacement {
	r := counters.Replacement{Key: d.key, Size: d.seen.size}
	if d.next.swaps {
		r.Old, r.Value, r.TTL = d.seen.state, d.next.value, d.next.ttl
	}
	return r
}

// swapped goes on with a lead whose attempt has ended, and reports whether
// another is to be made together with others.
func (m *many[S]) swapped(i int, state counters.State, swapped bool, err error) (again bool) {
	led := &m.leads[i]
	defer m.rescue(led)
	if led.batch == nil { // it was never begun
		t := counters.Taken{Err: err, Done: true}
		if errors.Is(err, counters.ErrNotAdded) {
			t = counters.Taken{}
		}
		m.done(led.number, t)
		return false
	}
	d := led.deciding
	if !errors.Is(err, counters.ErrNotAdded) {
		var over bool
		if over, err = d.learn(state, swapped, err); over || d.attempt() {
			m.conclude(led, err)
			return false
		}
		if d.attempts < triesTogether {
			return true
		}
	}
	m.slow.Go(func() {
		defer m.rescue(led)
		m.conclude(led, d.proceed(m.ctx))
	})
	return false
}

// conclude ends a lead whose decision has ended with err.
func (m *many[S]) conclude(led *lead[S], err error) {
	d := led.deciding
	d.conclude(err)
	led.deciding = nil
	*d = deciding[S]{}
	m.decisions.Put(d)
	decision, err := m.release(led)
	m.done(led.number, counters.Taken{Decision: decision, Err: err, Done: true})
}

// release hands the client of a lead over.
func (m *many[S]) release(led *lead[S]) (counters.Decision, error) {
	b := led.batch
	led.batch = nil
	return m.combiner.End(m.requests[led.number].Client, b)
}

// rescue answers a lead whose decision has panicked: the others go on.
func (m *many[S]) rescue(led *lead[S]) {
	cause := recover()
	if cause == nil {
		return
	}
	if led.batch == nil { // it has been answered
		panic(cause)
	}
	stack := debug.Stack()
	led.batch.Fail(cause)
	_, _ = m.release(led)
	m.done(led.number, counters.Taken{Panic: cause, Stack: stack})
}

// end returns when all leads have ended. Those that a panic of the store has
// cut short fail, and who has joined them.
func (m *many[S]) end() {
	m.slow.Wait()
	for i := range m.leads {
		if led := &m.leads[i]; led.batch != nil {
			led.batch.Fail(nil)
			_, _ = m.release(led)
		}
	}
}
