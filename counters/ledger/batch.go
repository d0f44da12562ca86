package ledger

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"

	"weir/counters"
)

// A Many is the checks of many clients whose exchanges go together.
type Many[A any] struct {
	*Book[A]
	ctx      context.Context
	requests []counters.Request
	done     func(i int, t counters.Taken)
	leads    []lead[A] // of those that the store is asked about
	// Keys has a key of each lead, by which a store finds its server.
	Keys []string
	slow *counters.Workers
	busy counters.Busy
}

// A lead is a client that this process asks the store about.
type lead[A any] struct {
	number int // of the request
	client *Client[A]
	batch  *Batch[A] // while the client is led
	work   Work[A]   // the same
	asks   bool      // the work has decided what to ask next
	tries  int       // when others were asking about it
}

// TakeTogether does what Take would for the requests, of different clients each.
// It calls done for each, with its number and what Take would return, as soon as
// that is known. The zero Taken is for a request that can't be decided together
// with others: nothing has been consumed of it, and Take decides it. That is so if
// others are asking about the client, for instance. Calls of done may come
// concurrently and while the client is locked: they should be short, must not panic, and
// must not call the limiter. A client is in use, and others
// who ask for it wait, only while it is asked about.
//
// key names a key of a client, and ask has a store do the exchanges: it calls
// Begin and Finish of the Many. TakeTogether returns after the last call of done.
func (b *Book[A]) TakeTogether(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken),
	key func(a *A, client string) string, ask func(ctx context.Context, m *Many[A]),
) {
	if len(requests) == 0 {
		return
	}
	earliest := slices.MinFunc(requests, func(a, b counters.Request) int { return a.Now.Compare(b.Now) }).Now
	ctx, cancel := b.within(ctx, earliest)
	defer cancel()
	m := &Many[A]{
		Book: b, ctx: ctx, requests: requests, done: done,
		leads: make([]lead[A], 0, len(requests)), Keys: make([]string, 0, len(requests)),
		slow: counters.SlowWorkers(b.config.Options.StoreTimeout),
	}
	for i := range requests {
		m.know(i, key)
	}
	defer m.end()
	if len(m.Keys) > 0 {
		ask(ctx, m)
	}
}

// know decides the request of that number if its answer is known, and else notes
// that the store is to be asked.
func (m *Many[A]) know(i int, key func(a *A, client string) string) {
	r := &m.requests[i]
	if r.Check() != nil || r.Cost == 0 {
		m.done(i, counters.Taken{})
		return
	}
	c := m.clients.Get(r.Client)
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, known := m.config.Family.Known(&c.Account, *r); known {
		m.done(i, counters.Taken{Decision: d, Done: true})
		return
	}
	m.leads, m.Keys = append(m.leads, lead[A]{number: i, client: c}), append(m.Keys, key(&c.Account, r.Client))
}

// Begin leads the client of that number, unless it does already, and returns its
// work if the store is to do its exchange now.
func (m *Many[A]) Begin(i int) (_ Work[A], turn counters.Turn) {
	led := &m.leads[i]
	defer m.rescue(led)
	if led.batch == nil {
		r := &m.requests[led.number]
		led.batch = m.combiner.Begin(r.Client, Request[A]{Request: *r, Client: led.client})
		if led.batch == nil {
			if m.busy.Later(&led.tries) {
				return nil, counters.Later
			}
			m.done(led.number, counters.Taken{})
			return nil, counters.Never
		}
		led.work = m.begin(m.ctx, led.client, r.Client, led.batch)
	}
	if !led.asks {
		if turn := m.plan(led); turn != counters.Now {
			return nil, turn
		}
	}
	led.asks = false
	return led.work, counters.Now
}

// plan says when the store is to do what a lead asks next together with others.
func (m *Many[A]) plan(led *lead[A]) counters.Turn {
	switch m.next(led.client, led.work) {
	case Over:
		m.conclude(led)
		return counters.Never
	case Apart:
		m.goOn(led)
		return counters.Never
	case Later:
		return counters.Later
	}
	return counters.Now
}

// goOn does the exchange of a lead apart from others, and the rest too.
func (m *Many[A]) goOn(led *lead[A]) {
	m.slow.Go(func() {
		defer m.rescue(led)
		r := &m.requests[led.number]
		led.work.Exchange(m.ctx)
		for m.finish(led.client, led.work, r) && m.next(led.client, led.work) != Over {
			led.work.Exchange(m.ctx)
		}
		m.conclude(led)
	})
}

// Finish goes on with a client whose exchange has ended: said puts what the store
// has said into its work. If err isn't nil, it was never begun. It reports whether
// Begin is to be called again.
func (m *Many[A]) Finish(i int, err error, said func(Work[A])) (again bool) {
	led := &m.leads[i]
	defer m.rescue(led)
	if led.batch == nil {
		t := counters.Taken{Err: err, Done: true}
		if errors.Is(err, counters.ErrNotAdded) {
			t = counters.Taken{}
		}
		m.done(led.number, t)
		return false
	}
	said(led.work)
	if !m.finish(led.client, led.work, &m.requests[led.number]) {
		m.conclude(led)
		return false
	}
	turn := m.plan(led)
	if err != nil && turn != counters.Never { // the store doesn't begin it again
		m.goOn(led)
		return false
	}
	led.asks = turn == counters.Now
	return turn != counters.Never
}

// Apart ends an exchange that the store wouldn't do together with others: it is
// done apart.
func (m *Many[A]) Apart(i int) {
	led := &m.leads[i]
	if led.batch == nil {
		m.done(led.number, counters.Taken{})
		return
	}
	m.goOn(led)
}

// conclude ends a lead whose call has been answered. What the store wouldn't do
// together with others is left to Take.
func (m *Many[A]) conclude(led *lead[A]) {
	m.config.Options.Batch(len(led.batch.Calls()))
	d, err := m.release(led)
	if errors.Is(err, counters.ErrNotAdded) {
		m.done(led.number, counters.Taken{})
		return
	}
	m.done(led.number, counters.Taken{Decision: d, Err: err, Done: true})
}

// release hands the client of a lead over.
func (m *Many[A]) release(led *lead[A]) (counters.Decision, error) {
	b, r := led.batch, &m.requests[led.number]
	m.Book.end(led.client, led.work, r)
	led.batch, led.work = nil, nil
	return m.combiner.End(r.Client, b)
}

// rescue answers a lead whose decision has panicked: the others go on.
func (m *Many[A]) rescue(led *lead[A]) {
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
func (m *Many[A]) end() {
	m.slow.Wait()
	for i := range m.leads {
		if led := &m.leads[i]; led.batch != nil {
			led.batch.Fail(nil)
			_, _ = m.release(led)
		}
	}
}
