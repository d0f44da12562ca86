package decide

import (
	"cmp"
	"context"
	"sync"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// An Answer is the outcome of a check. Release it when it has been read.
type Answer struct {
	Policy   *policy.Policy
	Client   string
	Allowed  bool
	Blocked  bool          // the client is, whatever the limits say
	Denied   bool          // the limits denied, even if shadow mode allows
	Degraded error         // why a limit could not be asked, else nil
	Refused  bool          // by on_store_error: deny
	Local    bool          // denied without a store operation
	Retry    time.Duration // until a denied check fits; 0 if waiting is no help
	Wait     time.Duration // until an admitted request may proceed
	Held     time.Duration // how long it has waited for that
	Limits   []LimitCheck
	Cost     int64     // of the check
	Now      time.Time // of the check
	Settles  bool      // the check asked for a receipt
	Trace    string    // of the check
	// Exception is that of the client; nil if nobody has asked for it.
	Exception *policy.Exception

	plan       *plan
	vetoed     bool // another check denies that is decided with this one
	contends   bool // denied only because others were faster at each attempt
	quotasDeny bool // every quota does, and nothing else

	// Those of TakeLimits: here, they cost no allocation.
	deadline counters.Deadline
	scratch  []byte // for headers
}

// A LimitCheck asks one limit whether a client may spend a cost, and has the
// answer.
type LimitCheck struct {
	*policy.Limit
	// Client, Cost and Value are those of a counters.Request, and right: Value
	// is the limit in force.
	Client      string
	Cost, Value int64
	// Exception is that of the client, of a check by TakeLimits.
	Exception *policy.Exception

	// Decision is the answer. Where another limit denies, it says how this one
	// stands.
	counters.Decision
	// Degraded says why the store could not be asked; it is nil if it could.
	Degraded error

	reserves bool // the cost is to be settled
	asked    bool // to consume the cost
	decided  bool // by the store, or by what the process knows
}

// A plan is what one kind of check of a policy is decided by.
type plan struct {
	limits []*policy.Limit
	names  []uint32 // of limits, in receipts
	header string   // RateLimit-Policy with these limits
}

// noPlan is the plan of checks whose limits belong to no policy.
var noPlan plan

var answers = sync.Pool{New: func() any { return new(Answer) }}

// Release makes a available to another check: it must not be used any more.
func (a *Answer) Release() { answers.Put(a) }

// ask asks limits of a, one after the other, and consumes their costs, until one
// denies for all of them; where denied requests count, it asks the others too. One that
// seems spent comes first: then the others needn't be asked.
func (a *Answer) ask(ctx context.Context, now time.Time, limits []LimitCheck) {
	first := a.firstOf(limits, now)
	for i := range limits {
		switch {
		case i == 0:
			i = first
		case i <= first:
			i--
		}
		l := &limits[i]
		l.asked = true
		r := l.request(now)
		d, err := l.Limiter.Take(ctx, r)
		if l.noteTake(a.Policy, d, err, r) {
			return
		}
	}
}

// firstOf returns which of limits is asked before the others: one that seems spent, or the first.
func (a *Answer) firstOf(limits []LimitCheck, now time.Time) int {
	for i := 1; i < len(limits); i++ {
		if limits[i].seemsSpent(a.Policy, now) {
			return i
		}
	}
	return 0
}

// seemsSpent reports whether the process remembers that nothing remains of l, a limit of p, so
// that it will deny whatever other limits do. Of leases no denial is remembered.
func (l *LimitCheck) seemsSpent(p *policy.Policy, now time.Time) bool {
	if l.Lease > 0 || l.countsDenied(p) || l.Leniency != policy.Strict {
		return false
	}
	d, known := l.Limiter.PeekLocal(l.request(now))
	return known && !d.Allowed && d.Remaining == 0
}

// noteTake notes what a Take of r by l, a limit of p, returned, and reports whether the
// others needn't be asked.
func (l *LimitCheck) noteTake(p *policy.Policy, d counters.Decision, err error, r counters.Request) bool {
	if err != nil && l.onStoreError(p) == policy.StoreErrorLocal {
		l.Degraded = err
		d, err = l.Limiter.TakeLocal(r, err)
	}
	l.record(p, d, err, r)
	return l.refuses(p) || !p.CountDenied && !l.countsDenied(p) && l.denies(p)
}

// record notes what l, a limit of p, answered. If the store couldn't decide r,
// what the process knows does: under on_store_error: local in any case,
// otherwise when it denies. A limit of which nothing is known is answered as if
// nothing were in use.
func (l *LimitCheck) record(p *policy.Policy, d counters.Decision, err error, r counters.Request) {
	l.Decision, l.decided = d, err == nil
	if l.RetryAfter >= counters.Forever { // the cost is above the limit
		l.RetryAfter = l.ResetAfter
	}
	if err == nil {
		return
	}
	l.Degraded = err
	local := l.onStoreError(p) == policy.StoreErrorLocal
	d, known := l.Limiter.Recall(r)
	if l.decided = local || known && !d.Allowed; l.decided && known {
		l.Decision = d
	} else {
		l.Decision = counters.Decision{Allowed: true, Remaining: l.capacity()}
	}
}

func (l *LimitCheck) onStoreError(p *policy.Policy) policy.OnStoreError {
	return cmp.Or(l.OnStoreError, p.OnStoreError)
}

// undecided reports whether l was asked and couldn't decide, and p, its policy, has
// on_store_error: deny.
func (l *LimitCheck) undecided(p *policy.Policy) bool {
	return !l.decided && l.onStoreError(p) == policy.StoreErrorDeny
}

// refuses reports whether l is undecided, and its check must be refused for that whatever other
// limits do.
func (l *LimitCheck) refuses(p *policy.Policy) bool {
	return l.undecided(p) && l.Leniency == policy.Strict && !p.Shadow
}

// denies reports whether l, a limit of p, denies whatever other limits do.
func (l *LimitCheck) denies(p *policy.Policy) bool {
	return l.Leniency == policy.Strict && (!l.Allowed || l.undecided(p))
}

// countsDenied reports whether denied requests count in l, a limit of p. They keep no places.
func (l *LimitCheck) countsDenied(p *policy.Policy) bool {
	return l.Lease == 0 && (p.CountDenied || l.CountDenied)
}

// deniedCounts reports whether l, a limit of p, has counted its cost even if it denied it. Without
// the store only on_store_error: local counts.
func (l *LimitCheck) deniedCounts(p *policy.Policy) bool {
	return l.countsDenied(p) && l.asked && l.decided && (l.Degraded == nil || l.onStoreError(p) == policy.StoreErrorLocal)
}

// Consumed reports whether l has admitted its cost: not if only on_store_error has.
func (l *LimitCheck) Consumed() bool { return l.asked && l.decided && l.Allowed }

// needsLook reports whether the state of l has to be read for a check that other limits deny: l
// wasn't asked, or what it admitted is given back.
func (l *LimitCheck) needsLook() bool { return !l.asked || l.Consumed() }

// refund gives back what l has consumed. The denial stands, whether this
// succeeds or not, and the limiter counts its failures.
func (l *LimitCheck) refund(ctx context.Context, now time.Time) {
	_ = l.Limiter.Refund(ctx, l.request(now), l.Decision)
}

// lookLocally finds out how l, a limit of p, stands by what the process remembers, and reports
// whether it could. It can't if l wasn't asked, unless the denial was known beforehand: other
// instances may have counted since.
func (l *LimitCheck) lookLocally(p *policy.Policy, now time.Time, denialKnown bool) bool {
	r := l.request(now)
	d, known := l.Limiter.PeekLocal(r)
	if known = known && (l.asked || denialKnown); known {
		l.record(p, d, nil, r)
	}
	return known
}

// lookLocallyAfterChange is lookLocally for a limit of p that has just been told of a change. With
// anyAge it goes by what is remembered however old that is.
func (l *LimitCheck) lookLocallyAfterChange(p *policy.Policy, now time.Time, anyAge bool) bool {
	l.Cost = 0
	if anyAge {
		r := l.request(now)
		if d, recalled := l.Limiter.Recall(r); recalled {
			l.record(p, d, nil, r)
			return true
		}
	}
	return l.lookLocally(p, now, true)
}

// look finds out by the store how l, a limit of p, stands.
func (l *LimitCheck) look(ctx context.Context, p *policy.Policy, now time.Time) {
	r := l.request(now)
	d, err := l.Limiter.Peek(ctx, r)
	l.record(p, d, err, r)
}

func (l *LimitCheck) request(now time.Time) counters.Request {
	return counters.Request{Client: l.Client, Cost: l.Cost, Limit: l.Value, Now: now, Reserved: l.reserves}
}

// capacity returns the largest cost that l can ever admit.
func (l *LimitCheck) capacity() int64 { return cmp.Or(l.Burst, l.Value) }

// left returns what share of a's fullest limit is left, or less if the client is blocked.
func (a *Answer) left() float64 {
	if a.Blocked {
		return -1
	}
	least := 1.0
	for i := range a.Limits {
		l := &a.Limits[i]
		least = min(least, float64(l.Remaining)/float64(l.capacity()))
	}
	return least
}

// conclude ends a check whose limits were asked: what they have consumed is given
// back if it is denied.
func (a *Answer) conclude(ctx context.Context, now time.Time) {
	a.Now = now
	a.judge()
	if !a.Allowed {
		a.refund(ctx, now)
	}
	a.sumUp()
}

// judge finds out whether the limits that were asked admit, and whether
// on_store_error refuses: not what another limit is known to deny. Quotas deny if every one does.
func (a *Answer) judge() {
	quotas, admitted, stored := false, false, false
	for i := range a.Limits {
		l := &a.Limits[i]
		if !l.asked {
			continue
		}
		a.Local = a.Local || !l.Allowed && l.Local
		stored = stored || l.Allowed || !l.Local
		a.Refused = a.Refused || l.refuses(a.Policy)
		a.Allowed = a.Allowed && !l.denies(a.Policy)
		quotas = quotas || l.Leniency == policy.Quota
		admitted = admitted || l.Leniency == policy.ShadowQuota || l.Leniency == policy.Quota && l.Allowed && !l.undecided(a.Policy)
	}
	a.quotasDeny = a.Allowed && quotas && !admitted
	a.Allowed = a.Allowed && !a.quotasDeny
	a.Local = a.Local && !stored && !a.Allowed
	for i := 0; a.Refused && i < len(a.Limits); i++ {
		a.Refused = !a.Limits[i].knownToDeny(a.Policy, a.Now)
	}
}

// knownToDeny reports whether l, a limit of p, denies whatever other limits do, by the store or by
// what the process remembers, however old that is.
func (l *LimitCheck) knownToDeny(p *policy.Policy, now time.Time) bool {
	if l.asked {
		return l.decided && l.denies(p)
	}
	d, known := l.Limiter.Recall(l.request(now))
	return known && !d.Allowed && l.Leniency == policy.Strict
}

// refund undoes what the limits of a have admitted, but for those in which denied requests count.
// The answer then says how those that it undid stand, and those that weren't asked.
func (a *Answer) refund(ctx context.Context, now time.Time) {
	known := a.denialKnown()
	a.undo(ctx, now)
	for i := range a.Limits {
		if l := &a.Limits[i]; !a.Refused && l.needsLook() && !l.countsDenied(a.Policy) && !l.lookLocally(a.Policy, now, known) {
			l.look(ctx, a.Policy, now)
		}
	}
}

// TakeBack undoes an admitted check: the same request needs another check, which has denied it.
func (a *Answer) TakeBack(ctx context.Context) {
	if !a.Denied { // else, in shadow mode, that is done
		a.undo(ctx, a.Now)
	}
}

// undo gives back what the limits of a have admitted, but for those in which denied requests count.
func (a *Answer) undo(ctx context.Context, now time.Time) {
	for i := range a.Limits {
		if l := &a.Limits[i]; l.Consumed() && !l.countsDenied(a.Policy) {
			l.refund(ctx, now)
		}
	}
}

// denialKnown reports whether the limits that deny a did so without a store
// operation.
func (a *Answer) denialKnown() bool {
	for i := range a.Limits {
		if l := &a.Limits[i]; l.asked && !l.Allowed && !l.Local {
			return false
		}
	}
	return true
}

// sumUp sums up the limits. It lets shadow mode allow what they denied.
func (a *Answer) sumUp() {
	a.Denied = a.vetoed || !a.Allowed
	a.Allowed = !a.vetoed && (a.Allowed || a.Policy.Shadow)
	contended, decided := false, false
	for i := range a.Limits {
		l := &a.Limits[i]
		if a.Degraded == nil {
			a.Degraded = l.Degraded
		}
		if a.Allowed {
			a.Wait = max(a.Wait, l.Wait)
		} else if !a.Policy.Shadow && (l.Leniency == policy.Strict || l.Leniency == policy.Quota && a.quotasDeny) {
			// Where denied requests count, a limit that has admitted what another
			// denied has counted it: the next attempt has to fit there too.
			a.Retry = max(a.Retry, l.RetryAfter, l.FitsAfter)
			contended = contended || l.Contended
			decided = decided || !l.Allowed && !l.Contended
		}
	}
	a.Local = a.Local && a.Degraded == nil
	a.contends = contended && !decided
	if a.Blocked && !a.Allowed && a.Exception.AtRunTime() {
		a.Retry = max(time.Millisecond, a.Exception.Until.Sub(a.Now)) // the timer that ends it may be late
	}
}

// A Verdict is what became of a check.
type Verdict int

// The values of Verdict.
const (
	Allowed Verdict = iota
	Denied
	ShadowDenied // allowed only because the policy is in shadow mode
	Contended    // denied because others were faster at each attempt
	Failed       // refused by on_store_error
	numVerdicts
)

// Verdicts are the names of all values of Verdict.
var Verdicts = [numVerdicts]string{"allowed", "denied", "shadow_denied", "contended", "error"}

// Verdict returns what became of a.
func (a *Answer) Verdict() Verdict {
	switch {
	case a.Refused:
		return Failed
	case a.Denied && a.Allowed:
		return ShadowDenied
	case a.Allowed:
		return Allowed
	case a.contends:
		return Contended
	default:
		return Denied
	}
}
