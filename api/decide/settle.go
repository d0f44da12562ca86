package decide

import (
	"errors"
	"iter"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"weir/api/policy"
	"weir/api/receipt"
	"weir/counters"
)

// ErrLate says that a receipt can't be settled any more: what was reserved stays
// consumed.
var ErrLate = errors.New("decide: the receipt is too old")

// reservedIn yields each limit of r that the policy still has and settles, and what it has counted.
func (d *Decider) reservedIn(r *receipt.Receipt) iter.Seq2[*policy.Limit, *receipt.Limit] {
	return func(yield func(*policy.Limit, *receipt.Limit) bool) {
		for i := range r.Limits {
			l := &r.Limits[i]
			if at := slices.Index(d.plans[nil].names, l.Name); at >= 0 && settles(&d.Limits[at]) && !yield(&d.Limits[at], l) {
				return
			}
		}
	}
}

// reservedBy returns the check of a client that has reserved l.
func reservedBy(limit *policy.Limit, client string, r *receipt.Receipt, l *receipt.Limit) LimitCheck {
	c := LimitCheck{Limit: limit, Client: client, Cost: r.Cost, Value: l.Value}
	if c.CountsRequests {
		c.Cost = 1
	}
	c.Decision = counters.Decision{
		Allowed: true, Remaining: l.Remaining,
		Receipt: counters.Receipt{At: r.Issued.UnixNano(), Generation: l.Generation, Position: l.Position},
	}
	return c
}

// settledLimit is reservedBy, with the change to make when the check has cost that much.
func settledLimit(limit *policy.Limit, client string, r *receipt.Receipt, l *receipt.Limit, cost int64) SettledLimit {
	one := SettledLimit{LimitCheck: reservedBy(limit, client, r, l), untold: l.Alone}
	switch less := r.Cost - cost; {
	case limit.Lease > 0:
		one.Refunded = one.Cost
	case less < 0:
		one.Charged = -less
	case !l.Alone: // else nobody knows when the store was told
		one.Refunded = less
	}
	return one
}

// A Settling is what a check that a receipt was given for has cost in the end.
type Settling struct {
	receipt.Receipt
	Consumed int64
	Err      error // why it can't be settled, else nil
}

// Settle puts what checks have cost in the end in the place of what they have reserved. If that
// is less, the rest is given back where it was counted; if it is more, the difference is consumed
// now, even if there is no room. Only the first settlement of a receipt changes anything. Limits
// that the policy doesn't have any more, or that count otherwise now, stay as they are.
//
// Settle calls done with the number and the outcome of each as soon as that is known. The
// error is the Err of a Settling, an Invalid, an UnknownPolicy, ErrLate, an Unclaimed or a *Panic. Calls of done may
// come concurrently, must not panic, and must not keep the Settlement. Settle returns after the
// last, and takes no longer than the store timeout.
func (e *Engine) Settle(asked []Settling, done func(i int, s *Settlement, err error)) {
	var failed atomic.Bool
	all := newSettlements(&e.Config, 0, func(i int, s *Settlement, err error) {
		if err != nil {
			failed.Store(true)
		}
		done(i, s, err)
	})
	all.all, all.claims = settlementScratch.Get(len(asked))[:0], claimScratch.Get(len(asked))[:0]
	limits := settledScratch.Get(len(asked))[:0] // of all
	for i := range asked {
		r, err := &asked[i].Receipt, asked[i].Err
		var d *Decider
		if err == nil {
			d, err = e.ForChecks(r.Policy)
		}
		if err != nil {
			done(i, nil, err)
			continue
		}
		first := len(limits)
		for limit, l := range d.reservedIn(r) {
			limits = append(limits, settledLimit(limit, r.Client, r, l, asked[i].Consumed))
		}
		all.add(i, d, r, asked[i].Consumed, limits[first:])
	}
	if all.settle(&e.Claims); failed.Load() { // what has failed may be made late
		return
	}
	settledScratch.Put(limits)
	settlementScratch.Put(all.all)
	claimScratch.Put(all.claims)
}

var (
	settledScratch    counters.Scratch[SettledLimit]
	settlementScratch counters.Scratch[settlement]
	claimScratch      counters.Scratch[claim]
)

// keyOf returns the key by which the settlement of r is claimed.
func (d *Decider) keyOf(r *receipt.Receipt) string {
	var b [128]byte // longer keys cost another allocation
	return string(strconv.AppendUint(append(d.claimKeys.AppendStateKey(b[:0], r.Client), '_'), r.Nonce, 36))
}

// settlements are under way together.
type settlements struct {
	ctx     *counters.Deadline
	now     time.Time
	all     []settlement // never more than there is room for
	claims  []claim
	done    func(i int, s *Settlement, err error)
	open    sync.WaitGroup   // settlements that haven't ended
	workers counters.Workers // for what may take a store operation
}

// newSettlements returns settlements with room for n. They call done as Engine.Settle does.
func newSettlements(c *Config, n int, done func(i int, s *Settlement, err error)) *settlements {
	now := c.Now()
	return &settlements{
		ctx: &counters.Deadline{At: now.Add(c.StoreTimeout)}, now: now, workers: newWorkers(c.StoreTimeout), done: done,
		all: make([]settlement, 0, n), claims: make([]claim, 0, n),
	}
}

// add adds the settlement of r at a cost, of limits by d, unless it can't be made.
func (t *settlements) add(number int, d *Decider, r *receipt.Receipt, cost int64, limits []SettledLimit) {
	t.all = append(t.all, settlement{
		Settlement: Settlement{Policy: d.Policy, Client: r.Client, Issued: r.Issued, Cost: cost}, settlements: t,
		number: number, by: d, limits: limits,
	})
	last := len(t.all) - 1
	s := &t.all[last]
	if len(limits) > 0 {
		s.Client = limits[0].Client
	}
	t.open.Add(1)
	err := validateCost(cost)
	if err == nil && t.now.After(r.Until) {
		err = ErrLate
	}
	if err != nil {
		s.do(func() { s.end(err) })
		t.all = t.all[:last]
		return
	}
	t.claims = append(t.claims, claim{d.keyOf(r), r.Until.Sub(t.now), s})
}

// settle makes those settlements that nobody has made before, and returns when all have ended.
func (t *settlements) settle(c *Claims) {
	told := make([]bool, len(t.all))
	if p := contain(func() {
		c.claimAll(t.ctx, t.claims, func(i int, f func()) { t.all[i].doApart(f) }, func(i int, first bool, err error) {
			told[i] = true
			t.all[i].do(func() { t.all[i].begin(first, err) })
		})
	}); p != nil {
		for i := range t.all {
			if !told[i] {
				t.all[i].fail(p)
			}
		}
	}
	t.wait()
}

func (t *settlements) wait() {
	t.open.Wait()
	t.workers.Wait()
}

// A settlement is a Settlement under way.
type settlement struct {
	Settlement
	*settlements
	number int
	by     *Decider
	limits []SettledLimit // to be changed
	left   atomic.Int32   // of the changes, how many haven't been made
	ended  atomic.Bool
}

// do calls f. If that panics, the settlement ends.
func (s *settlement) do(f func()) {
	if p := contain(f); p != nil {
		s.fail(p)
	}
}

func (s *settlement) fail(p *Panic) {
	if !s.ended.Swap(true) { // else another change has failed
		s.done(s.number, nil, p)
		s.open.Done()
	}
}

// doApart is do in a goroutine: f may take a store operation.
func (s *settlement) doApart(f func()) { s.workers.Go(func() { s.do(f) }) }

// end tells what became of s.
func (s *settlement) end(err error) {
	s.by.observer.Settled(&s.Settlement, s.now, err)
	if !s.ended.Swap(true) {
		s.done(s.number, &s.Settlement, err)
		s.open.Done()
	}
}

// begin makes the changes of s, if it is the first of its receipt. err says that the store doesn't
// tell.
func (s *settlement) begin(first bool, err error) {
	if err == nil && first {
		s.change()
		return
	}
	if err == nil {
		s.Already = true
	}
	s.end(err)
}

// change applies s to its limits. If the store fails, that is done later.
func (s *settlement) change() {
	s.Limits = s.limits
	s.left.Store(1)
	for i := range s.Limits {
		l := &s.Limits[i]
		q := l.request(s.now)
		switch {
		case l.Lease > 0: // somebody may wait for the place elsewhere
			q.Cost = l.Refunded
			if l.untold {
				s.by.releaseAgain(l.Limiter, q, l.Decision)
			}
			s.left.Add(1)
			_ = l.Limiter.RefundSoon(s.ctx, q, l.Decision, func(panicked any) {
				s.do(func() {
					if panicked != nil {
						panic(panicked)
					}
					s.changed()
				})
			})
		case l.Refunded > 0:
			q.Cost = l.Refunded
			_ = l.Limiter.RefundSoon(s.ctx, q, l.Decision, nil)
		case l.Charged > 0:
			q.Cost = l.Charged
			s.left.Add(1)
			s.doApart(func() {
				_ = l.Limiter.Charge(s.ctx, q)
				s.changed()
			})
		}
	}
	s.changed()
}

// toldWithin bounds how long after an outage instances tell the store what they admitted without
// it, counted from its first answer to any of them.
const toldWithin = 3 * time.Second

// releaseAgain ends a lease a second time, later: an instance that admitted it without the store
// may tell the store of it only now, and then its place would be held until it is over.
func (d *Decider) releaseAgain(limiter counters.Limiter, q counters.Request, taken counters.Decision) {
	time.AfterFunc(toldWithin, func() {
		_ = contain(func() {
			_ = limiter.RefundSoon(&counters.Deadline{At: d.Now().Add(d.StoreTimeout)}, q, taken, func(any) {})
		})
	})
}

// changed notes that one more change has been made. After the last, it tells how the limits
// stand.
func (s *settlement) changed() {
	if s.left.Add(-1) > 0 {
		return
	}
	var unknown []*LimitCheck
	for i := range s.Limits {
		if l := &s.Limits[i]; !l.lookLocallyAfterChange(s.Policy, s.now, l.Refunded > 0) {
			unknown = append(unknown, &l.LimitCheck)
		}
	}
	if len(unknown) == 0 {
		s.end(nil)
		return
	}
	s.doApart(func() {
		AtOnce(len(unknown), s.by.StoreTimeout, func(i int) { unknown[i].look(s.ctx, s.Policy, s.now) })
		s.end(nil)
	})
}

// claimedLate makes the changes of a settlement that turns out to be the first of its receipt when
// its caller has been told of an error.
func (s *settlement) claimedLate() {
	again := &settlement{Settlement: s.Settlement, by: s.by, limits: s.limits}
	again.settlements = newSettlements(&s.by.Config, 0, func(int, *Settlement, error) {})
	again.open.Add(1)
	again.do(again.change)
	again.wait()
}
