package decide

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"iter"
	"net/netip"
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

// reservedIn yields each limit of r that the policy still has, and what it has counted.
func (d *Decider) reservedIn(r *receipt.Receipt) iter.Seq2[*policy.Limit, *receipt.Limit] {
	return func(yield func(*policy.Limit, *receipt.Limit) bool) {
		for i := range r.Limits {
			l := &r.Limits[i]
			if at := slices.Index(d.plans[nil].names, l.Name); at >= 0 && !yield(&d.Limits[at], l) {
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

// settledLimit is reservedBy, and what there is to change when it has cost so much.
func settledLimit(limit *policy.Limit, client string, r *receipt.Receipt, l *receipt.Limit, cost int64) SettledLimit {
	one := SettledLimit{LimitCheck: reservedBy(limit, client, r, l)}
	switch less := r.Cost - cost; {
	case limit.Lease > 0:
		one.Refunded = one.Cost
	case less < 0:
		one.Charged = min(-less, limit.Most())
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
// come concurrently, and must not panic. Settle returns after the last, and takes no longer
// than the store timeout.
func (e *Engine) Settle(asked []Settling, done func(i int, s *Settlement, err error)) {
	all := newSettlements(&e.Config, len(asked), done)
	limits := make([]SettledLimit, 0, len(asked)) // of all
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
	all.settle(&e.Claims)
}

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

// newSettlements returns what at most n settlements can be added to. It calls done as
// Engine.Settle does.
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

// changed notes that one more change has been made. After the last, it tells how the limits
// stand.
func (s *settlement) changed() {
	if s.left.Add(-1) > 0 {
		return
	}
	var unknown []*LimitCheck
	for i := range s.Limits {
		if l := &s.Limits[i]; !l.lookBackAfterChange(s.Policy, s.now, l.Refunded > 0) {
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

// late makes the changes of a settlement that turns out to be the first of its receipt when
// its caller has been told of an error.
func (s *settlement) late() {
	again := &settlement{Settlement: s.Settlement, by: s.by, limits: s.limits}
	again.settlements = newSettlements(&s.by.Config, 0, func(int, *Settlement, error) {})
	again.open.Add(1)
	again.do(again.change)
	again.wait()
}

// errNoLease says that a receipt has no lease to be renewed, ErrLost that its lease has
// ended and there is no room for another one, ErrSettled that it was given back, and
// ErrBlocked that its client is blocked by now.
var (
	errNoLease = Invalid("receipt: its check has no lease, so there is nothing to renew")
	ErrLost    = errors.New("decide: the lease has ended, and there is no room for another")
	ErrSettled = errors.New("decide: the lease was given back")
	ErrBlocked = errors.New("decide: the client is blocked, and its lease ends by itself")
)

// Renew has the leases of r begin anew, and puts them into r; so does any other receipt of
// theirs. One that has ended is admitted again, if there is room and r isn't settled. It
// returns how long the new ones can be relied on. The error is an UnknownPolicy, an Invalid,
// ErrLost, ErrSettled, ErrBlocked, ErrLate or a *Refused: then leases that there are go on. In
// shadow mode it isn't ErrLost, ErrBlocked or a *Refused: what is under way goes on without. It
// takes no longer than the store timeout.
func (e *Engine) Renew(r *receipt.Receipt) (within time.Duration, err error) {
	d, err := e.ForChecks(r.Policy)
	if err != nil {
		return 0, err
	}
	now := d.Now()
	if now.After(r.Until) {
		return 0, ErrLate
	}
	if by := d.Exception(r.Client, netip.Prefix{}, false); by.Blocked && !by.Exempt && !d.Shadow {
		return 0, ErrBlocked
	}
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	err = errNoLease
	var renewed []LimitCheck
	for limit, l := range d.reservedIn(r) {
		if limit.Lease == 0 {
			continue
		}
		c := reservedBy(limit, r.Client, r, l)
		q := c.request(now)
		if q.Renews = l.Position; q.Renews == 0 { // admitted without the store
			q.Renews = r.Issued.UnixNano()
		}
		c.asked = true
		taken, failed := c.Limiter.Take(ctx, q)
		c.noteTake(d.Policy, taken, failed, q)
		switch err = nil; {
		case c.Contended, c.undecided(d.Policy):
			err = &Refused{Policy: r.Policy, Client: r.Client, Limits: []string{c.Name}}
		case !c.Allowed:
			err = ErrLost
		default:
			if renewed = append(renewed, c); c.decided { // else on_store_error allows, and the lease that there is goes on
				*l = c.reserved(l.Name)
				l.Position = cmp.Or(l.Position, now.UnixNano())
			}
		}
		if err != nil {
			d.observer.Renewed(&c, err)
			if !d.Shadow {
				break
			}
			err = nil
		}
		within = leastOf(within, relied(c.Lease))
	}
	// Asked afterwards: whoever settles r from now on finds the leases.
	if within > 0 && d.Claims.made(ctx, d.keyOf(r)) {
		for i := range renewed {
			renewed[i].refund(ctx, now)
		}
		return 0, ErrSettled
	}
	for i := range renewed {
		d.observer.Renewed(&renewed[i], nil)
	}
	return within, err
}

// A Charge is a cost that is consumed whatever is left.
type Charge struct {
	Policy, Client string
	Cost           int64
	// ID tells the charge from others of the client, so that it counts once however
	// often it is sent; "" is none.
	ID string
}

// Charge consumes the cost of q in all limits that count costs, also if its client is
// blocked, unless it has done so before, and returns how they stand then. What the store
// doesn't count now it counts later. The error is an Invalid, an UnknownPolicy or, with an
// ID, an Unclaimed. It takes no longer than the store timeout.
func (e *Engine) Charge(q Charge) (*Answer, error) {
	d, err := e.ForChecks(q.Policy)
	if err != nil {
		return nil, err
	}
	if err = validateCost(q.Cost); err != nil {
		return nil, err
	}
	if len(q.ID) > counters.MaxClientBytes {
		return nil, invalid("id is %d bytes long; at most %d are possible", len(q.ID), counters.MaxClientBytes)
	}
	a, err := d.newAnswer(Check{Policy: q.Policy, Client: q.Client, Settle: true, charges: true})
	if err != nil {
		return nil, err
	}
	now := d.Now()
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	first := true
	if q.ID != "" && len(a.Limits) > 0 {
		sum := sha256.Sum256([]byte(q.ID))
		limits := slices.Clone(a.Limits)
		key := d.claimKeys.Client(q.Client) + "c" + hex.EncodeToString(sum[:12])
		if first, err = d.Claims.claim(ctx, claim{key, d.SettleWithin, &lateCharge{d, limits, q.Cost}}); err != nil {
			return nil, err
		}
	}
	if first {
		d.charge(a.Limits, q.Cost, now)
	}
	AtOnce(len(a.Limits), d.StoreTimeout, func(i int) {
		if l := &a.Limits[i]; !l.lookBackAfterChange(d.Policy, now, l.Lease > 0) {
			l.look(ctx, d.Policy, now)
		}
	})
	for i := range a.Limits {
		l := &a.Limits[i]
		a.Retry = max(a.Retry, l.RetryAfter)
		a.Degraded = cmp.Or(a.Degraded, l.Degraded)
	}
	return a, nil
}

// A lateCharge is one that counts after its caller was told of an error.
type lateCharge struct {
	*Decider
	limits []LimitCheck
	cost   int64
}

func (c *lateCharge) late() { c.charge(c.limits, c.cost, c.Now()) }

// charge consumes a cost in those of limits that count costs.
func (d *Decider) charge(limits []LimitCheck, cost int64, now time.Time) {
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	limits = slices.DeleteFunc(slices.Clone(limits), func(l LimitCheck) bool { return l.CountsRequests || l.Lease > 0 })
	AtOnce(len(limits), d.StoreTimeout, func(i int) {
		l := &limits[i]
		r := l.request(now)
		r.Cost = min(cost, l.Most())
		_ = l.Limiter.Charge(ctx, r)
	})
	told := make(map[string]int64)
	for i := range limits {
		l := &limits[i]
		told[l.Client] = max(told[l.Client], min(cost, l.Most()))
	}
	for client, most := range told {
		if most > 0 {
			d.observer.Charged(client, most, now)
		}
	}
}

// lookBackAfterChange finds out by what the process remembers how l, a limit of p that has just been
// told of a change, stands, and reports whether it could. If known is true, it goes by what is remembered
// however old that is.
func (l *LimitCheck) lookBackAfterChange(p *policy.Policy, now time.Time, known bool) bool {
	l.Cost = 0
	if d, recalled := l.Limiter.Recall(l.request(now)); recalled && known {
		l.record(p, d, nil, l.request(now))
		return true
	}
	return l.lookBack(p, now, true)
}
