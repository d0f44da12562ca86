package subwindow

import (
	"math/rand/v2"
	"slices"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A family is the counters of a limit in the store, and how windows decide by what
// is known of them.
type family struct {
	store   counters.Store
	window  Window
	kept    int // slots of an account
	options counters.Options
	keys    counters.Namespace
	book    *ledger.Book[account]
}

// prepare makes an account that has no key one that has read nothing, and gives it the beginning of
// its keys.
func (f *family) prepare(a *account, client string) {
	if a.key == "" {
		a.key, a.finalFrom = f.keys.Client(client), longAgo
	}
}

// change raises a generation, so that others read everything anew. The number is random, but
// follows from the moment and the known generation, so that a simulation can be replayed.
func (f *family) change(a *account, now int64) counters.Addition {
	random := rand.New(rand.NewPCG(uint64(now), uint64(a.generation)))
	return counters.Addition{
		Key: counters.GenerationKey(a.prefix()), Delta: 1 + random.Int64N(mostChanges), TTL: f.window.ttl(0), New: true,
	}
}

// Recall implements ledger.Family.
func (f *family) Recall(a *account, r counters.Request) (d counters.Decision, known, fresh bool) {
	p := f.window.positionAt(r.Now)
	var few [64]int64
	// expire would forget what isn't expected of others any more; a Recall, which may be of a
	// later time, only leaves it out.
	expects := a.owed != nil && (a.owed.until == 0 || p.now < a.owed.until)
	use := a.believe(&p, expects, few[:0])
	known = a.fresh(p.now)
	others, _ := a.othersToTell()
	fresh = known && !a.owes() && (others == nil || !expects)
	known = known || slices.ContainsFunc(use, func(n int64) bool { return n > 0 })
	return f.decideAlone(a, use, &p, &r), known, fresh
}

// decideAlone decides r by what is in use, while others admit their share too.
func (f *family) decideAlone(a *account, use []int64, p *position, r *counters.Request) counters.Decision {
	here, later := a.standsFor(p.bucket, r.Cost)
	if f.fits(use, p, standing(*r, here)) {
		return f.decision(use, p, r, true)
	}
	d := f.decision(use, p, standing(*r, later), false) // when it fits it will be in another slot
	d.Remaining = min(d.Remaining, max(0, r.Cost-1))
	return d
}

// standing returns r with the cost that it stands for, but no more than can ever fit.
func standing(r counters.Request, cost int64) *counters.Request {
	r.Cost = max(r.Cost, min(r.Limit, cost))
	return &r
}

// Alone implements ledger.Family.
func (f *family) Alone(a *account, r counters.Request, ref any) counters.Decision {
	p := f.window.positionAt(r.Now)
	a.reach(&p, f.kept)
	a.expire(&f.window, p.now, f.options.Telling())
	var few [16]int64
	use := a.believe(&p, true, few[:0])
	was, _ := ref.(*flight)
	if !a.awaits(was) {
		was = nil
	}
	if was != nil && was == a.flight { // under way with r in it, which isn't in its own way
		use[p.ahead] = max(0, use[p.ahead]-r.Cost)
	}
	d := f.decideAlone(a, use, &p, &r)
	if r.Cost > 0 && (d.Allowed || f.options.CountDenied) {
		a.oweAlone(p.bucket, r.Cost, p.now, f.book.Of(&a.share, r.Cost))
		if r.Reserved { // once it is told any process may give it back
			a.at(p.bucket).own -= r.Cost
		}
		if was != nil {
			a.admit(was, r.Cost)
		}
		_, later := a.standsFor(p.bucket, r.Cost)
		d = f.decision(a.believe(&p, true, use), &p, standing(r, later), d.Allowed)
	}
	d.Receipt = counters.Receipt{Alone: was} // not nil, though was may be
	return d
}

// Leave implements ledger.Family.
func (f *family) Leave(*account, ledger.Request[account], error) (d counters.Decision, answered bool) {
	return d, false
}

// Refund implements ledger.Family.
func (f *family) Refund(a *account, r counters.Request, taken counters.Decision) (tell bool) {
	p := f.window.positionAt(r.Now)
	if p.now <= a.forgottenTo(f.options.ClockSkew) {
		return false
	}
	was, _ := taken.Receipt.Alone.(*flight)
	if was != nil && !was.outcome.Certain() { // what it may have counted is given back when that is known
		a.admit(was, -r.Cost)
		if was.outcome == ledger.Unknown {
			f.options.RefundFailed()
		}
	}
	return a.giveBack(p.bucket, r.Cost, p.now)
}

// Charge implements ledger.Family.
func (f *family) Charge(a *account, r counters.Request) {
	p := f.window.positionAt(r.Now)
	a.reach(&p, f.kept)
	a.owesFrom(f.book.Of(&a.share, r.Cost))
	a.owe(p.bucket, r.Cost, p.now)
}

// Owes implements ledger.Family.
func (f *family) Owes(a *account) bool { return a.owes() }

// Learn implements ledger.Family.
func (f *family) Learn(a *account, ref any, o ledger.Outcome) {
	was := ref.(*flight)
	awaited := a.awaits(was)
	switch was.outcome = o; {
	case !awaited: // dropped at a reset, or with its slot
	case o != ledger.Unknown:
		a.owe(was.bucket, was.presumed(), was.at)
		if o == ledger.Done {
			a.owe(was.bucket, -was.sum, was.at)
			a.pastChanged = a.pastChanged || !f.window.fixed() // the slot may be final to others
			a.doubtful = true                                  // what was read of it may be others'
		}
		a.staleGeneration = true
	case was.alone < was.sum: // it may have counted for callers who were refused
		f.options.RefundFailed()
	}
}

// fits reports whether there is room for r in what is in use.
func (f *family) fits(use []int64, p *position, r *counters.Request) bool {
	return f.window.Estimate(use, p.ahead, p.elapsedAt(r), r.Limit) <= r.Limit-r.Cost
}

// elapsedAt returns how long the slot of p was open at the time of r, which is in it too, no later
// than p.
func (p *position) elapsedAt(r *counters.Request) time.Duration {
	return p.elapsed - time.Duration(p.now-r.Now.UnixNano())
}

// decision returns the answer to r when it was admitted or not, and what is in use
// includes it if it is counted.
func (f *family) decision(use []int64, p *position, r *counters.Request, allowed bool) counters.Decision {
	elapsed := p.elapsedAt(r)
	d := counters.Decision{
		Allowed:    allowed,
		Remaining:  max(0, r.Limit-f.window.Estimate(use, p.ahead, elapsed, r.Limit)),
		ResetAfter: f.window.Until(use, p.ahead, elapsed, r.Limit, 0),
	}
	switch {
	case !allowed:
		d.RetryAfter = f.window.Until(use, p.ahead, elapsed, r.Limit, r.Limit-r.Cost)
	case f.options.CountDenied:
		d.FitsAfter = f.window.Until(use, p.ahead, elapsed, r.Limit, r.Limit-r.Cost)
	}
	return d
}
