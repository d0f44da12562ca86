package decide

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"
)

// An Outcome is the outcome of a check of a batch: an Answer, or why there is none.
// Err is an Invalid, an UnknownPolicy, a *Refused with its Answer, a *Panic, which
// several checks may share, or ErrLeft.
type Outcome struct {
	*Answer
	Err error
}

// A batch is checks of one request that are decided each by itself. Those that are
// the only ones of their clients and policies ask limit by limit, many together.
// The others are decided one by one.
type batch struct {
	run
	*Engine
	caller   context.Context
	checks   []Check
	outcomes []Outcome
}

// Batch decides at most MaxBatch checks, each by itself, and returns their outcomes
// in their order. Checks of one client are made in their order. When caller ends,
// those that haven't begun are left.
func (e *Engine) Batch(caller context.Context, checks []Check) []Outcome {
	now, ctx, leave := e.enter(caller, len(checks))
	defer leave()
	b := &batch{run: newRun(ctx, now, e.StoreTimeout, 1), Engine: e, caller: caller, checks: checks, outcomes: make([]Outcome, len(checks))}
	b.by = b
	firsts, next := groupByClient(checks)
	many := len(firsts) > 1 && caller.Err() == nil
	askings := make([]asking, 0, len(firsts)) // never grows
	for _, i := range firsts {
		d := e.deciders[checks[i].Policy]
		if !many || next[i] > 0 || !d.takesMany() {
			b.alone.Go(func() {
				b.decideGroup(i, next)
				e.queue.decided.Add(1)
			})
			continue
		}
		askings = append(askings, asking{decider: d, number: i})
		one := &askings[len(askings)-1]
		b.try(one, func() { b.prepare(one) })
	}
	b.wait()
	for _, one := range askings {
		b.outcomes[one.number] = Outcome{one.Answer, one.err}
	}
	return b.outcomes
}

// takesMany reports whether there is a policy whose first limit can be asked for many
// clients together.
func (d *Decider) takesMany() bool {
	return d != nil && (len(d.Limits) == 0 || takesMany(&d.Limits[0]) != nil)
}

// prepare finds the limits of a check, and has the first of them asked.
func (b *batch) prepare(one *asking) {
	q := b.checks[one.number]
	if one.Answer, one.err = one.decider.prepare(q); one.err != nil {
		return
	}
	if one.limits = one.Limits; len(one.limits) > 0 {
		b.begin(one)
	} else {
		b.finish(one)
	}
}

// finish asks the limits that haven't been, unless the caller has left before the
// first, and settles the check.
func (b *batch) finish(one *asking) {
	if one.asked < len(one.limits) {
		if one.asked == 0 && b.caller.Err() != nil {
			one.Answer, one.err = nil, ErrLeft
			return
		}
		one.ask(b.ctx, b.now, one.limits[one.asked:])
	}
	one.conclude(b.ctx, b.now)
	one.Answer, one.err = one.decider.close(one.Answer, b.now)
	if one.err == nil && one.Degraded == nil {
		b.queue.decided.Add(1)
	}
}

var clientSeed, policySeed = maphash.MakeSeed(), maphash.MakeSeed()

// groupByClient returns the numbers of checks that are the first of their clients and
// policies, and for each check the next of its own, or 0.
func groupByClient(checks []Check) (firsts, next []int) {
	// A map of clients and policies would take four times as long.
	last := make([]int32, 2<<bits.Len(uint(len(checks)))) // numbers of checks, plus 1, where their clients hash to
	firsts, next = make([]int, 0, len(checks)), make([]int, len(checks))
	var policy string
	inPolicy := maphash.String(policySeed, policy)
	for i := range checks {
		q := &checks[i]
		if q.Policy != policy {
			policy, inPolicy = q.Policy, maphash.String(policySeed, q.Policy)
		}
		at := inPolicy ^ maphash.String(clientSeed, q.Client)
		for ; ; at++ {
			at %= uint64(len(last))
			before := &checks[max(0, last[at]-1)]
			if last[at] == 0 || before.Client == q.Client && before.Policy == q.Policy {
				break
			}
		}
		if last[at] > 0 {
			next[last[at]-1] = i
		} else {
			firsts = append(firsts, i)
		}
		last[at] = int32(i + 1)
	}
	return firsts, next
}

// decideGroup puts in the outcomes of the checks of one client of one policy, in
// their order: that of number i and those that are next. Equal ones that follow it
// are decided in turn.
func (b *batch) decideGroup(i int, next []int) {
	for {
		q := b.checks[i]
		b.outcomes[i] = b.decide(q)
		var equal []int
		for i = next[i]; i > 0 && b.checks[i].Cost == q.Cost && b.checks[i].Settle == q.Settle && slices.Equal(b.checks[i].Limits, q.Limits); i = next[i] {
			equal = append(equal, i)
		}
		for k, outcome := range inTurn(len(equal), func(int) Outcome { return b.decide(q) }, decidedFirst) {
			b.outcomes[equal[k]] = outcome
		}
		if i == 0 {
			return
		}
	}
}

// decide decides q unless the caller has left: a long batch must not hold up a
// shutdown.
func (b *batch) decide(q Check) Outcome {
	if b.caller.Err() != nil {
		return Outcome{Err: ErrLeft}
	}
	return b.Engine.decide(b.ctx, q, b.Now())
}

// decide decides a check that began at now.
func (e *Engine) decide(ctx context.Context, q Check, now time.Time) (o Outcome) {
	if p := contain(func() {
		var d *Decider
		if d, o.Err = e.ForChecks(q.Policy); o.Err == nil {
			o.Answer, o.Err = d.Check(ctx, q, now)
		}
	}); p != nil {
		return Outcome{Err: p}
	}
	return o
}

// decidedFirst compares the outcomes of equal checks by when they were decided:
// admissions before denials, and more remaining before less.
func decidedFirst(a, b Outcome) int {
	switch {
	case a.Err != nil || b.Err != nil:
		return falseFirst(a.Err != nil, b.Err != nil)
	case a.Denied != b.Denied:
		return falseFirst(a.Denied, b.Denied)
	default:
		return slices.CompareFunc(a.Limits, b.Limits, decidedSooner)
	}
}
