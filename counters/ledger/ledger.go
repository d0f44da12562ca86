// Package ledger is the one way in which a process decides about a client, with
// its store and without it, whatever the algorithm.
//
// A process keeps an account of each client that it remembers: what the store
// has, as last seen, and what is due, that is what the process has decided and the
// store must still be told. Each decision is one of these moves:
//
//   - With the store: the leader of the client's calls claims those that fit, has
//     the store change for all of them at once, and deals out the answers. Windows count
//     first and judge after: what was counted and denied after all is due back. Buckets and
//     logs decide first and swap the state: who loses the swap decides again.
//   - Alone, as the store has failed: what fits this process's share of what is left is
//     admitted, and is due. See Share.
//   - A refund: its cost is due back.
//   - A charge: its cost is due, be there room or not.
//   - Before the next decision with the store, what is due is told.
//
// Who comes first leads and can't leave. The others wait, each until its own deadline: see
// package combiner. Who leaves before a leader has claimed its call gets ErrWithdrawn, and
// nothing counts. Who leaves later gets the answer if there is one already, else a LeftError:
// what the store counts of the call is given back, unless it is admitted alone meanwhile.
//
// A call that fails isn't admitted by its leader: if the store turns out to have counted it
// all the same, its cost is due back. Its caller may then decide alone, by what is known, as
// may one that has left its leader, and what it admits is due like anything else. The error
// names the flight that the call was part of, so that what is admitted alone and what the
// store may still count of it aren't both counted.
//
// An exchange that counts is a flight while it is under way, and after that if it had no
// answer. Then the store is read before anything else is counted. What has come to it since may
// be the flight's: so much of what its callers have admitted alone is taken for told. If the
// store says later that the flight was done, or that it wasn't, the difference is due. Callers
// who weren't answered keep the flight, so that what they admit alone is due once, either way.
//
// A reset is a moment. Nothing that was decided before it, or up to a clock skew after it, is
// told; but what is due of a window's slot is one sum: what was admitted alone before a reset is
// told with what was after it.
//
// The words:
//
//	tell    have the store count what is due
//	late    an answer that comes after its exchange was given up
//	alone   without the store
//	apart   with the store, but not along with other clients
//	claim   take a call on, which can't be withdrawn from then on
//	batch   the calls of one client that a leader answers
//	many    those of many clients, whose exchanges go together
//
// A family of algorithms is an Account's arithmetic and the steps of its Work;
// Book does the rest. Start with Book, Family and Work.
package ledger

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"weir/counters"
	"weir/counters/cache"
	"weir/counters/combiner"
	"weir/counters/reconcile"
)

// A Config is what a Book is made of.
type Config[A any] struct {
	Family  Family[A]
	NewWork func() Work[A] // returns one that is used for one client after the other
	Options *counters.Options
	Clients int // that are remembered at most, or fewestClients if that is more
	// Bounded says that no call may take longer than the StoreTimeout, whatever its
	// context leaves.
	Bounded bool
	// Timeouts is how many store timeouts it may take to tell what is due: a
	// check has no time for several round trips where the store is far away.
	Timeouts int
}

// A Book is the accounts of a limit's clients, and what limiters of all families
// have in common. It is safe for concurrent use. Make one with Open.
type Book[A any] struct {
	Share
	config   Config[A]
	clients  *cache.Cache[Record[A]]
	combiner *combiner.Combiner[Request[A], counters.Decision]
	owing    *reconcile.Queue[*Record[A]]
	works    sync.Pool // of Work[A]
}

// fewestClients are remembered whatever the options say: concurrent calls of a client are
// answered together by what is remembered of it, and a caller that can't wait any longer has
// to know what its leader has seen.
const fewestClients = 32

// Open makes b the book of a limiter. The options have no zero values.
func (b *Book[A]) Open(c Config[A]) {
	c.Clients = max(fewestClients, c.Clients)
	b.config = c
	b.clients = cache.New[Record[A]](c.Clients)
	b.combiner = combiner.New(b.lead)
	b.owing = reconcile.New(c.Clients, c.Options.Background, b.tellDue)
	b.works.New = func() any { return c.NewWork() }
}

// Take admits r and consumes its cost, or denies it. A denied cost is consumed
// only with CountDenied. A Take that fails consumes nothing in the end: what the store turns
// out to have counted of it is given back. (If that is never known, it stays in use until time
// has passed over it.) The error is
// counters.ErrRequest, one of a store's, or of the context's.
func (b *Book[A]) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	c := b.clients.Get(r.Client)
	if r.Cost == 0 { // what it learns is remembered, as of any check
		return b.ask(ctx, Request[A]{Request: r, Kind: Peeks, Record: c})
	}
	if d, denied := b.denyAhead(c, r); denied {
		return d, nil
	}
	ctx, cancel := b.within(ctx, r.Now)
	defer cancel()
	q := Request[A]{Request: r, Record: c} // as ask does, without a hop
	d, err := b.combiner.Do(ctx, &c.calls, q, nil, nil)
	if err != nil {
		return b.abandon(q, d, err)
	}
	return d, nil
}

// denyAhead decides r if the answer is a denial that needs no store: the whole limit was in
// use a moment ago. Where something remains another instance may have taken it since, and
// then this one would promise too much.
func (b *Book[A]) denyAhead(c *Record[A], r counters.Request) (d counters.Decision, denied bool) {
	if !c.spent.Load() || b.config.Options.CountDenied {
		return d, false
	}
	c.calls.Lock()
	defer c.calls.Unlock()
	d, _, fresh := b.config.Family.Recall(&c.Account, r)
	d.Local = true
	return d, fresh && !d.Allowed && d.Remaining == 0
}

// Peek decides r by the store and consumes nothing but what is due. The error is
// counters.ErrRequest, or one that Take may return.
func (b *Book[A]) Peek(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	c := b.clients.Find(r.Client)
	if c == nil { // who only looks takes no room from those who are remembered
		c = new(Record[A])
	}
	return b.ask(ctx, Request[A]{Request: r, Kind: Peeks, Record: c})
}

// ask has q answered by a leader.
func (b *Book[A]) ask(ctx context.Context, q Request[A]) (counters.Decision, error) {
	ctx, cancel := b.within(ctx, q.Now)
	defer cancel()
	d, err := b.combiner.Do(ctx, &q.Record.calls, q, nil, nil)
	if err != nil {
		return b.abandon(q, d, err)
	}
	return d, nil
}

// abandon returns what becomes of q, to which the combiner has returned d and err.
func (b *Book[A]) abandon(q Request[A], d counters.Decision, err error) (counters.Decision, error) {
	var left *combiner.LeftError[Request[A], counters.Decision]
	if !errors.As(err, &left) && !errors.Is(err, combiner.ErrWithdrawn) {
		return d, err
	}
	q.Record.calls.Lock()
	defer q.Record.calls.Unlock()
	if left != nil {
		err = Failed(err, left.Call.Request.Flight)
	}
	if d, answered := b.config.Family.Leave(&q.Record.Account, q, err); answered && q.Kind != Tells {
		return d, nil
	}
	return d, err
}

// within returns ctx, or, if the book is bounded and ctx ends more than a StoreTimeout after
// began, one that ends a StoreTimeout from now.
func (b *Book[A]) within(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	most := b.config.Options.StoreTimeout
	if deadline, ok := ctx.Deadline(); !b.config.Bounded || most == 0 || ok && deadline.Sub(began) <= most {
		return ctx, nothing
	}
	return context.WithTimeout(ctx, most)
}

func nothing() {} // one in a generic function would be made anew each time

// A failure is the error of a call that was part of a flight.
type failure struct {
	error
	flight any
}

func (f *failure) Unwrap() error { return f.error }

// Failed returns err as that of a call which was part of a flight.
func Failed(err error, flight any) error { return &failure{err, flight} }

// TakeLocal decides r after a Take that failed with err: by what the process
// remembers of the client, however old that is, and what it has decided since. Of
// what is left by that it takes its share. What it admits is counted in the store as
// soon as that answers, before another check of this client. The error is
// counters.ErrRequest.
func (b *Book[A]) TakeLocal(r counters.Request, err error) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	var flight any
	if f := (*failure)(nil); errors.As(err, &f) {
		flight = f.flight
	}
	c := b.clients.Get(r.Client)
	c.calls.Lock()
	defer c.calls.Unlock()
	d := b.config.Family.Alone(&c.Account, r, flight)
	d.Local, d.Receipt.Client = true, c
	if d.Allowed || b.config.Options.CountDenied {
		b.note(c, r)
	}
	return d, nil
}

// Recall decides r by what the process remembers of the client, however old that
// is, and consumes nothing. It reports whether that is anything; of a wrong
// request it isn't.
func (b *Book[A]) Recall(r counters.Request) (counters.Decision, bool) {
	d, known, _ := b.recall(r)
	return d, known
}

// PeekLocal decides r by what the process has read of the client within
// counters.MaxStaleness, consumes nothing, and reports whether there is such
// knowledge; of a wrong request there is none, nor of a client of which something
// is due. A denial is certain but for what resets and refunds elsewhere have
// changed since.
func (b *Book[A]) PeekLocal(r counters.Request) (counters.Decision, bool) {
	d, _, fresh := b.recall(r)
	return d, fresh
}

func (b *Book[A]) recall(r counters.Request) (d counters.Decision, known, fresh bool) {
	c := b.clients.Find(r.Client)
	if c == nil || r.Check() != nil {
		return counters.Decision{}, false, false
	}
	c.calls.Lock()
	defer c.calls.Unlock()
	d, known, fresh = b.config.Family.Recall(&c.Account, r)
	d.Local = true
	return d, known, fresh
}

// Refund takes back a request that this limiter's Take or TakeLocal has admitted
// with the decision taken. Call it once for a decision, or for parts of it that add up to no
// more: what is beyond that is taken from others. Nothing is taken back of what was admitted
// before a reset of the client, or less than a clock skew after it. With windows there are
// two exceptions: a process that hasn't heard of the reset may take it from what it has
// admitted alone or charged in the same slot; and where several refunds of a slot wait together, one
// from before the reset cancels all.
//
// The error is counters.ErrRequest, one of a store's, or of the context's. A refund that
// surely wasn't done by the deadline of ctx is done later; Flush awaits it once. One whose
// outcome nobody ever learns is taken for done.
func (b *Book[A]) Refund(ctx context.Context, r counters.Request, taken counters.Decision) error {
	c, tell, err := b.refund(r, taken)
	if !tell {
		return err
	}
	return b.tell(ctx, Request[A]{Request: r, Kind: Tells, Record: c})
}

// refund notes that r is given back to the client that it returns, and reports whether the
// store is to be told.
func (b *Book[A]) refund(r counters.Request, taken counters.Decision) (c *Record[A], tell bool, err error) {
	if err := r.Check(); err != nil || r.Cost == 0 || !taken.Allowed {
		return nil, false, err
	}
	c, alone := taken.Receipt.Client.(*Record[A]) // which may have made room for another's
	if !alone {
		c = b.clients.Get(r.Client)
	}
	admitted := r
	if taken.Receipt.At != 0 {
		admitted.Now = time.Unix(0, taken.Receipt.At)
	}
	c.calls.Lock()
	defer c.calls.Unlock()
	return c, b.config.Family.Refund(&c.Account, admitted, taken), nil
}

// Charge consumes the cost of r, be there room or not: what is in use may be more than
// the limit then. The error is counters.ErrRequest; or one of a store's, or of the
// context's: then the cost is consumed here, and in the store as soon as that answers.
func (b *Book[A]) Charge(ctx context.Context, r counters.Request) error {
	if err := r.Check(); err != nil || r.Cost == 0 {
		return err
	}
	c := b.clients.Get(r.Client)
	c.calls.Lock()
	b.config.Family.Charge(&c.Account, r)
	c.calls.Unlock()
	return b.tell(ctx, Request[A]{Request: r, Kind: Tells, Record: c})
}

// tell has the store told what is due of the client of q, now or else later.
func (b *Book[A]) tell(ctx context.Context, q Request[A]) error {
	_, err := b.ask(ctx, q)
	if err != nil {
		b.tellLater(q.Record, q.Request)
	}
	return err
}

// tellDue has the store told what is due of a client, be it remembered or not: one that
// had to make room for others while the store was gone has been admitted all the same.
func (b *Book[A]) tellDue(c *Record[A], r counters.Request) error {
	return b.config.Options.Unhurried(b.config.Timeouts, func(ctx context.Context) error {
		_, err := b.combiner.Do(ctx, &c.calls, Request[A]{Request: r, Kind: Tells, Record: c}, nil, nil)
		return err
	})
}

// note has a client wait to be told of while anything is due. It is locked.
func (b *Book[A]) note(c *Record[A], r counters.Request) {
	if b.config.Family.Owes(&c.Account) {
		b.owing.Add(c, r)
	} else {
		b.owing.Repaid(c)
	}
}

// tellLater has the store told while nobody waits, and again later if that
// fails.
func (b *Book[A]) tellLater(c *Record[A], r counters.Request) {
	b.owing.Add(c, r)
	b.config.Options.Background.Go(func() { _ = b.tellDue(c, r) })
}

// Flush has the store told all that is due, as far as it answers, but for what exchanges
// without an answer may still count. It returns when nothing of that is under way any more,
// nor of a limiter with the same Background.
func (b *Book[A]) Flush() { b.owing.Flush() }

// Owing returns of how many clients something is due.
func (b *Book[A]) Owing() int { return b.owing.Waiting() }

// Clients returns the number of clients that are remembered.
func (b *Book[A]) Clients() int { return b.clients.Len() }

// ClientLimit returns the number of clients that can be remembered.
func (b *Book[A]) ClientLimit() int { return b.clients.Cap() }

// Forget drops the account of a client, and what is due of it. What is due of an account
// that had to make room before is told all the same.
func (b *Book[A]) Forget(client string) {
	if c := b.clients.Find(client); c != nil {
		b.clients.Forget(client)
		b.owing.Repaid(c)
	}
}

// Change calls do with the account of a client, which is locked.
func (b *Book[A]) Change(client string, do func(*A)) {
	c := b.clients.Get(client)
	c.calls.Lock()
	defer c.calls.Unlock()
	do(&c.Account)
}

// lead answers a batch of calls of one client. If the account is forgotten meanwhile, as too many
// others are asked about, it goes on with it all the same. A new account is to the old one as
// another process's. But if the new one gives back what the old one has counted in a window, the
// old one takes that for lost.
func (b *Book[A]) lead(ctx context.Context, batch *Batch[A]) {
	q := &batch.Calls()[0].Request
	c, r := q.Record, q.Request
	w := b.startWork(ctx, c, r.Client, batch)
	completed := false
	defer b.endWork(c, w, batch, &r, &completed)
	for b.nextStep(c, w) != Over {
		if w.Exchange(ctx); !b.finishStep(c, w, &r) {
			break
		}
	}
	completed = true
	b.config.Options.Batch(len(batch.Calls()))
}

func (b *Book[A]) startWork(ctx context.Context, c *Record[A], name string, batch *Batch[A]) Work[A] {
	w := b.works.Get().(Work[A])
	c.calls.Lock()
	defer c.calls.Unlock()
	w.Begin(ctx, &c.Account, name, batch)
	return w
}

func (b *Book[A]) nextStep(c *Record[A], w Work[A]) Step {
	c.calls.Lock()
	defer c.calls.Unlock()
	return w.Next()
}

func (b *Book[A]) finishStep(c *Record[A], w Work[A], r *counters.Request) (more bool) {
	more, flown := b.finishLocked(c, w)
	for _, f := range flown {
		b.await(c, r, f)
	}
	return more
}

func (b *Book[A]) finishLocked(c *Record[A], w Work[A]) (bool, []Flown) {
	c.calls.Lock()
	defer c.calls.Unlock()
	return w.Finish()
}

// await has the account learn what has become of a flight, once that is known.
func (b *Book[A]) await(c *Record[A], r *counters.Request, f Flown) {
	began, due := time.Now(), *r
	f.Late.WhenKnown(func(err error) {
		due.Now = due.Now.Add(time.Since(began))
		o := OutcomeOf(err)
		c.calls.Lock()
		defer c.calls.Unlock()
		b.config.Family.Learn(&c.Account, f.Flight, o)
		if o != Unknown && b.config.Family.Owes(&c.Account) {
			b.tellLater(c, due)
		}
	})
}

// endWork ends w and notes whether something is due. If a panic has cut it short, w isn't used
// again: nobody knows what is left in it.
func (b *Book[A]) endWork(c *Record[A], w Work[A], batch *Batch[A], r *counters.Request, completed *bool) {
	c.calls.Lock()
	defer c.calls.Unlock()
	w.End()
	if !*completed {
		return
	}
	c.spent.Store(slices.ContainsFunc(batch.Calls(), func(call *Call[A]) bool {
		return call.Request.Kind != Tells && call.Err == nil && call.Result.Remaining == 0
	}))
	b.works.Put(w)
	b.note(c, *r)
}

// Answered notes that the store has answered: what is due may be told.
func (b *Book[A]) Answered() { b.owing.Answered() }
