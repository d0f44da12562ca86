package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"weir/counters"
)

// A Limit is one limit of a policy. Its fields but Limiter are what
// GET /v1/policies shows.
type Limit struct {
	Name      string
	Algorithm string
	// Limit is the most that is admitted per Window, 1 to counters.MaxLimit.
	Limit  int64
	Window time.Duration
	// SubWindows and Estimate are those of a sliding window, else zero.
	SubWindows int
	Estimate   string
	// Burst is the capacity of a token or leaky bucket; 0 means the limit.
	Burst int64
	// MaxLimit is the largest limit that a client or a check may have instead; 0
	// means counters.MaxLimit.
	MaxLimit int64
	Limiter  Limiter
}

// Most returns the largest limit that may be in force.
func (l *Limit) Most() int64 {
	if l.MaxLimit == 0 {
		return counters.MaxLimit
	}
	return l.MaxLimit
}

// capacity returns the largest cost that can be admitted when limit is in force.
func (l *Limit) capacity(limit int64) int64 {
	if l.Burst == 0 {
		return limit
	}
	return l.Burst
}

// OnStoreError says what a policy answers when the store can't decide.
type OnStoreError string

// The values of OnStoreError.
const (
	StoreErrorAllow OnStoreError = "allow"
	StoreErrorDeny  OnStoreError = "deny"
)

// A Client is what a policy says of one client in particular.
type Client struct {
	// Limits replaces the limit of the limits named.
	Limits map[string]int64
	// Exempt clients are always admitted, Blocked ones never; neither is
	// counted.
	Exempt, Blocked bool
}

// A Policy is a set of limits that are checked as one: all must admit, and if
// one denies, the others are given back. It must not be changed while it is in
// use.
type Policy struct {
	Name        string
	Description string
	Limits      []Limit
	// CountDenied makes denied requests count, in every limit.
	CountDenied  bool
	OnStoreError OnStoreError
	// Hold lets POST /v1/check answer only when the wait of an admitted check is
	// over.
	Hold bool
	// Shadow decides and counts, but always allows.
	Shadow  bool
	Clients map[string]Client
	// Identify and AuthDenyStatus are those of forward auth.
	Identify       []Identifier
	AuthDenyStatus int

	header string // RateLimit-Policy with the policy's own limits
}

// Policies are the policies by name.
type Policies map[string]*Policy

// sorted returns the policies in the order of their names.
func (p Policies) sorted() []*Policy {
	return slices.SortedFunc(maps.Values(p), func(a, b *Policy) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
}

// A check is one question to a policy.
type check struct {
	policy string
	client string
	cost   int64
	limits []limitValue // the caller's own
}

// limitValue is a limit that a caller passes for one check.
type limitValue struct {
	name  string
	value int64
}

// An answer is what became of a check.
type answer struct {
	policy   *Policy
	client   string
	allowed  bool
	denied   bool          // it was denied, even if shadow mode allows it
	degraded bool          // a limit could not be asked
	refused  bool          // on_store_error: deny; the answer is a problem
	held     time.Duration // since the check
	limits   []limitAnswer
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// release gives a back for the next check.
func (a *answer) release() { answers.Put(a) }

type limitAnswer struct {
	*Limit
	counters.Decision
	limit int64 // the one in force for this check
	known bool  // the store could be asked
}

// retryAfter returns the time until all limits admit the check; 0 when it is
// allowed or when time makes no difference.
func (a *answer) retryAfter() time.Duration {
	var retry time.Duration
	if !a.allowed {
		for i := range a.limits {
			retry = max(retry, a.limits[i].RetryAfter)
		}
	}
	return retry
}

// wait returns the time that is left until an admitted request may proceed.
func (a *answer) wait() time.Duration {
	var wait time.Duration
	if a.allowed {
		for i := range a.limits {
			wait = max(wait, a.limits[i].Wait)
		}
	}
	return max(0, wait-a.held)
}

// prepare checks what q asks against the policy. It returns an answer without
// decisions, or a problem that says what is wrong; nothing has been consumed.
func (p *Policy) prepare(q check) (*answer, error) {
	if err := q.validate(); err != nil {
		return nil, err
	}
	a := answers.Get().(*answer)
	*a = answer{policy: p, client: q.client, limits: a.limits[:0]}
	for _, l := range q.limits {
		if !slices.ContainsFunc(p.Limits, func(own Limit) bool { return own.Name == l.name }) {
			return nil, badRequest("policy %q has no limit %q", p.Name, l.name)
		}
	}
	special := p.Clients[q.client]
	if special.Exempt || special.Blocked {
		a.allowed = special.Exempt
		return a, nil
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		limit := l.Limit
		if own, ok := special.Limits[l.Name]; ok {
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
		if q.cost > l.capacity(limit) {
			if l.Burst > 0 {
				return nil, badRequest("cost %d is above the burst of the limit %q, which is %d, and can never be admitted", q.cost, l.Name, l.Burst)
			}
			return nil, badRequest("cost %d is above the limit %q, which is %d, and can never be admitted", q.cost, l.Name, limit)
		}
		a.limits = append(a.limits, limitAnswer{Limit: l, limit: limit})
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

// check decides q at now, consuming its cost from all limits or from none. The
// error is a problem with the question; nothing has been consumed then.
func (p *Policy) check(ctx context.Context, q check, now time.Time) (*answer, error) {
	a, err := p.prepare(q)
	if err != nil {
		return nil, err
	}
	if len(a.limits) == 0 {
		return a.finish(), nil // exempt or blocked
	}
	a.allowed = true
	asked := 0
	for i := range a.limits {
		a.take(ctx, i, q.cost, now)
		asked = i + 1
		if (!a.allowed && !p.CountDenied) || a.refused {
			break
		}
	}
	if !a.allowed && !p.CountDenied {
		a.giveBack(ctx, asked, q.cost, now)
	}
	return a.finish(), nil
}

// finish lets shadow mode allow what was denied.
func (a *answer) finish() *answer {
	a.denied = !a.allowed
	a.allowed = a.allowed || a.policy.Shadow
	return a
}

// take asks limit i.
func (a *answer) take(ctx context.Context, i int, cost int64, now time.Time) {
	l := &a.limits[i]
	d, err := l.Limiter.Take(ctx, l.request(a.client, cost, now))
	if err != nil {
		a.unknown(i)
		if a.policy.OnStoreError == StoreErrorDeny {
			a.refused, a.allowed = !a.policy.Shadow, false
		}
		return
	}
	l.Decision, l.known = d, true
	a.allowed = a.allowed && d.Allowed
}

// giveBack undoes what the first asked limits admitted, and says of those, and
// of the limits that were not asked, how they stand after that.
func (a *answer) giveBack(ctx context.Context, asked int, cost int64, now time.Time) {
	for i := range a.limits {
		l := &a.limits[i]
		r := l.request(a.client, cost, now)
		if i < asked {
			if !l.known || !l.Allowed {
				continue
			}
			// One that fails leaves a count too high until its window has passed;
			// the denial stands either way.
			_ = l.Limiter.GiveBack(ctx, r)
		}
		if a.refused {
			continue
		}
		if d, ok := l.Limiter.Known(r); ok {
			l.Decision, l.known = d, true
		} else {
			a.peek(ctx, i, r)
		}
	}
}

// local reports whether a denial was decided without asking the store.
func (a *answer) local() bool {
	for i := range a.limits {
		if l := &a.limits[i]; !l.Allowed && l.Local {
			return a.denied
		}
	}
	return false
}

// peek says how limit i stands.
func (a *answer) peek(ctx context.Context, i int, r counters.Request) {
	d, err := a.limits[i].Limiter.Peek(ctx, r)
	if err != nil {
		a.unknown(i)
		return
	}
	a.limits[i].Decision, a.limits[i].known = d, true
}

// unknown notes that limit i could not be asked: nothing is known to be in use.
func (a *answer) unknown(i int) {
	l := &a.limits[i]
	l.Decision, l.known = counters.Decision{Allowed: true, Remaining: l.limit}, false
	a.degraded = true
}

func (l *limitAnswer) request(client string, cost int64, now time.Time) counters.Request {
	return counters.Request{Client: client, Cost: cost, Limit: l.limit, Now: now}
}

// peek returns the answer that a check of cost 1 would get now, and consumes
// nothing.
func (p *Policy) peek(ctx context.Context, client string, now time.Time) (*answer, error) {
	q := check{policy: p.Name, client: client, cost: 1}
	a, err := p.prepare(q)
	if err != nil {
		return nil, err
	}
	if len(a.limits) > 0 {
		a.allowed = true
	}
	for i := range a.limits {
		l := &a.limits[i]
		a.peek(ctx, i, l.request(client, q.cost, now))
		a.allowed = a.allowed && l.Allowed
	}
	if a.degraded && p.OnStoreError == StoreErrorDeny {
		a.refused, a.allowed = !p.Shadow, false
	}
	return a.finish(), nil
}

// reset makes the client start fresh in all limits. The error is one of a
// counters.Store, and names the limit that may not have been reset.
func (p *Policy) reset(ctx context.Context, client string, now time.Time) error {
	for i := range p.Limits {
		if err := p.Limits[i].Limiter.Reset(ctx, client, now); err != nil {
			return fmt.Errorf("limit %q: %w", p.Limits[i].Name, err)
		}
	}
	return nil
}
