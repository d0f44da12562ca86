package decide

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"weir/api/policy"
	"weir/api/receipt"
	"weir/counters"
)

// TakeLimits decides checks of single limits, which needn't be of a policy, as one: it
// consumes the costs of all of them or of none, writes each answer into its check, and reports
// whether all are admitted. A limit in which denied requests count consumes its cost in any case.
// What on_store_error refuses is denied. A check whose cost is above its limit is denied until
// the limit is unused, as far as is known.
//
// Of d's policy it needs Name, CountDenied, OnStoreError and Shadow. If h isn't nil, TakeLimits
// sets the headers in it that the check of a policy with these limits would have. It takes no
// longer than the store timeout.
func (d *Decider) TakeLimits(checks []LimitCheck, h map[string][]string) bool {
	admitted, _ := d.takeLimits(checks, h, d.Now())
	return admitted
}

// takeLimits is TakeLimits. What is denied has consumed nothing, though shadow mode admits it.
func (d *Decider) takeLimits(checks []LimitCheck, h map[string][]string, now time.Time) (admitted, denied bool) {
	a := answers.Get().(*Answer)
	own, scratch := a.Limits, a.scratch
	for i := range checks {
		c := &checks[i]
		// Any instance may give it back: see GiveBack.
		*c = LimitCheck{Limit: c.Limit, Client: c.Client, Cost: c.Cost, Value: c.Value, reserves: true}
		d.except(c)
	}
	*a = Answer{Policy: d.Policy, plan: &noPlan, Allowed: true, Limits: checks, deadline: counters.Deadline{At: now.Add(d.StoreTimeout)}, scratch: scratch}
	if len(checks) == 1 {
		a.ask(&a.deadline, now, a.Limits)
		a.conclude(&a.deadline, now)
	} else {
		_ = decideAllOrNone(&a.deadline, now, d.StoreTimeout, []*Answer{a}) // what is refused is denied below
	}
	denied = a.Denied
	if h != nil {
		a.scratch = a.SetHeaders(h, a.scratch)
	}
	for i := range checks {
		if c := &checks[i]; c.asked && c.undecided(d.Policy) {
			c.Decision = counters.Decision{}
		}
		a.Denied = a.Denied || !checks[i].Allowed
	}
	d.observer.Decided(a, now, d.Now().Sub(now))
	a.Limits = own
	defer a.Release()
	return a.Allowed, denied
}

// ReserveLimits is TakeLimits of checks with one cost, which is an estimate: CommitLimits is to
// be told within that time what it was. The receipt says what the checks have reserved; if that
// is nothing, it has no limits.
func (d *Decider) ReserveLimits(checks []LimitCheck, within time.Duration) (r receipt.Receipt, admitted bool) {
	if len(checks) == 0 {
		return r, true
	}
	now := d.Now()
	admitted, denied := d.takeLimits(checks, nil, now)
	if denied {
		d.unreserve(checks, now)
		return r, admitted
	}
	for i := range checks {
		c := &checks[i]
		if _, constant := c.Limiter.(policy.Constant); !constant && (c.Consumed() || c.deniedCounts(d.Policy)) {
			r.Limits = append(r.Limits, c.reserved(nameOfCheck(c)))
		}
	}
	hash := sha256.Sum256([]byte(checks[0].Client))
	r.Policy, r.Client, r.Cost, r.Issued, r.Nonce = d.Name, hex.EncodeToString(hash[:12]), checks[0].Cost, now, rand.Uint64()
	r.Until = now.Add(within)
	return r, true
}

// unreserve gives back what denied checks have counted, as far as their limits can: a
// reservation that isn't made costs nothing.
func (d *Decider) unreserve(checks []LimitCheck, now time.Time) {
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	AtOnce(len(checks), d.StoreTimeout, func(i int) {
		if c := &checks[i]; c.deniedCounts(d.Policy) {
			taken := c.Decision
			taken.Allowed = true
			_ = c.Limiter.Refund(ctx, c.request(now), taken)
		}
	})
}

// nameOfCheck returns the number by which a receipt finds the limit of c and its client
// again.
func nameOfCheck(c *LimitCheck) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, c.Client)
	return nameOf(c.Limit) ^ h.Sum32()
}

// CommitLimits settles r, which ReserveLimits has given for the checks, at a cost, as Settle
// does. released is whether it did: for the first time, and in time. If r isn't valid, or of none
// of these checks, they consume the cost now, even if there is no room. The error is an
// Unclaimed. It takes no longer than the store timeout.
func (d *Decider) CommitLimits(checks []LimitCheck, r *receipt.Receipt, valid bool, cost int64) (released bool, err error) {
	now := d.Now()
	var reserved []SettledLimit
	if valid {
		left := slices.Clone(r.Limits)
		for i := range checks {
			c := &checks[i]
			if at := slices.IndexFunc(left, func(l receipt.Limit) bool { return l.Name == nameOfCheck(c) }); at >= 0 {
				reserved = append(reserved, settledLimit(c.Limit, c.Client, r, &left[at], cost))
				left = slices.Delete(left, at, at+1)
			}
		}
	}
	if len(reserved) == 0 {
		var charged []LimitCheck
		for _, c := range checks {
			limit := c.Limit
			if d.except(&c); !c.Exception.IsExempt() {
				c.Limit = limit // a blocked client is charged, too
				charged = append(charged, c)
			}
		}
		d.charge(charged, cost, now)
		return false, nil
	}
	one := newSettlements(&d.Config, 1, func(_ int, s *Settlement, failed error) {
		released, err = failed == nil && !s.Already, failed
	})
	one.add(0, d, r, cost, reserved)
	if one.settle(&d.Claims); errors.Is(err, ErrLate) {
		err = nil
	}
	return released, err
}

// except applies the exception of the client of c, if there is one.
func (d *Decider) except(c *LimitCheck) {
	e := d.Exception(c.Client, netip.Prefix{}, true)
	if e.Kind() == "" {
		return
	}
	c.Exception = e
	if own, ok := e.Limits[c.Name]; ok {
		c.Value = min(own, c.LargestLimit()) // which a reload may have lowered since
	}
	if e.Exempt || e.Blocked {
		limit := *c.Limit
		limit.Limiter = policy.Constant{Allowed: e.Exempt, Until: e.Until}
		c.Limit = &limit
	}
}

// GiveBack gives back the Cost of each check, as far as it is in use, of each client
// counters.MaxCost at most, and answers in them how their limits stand then; if the store can't, as far as is
// known. It ends within the store timeout of now. The limits must be buckets, count in
// windows, of which a sliding one gives back what was counted in the slot of now, or have
// leases, of which those end that would end first.
func (d *Decider) GiveBack(checks []LimitCheck, now time.Time) {
	type client struct {
		limiter counters.Limiter
		name    string
		value   int64
	}
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	byClient := make(map[client]*LimitCheck)
	var sums []*LimitCheck // of each client
	of := make([]*LimitCheck, len(checks))
	for i := range checks {
		d.except(&checks[i]) // a Constant gives nothing back
		c := checks[i]
		k := client{c.Limiter, c.Client, c.Value}
		if byClient[k] == nil {
			byClient[k] = &LimitCheck{Limit: c.Limit, Client: c.Client, Value: c.Value}
			sums = append(sums, byClient[k])
		}
		of[i] = byClient[k]
		of[i].Cost += c.Cost
	}
	AtOnce(len(sums), d.StoreTimeout, func(i int) { sums[i].giveBack(ctx, now) })
	for i := range checks {
		checks[i].Decision = of[i].Decision
	}
}

func (c *LimitCheck) giveBack(ctx context.Context, now time.Time) {
	capacity := c.capacity()
	r := counters.Request{Client: c.Client, Limit: c.Value, Now: now}
	d, err := c.Limiter.Peek(ctx, r)
	used := capacity - d.Remaining
	switch { // more may be in use than the limit
	case err != nil || d.Remaining > 0:
	case c.Drains: // to nothing at most
		used = c.Cost
	default:
		above := r
		above.Limit = counters.MaxLimit
		var whole counters.Decision
		whole, err = c.Limiter.Peek(ctx, above)
		used = counters.MaxLimit - whole.Remaining
	}
	if r.Cost = min(c.Cost, used, counters.MaxCost); err == nil && r.Cost > 0 {
		d.Allowed = true
		if c.Lease > 0 {
			d.Receipt.Position = counters.EarliestLeases
		}
		if err = c.Limiter.Refund(ctx, r, d); err == nil {
			r.Cost = 0
			d, err = c.Limiter.Peek(ctx, r)
		}
	}
	if err != nil {
		var known bool
		r.Cost = 0
		if d, known = c.Limiter.Recall(r); !known {
			d = counters.Decision{Remaining: capacity}
		}
	}
	c.Decision = d
	c.Allowed = true // also if more is in use than the limit
}
