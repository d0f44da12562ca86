// Package decide decides checks by policies: one check, a batch of them, or many
// that are all admitted or none. It knows nothing of HTTP.
//
// A denied check consumes nothing from any limit, unless its policy counts denied
// requests. No check waits for the store longer than the store timeout; if the
// store fails, its policy says what is answered. Limits of many checks share their
// exchanges with the store where a limiter takes many.
//
// Start reading at Decider.Check; independent.go, batch.go and allornone.go decide several
// checks, and exchange.go asks limits for all of them at once. What a check has reserved is
// settled in settle.go, once by claims.go, and renewed in renew.go.
package decide

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/api/policy"
	"weir/api/receipt"
	"weir/counters"
)

// An Observer is told what is decided. It is called concurrently.
type Observer interface {
	// Decided is told of the answer to a check that began at now, and how long that
	// took. It must not keep the answer.
	Decided(a *Answer, now time.Time, took time.Duration)
	// Settled is told of what Engine.Settle returns, which was asked at now.
	Settled(s *Settlement, now time.Time, err error)
	// Charged is told of a cost that Engine.Charge has counted.
	Charged(client string, cost int64, now time.Time)
	// Renewed is told of a limit whose lease was to be renewed, and why it wasn't.
	Renewed(l *LimitCheck, err error)
}

// A Config says how long checks may take, and where settlements are claimed. All fields
// are needed, but for Claims where nothing is settled.
type Config struct {
	// StoreTimeout bounds how long a check waits for the store, counted from its
	// start, and a batch as a whole.
	StoreTimeout time.Duration
	// Now is the clock.
	Now    func() time.Time
	Claims Claims
}

// An Engine decides checks by a set of policies that doesn't change. Make it with
// NewEngine. It is safe for concurrent use.
type Engine struct {
	Config
	queue    *Queue
	deciders map[string]*Decider
}

// NewEngine returns an Engine of policies, which must not be changed any more.
// Batches wait in queue. observe is asked for the observer of each policy.
func NewEngine(c Config, queue *Queue, policies policy.Policies, observe func(*policy.Policy) Observer) *Engine {
	e := &Engine{Config: c, queue: queue, deciders: make(map[string]*Decider, len(policies))}
	for name, p := range policies {
		e.deciders[name] = NewDecider(c, p, observe(p))
	}
	return e
}

// Override replaces the exceptions that were made at run time, by the name of their policy. They
// hold besides those of the policies themselves.
func (e *Engine) Override(all map[string]map[policy.ClientKey]policy.Terms) {
	for name, d := range e.deciders {
		d.Override(all[name])
	}
}

// Find returns the Decider of the policy of that name. The error is an
// UnknownPolicy.
func (e *Engine) Find(name string) (*Decider, error) {
	if d, ok := e.deciders[name]; ok {
		return d, nil
	}
	return nil, UnknownPolicy(name)
}

// ForChecks is Find for callers that name their client themselves. The error is an Invalid for a
// policy with a Finder, by which only Envoy asks.
func (e *Engine) ForChecks(name string) (*Decider, error) {
	d, err := e.Find(name)
	if err == nil && d.Finder != nil {
		return nil, invalid("policy %q takes no checks; Envoy asks by it", name)
	}
	return d, err
}

// enter waits until a batch of so many checks may begin. It returns the time then, the deadline
// of the batch, and what to call when it has ended. All its checks share one store timeout,
// however many they are.
func (e *Engine) enter(caller context.Context, checks int) (now time.Time, ctx *counters.Deadline, leave func()) {
	held, leave := e.queue.enter(caller, checks)
	now = e.Now()
	return now, &counters.Deadline{At: now.Add(max(0, e.StoreTimeout-held))}, leave
}

// A Decider decides checks by one policy. Make it with NewDecider, or find it in an
// Engine. It is safe for concurrent use.
type Decider struct {
	*policy.Index
	Config
	plans     map[*policy.Route]*plan // nil is the route of checks that have none
	claimKeys counters.Namespace      // the key of one is this, the client and "_", and its name
	observer  Observer
}

// NewDecider returns the Decider of p, which must not be changed any more.
func NewDecider(c Config, p *policy.Policy, o Observer) *Decider {
	d := &Decider{Index: policy.NewIndex(p), Config: c, plans: make(map[*policy.Route]*plan), observer: o}
	d.claimKeys = counters.CounterNamespace(c.Claims.KeyPrefix, p.Name, "-", 0)
	d.plans[nil] = newPlan(p.Limits, nil)
	for i := range p.Routes {
		r := &p.Routes[i]
		d.plans[r] = newPlan(p.Limits, r.Limits)
	}
	return d
}

// newPlan returns the plan of limits, of which a route replaces those that own names.
func newPlan(limits, own []policy.Limit) *plan {
	p := new(plan)
	for i := range limits {
		l := &limits[i]
		if at := slices.IndexFunc(own, func(o policy.Limit) bool { return o.Name == l.Name }); at >= 0 {
			l = &own[at]
		}
		p.limits, p.names = append(p.limits, l), append(p.names, nameOf(l))
	}
	p.header = rateLimitPolicy(p.limits)
	return p
}

// Check answers q, which began at now, and tells the observer. The error is an
// Invalid or a Refused.
func (d *Decider) Check(ctx context.Context, q Check, now time.Time) (*Answer, error) {
	a, err := d.prepare(q)
	if err != nil {
		return nil, err
	}
	a.ask(ctx, now, a.Limits)
	a.conclude(ctx, now)
	return d.report(a, now)
}

// prepare is newAnswer for a check. One that has leases must be settled, and one that is
// to be settled must fit into a receipt.
func (d *Decider) prepare(q Check) (*Answer, error) {
	a, err := d.newAnswer(q)
	if err != nil {
		return nil, err
	}
	if q.Settle {
		if most := receipt.Room(d.Name, a.Client); len(a.Limits) > most {
			return nil, invalid("settle: the receipt of so long a client has room for %d limits, and %q has %d: use a shorter client, or fewer limits", most, d.Name, len(a.Limits))
		}
		return a, nil
	}
	for i := range a.Limits {
		if l := &a.Limits[i]; l.Lease > 0 {
			return nil, invalid("the limit %q of what is under way needs \"settle\": true, and what is admitted has to be settled when it ends", l.Name)
		}
	}
	return a, nil
}

// newAnswer validates q and finds the limits in force. The answer allows, unless
// the client is blocked and not in a limit in shadow mode, and its limits haven't
// been asked. The error is an Invalid.
func (d *Decider) newAnswer(q Check) (*Answer, error) {
	if err := q.validate(); err != nil {
		return nil, err
	}
	for _, passed := range q.Limits {
		if !slices.ContainsFunc(d.Limits, func(l policy.Limit) bool { return l.Name == passed.Name }) {
			return nil, invalid("policy %q has no limit %q; GET /v1/policies/%s lists them", d.Name, passed.Name, d.Name)
		}
	}
	a := answers.Get().(*Answer)
	*a = Answer{Policy: d.Policy, plan: d.plans[q.Route], Client: q.Client, Limits: a.Limits[:0], Settles: q.Settle, Trace: q.Trace, Cost: q.Cost}
	limits := a.plan.limits
	if d.Finder != nil {
		var limit *policy.Limit
		limit, a.Client = d.Finder.Find(q.Client)
		limits, a.plan, q.Header = []*policy.Limit{limit}, &noPlan, true
	}
	a.Exception = d.Exception(a.Client, q.Network, q.Header)
	exception := a.Exception
	a.Blocked = exception.Blocked && !exception.Exempt && !q.charges
	a.Allowed = !a.Blocked || d.Finder != nil && limits[0] != nil && limits[0].Leniency.IsShadow()
	if a.Blocked || exception.Exempt {
		return a, nil
	}
	for _, l := range limits {
		if l == nil {
			return nil, invalid("no limit of policy %q counts the client %q; its limits have patterns of those that they count", d.Name, q.Client)
		}
		limit := l.Limit
		own, has := exception.Limits[l.Name]
		if has = has && l.Route == ""; has {
			limit = min(own, l.LargestLimit()) // which a reload may have lowered since
		}
		for _, passed := range q.Limits {
			if passed.Name == l.Name && !(has && exception.AtRunTime()) {
				limit = passed.Value
			}
		}
		if limit > l.LargestLimit() {
			return nil, invalid("limits: %q is %d and must be a whole number from 1 to %d", l.Name, limit, l.LargestLimit())
		}
		capacity, what := limit, "limit"
		if l.Burst > 0 {
			capacity, what = l.Burst, "burst of the limit"
		}
		cost := q.Cost
		if l.CountsRequests {
			cost = 1
		}
		if cost > capacity && capacity > 0 {
			helps := ""
			if l.Lease > 0 { // the cost is probably one of tokens, for another limit of the policy
				helps = "; with counts: requests a check takes one place, whatever it costs"
			}
			return nil, invalid("cost %d is above the %s %q, which is %d, and can never be admitted%s", cost, what, l.Name, capacity, helps)
		}
		a.Limits = append(a.Limits, LimitCheck{Limit: l, Value: limit, Client: a.Client, Cost: cost, reserves: q.Settle})
	}
	return a, nil
}

// report tells the observer of the answer to a check that began at now, and returns
// it. The error is a Refused.
func (d *Decider) report(a *Answer, now time.Time) (*Answer, error) {
	d.observer.Decided(a, now, d.Now().Sub(now))
	if a.Refused {
		return a, refused(a)
	}
	return a, nil
}

// Peek returns the answer that a check of cost 1 would get now, and consumes
// nothing. Forward auth may count an address under another name: then it is the answer of
// the name that has less left. The error is an Invalid or a Refused.
func (d *Decider) Peek(ctx context.Context, client string, now time.Time) (*Answer, error) {
	a, _, err := d.peekNamed(ctx, client, now)
	return a, err
}

// peekNamed is Peek, and returns which check it is the answer to.
func (d *Decider) peekNamed(ctx context.Context, client string, now time.Time) (a *Answer, q Check, err error) {
	for i, by := range d.checksOf(client) {
		b, err := d.peek(ctx, by, now)
		switch {
		case err != nil:
			return nil, q, err
		case i == 0:
			a, q = b, by
		case b.left() < a.left():
			a.Release()
			a, q = b, by
		default:
			b.Release()
		}
	}
	return a, q, nil
}

// checksOf returns the checks of cost 1 by which the client of that name may be counted: of an
// address, as forward auth makes them, and of the name as it stands.
func (d *Decider) checksOf(client string) []Check {
	q := Check{Policy: d.Name, Client: client, Cost: 1}
	if address, ok := d.AddressOf(client); ok {
		by := q
		if by.Client, by.Network = d.ByAddress(address); by.Client != client {
			return []Check{by, q}
		}
	}
	return []Check{q}
}

// peek answers q without consuming anything.
func (d *Decider) peek(ctx context.Context, q Check, now time.Time) (*Answer, error) {
	a, err := d.newAnswer(q)
	if err != nil {
		return nil, err
	}
	unknown := false
	for i := range a.Limits {
		l := &a.Limits[i]
		l.look(ctx, d.Policy, now)
		a.Allowed = a.Allowed && (l.Allowed || l.Leniency.IsShadow())
		unknown = unknown || l.undecided(d.Policy)
	}
	if unknown {
		if !d.Shadow {
			return nil, refused(a)
		}
		a.Allowed = false
	}
	a.Now = now
	a.sumUp()
	return a, nil
}

// Look returns what Peek does, with the limits of routes behind those of the answer, and what
// is in use of each. The error is one of Peek's, or one of a counters.Store.
func (d *Decider) Look(ctx context.Context, client string, now time.Time) (*Answer, []counters.Usage, error) {
	a, q, err := d.peekNamed(ctx, client, now)
	if err != nil {
		return nil, nil, err
	}
	for i := range d.Routes {
		if q.Route = &d.Routes[i]; len(q.Route.Limits) == 0 {
			continue
		}
		on, err := d.peek(ctx, q, now)
		if err != nil {
			return nil, nil, err
		}
		for _, l := range on.Limits {
			if l.Route != "" {
				a.Limits = append(a.Limits, l)
			}
		}
		on.Release()
	}
	usages := make([]counters.Usage, len(a.Limits))
	for i := range a.Limits {
		l := &a.Limits[i]
		if usages[i], err = l.Limiter.Usage(ctx, l.request(now)); err != nil {
			return nil, nil, fmt.Errorf("limit %q: %w", l.Name, err)
		}
	}
	return a, usages, nil
}

// NamesOf returns the names by which the client of that name may be counted. Each has counts
// of its own, perhaps on another server.
func (d *Decider) NamesOf(client string) (names []string) {
	for _, q := range d.checksOf(d.CountedAs(client)) {
		names = append(names, q.Client)
	}
	return names
}

// Reset makes the client that is counted by a name start fresh in all limits, at once: one after
// the other they might take longer than the store timeout. The error is one of a counters.Store,
// and names a limit that may not have been reset.
func (d *Decider) Reset(ctx context.Context, name string, now time.Time) error {
	began, limits := time.Now(), slices.Collect(d.EachLimit())
	failed := make([]error, len(limits))
	AtOnce(len(limits), d.StoreTimeout, func(i int) {
		// Refunds go by when the reset of their own limit was.
		failed[i] = limits[i].Limiter.Reset(ctx, name, now.Add(time.Since(began)))
	})
	for i, err := range failed {
		switch l := limits[i]; {
		case err == nil:
		case l.Route != "":
			return fmt.Errorf("limit %q of %s: %w", l.Name, l.Route, err)
		default:
			return fmt.Errorf("limit %q: %w", l.Name, err)
		}
	}
	return nil
}

// Forget drops what the process remembers of the client that is counted by a name.
func (d *Decider) Forget(name string) {
	for l := range d.EachLimit() {
		l.Limiter.Forget(name)
	}
}
