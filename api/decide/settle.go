package decide

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"weir/api/policy"
	"weir/api/receipt"
	"weir/counters"
)

// ErrLate says that a receipt can't be settled any more: what was reserved stays
// consumed.
var ErrLate = errors.New("decide: the receipt is too old")

// eachReserved calls f for each limit of r that the policy still has.
func (d *Decider) eachReserved(r *receipt.Receipt, f func(limit *policy.Limit, l *receipt.Limit)) {
	for i := range r.Limits {
		l := &r.Limits[i]
		if at := slices.IndexFunc(d.Limits, func(limit policy.Limit) bool { return nameOf(&limit) == l.Name }); at >= 0 {
			f(&d.Limits[at], l)
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
		Receipt: counters.Receipt{At: r.Issued.UnixNano(), Generation: l.Generation, Refunded: l.Refunded},
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

// Settle has the check that r was given for have consumed cost in the end: less than it
// has reserved is given back where it was counted, and more is counted now, be there room
// or not. Only the first settlement of r does that. Limits that the policy doesn't have
// any more, or that count otherwise now, stay as they are. The error is an Invalid, an
// UnknownPolicy, ErrLate or an Unclaimed. It takes no longer than the store timeout.
func (e *Engine) Settle(r *receipt.Receipt, cost int64) (*Settlement, error) {
	d, err := e.ForChecks(r.Policy)
	if err != nil {
		return nil, err
	}
	now := d.Now()
	s := &Settlement{Policy: d.Policy, Client: r.Client, Issued: r.Issued, Cost: cost}
	var limits []SettledLimit
	d.eachReserved(r, func(limit *policy.Limit, l *receipt.Limit) {
		limits = append(limits, settledLimit(limit, r.Client, r, l, cost))
	})
	err = d.settle(s, r, limits, now)
	d.observer.Settled(s, now, err)
	return s, err
}

// settlementOf returns the name by which the settlement of r is claimed.
func settlementOf(r *receipt.Receipt) string { return strconv.FormatUint(r.Nonce, 36) }

// settle applies s to the limits, unless another call has.
func (d *Decider) settle(s *Settlement, r *receipt.Receipt, limits []SettledLimit, now time.Time) error {
	if err := validateCost(s.Cost); err != nil {
		return err
	}
	if now.After(r.Until) {
		return ErrLate
	}
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	first, err := d.Claims.claim(ctx, r.Policy, r.Client, settlementOf(r), r.Until.Sub(now), func() {
		late, again := *s, d.Now()
		late.Limits = limits
		d.change(&counters.Deadline{At: again.Add(d.StoreTimeout)}, &late, r, again)
		d.observer.Settled(&late, again, nil)
	})
	if err != nil {
		return err
	}
	if s.Already = !first; first {
		s.Limits = limits
		d.change(ctx, s, r, now)
	}
	return nil
}

// change applies s to the limits of r. If the store fails, that is done later.
func (d *Decider) change(ctx context.Context, s *Settlement, r *receipt.Receipt, now time.Time) {
	AtOnce(len(s.Limits), d.StoreTimeout, func(i int) {
		l := &s.Limits[i]
		q := l.request(now)
		switch {
		case l.Refunded > 0:
			q.Cost = l.Refunded
			refund := l.Limiter.RefundSoon
			if l.Lease > 0 { // somebody may wait for the place elsewhere
				refund = l.Limiter.Refund
			}
			_ = refund(ctx, q, l.Decision)
		case l.Charged > 0:
			q.Cost = l.Charged
			_ = l.Limiter.Charge(ctx, q)
		}
		l.stand(ctx, d.Policy, now, l.Refunded > 0)
	})
}

// ErrNoLease says that a receipt has no lease to be renewed, ErrLost that its lease has
// ended and there is no room for another one, ErrSettled that it was given back, and
// ErrBlocked that its client is blocked by now.
var (
	ErrNoLease = Invalid("receipt: its check has no lease, so there is nothing to renew")
	ErrLost    = errors.New("decide: the lease has ended, and there is no room for another")
	ErrSettled = errors.New("decide: the lease was given back")
	ErrBlocked = errors.New("decide: the client is blocked, and its lease ends by itself")
)

// Renew has the leases of r begin anew, and puts them into r; so does any other receipt of
// theirs. One that has ended is admitted again, if there is room and r isn't settled. It
// returns how long the new ones can be relied on. The error is an UnknownPolicy, ErrNoLease,
// ErrLost, ErrSettled, ErrBlocked, ErrLate or a *Refused: then leases that there are go on. It
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
	if by := d.Exception(r.Client, netip.Prefix{}, false); by.Blocked && !by.Exempt {
		return 0, ErrBlocked
	}
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	err = ErrNoLease
	var renewed []LimitCheck
	d.eachReserved(r, func(limit *policy.Limit, l *receipt.Limit) {
		c := reservedBy(limit, r.Client, r, l)
		if c.Lease == 0 || err != nil && err != ErrNoLease {
			return
		}
		q := c.request(now)
		if q.Renews = l.Refunded; q.Renews == 0 { // admitted without the store
			q.Renews = r.Issued.UnixNano()
		}
		c.asked = true
		taken, failed := c.Limiter.Take(ctx, q)
		c.end(d.Policy, taken, failed, q)
		switch {
		case c.Contended, c.undecided(d.Policy):
			err = &Refused{Policy: r.Policy, Client: r.Client, Limits: []string{c.Name}}
		case !c.Allowed:
			err = ErrLost
		default:
			err, within = nil, leastOf(within, relied(c.Lease))
			if renewed = append(renewed, c); c.decided { // else on_store_error allows, and the lease that there is goes on
				*l = c.reserved()
				l.Refunded = cmp.Or(l.Refunded, now.UnixNano())
			}
			return
		}
		d.observer.Renewed(&c, err)
	})
	// Asked afterwards: whoever settles r from now on finds the leases.
	if len(renewed) > 0 && d.Claims.claimed(ctx, r.Policy, r.Client, settlementOf(r)) {
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

// Charge consumes the cost of q in all limits that count costs, unless it has done so
// before, and returns how they stand then. What the store doesn't count now it counts
// later. The error is an Invalid, an UnknownPolicy or, with an ID, an Unclaimed. It takes
// no longer than the store timeout.
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
	a, err := d.find(Check{Policy: q.Policy, Client: q.Client, Settle: true})
	if err != nil {
		return nil, err
	}
	now := d.Now()
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	first := true
	if q.ID != "" && len(a.Limits) > 0 {
		sum := sha256.Sum256([]byte(q.ID))
		limits := slices.Clone(a.Limits)
		if first, err = d.Claims.claim(ctx, q.Policy, q.Client, "c"+hex.EncodeToString(sum[:12]), d.SettleWithin, func() {
			d.charge(limits, q.Cost, d.Now())
		}); err != nil {
			return nil, err
		}
	}
	if first {
		d.charge(a.Limits, q.Cost, now)
	}
	AtOnce(len(a.Limits), d.StoreTimeout, func(i int) { a.Limits[i].stand(ctx, d.Policy, now, a.Limits[i].Lease > 0) })
	for i := range a.Limits {
		l := &a.Limits[i]
		a.Retry = max(a.Retry, l.RetryAfter)
		a.Degraded = cmp.Or(a.Degraded, l.Degraded)
	}
	return a, nil
}

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

// stand finds out how l, a limit of p that was told of something just now, stands: by what the
// process remembers of it, be that old if known is true, or else by the store.
func (l *LimitCheck) stand(ctx context.Context, p *policy.Policy, now time.Time, known bool) {
	l.Cost = 0
	if d, recalled := l.Limiter.Recall(l.request(now)); recalled && known {
		l.record(p, d, nil, l.request(now))
	} else if !l.lookBack(p, now, true) {
		l.look(ctx, p, now)
	}
}
