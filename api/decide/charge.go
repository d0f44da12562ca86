package decide

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"weir/counters"
)

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
		l := &a.Limits[i]
		l.Cost = 0 // of limits that count requests too
		l.look(ctx, d.Policy, now)
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

func (c *lateCharge) claimedLate() { c.charge(c.limits, c.cost, c.Now()) }

// charge consumes a cost in those of limits that count costs.
func (d *Decider) charge(limits []LimitCheck, cost int64, now time.Time) {
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	limits = slices.DeleteFunc(slices.Clone(limits), func(l LimitCheck) bool { return l.CountsRequests || l.Lease > 0 })
	AtOnce(len(limits), d.StoreTimeout, func(i int) {
		l := &limits[i]
		r := l.request(now)
		r.Cost = cost
		_ = l.Limiter.Charge(ctx, r)
	})
	if cost == 0 {
		return
	}
	told := make(map[string]bool)
	for i := range limits {
		if client := limits[i].Client; !told[client] {
			told[client] = true
			d.observer.Charged(client, cost, now)
		}
	}
}
