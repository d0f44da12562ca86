package cas

import (
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A debt is a request that the store has to be told of, or may have been: one that was
// admitted alone, is charged, is given back, or was part of an exchange without an answer. Receipts
// refer to it.
type debt struct {
	kind       debtKind
	now, limit int64 // of the request, in Unix nanoseconds
	renews     int64 // of the request
	cost       int64 // less what was given back since; 0 if it was refused, or forgotten
	// Of the decision, or of the state that has consumed it. What remained of the limit
	// grows as cost is lowered; it is 0 of what was charged, as if that was behind a full limit, and
	// MaxLimit of what is taken for the first.
	remaining, generation, position int64
	part                            int64          // that remained besides, in a bucket's units; 0 if that isn't known
	flights                         int            // that tell it, and may be done
	outcome                         ledger.Outcome // Done once it was, Unknown if nobody will know whether it was
	old                             bool           // the store has answered since it was admitted: it stands for no more than itself
	into                            *debt          // that it is part of now, or nil
}

type debtKind uint8

const (
	admitted debtKind = iota
	charged           // whatever was left
	denied            // and counted all the same
	back              // is given back
)

// newDebt returns r, which was decided so. A sliding log may keep it at a later time than the
// request's, its Position. (A bucket's is a total, smaller than any time of today.)
func newDebt(r counters.Request, taken counters.Decision) *debt {
	d := &debt{
		now: max(r.Now.UnixNano(), taken.Receipt.Position), limit: r.Limit, renews: r.Renews, cost: r.Cost,
		remaining: taken.Remaining, generation: taken.Receipt.Generation, position: taken.Receipt.Position,
	}
	if !taken.Allowed {
		d.kind = denied
	}
	return d
}

// debtOf returns the debt that an admission without the store became, and the one that it
// was merged into since, which may be itself; nil if the store has decided.
func debtOf(taken counters.Decision) (own, d *debt) {
	own, _ = taken.Receipt.Alone.(*debt)
	for d = own; d != nil && d.into != nil; {
		d = d.into
	}
	for e := own; e != d; { // the next needn't go all the way
		e.into, e = d, e.into
	}
	return own, d
}

// grid is the same for all leases, so that another lease changes no name.
const grid = time.Second / 16

// sameLease reports whether two times are those of one lease.
func sameLease(a, b int64) bool { return (a-b)%int64(grid) == 0 }

func (d *debt) request() counters.Request {
	return counters.Request{Cost: d.cost, Limit: d.limit, Renews: d.renews, Now: time.Unix(0, d.now)}
}

// giveBack returns the refund of so much of d, which the store has consumed.
func (d *debt) giveBack(cost int64) *debt {
	return &debt{
		kind: back, now: d.now, limit: d.limit, cost: cost,
		remaining: d.remaining + d.cost - cost, generation: d.generation, position: d.position,
	}
}

// overByReset reports whether a reset of what was decided until then ends d. A refund of a state
// from before it finds nothing anyway, unless it is of any leases.
func (d *debt) overByReset(until int64) bool {
	return d.now <= until && (d.kind != back || d.position == counters.EarliestLeases)
}

// standsForMore reports whether others are thought to have admitted something beside d.
func (d *debt) standsForMore() bool { return d.kind == admitted && !d.old && d.renews == 0 }

// lower takes so much off the cost: more of the limit remains then.
func (d *debt) lower(cost int64) { d.cost, d.remaining = d.cost-cost, d.remaining+cost }

// consumes reports whether d is consumed be there room or not.
func (d *debt) consumes() bool { return d.kind == admitted || d.kind == charged }

// mergesWith reports whether next, of the same kind, may stand for d too.
func (d *debt) mergesWith(next *debt) bool {
	return d.kind != back && d.flights == 0 && next.flights == 0 && d.old == next.old && d.renews == 0 && next.renews == 0
}
