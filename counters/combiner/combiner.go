// Package combiner answers concurrent calls at the same place together. The
// first caller at an idle place leads at once, so a lone caller waits for nobody.
// Callers that arrive while it works gather, and one of them leads them next.
//
// At one place, one leader works at a time. A caller leads at most once, in its
// own goroutine. A caller that waits can leave when its own time is over; a
// leader ends by its deadline. If a leader panics, its batch fails and the
// panic goes on. Start with New, Place and Do.
package combiner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLeaderFailed is the error of every call of a batch whose leader panicked
// or ended its goroutine. If the panic value is an error, that is wrapped too.
// What the leader had done by then is unknown.
var ErrLeaderFailed = errors.New("combiner: the leader of the batch failed")

// ErrWithdrawn comes with the context's error: no leader has claimed the call,
// and none will.
var ErrWithdrawn = errors.New("combiner: the call was not taken up in time")

// A LeftError is the context's error of a caller that has left a call which its
// leader has claimed. The leader is still at work on it, and finds out when it
// answers.
type LeftError[Q, R any] struct {
	Call *Call[Q, R]
	Err  error
}

func (e *LeftError[Q, R]) Error() string { return e.Err.Error() }
func (e *LeftError[Q, R]) Unwrap() error { return e.Err }

// A Combiner answers concurrent calls at the same place in batches. A caller
// leads at most one batch, and each batch runs in the goroutine of its leader.
//
// A Combiner is safe for concurrent use. Make one with New: the zero Combiner
// isn't usable.
type Combiner[Q, R any] struct {
	lead    func(ctx context.Context, batch *Batch[Q, R])
	calls   sync.Pool // of *Call
	batches sync.Pool // of *Batch
}

// A Place is where calls meet that are answered together. It is safe for concurrent
// use by one Combiner; the zero value is an idle place. It must not be copied. Its lock may also
// be that of what its user keeps beside it: a Combiner's methods take it, and lead is called
// without it.
type Place[Q, R any] struct {
	sync.Mutex
	batch *Batch[Q, R] // that is being led, or is about to be; nil if the place is idle
}

// New returns a Combiner that answers batches with lead.
//
// At one place, lead runs once at a time. It must Claim each call before it does
// something for it that can't be undone, and Answer those that it could claim: they
// return when lead has returned.
// Its context is that of the leader.
// lead must end by its deadline, but not when it is canceled: a leader whose
// client has hung up must not fail the other calls of the batch. Neither the
// context nor the batch may be used after lead has returned.
//
// If lead panics, its batch fails with ErrLeaderFailed and the panic goes on in
// the leader's goroutine.
func New[Q, R any](lead func(ctx context.Context, batch *Batch[Q, R])) *Combiner[Q, R] {
	c := &Combiner[Q, R]{lead: lead}
	c.calls.New = func() any { return &Call[Q, R]{wake: make(chan struct{}, 1)} }
	c.batches.New = func() any { return new(Batch[Q, R]) }
	return c
}

// A Call is one caller's request and its result.
type Call[Q, R any] struct {
	Request Q
	Result  R
	Err     error // if not nil, the caller gets it together with Result

	deadline time.Time // zero: none, or the caller never waited
	own      bool      // its caller leads, so it never leaves
	state    atomic.Int32
	// wake tells the waiting caller to look at state and at its clock. A value
	// too many does no harm, so senders never wait and nobody drains it.
	wake chan struct{}
}

// States of a Call.
const (
	waiting   int32 = iota
	elected         // to lead its batch
	claimed         // by its leader
	answered        // by its leader, who may use it until the batch is over
	batchOver       // the batch is over
	left            // by its caller: nobody takes the answer
)

// Claim claims the call for its leader, unless that has claimed or answered it before, and reports
// whether the caller hasn't left: from then on it can only leave with a LeftError. Only a leader
// may claim calls of its batch.
func (call *Call[Q, R]) Claim() bool {
	return call.own || call.state.CompareAndSwap(waiting, claimed) || call.state.Load() != left
}

// Answer sets the result of the call, and reports whether its caller gets it: if
// it doesn't, it has left. Only a leader may answer calls of its batch, each once.
func (call *Call[Q, R]) Answer(result R, err error) bool {
	call.Result, call.Err = result, err
	return call.own || call.state.CompareAndSwap(claimed, answered) || call.state.CompareAndSwap(waiting, answered) ||
		call.state.Load() != left
}

// Left reports whether the caller has left.
func (call *Call[Q, R]) Left() bool { return call.state.Load() == left }

// Own reports whether its caller is the leader, which never leaves.
func (call *Call[Q, R]) Own() bool { return call.own }

func (call *Call[Q, R]) signal() {
	select {
	case call.wake <- struct{}{}:
	default:
	}
}

// A Batch is the calls that one leader answers. Only the lead function may use
// it, and only until it returns.
type Batch[Q, R any] struct {
	calls  []*Call[Q, R]
	begun  bool         // the leader is at work; whoever arrives goes to next
	next   *Batch[Q, R] // nil until a call arrives behind the leader
	leader *Call[Q, R]  // nil until there is one
	first  Call[Q, R]   // that of Begin: here, it needs no look for one that is free
	place  *Place[Q, R]
	// alarm is that of the place, if this is its first batch; nil if nobody has waited yet.
	alarm *alarm[Q, R]
}

// Calls returns the calls of the batch in the order of their arrival, in a
// slice that must not be changed. Callers that have given up since the batch
// began are still among them.
func (b *Batch[Q, R]) Calls() []*Call[Q, R] {
	return b.calls
}

// Join moves the calls that have gathered behind the batch to its end and
// returns all its calls. A leader that starts over (a lost compare-and-swap)
// calls it, with the place locked, to answer them too. They share its deadline from then on,
// which may be earlier than theirs.
func (b *Batch[Q, R]) Join() []*Call[Q, R] {
	if b.next != nil {
		b.calls = append(b.calls, b.next.calls...)
		clear(b.next.calls)
		b.next.calls = b.next.calls[:0]
	}
	return b.calls
}

// Do returns the result of q, or the error, that lead gave at p.
//
// While it waits for another leader, it returns the context's error as soon as
// ctx is done, or at most a millisecond after its deadline; ctx.Done need not
// fire then. With ErrWithdrawn no leader has claimed the call, nor will;
// otherwise the error is wrapped in a *LeftError. Once Do leads, only lead ends
// it. Do neither waits nor looks at ctx if p is idle.
//
// A caller may have more to ask at p, as qs: if it leads, these are answered with q, and
// more is called with the number and the result of each. Otherwise it isn't called.
func (c *Combiner[Q, R]) Do(ctx context.Context, p *Place[Q, R], q Q, qs []Q, more func(i int, result R, err error)) (R, error) {
	call := c.calls.Get().(*Call[Q, R])
	call.Request = q

	p.Lock()
	b := p.batch
	if b == nil {
		b = c.batches.Get().(*Batch[Q, R])
		b.begin(p, call)
		p.Unlock()
	} else {
		c.join(ctx, p, call)
		for call.state.Load() != elected {
			if done := ctx.Done(); done == nil {
				<-call.wake // a select would cost a third more
			} else {
				select {
				case <-call.wake:
				case <-done:
				}
			}
			if call.state.Load() == batchOver {
				result, err := call.Result, call.Err
				c.release(call)
				return result, err
			}
			if err := ended(ctx); err != nil {
				return c.leave(p, call, err)
			}
		}
		p.Lock()
		b = p.batch
		b.begun, call.own = true, true
		p.Unlock()
	}

	returned := false
	defer c.conclude(b, &returned)
	first := len(b.calls)
	for _, q := range qs {
		c.Add(b, q)
	}
	c.lead(ctx, b)
	for i := range qs {
		more(i, b.calls[first+i].Result, b.calls[first+i].Err)
	}
	returned = true
	return call.Result, call.Err
}

// begin has call lead b at p, which is idle, and locked.
func (b *Batch[Q, R]) begin(p *Place[Q, R], call *Call[Q, R]) {
	b.calls, b.begun, b.leader, b.place, call.own = append(b.calls, call), true, call, p, true
	p.batch = b
}

// Begin makes its caller the leader at p with the call q, if p is idle, and otherwise
// returns nil. It is for those who lead at several places at a time: they do for the call,
// the only one of the batch until they Join others, what lead would, and must End the batch,
// whatever happens. They wait at no other place in between.
func (c *Combiner[Q, R]) Begin(p *Place[Q, R], q Q) *Batch[Q, R] {
	p.Lock()
	defer p.Unlock()
	if p.batch != nil {
		return nil
	}
	b := c.batches.Get().(*Batch[Q, R])
	b.first.Request = q
	b.begin(p, &b.first)
	return b
}

// Add has b, which its caller leads, answer q too. It is the last of Calls.
func (c *Combiner[Q, R]) Add(b *Batch[Q, R], q Q) {
	call := c.calls.Get().(*Call[Q, R])
	call.Request, call.own = q, true
	b.place.Lock()
	defer b.place.Unlock()
	b.calls = append(b.calls, call)
}

// End hands the place over where Begin returned b, and returns the result of its call. The
// batch must not be used afterwards.
func (c *Combiner[Q, R]) End(b *Batch[Q, R]) (R, error) {
	result, err, concluded := b.leader.Result, b.leader.Err, true
	c.conclude(b, &concluded)
	return result, err
}

// join makes call one of the batch at p, or of the one behind it if that has begun. The
// place is locked, and isn't afterwards.
func (c *Combiner[Q, R]) join(ctx context.Context, p *Place[Q, R], call *Call[Q, R]) {
	defer p.Unlock()
	b := p.batch
	if b.begun {
		if b.next == nil {
			b.next = c.batches.Get().(*Batch[Q, R])
			b.next.place = p
		}
		b = b.next
	}
	b.calls = append(b.calls, call)
	if deadline, ok := ctx.Deadline(); ok {
		call.deadline = deadline
		p.arm(deadline)
	}
}

// conclude deals out the results of b and hands its place over. Its leader defers
// it: lead has returned, or else panicked or ended the goroutine.
func (c *Combiner[Q, R]) conclude(b *Batch[Q, R], returned *bool) {
	var cause any
	if !*returned {
		cause = recover() // nil after runtime.Goexit
		b.Fail(cause)
	}
	p := b.place
	p.Lock()
	c.handOver(p)
	p.Unlock()
	// Only now, as sweep may read the calls of a batch until it is handed over.
	for _, call := range b.calls {
		if call == &b.first {
			continue
		}
		if call.own {
			c.release(call)
		} else if call.state.Swap(batchOver) != left {
			call.signal()
		}
	}
	c.recycle(b)
	if cause != nil {
		panic(cause)
	}
}

// ended returns the error of a context that is done or past its deadline.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Fail answers the calls that haven't been with ErrLeaderFailed, for a leader that
// has panicked with cause, if that isn't nil.
func (b *Batch[Q, R]) Fail(cause any) {
	err := ErrLeaderFailed
	if wrapped, ok := cause.(error); ok {
		err = fmt.Errorf("%w: %w", err, wrapped)
	} else if cause != nil {
		err = fmt.Errorf("%w: %v", err, cause)
	}
	for _, call := range b.calls {
		if call.state.Load() < answered { // who has left may be reading its answer
			var none R
			call.Answer(none, err)
		}
	}
}

// leave ends the wait of a caller whose context has ended with err. A call that was claimed, or
// whose batch has begun, isn't used again, as the leader may still use it.
func (c *Combiner[Q, R]) leave(p *Place[Q, R], call *Call[Q, R], err error) (R, error) {
	var none R
	switch call.state.Swap(left) {
	case waiting, elected:
		if c.withdraw(p, call) {
			c.release(call)
		}
		return none, fmt.Errorf("%w: %w", ErrWithdrawn, err)
	case claimed:
		return none, &LeftError[Q, R]{call, err}
	}
	return call.Result, call.Err
}

// withdraw takes the call out of its batch, unless that has begun, and reports
// whether it has.
func (c *Combiner[Q, R]) withdraw(p *Place[Q, R], call *Call[Q, R]) bool {
	p.Lock()
	defer p.Unlock()
	for b := p.batch; b != nil; b = b.next {
		if i := slices.Index(b.calls, call); i >= 0 && !b.begun {
			b.calls = slices.Delete(b.calls, i, i+1)
			if b.leader == call {
				c.elect(p)
			}
			return true
		}
	}
	return false
}

// handOver replaces the finished batch at p, which is locked, by the one gathered behind
// it, if there is one.
func (c *Combiner[Q, R]) handOver(p *Place[Q, R]) {
	b := p.batch
	if p.batch = b.next; p.batch == nil {
		b.quiet()
		return
	}
	p.batch.alarm, b.alarm = b.alarm, p.batch.alarm
	c.elect(p)
}

// elect makes a caller of the batch at p, which has not begun, its leader, or leaves p idle
// if all callers have left. The place is locked.
//
// The last one to expire leads: the others would fail with a leader that has
// hardly any time left, while they can leave when their own time ends.
func (c *Combiner[Q, R]) elect(p *Place[Q, R]) {
	b := p.batch
	for {
		b.leader = nil
		for _, call := range b.calls {
			if call.state.Load() != left && (b.leader == nil || !call.before(b.leader)) {
				b.leader = call
			}
		}
		if b.leader == nil {
			p.batch = nil
			b.quiet()
			c.recycle(b)
			return
		}
		if b.leader.state.CompareAndSwap(waiting, elected) {
			b.leader.signal()
			return
		}
	}
}

// before reports whether the call expires before other.
func (call *Call[Q, R]) before(other *Call[Q, R]) bool {
	return !call.deadline.IsZero() && (other.deadline.IsZero() || call.deadline.Before(other.deadline))
}

// release puts back a call that is in no batch, or whose batch is over.
// The leader may still be about to signal it, so wake isn't touched.
func (c *Combiner[Q, R]) release(call *Call[Q, R]) {
	var request Q
	var result R
	call.Request, call.Result, call.Err, call.deadline, call.own = request, result, nil, time.Time{}, false
	call.state.Store(waiting)
	c.calls.Put(call)
}

// recycle puts back a batch that nobody else can reach.
func (c *Combiner[Q, R]) recycle(b *Batch[Q, R]) {
	clear(b.calls)
	*b = Batch[Q, R]{calls: b.calls[:0], alarm: b.alarm}
	c.batches.Put(b)
}

// An alarm wakes those at a place whose deadline has passed. There is one for all of them:
// with one for each, a call at a busy place takes half as long again.
type alarm[Q, R any] struct {
	place atomic.Pointer[Place[Q, R]] // which the timer reads while that isn't locked
	timer *time.Timer
	due   time.Time // when timer fires; zero if it won't
}

// sweepInterval is the longest time that a caller waits beyond its deadline, so
// that deadlines close together share a sweep.
const sweepInterval = time.Millisecond

// arm makes p, which is locked and in use, be swept at deadline or earlier.
func (p *Place[Q, R]) arm(deadline time.Time) {
	a := p.batch.alarm
	if a == nil {
		a = new(alarm[Q, R])
		p.batch.alarm = a
	}
	if !a.due.IsZero() && !deadline.Before(a.due) {
		return
	}
	a.place.Store(p)
	a.due = deadline
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(deadline), func() { a.place.Load().sweep(a) })
	} else {
		a.timer.Reset(time.Until(deadline))
	}
}

// quiet stops the alarm of b, which was the last at its place. One that rings all the same does no
// harm, here or where b is used next. The place is locked.
func (b *Batch[Q, R]) quiet() {
	if a := b.alarm; a != nil && !a.due.IsZero() {
		a.timer.Stop()
		a.due = time.Time{}
	}
}

// sweep wakes the callers at p whose deadline has passed.
func (p *Place[Q, R]) sweep(a *alarm[Q, R]) {
	p.Lock()
	defer p.Unlock()
	if p.batch == nil || p.batch.alarm != a {
		return // they have gone
	}
	now := time.Now()
	var due time.Time
	for b := p.batch; b != nil; b = b.next {
		for _, call := range b.calls {
			switch {
			case call.deadline.IsZero():
			case !call.deadline.After(now):
				call.signal()
			case due.IsZero() || call.deadline.Before(due):
				due = call.deadline
			}
		}
	}
	a.due = time.Time{}
	if due.IsZero() {
		return
	}
	if earliest := now.Add(sweepInterval); due.Before(earliest) {
		due = earliest
	}
	p.arm(due)
}
