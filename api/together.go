package api

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// A LimitCheck asks one limit whether a client may spend a cost, and has the
// answer.
type LimitCheck struct {
	Limit *policy.Limit
	// Client, Cost and Value are those of a counters.Request, and right: Value
	// is the limit in force.
	Client      string
	Cost, Value int64
	Leniency    policy.Leniency

	// Decision is the answer. Where another limit denies, it says how this one
	// stands.
	counters.Decision
}

// Together decides checks of single limits of one policy as one. Make it with
// NewTogether. It is safe for concurrent use.
type Together struct {
	policy  *policy.Policy
	cfg     Config
	metrics *policyMetrics
}

// noPlan is that of checks whose limits no policy has.
var noPlan plan

// NewTogether returns what decides by limits of p, which must not be changed any
// more. Of p it needs Name, CountDenied and OnStoreError, which must not be
// StoreErrorDeny. Of cfg it uses StoreTimeout, Undecided, Metrics and Now.
func NewTogether(p *policy.Policy, cfg Config) *Together {
	cfg.StoreTimeout = cmp.Or(cfg.StoreTimeout, counters.DefaultTimeout)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Together{policy: p, cfg: cfg, metrics: cfg.Metrics.policy(p, nil)}
}

// Check consumes the costs of all checks or of none, answers in each of them
// and reports whether they are admitted. It takes no longer than the store
// timeout. Unless h is nil, it gets the headers that the check of a policy with
// these limits would have. A check whose cost is above the limit is denied, and
// has to wait until its limit is unused, as far as anybody can tell.
func (t *Together) Check(checks []LimitCheck, h http.Header) bool {
	now := t.cfg.Now()
	a := answers.Get().(*answer)
	defer a.release()
	*a = answer{policy: t.policy, plan: &noPlan, allowed: true, limits: a.limits[:0]}
	a.deadline.At = now.Add(t.cfg.StoreTimeout)
	for i := range checks {
		c := &checks[i]
		a.limits = append(a.limits, limitAnswer{
			Limit: c.Limit, limit: c.Value, client: c.Client, cost: c.Cost, leniency: c.Leniency,
		})
	}
	if len(checks) == 1 {
		a.ask(&a.deadline, now, a.limits)
		a.settle(&a.deadline, now)
	} else {
		decideJointly(&a.deadline, now, t.cfg.StoreTimeout, []*answer{a})
	}
	if h != nil {
		a.setHeaders(h, nil)
	}
	for i := range checks {
		l := &a.limits[i]
		checks[i].Decision = l.Decision
		a.denied = a.denied || !l.Allowed
		if l.degraded != nil && t.cfg.Undecided != nil {
			t.cfg.Undecided(l.client, l.degraded)
		}
	}
	t.metrics.countDecision(a, t.cfg.Now().Sub(now))
	return a.allowed
}

// GiveBack gives back the Cost of each check, as far as it is in use, and
// answers in them how their limits stand then; if the store can't, as far as is
// known. It takes no longer than the store timeout. The limits must count in
// windows; a sliding one gives back what was counted in the slot of now.
func (t *Together) GiveBack(checks []LimitCheck) {
	type client struct {
		limiter policy.Limiter
		name    string
		value   int64
	}
	now := t.cfg.Now()
	ctx := &counters.Deadline{At: now.Add(t.cfg.StoreTimeout)}
	places := make(map[client]int)
	var sums []LimitCheck // of each client
	of := make([]int, len(checks))
	for i, c := range checks {
		k := client{c.Limit.Limiter, c.Client, c.Value}
		place, ok := places[k]
		if !ok {
			place = len(sums)
			places[k], sums = place, append(sums, LimitCheck{Limit: c.Limit, Client: c.Client, Value: c.Value})
		}
		sums[place].Cost += c.Cost
		of[i] = place
	}
	atOnce(len(sums), t.cfg.StoreTimeout, func(i int) { sums[i].giveBack(ctx, now) })
	for i := range checks {
		checks[i].Decision = sums[of[i]].Decision
	}
}

func (c *LimitCheck) giveBack(ctx context.Context, now time.Time) {
	capacity := cmp.Or(c.Limit.Burst, c.Value)
	r := counters.Request{Client: c.Client, Limit: c.Value, Now: now}
	d, err := c.Limit.Limiter.Peek(ctx, r)
	used := capacity - d.Remaining
	switch { // more may be in use than the limit
	case err != nil || d.Remaining > 0:
	case c.Limit.Drains:
		used = int64(math.Ceil(d.ResetAfter.Seconds() / c.Limit.Window.Seconds() * float64(c.Value)))
	default:
		above := r
		above.Limit = counters.MaxLimit
		var whole counters.Decision
		whole, err = c.Limit.Limiter.Peek(ctx, above)
		used = counters.MaxLimit - whole.Remaining
	}
	if r.Cost = min(c.Cost, used); err == nil && r.Cost > 0 {
		d.Allowed = true
		if err = c.Limit.Limiter.Refund(ctx, r, d); err == nil {
			r.Cost = 0
			d, err = c.Limit.Limiter.Peek(ctx, r)
		}
	}
	if err != nil {
		var known bool
		r.Cost = 0
		if d, known = c.Limit.Limiter.Recall(r); !known {
			d = counters.Decision{Remaining: capacity}
		}
	}
	c.Decision = d
	c.Allowed = true // also if more is in use than the limit
}

// CountDenial counts in weir_limit_denials_total that a limit of that name
// denied. There may only be so many names as a metric can have labels.
func (t *Together) CountDenial(limit string) {
	t.cfg.Metrics.limitDenials.WithLabelValues(t.policy.Name, limit).Inc()
}
