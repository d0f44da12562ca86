package api

import (
	"sync"
	"time"

	"weir/counters"
)

// A check is one question to a policy.
type check struct {
	policy string
	client string
	cost   int64
	limits []limitValue // that the caller passes for this check
}

// A limitValue is a limit that a caller passes for one check.
type limitValue struct {
	name  string
	value int64
}

// An answer is the outcome of a check.
type answer struct {
	policy   *Policy
	client   string
	allowed  bool
	denied   bool          // the limits denied, even if shadow mode allows
	degraded bool          // a limit could not be asked
	refused  bool          // by on_store_error: deny; the answer is a problem
	held     time.Duration // how long the answer was held
	limits   []limitAnswer
}

// A limitAnswer is the outcome of one limit of a check.
type limitAnswer struct {
	*Limit
	counters.Decision
	limit   int64 // the one in force for this check
	decided bool  // false if the store could not be asked
}

var answers = sync.Pool{New: func() any { return new(answer) }}

// release makes a available to another check.
func (a *answer) release() { answers.Put(a) }

// retryAfter returns the time until all limits admit the check; 0 when it is
// allowed, or when waiting makes no difference.
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

// deniedLocally reports whether a denial needed no store operation.
func (a *answer) deniedLocally() bool {
	for i := range a.limits {
		if l := &a.limits[i]; !l.Allowed && l.Local {
			return a.denied
		}
	}
	return false
}

// ownLimits reports whether all of the policy's limits decided, none of them
// replaced by the client's or the caller's.
func (a *answer) ownLimits() bool {
	for i := range a.limits {
		if l := &a.limits[i]; !l.decided || l.limit != l.Limit.Limit {
			return false
		}
	}
	return true
}
