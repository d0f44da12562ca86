package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// activePolicies are the policies in force, which change as a whole.
type activePolicies struct {
	byName  map[string]*decider
	metrics map[string]*policyMetrics
	gone    []string // the policies before had them; checks by them may be under way
	now     func() time.Time

	undecided func(client string, err error) // or nil; see Config
	log       *checkLogger                   // nil unless checks are logged
	unknown   *unknownPolicies
}

// policy returns the policy of that name, or a problem.
func (p *activePolicies) policy(name string) (*decider, error) {
	policy, ok := p.byName[name]
	switch {
	case ok:
		return policy, nil
	case name == "":
		return nil, badRequest("policy is missing; GET /v1/policies lists them")
	default:
		p.unknown.asked(name)
		return nil, newProblem(http.StatusNotFound, "there is no policy %q; GET /v1/policies lists them", name)
	}
}

// A decider decides checks by one policy.
type decider struct {
	policy.Index
	plans map[*policy.Route]*plan // nil is the route of requests that have none
}

func newDecider(p *policy.Policy) *decider {
	d := &decider{Index: policy.NewIndex(p), plans: make(map[*policy.Route]*plan)}
	limits := make([]*policy.Limit, len(p.Limits))
	for i := range p.Limits {
		limits[i] = &p.Limits[i]
	}
	d.plans[nil] = &plan{limits, rateLimitPolicy(limits)}
	for i := range p.Routes {
		r, limits := &p.Routes[i], slices.Clone(limits)
		for j := range r.Limits {
			own := &r.Limits[j]
			limits[slices.IndexFunc(p.Limits, func(l policy.Limit) bool { return l.Name == own.Name })] = own
		}
		d.plans[r] = &plan{limits, rateLimitPolicy(limits)}
	}
	return d
}

// decide answers q, which began at now, by the policy it names, and counts the
// answer. The error is a problem.
func (p *activePolicies) decide(ctx context.Context, q check, now time.Time) (*answer, error) {
	policy, err := p.policy(q.policy)
	if err != nil {
		return nil, err
	}
	a, err := policy.prepare(q)
	if err != nil {
		return nil, err
	}
	a.ask(ctx, now, a.limits)
	a.settle(ctx, now)
	return p.close(a, now)
}

// close counts an answer to a question that began at now, and returns it. The
// error is a problem.
func (p *activePolicies) close(a *answer, now time.Time) (*answer, error) {
	p.count(a, now, p.now().Sub(now))
	if a.refused {
		return a, reducedCapacity(a)
	}
	return a, nil
}

// count counts and logs an answer to a question that began at now, and the time that
// it took.
func (p *activePolicies) count(a *answer, now time.Time, took time.Duration) {
	p.metrics[a.policy.Name].count(a, now, took)
	if a.degraded != nil && p.undecided != nil {
		p.undecided(a.client, a.degraded)
	}
	if p.log != nil {
		p.log.write(a)
	}
}

// ask asks limits of a, one after the other, and consumes their costs, until one
// denies for all of them; where denied requests count, it asks the others too.
func (a *answer) ask(ctx context.Context, now time.Time, limits []limitAnswer) {
	for i := range limits {
		l := &limits[i]
		r := a.begin(l, now)
		d, err := l.Limiter.Take(ctx, r)
		if a.end(l, d, err, r) {
			return
		}
	}
}

// begin returns what l is asked to consume.
func (a *answer) begin(l *limitAnswer, now time.Time) counters.Request {
	l.asked = true
	return l.request(now)
}

// end notes what l's Take of r returned, and reports whether the limits after it
// needn't be asked.
func (a *answer) end(l *limitAnswer, d counters.Decision, err error, r counters.Request) bool {
	p := a.policy
	if err != nil && p.OnStoreError == policy.StoreErrorLocal {
		l.degraded = err
		d, err = l.Limiter.TakeLocal(r, err)
	}
	l.record(p, d, err, r)
	return l.undecided(p) && !p.Shadow || !p.CountDenied && (l.undecided(p) || l.overrules())
}

// settle ends a check whose limits were asked: what they have consumed is given
// back if it is denied.
func (a *answer) settle(ctx context.Context, now time.Time) {
	a.judge()
	if !a.allowed && !a.policy.CountDenied {
		a.refund(ctx, now)
	}
	a.finish()
}

// judge finds out whether the limits that were asked admit, and whether
// on_store_error refuses.
func (a *answer) judge() {
	for i := range a.limits {
		if l := &a.limits[i]; l.asked {
			undecided := l.undecided(a.policy)
			a.refused = a.refused || undecided && !a.policy.Shadow
			a.allowed = a.allowed && !undecided && !l.overrules()
		}
	}
	a.judgeQuotas()
}

// judgeQuotas denies if every quota does.
func (a *answer) judgeQuotas() {
	quotas := false
	for i := range a.limits {
		switch l := &a.limits[i]; {
		case !l.asked:
		case l.leniency == policy.ShadowQuota || l.leniency == policy.Quota && l.Allowed:
			return
		case l.leniency == policy.Quota:
			quotas = true
		}
	}
	a.quotasDeny = quotas && a.allowed
	a.allowed = a.allowed && !quotas
}

// peek returns the answer that a check of cost 1 would get now, and consumes
// nothing. The error is a problem.
func (p *decider) peek(ctx context.Context, client string, now time.Time) (*answer, error) {
	a, err := p.prepare(check{policy: p.Name, client: client, cost: 1})
	if err != nil {
		return nil, err
	}
	unknown := false
	for i := range a.limits {
		l := &a.limits[i]
		r := l.request(now)
		d, err := l.Limiter.Peek(ctx, r)
		l.record(p.Policy, d, err, r)
		a.allowed = a.allowed && l.Allowed
		unknown = unknown || !l.decided
	}
	if unknown && p.OnStoreError == policy.StoreErrorDeny {
		if !p.Shadow {
			return nil, reducedCapacity(a)
		}
		a.allowed = false
	}
	return a.finish(), nil
}

// reset makes the client start fresh in all limits. The error is one of a
// counters.Store, and names the limit that may not have been reset.
func (p *decider) reset(ctx context.Context, client string, now time.Time) error {
	began := time.Now()
	for l := range p.EachLimit() {
		// Refunds go by when the reset of their own limit was.
		if err := l.Limiter.Reset(ctx, client, now.Add(time.Since(began))); err != nil {
			if l.Route != "" {
				return fmt.Errorf("limit %q of %s: %w", l.Name, l.Route, err)
			}
			return fmt.Errorf("limit %q: %w", l.Name, err)
		}
	}
	return nil
}

// prepare validates q and finds the limits in force. The answer allows, unless
// the client is blocked, and its limits haven't been asked. The error is a
// problem.
func (p *decider) prepare(q check) (*answer, error) {
	if err := q.validate(); err != nil {
		return nil, err
	}
	for _, passed := range q.limits {
		if !slices.ContainsFunc(p.Limits, func(l policy.Limit) bool { return l.Name == passed.name }) {
			return nil, badRequest("policy %q has no limit %q", p.Name, passed.name)
		}
	}
	a := answers.Get().(*answer)
	*a = answer{policy: p.Policy, plan: p.plans[q.route], client: q.client, limits: a.limits[:0]}
	exception := p.Exception(q.client, q.network, q.header)
	a.blocked = exception.Blocked && !exception.Exempt
	if a.allowed = !a.blocked; a.blocked || exception.Exempt {
		return a, nil
	}
	for _, l := range a.plan.limits {
		limit := l.Limit
		if own, ok := exception.Limits[l.Name]; ok && l.Route == "" {
			limit = own
		}
		for _, passed := range q.limits {
			if passed.name == l.Name {
				limit = passed.value
			}
		}
		if limit > l.Most() {
			return nil, badRequest("limits: %q is %d and must be a whole number from 1 to %d", l.Name, limit, l.Most())
		}
		capacity, what := limit, "limit"
		if l.Burst > 0 {
			capacity, what = l.Burst, "burst of the limit"
		}
		if q.cost > capacity {
			return nil, badRequest("cost %d is above the %s %q, which is %d, and can never be admitted", q.cost, what, l.Name, capacity)
		}
		a.limits = append(a.limits, limitAnswer{Limit: l, limit: limit, client: q.client, cost: q.cost})
	}
	return a, nil
}

func (q *check) validate() error {
	if q.cost < 0 || q.cost > counters.MaxCost {
		return badRequest("cost %d must be a whole number from 0 to %d", q.cost, counters.MaxCost)
	}
	for _, l := range q.limits {
		if l.value < 1 || l.value > counters.MaxLimit {
			return badRequest("limits: %q is %d and must be a whole number from 1 to %d", l.name, l.value, int64(counters.MaxLimit))
		}
	}
	return validateClient(q.client)
}

func validateClient(client string) error {
	if client == "" {
		return badRequest("client is missing; it names who is limited, in 1 to %d bytes", counters.MaxClientBytes)
	}
	if len(client) > counters.MaxClientBytes {
		return badRequest("client is %d bytes long; at most %d are possible", len(client), counters.MaxClientBytes)
	}
	return nil
}

// refund undoes what the limits of a have admitted. For those, and for the
// limits that weren't asked, the answer then says how they stand.
func (a *answer) refund(ctx context.Context, now time.Time) {
	known := a.denialKnown()
	for i := range a.limits {
		if l := &a.limits[i]; l.consumed() {
			l.refund(ctx, now)
		}
	}
	for i := range a.limits {
		if l := &a.limits[i]; !a.refused && l.unsettled() && !l.lookBack(a.policy, now, known) {
			l.look(ctx, a.policy, now)
		}
	}
}

// denialKnown reports whether the limits that deny a did so without a store
// operation.
func (a *answer) denialKnown() bool {
	for i := range a.limits {
		if l := &a.limits[i]; l.asked && !l.Allowed && !l.Local {
			return false
		}
	}
	return true
}

// reducedCapacity returns the problem of a check that the store could not
// decide, under on_store_error: deny.
func reducedCapacity(a *answer) *problem {
	p := storeFailed("the store could not decide in time and policy %q denies then; try again", a.policy.Name)
	p.Policy, p.Client, p.Degraded = a.policy.Name, a.client, true
	for _, l := range a.limits {
		if !l.decided {
			p.ViolatedPolicies = append(p.ViolatedPolicies, l.Name)
		}
	}
	return p
}
