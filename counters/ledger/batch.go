package ledger

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/counters"
)

// A ManyBook is a Book whose store may be of many clients.
type ManyBook[A any] struct {
	Book[A]
	// Key names a key of a client, by which the store finds its server, and Ask has it do the
	// exchanges of a Many, of which it calls Begin and Finish. Ask is nil if the store is of
	// one client at a time.
	Key func(a *A, client string) string
	Ask func(ctx context.Context, m *Many[A])

	mu      sync.Mutex
	refunds []refund[A] // of which the store is told together
}

// A Many is the calls of many clients whose exchanges go together.
type Many[A any] struct {
	*ManyBook[A]
	ctx      context.Context
	kind     Kind
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
	number int   // of the request
	more   []int // of other requests of the client
	client *Client[A]
	batch  *Batch[A] // while the client is led
	work   Work[A]   // the same
	asks   bool      // the work has decided what to ask next
	tries  int       // when others were asking about it
}

// TakesMany reports whether the store is of many clients, so that TakeMany can be called.
func (b *ManyBook[A]) TakesMany() bool { return b.Ask != nil }

// TakeMany does what Take would for the requests, as if they were concurrent, and asks the
// store for many of them together; those of one client should follow one another. It panics
// unless TakesMany. It calls done for each, with its number and what Take would return, as
// soon as that is known. The zero Taken is for a request that can't be decided together with
// others: nothing has been consumed of it, and Take decides it. That is so if others are
// asking about the client, for instance. Calls of done may come concurrently: they should be
// short, must not panic, and must not call the limiter. A client is in use, and others who
// ask for it wait, only while it is asked about. TakeMany returns after the last call of done.
func (b *ManyBook[A]) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	if len(requests) == 0 {
		return
	}
	earliest := slices.MinFunc(requests, func(a, b counters.Request) int { return a.Now.Compare(b.Now) }).Now
	ctx, cancel := b.within(ctx, earliest)
	defer cancel()
	m := b.many(ctx, Takes, requests, done)
	for i := range requests {
		m.know(i)
	}
	m.ask()
}

// refundDelay is how much later than it is due the store is told of a RefundSoon that nobody
// waits for.
const refundDelay = 20 * time.Millisecond

// A refund is what a client is given back soon.
type refund[A any] struct {
	client  *Client[A]
	request counters.Request
	told    func(panicked any) // nil if nobody waits
	done    bool
}

// RefundSoon is Refund, but it doesn't wait for a store of many clients, which is told
// together of what they are refunded: a moment later, or by the next check of the client.
// If told isn't nil, that is at once, and told is called when the store has been told, or
// hasn't by the deadline of ctx, or with what telling it has panicked with. It must not panic.
// Flush awaits it. The first of those that wait together decides how, and until when, all of
// them are told: so either all refunds of b have a told, or none.
func (b *ManyBook[A]) RefundSoon(ctx context.Context, r counters.Request, taken counters.Decision, told func(panicked any)) error {
	c, tell, err := b.refund(r, taken)
	switch {
	case tell && b.TakesMany():
		b.soon(ctx, refund[A]{client: c, request: r, told: told})
		return nil
	case tell:
		err = b.tell(ctx, Request[A]{Request: r, Kind: Tells, Client: c})
	}
	if told != nil {
		told(nil)
	}
	return err
}

// soon has the store told of f together with others.
func (b *ManyBook[A]) soon(ctx context.Context, f refund[A]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refunds = append(b.refunds, f); len(b.refunds) > 1 {
		return
	}
	b.config.Options.Refunds.Go(func() {
		if f.told != nil {
			b.refundTogether(ctx)
			return
		}
		time.Sleep(refundDelay)
		_ = b.config.Options.Unhurried(b.config.Timeouts, func(ctx context.Context) error {
			b.refundTogether(ctx)
			return nil
		})
	})
}

// refundTogether has the store told of all that is to be refunded soon.
func (b *ManyBook[A]) refundTogether(ctx context.Context) {
	b.mu.Lock()
	refunds := b.refunds
	b.refunds = nil
	b.mu.Unlock()
	// Those of one client follow one another.
	slices.SortFunc(refunds, func(f, g refund[A]) int { return strings.Compare(f.request.Client, g.request.Client) })
	requests := make([]counters.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].request
	}
	m := b.many(ctx, Tells, requests, func(i int, t counters.Taken) {
		if t.Done && t.Err == nil {
			b.ended(&refunds[i], nil)
		}
	})
	for i := range refunds {
		m.add(i, refunds[i].client)
	}
	var panicked any
	func() {
		defer func() { panicked = recover() }()
		m.ask()
	}()
	for i := range refunds {
		switch f := &refunds[i]; {
		case f.done:
		case panicked != nil:
			b.ended(f, panicked)
		case f.told == nil:
			b.tellLater(f.client, f.request)
		default: // others are asking about the client, most likely
			b.config.Options.Refunds.Go(func() {
				defer func() { f.told(recover()) }()
				_ = b.tell(ctx, Request[A]{Request: f.request, Kind: Tells, Client: f.client})
			})
		}
	}
}

// ended notes that the store was told of f, or that this has panicked.
func (b *ManyBook[A]) ended(f *refund[A], panicked any) {
	f.done = true
	b.remind(f.client, f.request)
	if f.told != nil {
		f.told(panicked)
	}
}

// many returns a Many of calls for the requests.
func (b *ManyBook[A]) many(ctx context.Context, kind Kind, requests []counters.Request, done func(i int, t counters.Taken)) *Many[A] {
	return &Many[A]{
		ManyBook: b, ctx: ctx, kind: kind, requests: requests, done: done,
		checks: make([]check[A], 0, len(requests)), Keys: make([]string, 0, len(requests)),
		slow: counters.SlowWorkers(b.config.Options.StoreTimeout),
	}
}

// ask has the store asked, and returns when all calls are answered.
func (m *Many[A]) ask() {
	defer m.end()
	if len(m.Keys) > 0 {
		m.Ask(m.ctx, m)
	}
}

// add notes that the store is to be asked for the request of that number, of that client.
func (m *Many[A]) add(i int, c *Client[A]) {
	if n := len(m.checks); n > 0 && m.checks[n-1].client == c {
		m.checks[n-1].more = append(m.checks[n-1].more, i)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.checks = append(m.checks, check[A]{number: i, client: c})
	m.Keys = append(m.Keys, m.Key(&c.Account, m.requests[i].Client))
}

// know decides the request of that number if its answer is known, and else notes
// that the store is to be asked.
func (m *Many[A]) know(i int) {
	r := &m.requests[i]
	if r.Check() != nil || r.Cost == 0 {
		m.done(i, counters.Taken{})
		return
	}
	c := m.clients.Get(r.Client)
	if d, denied := m.denyAhead(c, *r); denied {
		m.done(i, counters.Taken{Decision: d, Done: true})
		return
	}
	m.add(i, c)
}

// answer calls done for all requests of a check.
func (m *Many[A]) answer(c *check[A], t counters.Taken) {
	m.done(c.number, t)
	for _, i := range c.more {
		m.done(i, t)
	}
}

// Begin leads the client of that number, unless it does already, and returns its
// work if the store is to do its exchange now.
func (m *Many[A]) Begin(i int) (_ Work[A], turn counters.Turn) {
	c := &m.checks[i]
	defer m.rescue(c)
	if c.batch == nil {
		r := &m.requests[c.number]
		c.batch = m.combiner.Begin(r.Client, Request[A]{Request: *r, Kind: m.kind, Client: c.client})
		if c.batch == nil {
			if m.busy.TryAgain(&c.tries) {
				return nil, counters.Later
			}
			if len(c.more) > 0 {
				m.queue(c)
			} else {
				m.done(c.number, counters.Taken{})
			}
			return nil, counters.Never
		}
		for _, i := range c.more {
			m.combiner.Add(c.batch, Request[A]{Request: m.requests[i], Kind: m.kind, Client: c.client})
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

// queue has the requests of a client whom others ask about decided as Take would, but
// that those which wait for the same leader need one goroutine.
func (m *Many[A]) queue(c *check[A]) {
	waiting := append([]int{c.number}, c.more...)
	m.slow.Go(func() {
		defer func() {
			if cause := recover(); cause != nil {
				for _, i := range waiting {
					m.done(i, counters.Taken{Panic: cause, Stack: debug.Stack()})
				}
			}
		}()
		for len(waiting) > 0 {
			var requests []Request[A]
			for _, i := range waiting {
				requests = append(requests, Request[A]{Request: m.requests[i], Kind: m.kind, Client: c.client})
			}
			var more []counters.Taken // if the first leads
			d, err := m.combiner.Do(m.ctx, requests[0].Request.Client, requests[0], requests[1:], func(_ int, d counters.Decision, err error) {
				more = append(more, taken(d, err))
			})
			if err != nil {
				d, err = m.abandon(m.ctx, requests[0], d, err)
			}
			first := waiting[0]
			waiting = waiting[1:]
			m.done(first, counters.Taken{Decision: d, Err: err, Done: true})
			for _, t := range more {
				first, waiting = waiting[0], waiting[1:]
				m.done(first, t)
			}
		}
	})
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
	case Waits:
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
		m.answer(c, t)
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
		m.answer(c, counters.Taken{})
		return
	}
	m.goOn(c)
}

// conclude ends a check whose calls have been answered. What the store wouldn't do
// together with others is left to Take.
func (m *Many[A]) conclude(c *check[A]) {
	calls := c.batch.Calls()
	m.config.Options.Batch(len(calls))
	var more []counters.Taken
	for _, call := range calls[1 : 1+len(c.more)] {
		more = append(more, taken(call.Result, call.Err))
	}
	m.done(c.number, taken(m.release(c, true, nil)))
	for k, i := range c.more {
		m.done(i, more[k])
	}
}

func taken(d counters.Decision, err error) counters.Taken {
	if errors.Is(err, counters.ErrNotAdded) {
		return counters.Taken{}
	}
	return counters.Taken{Decision: d, Err: err, Done: true}
}

// release hands the client of a check over. Its calls fail if they weren't answered, as
// a panic with cause has ended it.
func (m *Many[A]) release(c *check[A], answered bool, cause any) (counters.Decision, error) {
	b, r := c.batch, &m.requests[c.number]
	if c.work != nil { // else it hasn't begun
		m.Book.end(c.client, c.work, b, r, &answered)
	}
	if c.batch, c.work = nil, nil; !answered {
		b.Fail(cause)
	}
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
	_, _ = m.release(c, false, cause)
	m.answer(c, counters.Taken{Panic: cause, Stack: stack})
}

// end returns when all checks have ended. Those that a panic of the store has
// cut short fail, and who has joined them.
func (m *Many[A]) end() {
	m.slow.Wait()
	for i := range m.checks {
		if c := &m.checks[i]; c.batch != nil {
			_, _ = m.release(c, false, nil)
		}
	}
}
