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
	checks   []check[A] // of those that the store is asked about
	// Keys has a key of each check, by which a store finds its server.
	Keys []string
	slow *counters.Workers
	busy counters.Busy
}

// A check is one that the store is asked about.
type check[A any] struct {
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
		checks: make([]check[A], 0, len(requests)), Keys: make([]string, 0, len(requests)),
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
	m.checks, m.Keys = append(m.checks, check[A]{number: i, client: c}), append(m.Keys, key(&c.Account, r.Client))
}

// Begin leads the client of that number, unless it does already, and returns its
// work if the store is to do its exchange now.
func (m *Many[A]) Begin(i int) (_ Work[A], turn counters.Turn) {
	c := &m.checks[i]
	defer m.rescue(c)
	if c.batch == nil {
		r := &m.requests[c.number]
		c.batch = m.combiner.Begin(r.Client, Request[A]{Request: *r, Client: c.client})
		if c.batch == nil {
			if m.busy.Later(&c.tries) {
				return nil, counters.Later
			}
			m.done(c.number, counters.Taken{})
			return nil, counters.Never
		}
		c.work = m.begin(m.ctx, c.client, r.Client, c.batch)
	}
	if !c.asks {
		if turn := m.plan(c); turn != counters.Now {
			return nil, turn
		}
	}
	c.asks = false
	return c.work, counters.Now
}

// plan says when the store is to do what a check asks next together with others.
func (m *Many[A]) plan(c *check[A]) counters.Turn {
	switch m.next(c.client, c.work) {
	case Over:
		m.conclude(c)
		return counters.Never
	case Apart:
		m.goOn(c)
		return counters.Never
	case Later:
		return counters.Later
	}
	return counters.Now
}

// goOn does the exchange of a check apart from others, and the rest too.
func (m *Many[A]) goOn(c *check[A]) {
	m.slow.Go(func() {
		defer m.rescue(c)
		r := &m.requests[c.number]
		c.work.Exchange(m.ctx)
		for m.finish(c.client, c.work, r) && m.next(c.client, c.work) != Over {
			c.work.Exchange(m.ctx)
		}
		m.conclude(c)
	})
}

// Finish goes on with a client whose exchange has ended: said puts what the store
// has said into its work. If err isn't nil, it was never begun. It reports whether
// Begin is to be called again.
func (m *Many[A]) Finish(i int, err error, said func(Work[A])) (again bool) {
	c := &m.checks[i]
	defer m.rescue(c)
	if c.batch == nil {
		t := counters.Taken{Err: err, Done: true}
		if errors.Is(err, counters.ErrNotAdded) {
			t = counters.Taken{}
		}
		m.done(c.number, t)
		return false
	}
	said(c.work)
	if !m.finish(c.client, c.work, &m.requests[c.number]) {
		m.conclude(c)
		return false
	}
	turn := m.plan(c)
	if err != nil && turn != counters.Never { // the store doesn't begin it again
		m.goOn(c)
		return false
	}
	c.asks = turn == counters.Now
	return turn != counters.Never
}

// Apart ends an exchange that the store wouldn't do together with others: it is
// done apart.
func (m *Many[A]) Apart(i int) {
	c := &m.checks[i]
	if c.batch == nil {
		m.done(c.number, counters.Taken{})
		return
	}
	m.goOn(c)
}

// conclude ends a check whose call has been answered. What the store wouldn't do
// together with others is left to Take.
func (m *Many[A]) conclude(c *check[A]) {
	m.config.Options.Batch(len(c.batch.Calls()))
	d, err := m.release(c)
	if errors.Is(err, counters.ErrNotAdded) {
		m.done(c.number, counters.Taken{})
		return
	}
	m.done(c.number, counters.Taken{Decision: d, Err: err, Done: true})
}

// release hands the client of a check over.
func (m *Many[A]) release(c *check[A]) (counters.Decision, error) {
	b, r := c.batch, &m.requests[c.number]
	m.Book.end(c.client, c.work, r)
	c.batch, c.work = nil, nil
	return m.combiner.End(r.Client, b)
}

// rescue answers a check whose decision has panicked: the others go on.
func (m *Many[A]) rescue(c *check[A]) {
	cause := recover()
	if cause == nil {
		return
	}
	if c.batch == nil { // it has been answered
		panic(cause)
	}
	stack := debug.Stack()
	c.batch.Fail(cause)
	_, _ = m.release(c)
	m.done(c.number, counters.Taken{Panic: cause, Stack: stack})
}

// end returns when all checks have ended. Those that a panic of the store has
// cut short fail, and who has joined them.
func (m *Many[A]) end() {
	m.slow.Wait()
	for i := range m.checks {
		if c := &m.checks[i]; c.batch != nil {
			c.batch.Fail(nil)
			_, _ = m.release(c)
		}
	}
}
