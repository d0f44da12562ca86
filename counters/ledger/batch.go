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

	refundScratch counters.Scratch[refund[A]]
	groupScratch  counters.Scratch[group[A]]
}

// A Many is the calls of many clients whose exchanges go together.
type Many[A any] struct {
	*ManyBook[A]
	ctx      context.Context
	kind     Kind
	requests []counters.Request
	done     func(i int, t counters.Taken)
	groups   []group[A] // one for each client that the store is asked about
	// Keys has a key of each group, by which a store finds its server.
	Keys []string
	slow *counters.Workers
	busy counters.Busy
}

// A group is the requests of a client that the store is asked about.
type group[A any] struct {
	number int   // of its first request
	more   []int // the numbers of its other requests
	record *Record[A]
	batch  *Batch[A] // while the client is led
	work   Work[A]   // the same
	asks   bool      // the work has decided what to ask next
	tries  int       // how often others were asking about it
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
		r := &requests[i]
		if r.Check() != nil || r.Cost == 0 {
			done(i, counters.Taken{})
			continue
		}
		c := b.clients.Get(r.Client)
		if d, denied := b.denyAhead(c, *r); denied {
			done(i, counters.Taken{Decision: d, Done: true})
			continue
		}
		m.add(i, c)
	}
	m.ask()
}

// refundDelay is how much later than it is due the store is told of a RefundSoon that nobody
// waits for.
const refundDelay = 20 * time.Millisecond

// A refund is what a client is given back soon.
type refund[A any] struct {
	record  *Record[A]
	request counters.Request
	told    func(panicked any) // nil if nobody waits
	done    bool
}

// RefundSoon is Refund, but it doesn't wait for a store of many clients, which is told of several
// refunds together: a moment later, or by the next check of the client. If told isn't nil,
// that is at once, and told is called when the store has been told, or hasn't by the deadline
// of ctx, or with what telling it has panicked with. It must not panic. Flush awaits it. The
// first of the refunds that wait together decides how all of them are told, and until when: so
// either all refunds of b have a told, or none.
func (b *ManyBook[A]) RefundSoon(ctx context.Context, r counters.Request, taken counters.Decision, told func(panicked any)) error {
	c, tell, err := b.refund(r, taken)
	switch {
	case tell && b.TakesMany():
		b.soon(ctx, refund[A]{record: c, request: r, told: told})
		return nil
	case tell:
		err = b.tell(ctx, Request[A]{Request: r, Kind: Tells, Record: c})
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
	if b.refunds == nil {
		b.refunds = b.refundScratch.Get(1)[:0]
	}
	if b.refunds = append(b.refunds, f); len(b.refunds) > 1 {
		return
	}
	b.config.Options.Background.Go(counters.Grown(func() {
		if f.told != nil {
			b.refundTogether(ctx)
			return
		}
		time.Sleep(refundDelay)
		_ = b.config.Options.Unhurried(b.config.Timeouts, func(ctx context.Context) error {
			b.refundTogether(ctx)
			return nil
		})
	}))
}

// refundTogether has the store told of all that is to be refunded soon.
func (b *ManyBook[A]) refundTogether(ctx context.Context) {
	b.mu.Lock()
	refunds := b.refunds
	b.refunds = nil
	b.mu.Unlock()
	// Those of one client follow one another.
	slices.SortFunc(refunds, func(f, g refund[A]) int { return strings.Compare(f.request.Client, g.request.Client) })
	requests := requestScratch.Get(len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].request
	}
	m := b.many(ctx, Tells, requests, func(i int, t counters.Taken) {
		if t.Done && t.Err == nil {
			b.ended(&refunds[i], nil)
		}
	})
	for i := range refunds {
		m.add(i, refunds[i].record)
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
			b.tellLater(f.record, f.request)
		default: // others are asking about the client, most likely
			f := *f
			b.config.Options.Background.Go(func() {
				defer func() { f.told(recover()) }()
				_ = b.tell(ctx, Request[A]{Request: f.request, Kind: Tells, Record: f.record})
			})
		}
	}
	if panicked == nil { // else others may be at work
		b.refundScratch.Put(refunds)
		requestScratch.Put(requests)
	}
}

// ended notes that the store was told of f, or that this has panicked.
func (b *ManyBook[A]) ended(f *refund[A], panicked any) {
	f.done = true
	if f.told != nil {
		f.told(panicked)
	}
}

// many returns a Many of calls for the requests.
func (b *ManyBook[A]) many(ctx context.Context, kind Kind, requests []counters.Request, done func(i int, t counters.Taken)) *Many[A] {
	return &Many[A]{
		ManyBook: b, ctx: ctx, kind: kind, requests: requests, done: done,
		groups: b.groupScratch.Get(len(requests))[:0], Keys: keyScratch.Get(len(requests))[:0],
		slow: counters.SlowWorkers(b.config.Options.StoreTimeout),
	}
}

var (
	keyScratch     counters.Scratch[string]
	requestScratch counters.Scratch[counters.Request]
)

// ask has the store asked, and returns when all calls are answered. m isn't used any more.
func (m *Many[A]) ask() {
	func() {
		defer m.end()
		if len(m.Keys) > 0 {
			m.Ask(m.ctx, m)
		}
	}()
	m.groupScratch.Put(m.groups)
	keyScratch.Put(m.Keys)
}

// add notes that the store is to be asked for the request of that number, of that client.
func (m *Many[A]) add(i int, c *Record[A]) {
	if n := len(m.groups); n > 0 && m.groups[n-1].record == c {
		m.groups[n-1].more = append(m.groups[n-1].more, i)
		return
	}
	c.calls.Lock()
	defer c.calls.Unlock()
	m.groups = append(m.groups, group[A]{number: i, record: c})
	m.Keys = append(m.Keys, m.Key(&c.Account, m.requests[i].Client))
}

// answer calls done for all requests of a group.
func (m *Many[A]) answer(g *group[A], t counters.Taken) {
	m.done(g.number, t)
	for _, i := range g.more {
		m.done(i, t)
	}
}

// Begin leads the client of that number, unless it does already, and returns its
// work if the store is to do its exchange now.
func (m *Many[A]) Begin(i int) (_ Work[A], turn counters.Turn) {
	g := &m.groups[i]
	defer m.rescue(g)
	if g.batch == nil {
		r := &m.requests[g.number]
		g.batch = m.combiner.Begin(&g.record.calls, Request[A]{Request: *r, Kind: m.kind, Record: g.record})
		if g.batch == nil {
			if m.busy.TryAgain(&g.tries) {
				return nil, counters.Later
			}
			if len(g.more) > 0 {
				m.queue(g)
			} else {
				m.done(g.number, counters.Taken{})
			}
			return nil, counters.Never
		}
		for _, i := range g.more {
			m.combiner.Add(g.batch, Request[A]{Request: m.requests[i], Kind: m.kind, Record: g.record})
		}
		g.work = m.startWork(m.ctx, g.record, r.Client, g.batch)
	}
	if !g.asks {
		if turn := m.plan(g); turn != counters.Now {
			return nil, turn
		}
	}
	g.asks = false
	return g.work, counters.Now
}

// queue has the requests of a client whom others ask about decided as Take would, but by one
// goroutine for all of them.
func (m *Many[A]) queue(g *group[A]) {
	waiting := append([]int{g.number}, g.more...)
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
				requests = append(requests, Request[A]{Request: m.requests[i], Kind: m.kind, Record: g.record})
			}
			var more []counters.Taken // if the first leads
			d, err := m.combiner.Do(m.ctx, &g.record.calls, requests[0], requests[1:], func(_ int, d counters.Decision, err error) {
				more = append(more, taken(d, err))
			})
			if err != nil {
				d, err = m.abandon(requests[0], d, err)
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

// plan says when the store is to do what a group asks next together with others.
func (m *Many[A]) plan(g *group[A]) counters.Turn {
	switch m.nextStep(g.record, g.work) {
	case Over:
		m.conclude(g)
		return counters.Never
	case Apart:
		m.goOn(g)
		return counters.Never
	case Waits:
		return counters.Later
	}
	return counters.Now
}

// goOn does the exchange of a group apart from others, and the rest too.
func (m *Many[A]) goOn(g *group[A]) {
	m.slow.Go(func() {
		defer m.rescue(g)
		r := &m.requests[g.number]
		g.work.Exchange(m.ctx)
		for m.finishStep(g.record, g.work, r) && m.nextStep(g.record, g.work) != Over {
			g.work.Exchange(m.ctx)
		}
		m.conclude(g)
	})
}

// Finish goes on with a client whose exchange has ended: said puts what the store
// has said into its work. If err isn't nil, it was never begun, and one that the store
// wouldn't do together with others is done apart. It reports whether Begin is to be called
// again.
func (m *Many[A]) Finish(i int, err error, said func(Work[A])) (again bool) {
	g := &m.groups[i]
	defer m.rescue(g)
	if g.batch == nil {
		m.answer(g, taken(counters.Decision{}, err))
		return false
	}
	if errors.Is(err, counters.ErrNotAdded) {
		m.goOn(g)
		return false
	}
	said(g.work)
	if !m.finishStep(g.record, g.work, &m.requests[g.number]) {
		m.conclude(g)
		return false
	}
	turn := m.plan(g)
	if err != nil && turn != counters.Never { // the store doesn't begin it again
		m.goOn(g)
		return false
	}
	g.asks = turn == counters.Now
	return turn != counters.Never
}

// conclude ends a group whose calls have been answered. What the store wouldn't do
// together with others is left to Take.
func (m *Many[A]) conclude(g *group[A]) {
	calls := g.batch.Calls()
	m.config.Options.Batch(len(calls))
	var more []counters.Taken
	for _, call := range calls[1 : 1+len(g.more)] {
		more = append(more, taken(call.Result, call.Err))
	}
	m.done(g.number, taken(m.release(g, true, nil)))
	for k, i := range g.more {
		m.done(i, more[k])
	}
}

func taken(d counters.Decision, err error) counters.Taken {
	if errors.Is(err, counters.ErrNotAdded) {
		return counters.Taken{}
	}
	return counters.Taken{Decision: d, Err: err, Done: true}
}

// release hands the client of a group over. Its calls fail if they weren't answered, as
// a panic with cause has ended it.
func (m *Many[A]) release(g *group[A], answered bool, cause any) (counters.Decision, error) {
	b, r := g.batch, &m.requests[g.number]
	if g.work != nil { // else it hasn't begun
		m.endWork(g.record, g.work, b, r, &answered)
	}
	if g.batch, g.work = nil, nil; !answered {
		b.Fail(cause)
	}
	return m.combiner.End(b)
}

// rescue answers a group whose decision has panicked: the others go on.
func (m *Many[A]) rescue(g *group[A]) {
	cause := recover()
	if cause == nil {
		return
	}
	if g.batch == nil { // it has been answered
		panic(cause)
	}
	stack := debug.Stack()
	_, _ = m.release(g, false, cause)
	m.answer(g, counters.Taken{Panic: cause, Stack: stack})
}

// end returns when all groups have ended. Those that a panic of the store has
// cut short fail, and who has joined them.
func (m *Many[A]) end() {
	m.slow.Wait()
	for i := range m.groups {
		if g := &m.groups[i]; g.batch != nil {
			_, _ = m.release(g, false, nil)
		}
	}
}
