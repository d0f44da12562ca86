package api

import (
	"cmp"
	"net/netip"
	"sync"
	"time"

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
	route   *Route // or nil
}

// A limitValue is a limit that a caller passes for one check.
type limitValue struct {
	name  string
	value int64
}

// An answer is the outcome of a check.
type answer struct {
	policy   *Policy
	plan     *plan
	client   string
	allowed  bool
	denied   bool          // the limits denied, even if shadow mode allows
	degraded bool          // a limit could not be asked
	refused  bool          // by on_store_error: deny; the answer is a problem
	local    bool          // denied without a store operation
	contends bool          // denied only because others were faster at each attempt
	retry    time.Duration // until a denied check fits; 0 if waiting is no help
	wait     time.Duration // until an admitted request may proceed
	limits   []limitAnswer

	quotasDeny bool // every quota does, and nothing else
}

// A limitAnswer is the outcome of one limit of a check.
type limitAnswer struct {
	*Limit
	counters.Decision
	limit    int64 // the one in force for this check
	client   string
	cost     int64
	leniency Leniency
	degraded bool // the store could not be asked
	decided  bool // by the store, or by what the process knows
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// release makes a available to another check.
func (a *answer) release() { answers.Put(a) }

// record notes what l answered. If the store couldn't decide r, what the
// process knows does: under on_store_error: local in any case, otherwise when
// it denies. A limit of which nothing is known is answered as if nothing were
// in use.
func (a *answer) record(l *limitAnswer, d counters.Decision, err error, r counters.Request) {
	l.Decision, l.decided = d, err == nil
	if l.RetryAfter >= counters.Forever { // the cost is above the limit
		l.RetryAfter = l.ResetAfter
	}
	if err == nil {
		return
	}
	a.degraded, l.degraded = true, true
	local := a.policy.OnStoreError == StoreErrorLocal
	d, known := l.Limiter.Recall(r)
	if l.decided = local || known && !d.Allowed; l.decided && known {
		l.Decision = d
	} else {
		l.Decision = counters.Decision{Allowed: true, Remaining: l.capacity()}
	}
}

// denies reports whether a denial of l counts in a.
func (l *limitAnswer) denies(a *answer) bool {
	return l.leniency == Strict || l.leniency == Quota && a.quotasDeny
}

// finish sums up the limits. It lets shadow mode allow what they denied.
func (a *answer) finish() *answer {
	a.denied = !a.allowed
	a.allowed = a.allowed || a.policy.Shadow
	a.contends = a.denied && len(a.limits) > 0
	for i := range a.limits {
		l := &a.limits[i]
		if a.allowed {
			a.wait = max(a.wait, l.Wait)
		} else if l.denies(a) {
			// A limit that has admitted what another denied, and has counted
			// it, has to admit it again.
			a.retry = max(a.retry, l.RetryAfter, l.FitsAfter)
		}
		a.local = a.local || a.denied && !a.degraded && !l.Allowed && l.Local
		a.contends = a.contends && (l.Allowed || !l.denies(a) || l.Contended)
	}
	return a
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
