package cas

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/counters"
	"weir/counters/cache"
	"weir/counters/combiner"
	"weir/counters/reconcile"
)

// ErrContended: until the deadline, other instances changed the client's state
// between each attempt's read and its write, so that nothing could be refunded.
var ErrContended = errors.New("cas: other instances changed the state first at each attempt")

// contendedRetry is the RetryAfter of a request that there is room for, but
// that others were faster than at each attempt.
const contendedRetry = time.Millisecond

// heldUpPart is the part of the store timeout that others have to take from a
// check for it to be contended when its time is over: with less, the store has
// failed.
const heldUpPart = 4

// Config configures a Limiter.
type Config struct {
	counters.Options
	// Swaps is called after each batch that changed a state, or tried to, if it
	// isn't nil: with the number of attempts, and how many of those lost a
	// race.
	Swaps func(attempts, lost int)
	// Foreign is called for each value found that isn't a state, if it isn't
	// nil. The client then starts anew.
	Foreign func()
}

// A Limiter admits requests by a state per client, of type S, which it replaces
// by compare-and-swap: what it decides is what the algorithm decides for all
// requests of all instances, one after the other.
//
// Concurrent checks of a client are decided in one step, in their order, so
// that a process is one contender however many callers it has. Each attempt is
// one round trip: it starts from the state that the process has seen last, or
// from none, and an attempt that loses brings back the one that won. A denial
// writes nothing, and needs no round trip at all when the state was seen within
// counters.MaxStaleness. What is remembered is only a cache: losing it changes
// no decision but those denials.
//
// Clients whose requests have different limits are kept for as long as the
// requests written last need.
//
// It is safe for concurrent use. Make one with NewTokenBucket, NewLeakyBucket
// or NewSlidingLog: the zero Limiter can decide nothing, and panics.
type Limiter[S any] struct {
	store     counters.StateStore
	many      counters.ManyStateStore // the store, or nil
	algorithm algorithm[S]
	cfg       Config
	keys      counters.Namespace
	combiner  *combiner.Combiner[request, counters.Decision]
	views     *cache.Cache[view[S]]
	owing     *reconcile.Queue
	decisions sync.Pool // of *deciding[S]
}

// A request asks to take, or to refund what was taken.
type request struct {
	counters.Request
	view   any     // a *view[S] of the client
	refund *refund // nil to take

	// stage is how far the leader is with it, and alone how TakeLocal has
	// answered it meanwhile. The view's lock guards both.
	stage stage
	alone verdict
}

// A stage of a request.
type stage uint8

const (
	waiting   stage = iota
	consuming       // what is under way to the store may include it
	answered        // by the leader
)

// A verdict on a request whose caller hasn't waited for the leader.
type verdict uint8

const (
	undecided verdict = iota
	promised          // what the leader is having consumed
	withdrawn
)

// reach notes how far the leader, whose view is v, is with the request. It
// returns how that was before.
func (r *request) reach(v any, s stage) stage {
	if r.view != v {
		return waiting // as v doesn't guard it
	}
	before := r.stage
	r.stage = s
	return before
}

// verdict returns how TakeLocal has answered the request, as far as v, the
// leader's view, knows.
func (r *request) verdict(v any) verdict {
	if r.view != v || r.refund != nil {
		return undecided
	}
	return r.alone
}

// A refund is a request to take back what a request was admitted with.
type refund struct {
	taken counters.Decision
	begun atomic.Bool // a leader has taken it up
	last  bool        // refundNow does it
}

type (
	call  = combiner.Call[request, counters.Decision]
	batch = combiner.Batch[request, counters.Decision]
)

// fewestClients are remembered whatever the options say: a caller that can't
// wait for its batch any longer has to know what the batch has seen.
const fewestClients = 32

// init makes l a limiter by algorithm a, which the keys of its states name. It
// remembers no more than mostClients.
func (l *Limiter[S]) init(store counters.StateStore, a algorithm[S], name string, mostClients int, cfg Config) error {
	options, err := cfg.Options.WithDefaults()
	if err == nil && store == nil {
		err = errors.New("a limiter needs a store; memory.New makes one")
	}
	if err != nil {
		return err
	}
	cfg.Options = options
	*l = Limiter[S]{
		store: store, algorithm: a, cfg: cfg,
		keys:  counters.StateNamespace(options.KeyPrefix, options.Policy, options.Limit, name),
		views: cache.New[view[S]](max(fewestClients, min(options.Clients, mostClients))),
	}
	l.many, _ = store.(counters.ManyStateStore)
	l.combiner = combiner.New(l.lead)
	l.owing = reconcile.New(options.Clients, options.Refunds, l.reconcile)
	return nil
}

// Take admits r and consumes its cost, or denies it. A denied cost is consumed
// only with CountDenied. If other instances changed the state first until the
// deadline, the last state seen decides: what it would admit is denied too, as
// Contended, unless the client was reset meanwhile and nothing is known any
// more. The error is counters.ErrRequest, one of a store's, or of the
// context's; after one of the latter two the cost may have been consumed.
func (l *Limiter[S]) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	if r.Cost == 0 {
		s, err := l.look(ctx, r)
		if err != nil {
			return counters.Decision{}, err
		}
		return l.peek(s, r), nil
	}
	v := l.views.Get(r.Client)
	d, err := l.combiner.Do(ctx, r.Client, request{Request: r, view: v})
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !r.RefundUnanswered {
		return d, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	own := own(err, v)
	if own != nil && own.Request.stage == answered && own.Err == nil {
		return own.Result, nil
	}
	contended := l.contended(ctx, v, err)
	if own != nil && (contended || r.RefundUnanswered) {
		own.Request.alone = withdrawn
	}
	if contended {
		return l.contend(v.last.decoded, r), nil
	}
	return d, err
}

// contended reports whether a wait for others who led, which has ended with err,
// is contention: the time was over, and the store still answered them in a good
// part of it, or other instances have held them up. v is locked.
func (l *Limiter[S]) contended(ctx context.Context, v *view[S], err error) bool {
	deadline, ok := ctx.Deadline()
	return ok && errors.Is(err, context.DeadlineExceeded) &&
		(v.heldUp.After(deadline.Add(-l.cfg.StoreTimeout)) || v.last.read.After(deadline.Add(l.cfg.StoreTimeout/heldUpPart-l.cfg.StoreTimeout)))
}

// own returns the call of a caller that has left with err, if v guards it.
func own(err error, v any) *call {
	var left *combiner.LeftError[request, counters.Decision]
	if errors.As(err, &left) && left.Call.Request.view == v {
		return left.Call
	}
	return nil
}

// contend denies r by a state that couldn't be replaced.
func (l *Limiter[S]) contend(s S, r counters.Request) counters.Decision {
	d := l.peek(s, r)
	if d.Allowed {
		d.Allowed, d.Contended, d.RetryAfter, d.Wait = false, true, contendedRetry, 0
	}
	return d
}

// peek is the algorithm's, within what the state can last.
func (l *Limiter[S]) peek(s S, r counters.Request) counters.Decision {
	d := l.algorithm.peek(s, r)
	l.bound(&d, s, r)
	return d
}

// bound bounds the times of a decision by those that the state can last: one of
// a clock that was ahead expires before that time has come.
func (l *Limiter[S]) bound(d *counters.Decision, s S, r counters.Request) {
	if d.ResetAfter <= counters.MaxStaleness { // no lag that matters
		return
	}
	// Memcached keeps whole seconds, rounded up.
	most := counters.TTL(l.algorithm.ttl(s, r), l.cfg.Horizon()) + time.Second
	d.ResetAfter, d.FitsAfter = min(d.ResetAfter, most), min(d.FitsAfter, most)
	if d.RetryAfter != forever {
		d.RetryAfter = min(d.RetryAfter, most)
	}
}

// Peek decides r by the store and consumes nothing but what TakeLocal has
// admitted. With the decision, at the same time, Refund can give back what a
// bucket has in use: as much as it is told to, or less if others come in
// between. The error is counters.ErrRequest, or one that Take may return.
func (l *Limiter[S]) Peek(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	s, err := l.look(ctx, r)
	if err != nil {
		return counters.Decision{}, err
	}
	d := l.peek(s, r)
	d.Generation, _ = l.algorithm.began(s)
	return d, nil
}

// look returns the state that the store has, with what TakeLocal has admitted,
// or what the store has lost of it. If waiting for the store to consume that has
// taken the time to ask it once more, it is the state that the process knows.
func (l *Limiter[S]) look(ctx context.Context, r counters.Request) (s S, err error) {
	v := l.views.Find(r.Client)
	if v != nil {
		if _, owed := v.recallAll(); owed.number > 0 { // the store has to consume it first
			owing := request{Request: r, view: v}
			owing.Cost = 0
			_, err = l.combiner.Do(ctx, r.Client, owing)
			v.mu.Lock()
			contended, known := l.contended(ctx, v, err), v.believe(l.algorithm, r).after
			v.mu.Unlock()
			if contended {
				return known, nil
			}
		}
	}
	var state counters.State
	if err == nil {
		state, err = l.store.Load(ctx, l.keys.StateKey(r.Client))
	}
	if err != nil {
		return s, err
	}
	l.owing.Answered()
	seen := snapshot[S]{known: true}
	seen.decoded, seen.origin, _ = l.decode(state)
	if v != nil {
		seen = l.recover(seen, v.recall(), r)
	}
	return seen.decoded, nil
}

// PeekLocal decides r by the state that the process has seen within
// counters.MaxStaleness, consumes nothing, and reports whether there is one; a
// wrong request has none, nor has a client that TakeLocal has admitted since. A
// denial is certain but for what resets and refunds elsewhere have changed
// since.
func (l *Limiter[S]) PeekLocal(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil || r.Check() != nil {
		return counters.Decision{}, false
	}
	seen, owed := v.recallAll()
	if !seen.fresh(r.Now) || owed.number > 0 {
		return counters.Decision{}, false
	}
	d := l.peek(seen.decoded, r)
	d.Local = true
	return d, true
}

// Refund takes back a request that Take admitted with the decision taken, as
// far as time hasn't passed over it; nothing if the client has been reset
// since. The error is counters.ErrRequest, ErrContended, one of a store's, or
// of the context's. A refund that isn't done by the deadline of ctx goes on for
// the StoreTimeout, which Flush awaits. One that surely failed is tried again
// once. After that the cost stays in use until time has passed over it.
func (l *Limiter[S]) Refund(ctx context.Context, r counters.Request, taken counters.Decision) error {
	if err := r.Check(); err != nil || r.Cost == 0 || !taken.Allowed {
		return err
	}
	v := l.views.Get(r.Client)
	if taken.Pending != nil {
		var consumed bool
		if taken, consumed = l.undo(r, taken); !consumed {
			return nil
		}
	}
	req := request{Request: r, view: v, refund: &refund{taken: taken}}
	_, err := l.combiner.Do(ctx, r.Client, req)
	if err != nil && !req.refund.begun.Load() {
		l.refundLater(req)
	}
	return err
}

// undo takes back r, which TakeLocal has admitted, unless the store has consumed
// it: then it returns what it was taken with.
func (l *Limiter[S]) undo(r counters.Request, taken counters.Decision) (_ counters.Decision, consumed bool) {
	v, _ := taken.Pending.(*view[S])
	own, pending := taken.Pending.(*call)
	if pending {
		v = own.Request.view.(*view[S])
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	unsent := taken.Owed
	switch {
	case !pending:
	case own.Request.stage == consuming: // and its leader refunds it
		own.Request.alone = withdrawn
		return taken, false
	case own.Request.stage == answered && own.Err == nil && own.Result.Allowed:
		return own.Result, true
	default:
		unsent = own.Request.stage == waiting || own.Err != nil && undone(own.Err)
	}
	refund := func(s S) S { return l.algorithm.refund(l.algorithm.clone(s), r, taken) }
	owed, unknown := v.takeBack(refund, r.Now, unsent)
	if unknown || owed && v.underWay {
		l.cfg.RefundFailed() // if the store consumes it, and others write, it stays so
	}
	if owed || unknown {
		return taken, false
	}
	// Others may have written before: it was consumed in their generation, be it
	// a later one, unless that began with a reset after it.
	now, reset := r.Now.UnixNano(), v.last.origin.reset+int64(l.cfg.ClockSkew)
	generation, _ := l.algorithm.began(v.last.decoded)
	if now > reset && (generation <= now || generation == v.consumed.generation && now <= v.consumed.until) {
		taken.Generation = generation
	}
	// What was in front of it drains beside it, or was given back here alone.
	taken.Remaining, taken.Refunded = counters.MaxLimit, 0
	return taken, true
}

// reconcile has the store consume what TakeLocal has admitted of r's client.
func (l *Limiter[S]) reconcile(r counters.Request) error {
	return l.cfg.Unhurried(1, func(ctx context.Context) error {
		_, err := l.combiner.Do(ctx, r.Client, request{Request: r, view: l.views.Get(r.Client)})
		return err
	})
}

// refundLater does a refund that nobody waits for any more.
func (l *Limiter[S]) refundLater(req request) {
	l.cfg.Refunds.Go(func() { l.refundNow(req, 1) })
}

// refundNow does a refund, and again as long as it surely wasn't done, in so
// many tries.
func (l *Limiter[S]) refundNow(req request, tries int) {
	done := l.cfg.Refund(tries, undone, func(ctx context.Context) error {
		req.refund = &refund{taken: req.refund.taken, last: true}
		_, err := l.combiner.Do(ctx, req.Client, req)
		return err
	})
	if !done {
		l.cfg.RefundFailed()
	}
}

// notSent reports whether a Take that failed with err has surely consumed
// nothing.
func notSent(err error) bool {
	return errors.Is(err, counters.ErrNotSent) || errors.Is(err, combiner.ErrWithdrawn)
}

// refusals returns the refunds of the calls that fail with err, or whose callers
// have left and were refused, and that were to be admitted all the same by what
// the store was told last. v is locked.
func (l *Limiter[S]) refusals(v *view[S], calls []*call, err error) (refunds []request) {
	if err != nil && undone(err) {
		return nil
	}
	for _, call := range calls {
		req := call.Request
		alone := req.verdict(v)
		refused := err != nil && alone != promised && (req.RefundUnanswered || errors.Is(err, ErrContended)) ||
			alone == withdrawn && req.stage == consuming
		if refused && req.refund == nil && call.Result.Allowed {
			req.refund = &refund{taken: call.Result}
			refunds = append(refunds, req)
		}
	}
	return refunds
}

// settle does refunds of what was consumed, if err is nil or the store tells
// that it was.
func (l *Limiter[S]) settle(refunds []request, err error) {
	var unanswered *counters.Unanswered
	if errors.As(err, &unanswered) {
		// If the outcome is known already, the leader is told here and now. It can't
		// wait for the refunds, as they wait until it has handed the client over.
		var later atomic.Bool
		unanswered.Later(func(err error) {
			if all := l.refundAll(refunds, err); later.Load() {
				all.Wait()
			}
		})
		later.Store(true)
	} else {
		l.refundAll(refunds, err)
	}
}

// refundAll begins refunds of what failed with err, unless that was surely not
// done, and returns what awaits them.
func (l *Limiter[S]) refundAll(refunds []request, err error) *sync.WaitGroup {
	all := new(sync.WaitGroup)
	for _, req := range refunds {
		switch {
		case err == nil:
			all.Add(1)
			l.cfg.Refunds.Go(func() {
				defer all.Done()
				l.refundNow(req, 2)
			})
		case !errors.Is(err, counters.ErrNotSent):
			l.cfg.RefundFailed()
		}
	}
	return all
}

// heed has v know if the store tells that it hasn't written the state, which it
// was told to with the debt owed and which failed with err.
func (l *Limiter[S]) heed(v *view[S], owed *debt[S], r counters.Request, err error) {
	var unanswered *counters.Unanswered
	if errors.As(err, &unanswered) {
		unanswered.Later(func(err error) {
			if errors.Is(err, counters.ErrNotSent) {
				v.undone(owed, l.algorithm, r)
				l.owing.Add(r)
			}
		})
	}
}

// refundFailed decides what becomes of a refund that a leader couldn't do.
func (l *Limiter[S]) refundFailed(req request, err error) {
	switch {
	case req.refund.last: // refundNow decides
	case undone(err):
		l.refundLater(req)
	default:
		l.cfg.RefundFailed()
	}
}

// undone reports whether what failed with err surely wasn't done: what was cut
// off may have been written.
func undone(err error) bool {
	return notSent(err) || errors.Is(err, ErrContended) && !errors.Is(err, counters.ErrTimeout)
}

// Flush has the store consume what TakeLocal has admitted, as far as it
// answers, and returns when no refund is under way any more, of no limiter that
// has the same Refunds.
func (l *Limiter[S]) Flush() { l.owing.Flush() }

// Owing returns of how many clients the store hasn't consumed yet what TakeLocal
// has admitted.
func (l *Limiter[S]) Owing() int { return l.owing.Waiting() }

// Reset forgets what the client has used. No write that began before undoes
// that, as the state it would replace is gone, and nobody puts back what is
// remembered of it. Other instances notice within counters.MaxStaleness. The
// error is counters.ErrRequest or one of a store's.
func (l *Limiter[S]) Reset(ctx context.Context, client string, now time.Time) error {
	if err := cmp.Or(counters.CheckClient(client), counters.CheckNow(now)); err != nil {
		return err
	}
	key := l.keys.StateKey(client)
	var initial S
	var o origin
	state, err := l.store.Load(ctx, key)
	for attempt, done := 1, false; err == nil && !done; attempt++ {
		_, old, _ := l.decode(state)
		o = old.markAt(now.UnixNano(), l.marked(l.algorithm.lasts()))
		o.reset = o.mark
		value, ttl := l.algorithm.encode(o.append(nil), initial), counters.TTL(o.marked, l.cfg.Horizon())
		if attempt < resetAttempts {
			// Of two resets the second has to have the later mark.
			state, done, err = l.store.Swap(ctx, key, state, value, ttl)
		} else {
			err, done = l.store.Put(ctx, key, value, ttl), true
		}
	}
	if err != nil {
		return err
	}
	l.views.Forget(client)
	l.views.Get(client).remember(snapshot[S]{known: true, origin: o, expires: time.Now().Add(o.marked)})
	return nil
}

// resetAttempts is how often a reset tries to replace the state that it has
// seen, before it replaces whatever is there.
const resetAttempts = 4

// Clients returns the number of clients that are remembered.
func (l *Limiter[S]) Clients() int { return l.views.Len() }

// StateBytes returns how many bytes the state has of a client that asks evenly,
// and as often as the limit allows.
func (l *Limiter[S]) StateBytes(limit int64) int {
	var state S
	n := min(limit, 10_000) // no log has more entries, and a bucket doesn't grow
	for i := range n {
		at := time.Unix(0, i*(int64(l.algorithm.lasts())/n)) // multiplied first, it may overflow
		state, _ = l.algorithm.step(state, counters.Request{Cost: limit / n, Limit: limit, Now: at})
	}
	return len(l.algorithm.encode(nil, state))
}

// lead answers a batch of one client's calls.
func (l *Limiter[S]) lead(ctx context.Context, client string, b *batch) {
	var d deciding[S]
	d.start(l, ctx, l.keys.StateKey(client), b)
	d.conclude(d.decide(ctx))
}

// deciding is what the leader of a batch knows of it, attempt by attempt.
type deciding[S any] struct {
	*Limiter[S]
	view     *view[S]
	key      string
	batch    *batch
	deadline time.Time

	seen     snapshot[S]
	asked    bool      // the store, in this batch
	answered time.Time // the last time that it did
	heldUp   bool      // by other instances, or by the wait for a turn among them
	waited   bool      // for the process's turn
	// attempts is how often it tried to swap the state, and lost how many of these
	// lost a race. A failed guess from a stale snapshot, or from none, isn't
	// counted as a lost race.
	attempts, lost int

	// Of the attempt under way.
	owed debt[S]
	next transition[S]
}

// start begins with a batch of the calls of the client with that key, which end
// with ctx.
func (d *deciding[S]) start(l *Limiter[S], ctx context.Context, key string, b *batch) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(counters.DefaultTimeout)
	}
	v := b.Calls()[0].Request.view.(*view[S])
	seen := v.recall()
	*d = deciding[S]{Limiter: l, view: v, key: key, batch: b, deadline: deadline, seen: seen}
}

// decide answers the calls of a batch, and those that arrive while it retries.
// The error is ErrContended if the time is over and another instance has come
// first, or the process has waited long for its turn; the view has the last
// state then.
func (d *deciding[S]) decide(ctx context.Context) error {
	if d.attempt() {
		return nil
	}
	return d.proceed(ctx)
}

// proceed is decide from an attempt on that has begun.
func (d *deciding[S]) proceed(ctx context.Context) error {
	for {
		if d.next.changed && !d.asked && !d.waited { // who comes first takes turns
			if waited := d.view.awaitTurn(d.deadline); waited > 0 {
				d.hasWaited(waited)
				if d.attempt() { // with those who have come meanwhile
					return nil
				}
				continue
			}
		}
		if over, err := d.learn(d.exchange(ctx)); over || d.attempt() {
			return err
		}
	}
}

// attempt answers the calls by what was seen, and reports whether that is it:
// otherwise the store is to be asked.
func (d *deciding[S]) attempt() bool {
	calls := d.batch.Calls()
	// Who comes later would have less time left than by leading a batch.
	if d.deadline.Sub(d.answered) >= d.cfg.StoreTimeout/2 {
		calls = d.batch.Join()
	}
	for _, call := range calls {
		if call.Request.refund != nil {
			call.Request.refund.begun.Store(true)
		}
	}
	calls, d.owed, d.next = d.begin(d.view, calls, d.seen, d.asked)
	switch {
	case len(calls) == 0:
		return true
	case d.next.changed:
		return false
	case d.asked || d.seen.fresh(d.next.now) && full(calls):
		d.view.mu.Lock()
		defer d.view.mu.Unlock()
		for _, call := range calls {
			call.Result.Local = !d.asked
		}
		return true
	}
	return false
}

// hasWaited notes that the process has waited for its turn.
func (d *deciding[S]) hasWaited(waited time.Duration) {
	d.waited = true
	if d.heldUp = waited >= d.cfg.StoreTimeout/heldUpPart; d.heldUp {
		d.view.hold(time.Now())
	}
}

// exchange asks the store what the attempt wants to know.
func (d *deciding[S]) exchange(ctx context.Context) (state counters.State, swapped bool, err error) {
	if !d.next.swaps {
		state, err = d.store.Load(ctx, d.key)
		return state, false, err
	}
	return d.store.Swap(ctx, d.key, d.seen.state, d.next.value, d.next.ttl)
}

// learn ends an attempt with what the store has answered. It reports whether
// there is to be no other.
func (d *deciding[S]) learn(state counters.State, swapped bool, err error) (over bool, _ error) {
	l, v, next := d.Limiter, d.view, d.next
	if next.swaps {
		d.attempts++
	}
	if err != nil {
		switch {
		case !next.swaps:
			err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
		case !errors.Is(err, counters.ErrNotSent):
			l.heed(v, v.unanswered(d.owed, d.seen, next.state, l.algorithm, next.request), next.request, err)
		}
		// They have taken time that the store might have answered in.
		if d.heldUp && errors.Is(err, counters.ErrTimeout) {
			err = fmt.Errorf("%w: %w", ErrContended, err)
		}
		return true, err
	}
	if next.swaps && !swapped && d.asked {
		d.lost++
	}
	forestalled := !swapped && d.forestalled(state)
	putBack := swapped && d.seen.lost
	if now := l.snapshot(state, next); !swapped {
		d.seen = l.recover(now, d.seen, next.request)
	} else if d.seen = now; !bytes.Equal(state.Value, next.value) { // it may be lost by now
		d.seen = l.recover(now, l.snapshot(counters.State{Value: next.value}, next), next.request)
	}
	v.remember(d.seen)
	var roundTrip time.Duration
	if d.asked {
		roundTrip = d.seen.read.Sub(d.answered)
	}
	d.asked, d.answered = true, d.seen.read
	if forestalled {
		d.heldUp = true
		v.hold(d.answered)
	}
	l.owing.Answered()
	if swapped {
		v.repaid(d.owed, l.algorithm, next.request)
		if putBack {
			l.cfg.Reseeded(1)
		}
		v.won(d.attempts, roundTrip, d.answered)
		return true, nil
	}
	// What the deadline cuts off might have been written.
	if d.heldUp && d.deadline.Sub(d.answered) <= roundTrip {
		return true, ErrContended
	}
	return false, nil
}

// forestalled reports whether it is another instance that has kept an attempt
// from replacing what was seen, as the state is now. What was seen long ago, or
// never, may have been changed at leisure; and if the connection has been lost
// that it was seen on, the attempt has only asked what is there.
func (d *deciding[S]) forestalled(state counters.State) bool {
	recent := d.asked || d.seen.fresh(d.next.now)
	return d.next.swaps && recent && state.Exists() && state.Version != d.seen.state.Version
}

// conclude ends a batch whose decision has ended with err.
func (d *deciding[S]) conclude(err error) {
	if refunds := d.answer(err); len(refunds) > 0 {
		d.settle(refunds, err)
	}
	d.cfg.Batch(len(d.batch.Calls()))
	if d.cfg.Swaps != nil && d.attempts > 0 {
		d.cfg.Swaps(d.attempts, d.lost)
	}
}

// answer ends the calls with err, and returns the refunds of those that may be
// consumed all the same.
func (d *deciding[S]) answer(err error) (refunds []request) {
	l, v, calls := d.Limiter, d.view, d.batch.Calls()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.underWay = false
	refunds = l.refusals(v, calls, err)
	for _, call := range calls {
		l.withdraw(v, &call.Request, err)
		switch {
		case err == nil:
		case call.Request.refund != nil:
			call.Err = err
			l.refundFailed(call.Request, err)
		case errors.Is(err, ErrContended):
			call.Result = l.contend(v.last.decoded, call.Request.Request)
		default:
			if call.Err = err; !call.Result.Allowed && !l.cfg.CountDenied { // the state is without it
				call.Err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
			}
			call.Result = counters.Decision{}
		}
		call.Request.reach(v, answered)
	}
	return refunds
}

// begin answers the calls from what was seen and what is owed, but for those
// whose callers have left and have been answered. It returns the others, the
// debt, and what is under way to the store then, if that has changed.
func (l *Limiter[S]) begin(v *view[S], calls []*call, seen snapshot[S], asked bool) ([]*call, debt[S], transition[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.underWay = false
	for _, call := range calls {
		if l.withdraw(v, &call.Request, counters.ErrNotSent); call.Request.verdict(v) != undecided {
			call.Result = counters.Decision{}
		}
	}
	if gone := func(c *call) bool { return c.Request.verdict(v) != undecided }; slices.ContainsFunc(calls, gone) {
		calls = slices.DeleteFunc(slices.Clone(calls), gone)
	}
	if v.debt.number > 0 && v.debt.reset != seen.origin.reset && v.debt.at <= seen.origin.reset+int64(l.cfg.ClockSkew) {
		v.debt = debt[S]{} // the client was reset since
	}
	v.debt.compare(seen.decoded, l.algorithm)
	owed := v.debt
	if len(calls) == 0 {
		return nil, owed, transition[S]{}
	}
	from, whole := owed.onto(seen, l.algorithm, calls[0].Request.Request)
	owed.whole = whole
	if whole && owed.number > 0 { // what was written since has changed nothing
		owed.baseToken = seen.token()
		v.debt.baseToken = owed.baseToken
	}
	next := l.step(from, seen.origin, calls, owed.number > 0 || seen.lost)
	owed.forgotten = owed.number > 0 && !bytes.Equal(l.algorithm.encode(nil, from), l.algorithm.encode(nil, next.from))
	next.swaps = next.changed && (asked || !owed.sent)
	if next.swaps {
		v.underWay, v.from, v.to, v.given = true, next.from, next.state, nil
		for _, call := range calls {
			call.Request.reach(v, consuming)
		}
	}
	return calls, owed, next
}

// withdraw ends what was under way of a request with err. What TakeLocal has
// admitted of it is owed. v is locked.
func (l *Limiter[S]) withdraw(v *view[S], r *request, err error) {
	if r.reach(v, waiting) == consuming && r.verdict(v) == promised && err != nil {
		var none S
		one, _ := l.algorithm.step(none, r.Request)
		add := func(s S) S { return l.algorithm.carry(l.algorithm.clone(s), none, one, r.Request) }
		v.owe(add, !undone(err), l.algorithm, r.Request)
	}
}

// full reports whether nothing remains for any of the calls. If something does,
// another instance may have taken it since, and then a denial would promise too
// much.
func full(calls []*call) bool {
	for _, call := range calls {
		if call.Result.Remaining > 0 {
			return false
		}
	}
	return true
}

// A transition is what a batch makes of a state.
type transition[S any] struct {
	changed bool
	swaps   bool // the store is told at once, without being asked first
	from    S    // the state before it, as far as it was kept
	state   S    // the one after it, if it has changed
	origin  origin
	value   []byte // which is encoded
	ttl     time.Duration
	now     time.Time // of the latest request
	request counters.Request
}

// step answers the calls from the given state, which it leaves as it is, and
// its origin. changed says that the store has another one, whatever the answers
// are.
func (l *Limiter[S]) step(from S, o origin, calls []*call, changed bool) transition[S] {
	next := transition[S]{
		now: calls[0].Request.Now, request: calls[0].Request.Request,
		from: from, state: l.algorithm.clone(from), origin: o, changed: changed,
	}
	var within int64 // next.from is within this limit
	for _, call := range calls {
		q := &call.Request
		if q.refund != nil {
			generation, at := l.algorithm.began(next.state)
			lasts := l.marked(l.algorithm.ttl(next.state, q.Request))
			next.state = l.algorithm.refund(next.state, q.Request, q.refund.taken)
			next.changed = true
			if generation == q.refund.taken.Generation && generation != 0 {
				next.origin = next.origin.markAt(at, lasts) // what is missing isn't lost
			}
		} else {
			next.state, call.Result = l.algorithm.step(next.state, q.Request)
			l.bound(&call.Result, next.state, q.Request)
			next.changed = next.changed || call.Result.Allowed || l.cfg.CountDenied
			if q.Cost > 0 && q.Limit != within && (call.Result.Allowed || l.cfg.CountDenied) {
				next.from = l.algorithm.within(next.from, q.Request)
				within = q.Limit
			}
		}
		if q.Now.After(next.now) {
			next.now, next.request = q.Now, q.Request
		}
	}
	if next.changed {
		if next.ttl = next.origin.left(next.now); next.ttl <= 0 {
			next.origin, next.ttl = origin{putBack: next.origin.putBack}, 0
		}
		next.value = l.algorithm.encode(next.origin.append(nil), next.state)
		var longest *request // of those that have the same limit, the first lasts longest
		for _, call := range calls {
			q := &call.Request
			if longest == nil || q.Limit != longest.Limit || q.Now.Before(longest.Now) {
				next.ttl = max(next.ttl, l.algorithm.ttl(next.state, q.Request))
				longest = q
			}
		}
		next.ttl = counters.TTL(next.ttl, l.cfg.Horizon())
	}
	return next
}

// marked returns for how long a mark matters, of what may be remembered for the
// given time.
func (l *Limiter[S]) marked(lasts time.Duration) time.Duration {
	return lasts + l.cfg.Horizon() + l.cfg.ClockSkew
}

// decode returns the state that the store has, whose memory it takes over, and
// its origin. What is foreign is the initial state.
func (l *Limiter[S]) decode(state counters.State) (s S, o origin, foreign bool) {
	if !state.Exists() {
		return s, o, false
	}
	o, data, err := cutOrigin(state.Value)
	if err == nil {
		s, err = l.algorithm.decode(data)
	}
	return s, o, err != nil
}

// recover returns what the store has, with what the process knows besides and
// the store has lost: all of it, or what had come until the process that was
// the first to put it back saw it last.
func (l *Limiter[S]) recover(seen, known snapshot[S], r counters.Request) snapshot[S] {
	if !seen.state.Exists() {
		seen.had = known.token()
	}
	if known = known.lasting(); !known.known || seen.origin.newer(known.origin) {
		return seen
	}
	generation, at := l.algorithm.began(known.decoded)
	present, since := l.algorithm.began(seen.decoded)
	// Faster clocks drop a mark sooner.
	if known.origin.newer(seen.origin) && known.origin.left(r.Now.Add(l.cfg.ClockSkew)) > 0 {
		if seen.lost = true; seen.origin.putBack != 0 && present <= known.origin.reset { // it is from before the reset
			var initial S
			seen.decoded, present, since = initial, 0, 0
		}
		putBack := seen.origin.putBack
		seen.origin = known.origin
		seen.origin.putBack = putBack
	}
	if present == generation && since >= at && seen.origin.putBack == known.origin.putBack {
		return seen
	}
	// Requests that are under way may be older than r, and find more in use. They
	// are why the store keeps a state for the horizon longer, too.
	r.Now = time.Unix(0, max(r.Now.Add(-l.cfg.Horizon()).UnixNano(), since, at))
	more, isMore := l.algorithm.most(seen.decoded, known.decoded, r)
	seen.decoded, seen.expires = more, latest(seen.expires, known.expires)
	if seen.lost = seen.lost || isMore; seen.lost {
		seen.origin.putBack = rand.Uint32() | 1
	}
	return seen
}

// snapshot returns what the store has, as it was seen by the batch that next is
// the transition of. Mostly it is the state that this batch has written, and
// needs no decoding.
func (l *Limiter[S]) snapshot(state counters.State, next transition[S]) snapshot[S] {
	seen := snapshot[S]{known: true, at: next.now.UnixNano(), read: time.Now()}
	if next.changed && bytes.Equal(state.Value, next.value) {
		seen.decoded, seen.origin = next.state, next.origin
	} else {
		var foreign bool
		if seen.decoded, seen.origin, foreign = l.decode(state); foreign && l.cfg.Foreign != nil {
			l.cfg.Foreign()
		}
		next.ttl = counters.TTL(max(l.algorithm.ttl(seen.decoded, next.request), seen.origin.left(next.now)), l.cfg.Horizon())
	}
	seen.expires = seen.read.Add(next.ttl)
	seen.size = len(state.Value)
	state.Value = nil
	seen.state = state
	return seen
}
