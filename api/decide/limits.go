package decide

import (
	"context"
	"math"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// noPlan is that of checks whose limits no policy has.
var noPlan plan

// TakeLimits consumes the costs of checks of single limits, which no policy has to
// have, or of none of them, answers in each and reports whether they are admitted.
// Of its policy it needs Name, CountDenied and OnStoreError, which must not be
// StoreErrorDeny. It takes no longer than the store timeout. Unless h is nil, it gets
// the headers that the check of a policy with these limits would have. A check whose
// cost is above the limit is denied, and has to wait until its limit is unused, as
// far as anybody can tell.
func (d *Decider) TakeLimits(checks []LimitCheck, h map[string][]string) bool {
	now := d.Now()
	a := answers.Get().(*Answer)
	own := a.Limits
	for i := range checks {
		c := &checks[i]
		// Any instance may give it back: see GiveBack.
		*c = LimitCheck{Limit: c.Limit, Client: c.Client, Cost: c.Cost, Value: c.Value, Leniency: c.Leniency, reserves: true}
	}
	*a = Answer{Policy: d.Policy, plan: &noPlan, Allowed: true, Limits: checks, deadline: counters.Deadline{At: now.Add(d.StoreTimeout)}}
	if len(checks) == 1 {
		a.ask(&a.deadline, now, a.Limits)
		a.settle(&a.deadline, now)
	} else {
		_ = decideJointly(&a.deadline, now, d.StoreTimeout, []*Answer{a}) // nothing is refused
	}
	if h != nil {
		a.SetHeaders(h, nil)
	}
	for i := range checks {
		a.Denied = a.Denied || !checks[i].Allowed
	}
	d.observer.Decided(a, now, d.Now().Sub(now))
	a.Limits = own
	defer a.Release()
	return a.Allowed
}

// GiveBack gives back the Cost of each check, as far as it is in use, and
// answers in them how their limits stand then; if the store can't, as far as is
// known. It takes no longer than the store timeout. The limits must be buckets, count in
// windows, of which a sliding one gives back what was counted in the slot of now, or have
// leases, of which those end that would end first.
func (d *Decider) GiveBack(checks []LimitCheck) {
	type client struct {
		limiter policy.Limiter
		name    string
		value   int64
	}
	now := d.Now()
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	byClient := make(map[client]*LimitCheck)
	var sums []*LimitCheck // of each client
	of := make([]*LimitCheck, len(checks))
	for i, c := range checks {
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
	case c.Drains:
		used = int64(math.Ceil(d.ResetAfter.Seconds() / c.Window.Seconds() * float64(c.Value)))
	default:
		above := r
		above.Limit = counters.MaxLimit
		var whole counters.Decision
		whole, err = c.Limiter.Peek(ctx, above)
		used = counters.MaxLimit - whole.Remaining
	}
	if r.Cost = min(c.Cost, used); err == nil && r.Cost > 0 {
		d.Allowed = true
		if c.Lease > 0 {
			d.Receipt.Refunded = counters.EarliestLeases
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
