package api

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// A check is one question to a policy.
type check struct {
	policy string
	client string
	cost   int64
	limits []limitValue // passed by the caller for this check

	// Of forward auth: the client's address, if it is known by that, or whether
	// it is known by a header. What that says is a name, even if it looks like an
	// address: nobody gets a network's exception by a header.
	network netip.Prefix
	header  bool
	route   *policy.Route // or nil
}

// A limitValue is a limit that a caller passes for one check.
type limitValue struct {
	name  string
	value int64
}

// A batch is checks that come in one request. With all, each is admitted or
// none.
type batch struct {
	checks []check
	all    bool
}

// An answer is the outcome of a check.
type answer struct {
	policy   *policy.Policy
	plan     *plan
	client   string
	allowed  bool
	blocked  bool          // the client is, whatever the limits say
	denied   bool          // the limits denied, even if shadow mode allows
	vetoed   bool          // another check denies that is decided with this one
	degraded error         // why a limit could not be asked, else nil
	refused  bool          // by on_store_error: deny; the answer is a problem
	local    bool          // denied without a store operation
	contends bool          // denied only because others were faster at each attempt
	retry    time.Duration // until a denied check fits; 0 if waiting is no help
	wait     time.Duration // until an admitted request may proceed
	limits   []limitAnswer

	quotasDeny bool // every quota does, and nothing else

	deadline counters.Deadline // of Together; here, it costs no allocation
}

// A limitAnswer is the outcome of one limit of a check.
type limitAnswer struct {
	*policy.Limit
	counters.Decision
	limit    int64 // the one in force for this check
	client   string
	cost     int64
	leniency policy.Leniency
	asked    bool  // to consume the cost
	degraded error // why the store could not be asked, else nil
	decided  bool  // by the store, or by what the process knows
}

// A plan is what one kind of request of a policy is checked by.
type plan struct {
	limits []*policy.Limit
	header string // RateLimit-Policy with these limits
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// release makes a available to another check.
func (a *answer) release() { answers.Put(a) }

// record notes what l, a limit of p, answered. If the store couldn't decide r,
// what the process knows does: under on_store_error: local in any case,
// otherwise when it denies. A limit of which nothing is known is answered as if
// nothing were in use.
func (l *limitAnswer) record(p *policy.Policy, d counters.Decision, err error, r counters.Request) {
	l.Decision, l.decided = d, err == nil
	if l.RetryAfter >= counters.Forever { // the cost is above the limit
		l.RetryAfter = l.ResetAfter
	}
	if err == nil {
		return
	}
	l.degraded = err
	local := p.OnStoreError == policy.StoreErrorLocal
	d, known := l.Limiter.Recall(r)
	if l.decided = local || known && !d.Allowed; l.decided && known {
		l.Decision = d
	} else {
		l.Decision = counters.Decision{Allowed: true, Remaining: l.capacity()}
	}
}

// undecided reports whether l was asked in vain and its policy, p, denies then.
func (l *limitAnswer) undecided(p *policy.Policy) bool {
	return !l.decided && p.OnStoreError == policy.StoreErrorDeny
}

// overrules reports whether l denies whatever other limits do.
func (l *limitAnswer) overrules() bool { return l.leniency == policy.Strict && !l.Allowed }

// consumed reports whether l has admitted its cost.
func (l *limitAnswer) consumed() bool { return l.asked && l.decided && l.Allowed }

// unsettled reports whether what l said, if anything, is no answer to a check
// that others deny.
func (l *limitAnswer) unsettled() bool { return !l.asked || l.consumed() }

// refund gives back what l has consumed. The denial stands, whether this
// succeeds or not, and the limiter counts its failures.
func (l *limitAnswer) refund(ctx context.Context, now time.Time) {
	_ = l.Limiter.Refund(ctx, l.request(now), l.Decision)
}

// lookBack finds out how l, a limit of p, stands by what the process remembers,
// and reports whether it could. What a limit that wasn't asked has counted
// elsewhere since is worth an operation where the denial wasn't known.
func (l *limitAnswer) lookBack(p *policy.Policy, now time.Time, denialKnown bool) bool {
	r := l.request(now)
	d, known := l.Limiter.PeekLocal(r)
	if known = known && (l.asked || denialKnown); known {
		l.record(p, d, nil, r)
	}
	return known
}

// look finds out by the store how l, a limit of p, stands.
func (l *limitAnswer) look(ctx context.Context, p *policy.Policy, now time.Time) {
	r := l.request(now)
	d, err := l.Limiter.Peek(ctx, r)
	l.record(p, d, err, r)
}

func (l *limitAnswer) request(now time.Time) counters.Request {
	return counters.Request{Client: l.client, Cost: l.cost, Limit: l.limit, Now: now}
}

// denies reports whether a denial of l counts in a.
func (l *limitAnswer) denies(a *answer) bool {
	return !a.policy.Shadow && (l.leniency == policy.Strict || l.leniency == policy.Quota && a.quotasDeny)
}

// finish sums up the limits. It lets shadow mode allow what they denied.
func (a *answer) finish() *answer {
	a.denied = a.vetoed || !a.allowed
	a.allowed = !a.vetoed && (a.allowed || a.policy.Shadow)
	contended, decided := false, false
	for i := range a.limits {
		l := &a.limits[i]
		if a.degraded == nil {
			a.degraded = l.degraded
		}
		a.local = a.local || a.denied && !l.Allowed && l.Local
		if a.allowed {
			a.wait = max(a.wait, l.Wait)
		} else if l.denies(a) {
			// A limit that has admitted what another denied, and has counted
			// it, has to admit it again.
			a.retry = max(a.retry, l.RetryAfter, l.FitsAfter)
			contended = contended || l.Contended
			decided = decided || !l.Allowed && !l.Contended
		}
	}
	a.local = a.local && a.degraded == nil
	a.contends = contended && !decided
	return a
}

// A decision is what became of a check.
type decision int

const (
	decisionAllowed decision = iota
	decisionDenied
	decisionShadowDenied
	decisionContended
	decisionError // on_store_error refused it
	numDecisions
)

var decisionNames = [numDecisions]string{"allowed", "denied", "shadow_denied", "contended", "error"}

// decision returns what became of a.
func (a *answer) decision() decision {
	switch {
	case a.refused:
		return decisionError
	case a.denied && a.allowed:
		return decisionShadowDenied
	case a.allowed:
		return decisionAllowed
	case a.contends:
		return decisionContended
	default:
		return decisionDenied
	}
}

// unanswered reports whether on_store_error refuses a for its own limits.
func (a *answer) unanswered() bool {
	for i := range a.limits {
		if l := &a.limits[i]; l.asked && l.undecided(a.policy) && !a.policy.Shadow {
			return true
		}
	}
	return false
}

// capacity returns the largest cost that l can ever admit.
func (l *limitAnswer) capacity() int64 { return cmp.Or(l.Burst, l.limit) }

// ownLimits reports whether all limits of the plan decided, none of them
// replaced by the client's or the caller's.
func (a *answer) ownLimits() bool {
	for i := range a.limits {
		if l := &a.limits[i]; !l.decided || l.limit != l.Limit.Limit {
			return false
		}
	}
	return len(a.limits) == len(a.plan.limits)
}
