package subwindow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/counters"
	"weir/counters/cache"
	"weir/counters/combiner"
	"weir/counters/reconcile"
)

// A Limiter admits requests while its window's estimate stays within the limit.
// Each client has a counter per slot in the store, and each check counts before
// it judges: of two requests that race for the last place, from whichever
// instances, at least one sees the other.
//
// It asks the store as little as that allows. Concurrent checks of a client are
// counted together. A slot that has been closed for longer than the horizon
// doesn't change any more, so it is read once. Near the end of a slot a check
// reads the next one too: an instance with a faster clock may count there
// already. Counts only grow, so a check that didn't fit a moment ago is denied
// without the store. After counters.MaxStaleness the store is asked again, so
// that a reset, or a count that was taken back, is seen within a second.
//
// It is safe for concurrent use. Make one with New: the zero Limiter can decide
// nothing, and panics.
type Limiter struct {
	slots
	combiner *combiner.Combiner[request, counters.Decision]
	views    *cache.Cache[view]
	owing    *reconcile.Queue
	spare    sync.Pool // of *attempt
}

// New returns a limiter that keeps its counters in store. The error says what
// is wrong with the window or the options.
func New(store counters.Store, window Window, options counters.Options) (*Limiter, error) {
	options, err := options.WithDefaults()
	window.Horizon = options.Horizon()
	if err == nil {
		err = window.check()
	}
	if err == nil && store == nil {
		err = errors.New("a limiter needs a store; memory.New makes one")
	}
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		slots: slots{
			store:   store,
			window:  window,
			options: options,
			keys:    counters.CounterNamespace(options.KeyPrefix, options.Policy, options.Limit, window.Width),
		},
		views: cache.New[view](options.Clients),
		spare: sync.Pool{New: func() any { return new(attempt) }},
	}
	l.many, _ = store.(counters.ManyStore)
	l.combiner = combiner.New(l.lead)
	l.owing = reconcile.New(options.Clients, options.Refunds, l.reconcile)
	return l, nil
}

// Take admits r and counts it, or denies it. A denied cost is counted only with
// CountDenied. It takes no longer than the StoreTimeout, whatever ctx leaves.
// The error is counters.ErrRequest, one of a Store's, or of the context's;
// after one of the latter two the cost may have been counted.
func (l *Limiter) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	if r.Cost == 0 {
		return l.Peek(ctx, r)
	}
	v := l.views.Get(r.Client)
	if d, ok := l.knownDenial(v, r); ok {
		return d, nil
	}
	ctx, cancel := l.within(ctx, r.Now)
	defer cancel()
	d, err := l.combiner.Do(ctx, r.Client, request{Request: r, view: v})
	if err != nil && r.RefundUnanswered {
		return v.leave(d, err)
	}
	return d, err
}

// within returns ctx, or one that ends within the StoreTimeout if ctx leaves
// more time than that since began: a count that comes later isn't seen by those
// who have settled its slot.
func (l *Limiter) within(ctx context.Context, began time.Time) (context.Context, context.CancelFunc) {
	most := l.options.StoreTimeout
	if deadline, ok := ctx.Deadline(); most == 0 || ok && deadline.Sub(began) <= most {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, most)
}

// Peek decides r by the store and counts nothing but what TakeLocal has
// admitted. The error is counters.ErrRequest, or one that Take may return.
func (l *Limiter) Peek(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	ctx, cancel := l.within(ctx, r.Now)
	defer cancel()
	var a *attempt
	if v := l.views.Find(r.Client); v != nil {
		if v.owes() { // the store has to count that first
			owing := request{Request: r, view: v}
			owing.Cost = 0
			if _, err := l.combiner.Do(ctx, r.Client, owing); err != nil {
				return counters.Decision{}, err
			}
		}
		a = l.recall(v, r.Client, r.Now)
		a.known, a.own, a.most, a.fresh = 0, 0, 0, false // others may take back in between
	} else {
		a = l.begin(r.Now, counters.GenerationKey(l.keys.Client(r.Client)))
	}
	defer l.spare.Put(a)
	found, err := l.read(ctx, a, 0)
	if found == lost {
		err = l.suppose(ctx, a)
	}
	if err != nil {
		return counters.Decision{}, err
	}
	l.owing.Answered()
	return l.decide(a.counts, a.ahead, a.elapsed, r), nil
}

// PeekLocal decides r by what the process has read of the client within
// counters.MaxStaleness, counts nothing, and reports whether there is such
// knowledge; of a wrong request there is none, nor of a client that TakeLocal
// has admitted since. A denial is certain but for what resets and refunds
// elsewhere have changed since.
func (l *Limiter) PeekLocal(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil || r.Check() != nil {
		return counters.Decision{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.debts) > 0 {
		return counters.Decision{}, false
	}
	return l.peekSnapshot(&v.snapshot, r)
}

// knownDenial is PeekLocal for a client that was denied when it was asked for
// last, and only for a denial that is certain: nothing remains. If something
// does, another instance may have filled it since, and then this one would
// promise too much. It spares those who are far over their limit even waiting
// for each other.
func (l *Limiter) knownDenial(v *view, r counters.Request) (counters.Decision, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.denied {
		return counters.Decision{}, false
	}
	d, ok := l.peekSnapshot(&v.snapshot, r)
	return d, ok && !d.Allowed && d.Remaining == 0
}

// peekSnapshot decides r by what s knows, if that may be relied on.
func (l *Limiter) peekSnapshot(s *snapshot, r counters.Request) (counters.Decision, bool) {
	place := counters.Calendar(r.Now, l.window.Width)
	passed := place.Number - s.bucket
	if passed < 0 || passed >= int64(len(s.counts)) || !s.fresh(r.Now.UnixNano()) {
		return counters.Decision{}, false
	}
	d := l.decide(s.counts, -int(passed), place.Elapsed, r)
	d.Local = true
	return d, true
}

// Refund takes back a request that this limiter's Take admitted with the
// decision taken, once: each further Refund takes from what others have
// counted. It takes nothing back if the client has been reset since, or less
// than the clock skew before it. (A reset within the refund's own round trip
// may come too late for that, and one before a refund that is over four store
// timeouts late may be forgotten.) The error is counters.ErrRequest or one of a
// Store's. A refund that isn't done by the deadline of ctx goes on for the
// StoreTimeout, which Flush awaits. One that failed without having been sent is
// tried again once. After that the count stays too high until the slot has left
// the window.
func (l *Limiter) Refund(ctx context.Context, r counters.Request, taken counters.Decision) error {
	if err := r.Check(); err != nil || r.Cost == 0 || !taken.Allowed {
		return err
	}
	v := l.views.Get(r.Client)
	if taken.Pending != nil {
		if r.Cost = l.undo(r, taken); r.Cost == 0 {
			return nil
		}
	}
	ctx, cancel := l.within(ctx, r.Now)
	defer cancel()
	req := request{Request: r, view: v, refund: new(refund)}
	_, err := l.combiner.Do(ctx, r.Client, req)
	if err != nil && !req.refund.begun.Load() {
		l.refundLater(req)
	}
	return err
}

// undo takes back r, which TakeLocal has admitted, and returns what the store
// has counted of it.
func (l *Limiter) undo(r counters.Request, taken counters.Decision) (counted int64) {
	unsent := taken.Owed
	v, _ := taken.Pending.(*view)
	own, pending := taken.Pending.(*call)
	if pending {
		v = own.Request.view
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case !pending:
	case own.Request.stage == counting: // and its leader refuses it
		own.Request.alone = refused
		v.reserved -= r.Cost
		return 0
	case own.Request.stage == answered && own.Err == nil:
		return r.Cost
	default:
		unsent = own.Request.stage == waiting || notSent(own.Err)
	}
	repaid, unknown := v.forgive(debt{bucket: counters.Calendar(r.Now, l.window.Width).Number, cost: r.Cost, sent: !unsent})
	if unsent {
		return repaid
	}
	if repaid+unknown > 0 {
		l.options.RefundFailed()
	}
	return 0
}

// reconcileChecks is how many times as long as a check it may take to repay debts:
// marks and counts are read, the debts counted, and others told. A check has no
// time for that where the store is far away.
const reconcileChecks = 4

// reconcile has the store count what TakeLocal has admitted of r's client.
func (l *Limiter) reconcile(r counters.Request) error {
	return l.options.Unhurried(reconcileChecks, func(ctx context.Context) error {
		_, err := l.combiner.Do(ctx, r.Client, request{Request: r, view: l.views.Get(r.Client)})
		return err
	})
}

// refundLater does a refund that nobody waits for any more.
func (l *Limiter) refundLater(req request) {
	l.options.Refunds.Go(func() { l.refundNow(req, 1) })
}

// refundNow does a refund, and again as long as it surely wasn't done, in so
// many tries.
func (l *Limiter) refundNow(req request, tries int) {
	done := l.options.Refund(tries, notSent, func(ctx context.Context) error {
		req.refund = &refund{last: true}
		_, err := l.combiner.Do(ctx, req.Client, req)
		return err
	})
	switch {
	case done:
	case req.late != nil:
		l.lose(req)
	default:
		l.options.RefundFailed()
	}
}

// lose counts the requests of a late addition that nobody will refund.
func (l *Limiter) lose(req request) {
	for range req.view.untold(req.late) {
		l.options.RefundFailed()
	}
}

// notSent reports whether a Take that failed with err has surely counted
// nothing.
func notSent(err error) bool {
	return errors.Is(err, counters.ErrNotSent) || errors.Is(err, combiner.ErrWithdrawn)
}

// fail answers the pending calls with an error. The store may have counted the
// sum of those chosen, or surely has.
func (l *Limiter) fail(v *view, a *attempt, sum int64, counted bool, err error) {
	if sum == 0 || errors.Is(err, counters.ErrNotSent) {
		a.fail(v, err, nil)
		return
	}
	// What a has read is from before the addition, and doesn't tell of it.
	v.mu.Lock()
	read := l.know(v, a)
	v.mu.Unlock()
	if read {
		l.owing.Answered()
	}
	// What was refused is refunded when it turns out to be counted, and who had
	// it admitted by TakeLocal owes it no more then.
	req := request{Request: a.earliest(), view: v}
	req.late = v.unanswered(a.bucket, a.counts[a.ahead], sum, time.Unix(0, a.now), counted)
	a.fail(v, err, req.late)
	var unanswered *counters.Unanswered
	switch {
	case counted:
		l.refundLater(req)
	case errors.As(err, &unanswered):
		// If the outcome is known already, this is the leader, whom a refund would
		// wait for.
		var later atomic.Bool
		unanswered.Later(func(err error) {
			if later.Load() {
				l.learn(req, err)
			} else {
				l.options.Refunds.Go(func() { l.learn(req, err) })
			}
		})
		later.Store(true)
	default:
		l.learn(req, err)
	}
}

// learn ends the addition of req, which the store has told to have failed with
// err, or not to have.
func (l *Limiter) learn(req request, err error) {
	switch {
	case err == nil:
		l.refundNow(req, 2)
	case !errors.Is(err, counters.ErrNotSent):
		l.lose(req)
	}
}

// Flush has the store count what TakeLocal has admitted, as far as it answers,
// and returns when no refund is under way any more, of no limiter that has the
// same Refunds.
func (l *Limiter) Flush() { l.owing.Flush() }

// Owing returns of how many clients the store hasn't counted yet what TakeLocal
// has admitted.
func (l *Limiter) Owing() int { return l.owing.Waiting() }

// Reset forgets what the client has used: in every slot of the window, in the
// next, which instances with faster clocks may count in already, and in those
// before that instances with slower clocks still look at. Other instances
// notice within a second. The error is counters.ErrRequest or one of a Store's;
// then the client may have been reset or not.
func (l *Limiter) Reset(ctx context.Context, client string, now time.Time) error {
	if err := cmp.Or(counters.CheckClient(client), counters.CheckNow(now)); err != nil {
		return err
	}
	prefix := l.keys.Client(client)
	newest := counters.Calendar(now.Add(max(l.window.Width, l.window.Horizon)), l.window.Width).Number
	oldest := counters.Calendar(now.Add(-l.options.ClockSkew), l.window.Width).Number - int64(l.window.Slots+l.window.back())
	keys := make([]string, 0, newest-oldest+1)
	for bucket := newest; bucket >= oldest; bucket-- {
		keys = append(keys, counters.CounterKey(prefix, bucket))
	}
	// Refunds of what was counted before must find the mark from now on.
	began := time.Now()
	err := l.mark(ctx, prefix, now, resetBegun+int64(now.Nanosecond())/1e6+1)
	if err == nil {
		err = l.store.Delete(ctx, keys)
	}
	var generation int64
	if err == nil {
		// Only now: who sees the new generation must not see old counts.
		generation, err = l.store.Add(ctx, l.generationAfter(prefix, now, 0, resetUnit, mostReset))
	}
	if err == nil && generation >= lastGeneration {
		if err = l.store.Delete(ctx, []string{counters.GenerationKey(prefix)}); err == nil {
			generation, err = l.store.Add(ctx, l.generationAfter(prefix, now, generation, resetUnit, mostReset))
		}
	}
	if err == nil {
		// It has to be there for as long as what was deleted is remembered.
		generation += resetUnit
		err = l.store.Raise(ctx, []counters.Floor{{Key: counters.GenerationKey(prefix), Count: generation, TTL: l.ttl(0)}})
	}
	if err == nil {
		err = l.mark(ctx, prefix, now, resetDone+time.Since(began).Milliseconds())
	}
	if err == nil {
		l.views.Forget(client)
		l.views.Get(client).reset(generation)
	}
	return err
}

// Clients returns the number of clients that are remembered.
func (l *Limiter) Clients() int { return l.views.Len() }

// lead answers a batch of requests of one client.
func (l *Limiter) lead(ctx context.Context, _ string, batch *combiner.Batch[request, counters.Decision]) {
	calls := batch.Calls()
	l.options.Batch(len(calls))
	v := calls[0].Request.view
	for _, call := range calls {
		if refund := call.Request.refund; refund != nil {
			refund.begun.Store(true)
		}
	}
	// First: who gives up while this batch does something else may become a
	// debt, and be counted with the batch all the same.
	var err error
	if i := slices.IndexFunc(calls, func(c *call) bool { return c.Request.refund == nil }); i >= 0 {
		err = l.settle(ctx, v, calls[i].Request.Request)
	}
	calls = l.refundAll(ctx, v, calls)
	if err != nil {
		failUnasked(v, calls, err)
		return
	}
	for len(calls) > 0 {
		n, latest := l.sameSlot(calls)
		a := l.recall(v, calls[0].Request.Client, latest)
		a.pending = append(a.pending[:0], calls[:n]...)
		a.chosen = slices.Grow(a.chosen[:0], n)[:n]
		for len(a.pending) > 0 {
			switch sum := l.choose(v, a); {
			case sum > 0:
				found := changed
				count, err := l.store.Add(ctx, l.addition(a, sum))
				if err == nil {
					found = a.fill(count - sum)
				}
				denied := l.counted(ctx, v, a, count-sum, sum, found, err)
				l.giveBack(ctx, a, denied)
			case a.asked || a.fresh && l.full(a):
				l.deny(v, a)
			default:
				if err := l.refresh(ctx, a); err != nil {
					l.fail(v, a, 0, false, err)
				}
			}
		}
		l.remember(v, calls[0].Request.Client, a)
		calls = calls[n:]
	}
}

// failUnasked answers calls that the store hasn't been asked about with err.
func failUnasked(v *view, calls []*call, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, call := range calls {
		call.Err = err
		call.Request.reach(v, answered)
	}
}

// addition returns what is to be asked of the store to count a sum.
func (l *Limiter) addition(a *attempt, sum int64) counters.Addition {
	a.prepare()
	have := a.counts[a.ahead] > 0
	return counters.Addition{
		Key: a.currentKey(), Delta: sum, TTL: l.ttl(a.elapsed),
		New: !have, Have: have, Read: a.keys, Counts: a.read,
	}
}

// counted goes on after an Add of sum that has ended with err. If that is nil,
// the current slot had the count before, and a was filled with what was found. It
// returns the calls that were counted and denied: their costs are to be given
// back.
func (l *Limiter) counted(ctx context.Context, v *view, a *attempt, before, sum int64, found finding, err error) (denied []*call) {
	added := err == nil
	switch {
	case errors.Is(err, counters.ErrLost):
		sum, err = 0, l.restore(ctx, a, 0)
	case added:
		if err = sent(l.place(ctx, a, before, sum, found)); err == nil {
			denied = l.deal(v, a)
		} else {
			a.counts[a.ahead] = before
		}
	}
	if err != nil {
		l.fail(v, a, sum, added, err)
	}
	return denied
}

// giveBack takes back what was counted of calls that were denied. The denials
// stand even if this fails.
func (l *Limiter) giveBack(ctx context.Context, a *attempt, denied []*call) {
	if len(denied) > 0 {
		sum, err := l.subtract(ctx, a.bucket, denied)
		l.gaveBack(a, denied, sum, err)
	}
}

// gaveBack notes that a subtraction for denied calls has ended with err, and has
// taken a sum.
func (l *Limiter) gaveBack(a *attempt, denied []*call, sum int64, err error) {
	l.subtracted(denied, err)
	for _, call := range denied {
		a.counts[a.ahead] += call.Request.Cost // what stays counted
	}
	a.counts[a.ahead] -= sum
}

// settleAttempts is how often debts are repaid to a store that has lost the
// counters again in the meantime.
const settleAttempts = 4

// settle repays the debts that v has at the time of r.
func (l *Limiter) settle(ctx context.Context, v *view, r counters.Request) error {
	for attempt := 1; ; attempt++ {
		refunds, err := l.repay(ctx, v, r.Client, r.Now)
		for _, req := range refunds {
			l.refundLater(req)
		}
		if !errors.Is(err, counters.ErrLost) || attempt == settleAttempts {
			return err
		}
		a := l.recall(v, r.Client, r.Now)
		if err := l.restore(ctx, a, 0); err != nil {
			l.spare.Put(a)
			return fmt.Errorf("%w: %w", counters.ErrNotSent, err)
		}
		l.remember(v, r.Client, a)
	}
}

// place sees to it that a has what the store has, after it was filled with what
// an Add has found. The current slot had the count before when the sum was
// added.
func (l *Limiter) place(ctx context.Context, a *attempt, before, sum int64, found finding) error {
	if found == changed {
		var err error
		if found, err = l.read(ctx, a, sum); err != nil {
			return err
		}
		if found == complete {
			// Others have come later, or a reset since.
			a.counts[a.ahead] = min(a.counts[a.ahead], before)
		}
	}
	return l.complete(ctx, a, found, sum)
}

// complete puts back what was found to be lost of what a remembers, or was not
// all put back by others. The store has a sum besides in the current slot.
func (l *Limiter) complete(ctx context.Context, a *attempt, found finding, sum int64) error {
	if found == complete && a.doubts() {
		a.doubted = a.now
		generation := []int64{0}
		switch err := l.store.Read(ctx, []string{a.generationKey}, generation); {
		case err != nil: // who asks next may look into it
		case a.putBack(generation[0]):
			found = lost
		default:
			a.most = 0
			if l.window.fixed() {
				a.generation = max(0, generation[0])
			}
		}
	}
	if found == lost {
		return l.restore(ctx, a, sum)
	}
	return nil
}

// refundAll does the refunds among the calls, those of a slot together, and
// returns the other calls.
func (l *Limiter) refundAll(ctx context.Context, v *view, calls []*call) (takes []*call) {
	if !slices.ContainsFunc(calls, func(c *call) bool { return c.Request.refund != nil }) {
		return calls
	}
	var refunds []*call
	for _, call := range calls {
		if call.Request.refund == nil {
			takes = append(takes, call)
		} else {
			if late := call.Request.late; late != nil {
				call.Request.Cost = v.counted(late)
			}
			if call.Request.Cost > 0 {
				refunds = append(refunds, call)
			}
		}
	}
	bucket := func(c *call) int64 { return counters.Calendar(c.Request.Now, l.window.Width).Number }
	slices.SortStableFunc(refunds, func(a, b *call) int { return cmp.Compare(bucket(a), bucket(b)) })
	for len(refunds) > 0 {
		n, _ := l.sameSlot(refunds)
		l.refundSlot(ctx, v, bucket(refunds[0]), refunds[:n])
		refunds = refunds[n:]
	}
	return takes
}

// refundSlot does the refunds of one slot.
func (l *Limiter) refundSlot(ctx context.Context, v *view, bucket int64, refunds []*call) {
	sum, err := l.subtract(ctx, bucket, refunds)
	var most, unseen int64
	for _, call := range refunds {
		call.Err = err
		if late := call.Request.late; late != nil && !late.read {
			unseen += call.Request.Cost // v knows nothing of it
		} else {
			most += call.Request.Cost
		}
	}
	v.refund(bucket, max(0, sum-unseen), most)
	l.subtracted(refunds, err)
}

// subtract does a subtraction of the costs of calls from their slot. It returns
// the sum of what was surely taken: after an error, others may not be told.
func (l *Limiter) subtract(ctx context.Context, bucket int64, calls []*call) (sum int64, err error) {
	s := l.subtraction(bucket, calls)
	for more := true; more; {
		more, sum, err = s.took(ctx, l.doEach(ctx, s.next(nil), s.tells), nil)
	}
	return sum, err
}

// subtracted decides what becomes of calls whose subtract has ended with err.
func (l *Limiter) subtracted(calls []*call, err error) {
	for _, call := range calls {
		// Not all of the request: its caller may leave meanwhile.
		req := request{Request: call.Request.Request, view: call.Request.view, refund: call.Request.refund, late: call.Request.late}
		switch {
		case err == nil:
		case req.refund != nil && req.refund.last: // refundNow decides
		case errors.Is(err, counters.ErrNotSent):
			l.refundLater(req)
		default:
			l.options.RefundFailed()
		}
	}
}

// sameSlot returns how many of the first calls fall in the same slot, and the
// latest moment among them: a batch may stand on both sides of a boundary.
func (l *Limiter) sameSlot(calls []*call) (n int, latest time.Time) {
	bucket := counters.Calendar(calls[0].Request.Now, l.window.Width).Number
	for _, call := range calls {
		now := call.Request.Now
		if counters.Calendar(now, l.window.Width).Number != bucket {
			break
		}
		n++
		if now.After(latest) {
			latest = now
		}
	}
	return n, latest
}

// begin returns an attempt at now, which knows nothing, for the client with
// that generation key.
func (l *Limiter) begin(now time.Time, generationKey string) *attempt {
	a := l.spare.Get().(*attempt)
	a.begin(l.window, now, strings.TrimSuffix(generationKey, counters.GenerationKey("")), generationKey)
	return a
}

// name sees to it that v has its generation key. v is locked.
func (l *Limiter) name(v *view, client string) {
	if v.generationKey == "" {
		v.generationKey = counters.GenerationKey(l.keys.Client(client))
	}
}

// recall returns an attempt at now that knows what v does.
func (l *Limiter) recall(v *view, client string, now time.Time) *attempt {
	v.mu.Lock()
	defer v.mu.Unlock()
	l.name(v, client)
	a := l.begin(now, v.generationKey)
	a.recall(&v.snapshot)
	for _, d := range v.debts {
		if i := a.bucket + int64(a.ahead) - d.bucket; i >= 0 && i < int64(len(a.counts)) {
			a.counts[i] += d.counted
		}
	}
	return a
}

// remember puts what a has read into v, which is client's, and gives a back.
func (l *Limiter) remember(v *view, client string, a *attempt) {
	clear(a.pending[:cap(a.pending)])
	v.mu.Lock()
	v.reserved = 0
	owed := len(v.debts) > 0
	read := l.know(v, a)
	if owed && len(v.debts) == 0 && l.views.Find(client) == v { // else another view may owe
		l.owing.Repaid(client)
	}
	v.mu.Unlock()
	if read {
		l.owing.Answered()
	}
	l.spare.Put(a)
}

// know puts what a has read since it was last known into v, and reports whether
// that is anything. v is locked.
func (l *Limiter) know(v *view, a *attempt) (read bool) {
	if read = a.asked; read {
		a.asked = false
		v.replace(a.snapshot(l.window), l.window.lateSlots())
		v.denied = a.denied && !l.options.CountDenied
		v.answered(a.bucket)
	}
	return read
}

// refresh reads the current slot and all that aren't known, and puts back what
// the store has lost of them.
func (l *Limiter) refresh(ctx context.Context, a *attempt) error {
	found, err := l.read(ctx, a, 0)
	if err != nil {
		return err
	}
	return l.complete(ctx, a, found, 0)
}

// read reads the current slot, in which a has counted a sum, and all that
// aren't known. What it finds isn't changed.
func (l *Limiter) read(ctx context.Context, a *attempt, sum int64) (finding, error) {
	for {
		a.prepare()
		a.keys = append(a.keys, a.currentKey())
		a.read = a.read[:len(a.keys)]
		if err := l.store.Read(ctx, a.keys, a.read); err != nil {
			return changed, err
		}
		last := len(a.read) - 1
		current := a.read[last]
		a.read = a.read[:last]
		if current != counters.Absent {
			current = max(0, current-sum)
		} else if sum > 0 {
			return lost, nil
		}
		if found := a.fill(current); found != changed {
			return found, nil
		}
	}
}

// choose chooses the pending calls that fit, in their order, into what is known
// to be in use, and returns the sum of their costs. Others wait: they can't fit
// unless a chosen one is denied, and would only be in the way of other
// instances' checks. Callers who have left and been answered get none.
func (l *Limiter) choose(v *view, a *attempt) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	a.pending = slices.DeleteFunc(a.pending, func(c *call) bool { return c.Request.withdraw(v, a.bucket) })
	a.owed = v.owed(a.oldest())
	var sum int64
	for i, call := range a.pending {
		r := call.Request.Request
		a.chosen[i] = l.options.CountDenied || l.estimate(a, r) <= r.Limit-r.Cost
		if a.chosen[i] {
			sum += r.Cost
			a.counts[a.ahead] += r.Cost
			call.Request.reach(v, counting)
		}
	}
	a.counts[a.ahead] -= sum
	v.reserved, v.reservedIn = a.taken+sum, a.bucket
	return sum
}

// deal answers the chosen calls, whose costs have been counted but aren't in
// a.counts, and returns those denied whose costs are to be given back. The others
// stay pending.
func (l *Limiter) deal(v *view, a *attempt) (denied []*call) {
	left := a.pending[:0]
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, call := range a.pending {
		if !a.chosen[i] {
			left = append(left, call)
			continue
		}
		r := call.Request.Request
		fits := l.estimate(a, r) <= r.Limit-r.Cost
		allowed := fits
		if alone := call.Request.verdict(v); alone != undecided {
			allowed = alone == consumed
		}
		if allowed || l.options.CountDenied {
			a.admit(r.Cost)
			if fits { // nobody takes back what was counted before it
				a.most = max(a.most, a.counts[a.ahead])
			}
		} else {
			denied = append(denied, call)
		}
		a.denied = a.denied || !allowed
		call.Result = l.answer(a, r, allowed)
		call.Request.reach(v, answered)
	}
	a.pending = left
	return denied
}

// deny answers the pending calls, which don't fit into what is in use.
func (l *Limiter) deny(v *view, a *attempt) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, call := range a.pending {
		r := call.Request.Request
		call.Result = l.answer(a, r, false)
		call.Result.Local = !a.asked
		call.Request.reach(v, answered)
	}
	a.denied = true
	a.pending = a.pending[:0]
}

// full reports whether nothing remains for any of the pending calls.
func (l *Limiter) full(a *attempt) bool {
	for _, call := range a.pending {
		if l.estimate(a, call.Request.Request) < call.Request.Limit {
			return false
		}
	}
	return true
}

// estimate returns how much is in use as of r.
func (l *Limiter) estimate(a *attempt, r counters.Request) int64 {
	return l.window.Estimate(a.counts, a.ahead, a.elapsedAt(r.Now), r.Limit) + a.owed
}

// answer returns the answer to r, which was admitted or not.
func (l *Limiter) answer(a *attempt, r counters.Request, allowed bool) counters.Decision {
	a.counts[a.ahead] += a.owed
	d := l.decision(a.counts, a.ahead, a.elapsedAt(r.Now), r, allowed)
	a.counts[a.ahead] -= a.owed
	return d
}

// decide decides r by counts, which don't include it.
func (l *Limiter) decide(counts []int64, ahead int, elapsed time.Duration, r counters.Request) counters.Decision {
	return l.decision(counts, ahead, elapsed, r, l.window.Estimate(counts, ahead, elapsed, r.Limit) <= r.Limit-r.Cost)
}

// decision returns the answer to r when it was admitted or not and counts,
// which include it if it is counted, are in use.
func (l *Limiter) decision(counts []int64, ahead int, elapsed time.Duration, r counters.Request, allowed bool) counters.Decision {
	d := counters.Decision{
		Allowed:    allowed,
		Remaining:  max(0, r.Limit-l.window.Estimate(counts, ahead, elapsed, r.Limit)),
		ResetAfter: l.window.Until(counts, ahead, elapsed, r.Limit, 0),
	}
	switch {
	case !allowed:
		d.RetryAfter = l.window.Until(counts, ahead, elapsed, r.Limit, r.Limit-r.Cost)
	case l.options.CountDenied:
		d.FitsAfter = l.window.Until(counts, ahead, elapsed, r.Limit, r.Limit-r.Cost)
	}
	return d
}
