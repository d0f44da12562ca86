package decide

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/bits"
	"slices"

	"weir/counters"
)

// Batch decides at most MaxBatch checks, each by itself, and returns their outcomes
// in their order, until they are released. Checks of one client are made in their order. When
// caller ends, those that haven't begun are left.
//
// Those that are the only ones of their clients and policies ask limit by limit, many
// together. The others are decided one by one.
func (e *Engine) Batch(caller context.Context, checks []Check) []Outcome {
	now, ctx, leave := e.enter(caller, len(checks))
	defer leave()
	outcomes := outcomeScratch.Get(len(checks))
	firsts, next := groupByClient(checks)
	t := e.newIndependent(ctx, now, len(firsts), func(i int, o Outcome) {
		outcomes[i] = o
		if o.Err == nil && o.Degraded == nil {
			e.queue.decided.Add(1)
		}
	})
	t.caller = caller
	many := len(firsts) > 1 && caller.Err() == nil
	for _, i := range firsts {
		if many && next[i] == 0 && e.deciders[checks[i].Policy].asksManyFirst() {
			t.add(i, checks[i])
			continue
		}
		t.alone.Go(func() { t.decideGroup(checks, i, next) })
	}
	t.end()
	numberScratch.Put(firsts)
	numberScratch.Put(next)
	return outcomes
}

var (
	outcomeScratch counters.Scratch[Outcome]
	numberScratch  counters.Scratch[int]
	hashScratch    counters.Scratch[int32]
)

// Release makes outcomes, which Batch has returned, available to another: they must not be
// used any more. Their answers are released by themselves.
func Release(outcomes []Outcome) { outcomeScratch.Put(outcomes) }

// asksManyFirst reports whether d, which may be nil, has no limit, or a first one that can be
// asked for many clients together.
func (d *Decider) asksManyFirst() bool {
	return d != nil && (len(d.Limits) == 0 || takesMany(&d.Limits[0]) != nil)
}

var clientSeed, policySeed = maphash.MakeSeed(), maphash.MakeSeed()

// groupByClient returns which checks are the first of their client and policy, and for each
// check the number of the next one of the same client and policy, or 0.
func groupByClient(checks []Check) (firsts, next []int) {
	// A map of clients and policies would take four times as long.
	last := hashScratch.Get(2 << bits.Len(uint(len(checks)))) // numbers of checks, plus 1, where their clients hash to
	firsts, next = numberScratch.Get(len(checks))[:0], numberScratch.Get(len(checks))
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
	hashScratch.Put(last)
	return firsts, next
}

// decideGroup decides check i and those that follow it by next, all of one client and policy,
// in their order. Equal ones are asked at once and answered as if in turn. None begins after
// the caller has left: a long batch must not hold up a shutdown.
func (t *independentChecks) decideGroup(checks []Check, i int, next []int) {
	for {
		q := checks[i]
		decide := func(int) Outcome {
			if t.caller.Err() != nil {
				return Outcome{Err: ErrLeft}
			}
			return t.decide(t.ctx, q, t.Now())
		}
		t.done(i, decide(0))
		var equal []int
		for i = next[i]; i > 0 && checks[i].Cost == q.Cost && checks[i].Settle == q.Settle && slices.Equal(checks[i].Limits, q.Limits); i = next[i] {
			equal = append(equal, i)
		}
		for k, outcome := range asIfInTurn(len(equal), decide, decidedFirst) {
			t.done(equal[k], outcome)
		}
		if i == 0 {
			return
		}
	}
}

// decidedFirst compares the outcomes of equal checks by when they were decided:
// admissions before denials, and more remaining before less.
func decidedFirst(a, b Outcome) int {
	if a.Err != nil || b.Err != nil {
		return bit(a.Err != nil) - bit(b.Err != nil)
	}
	return cmp.Or(bit(a.Denied)-bit(b.Denied), slices.CompareFunc(a.Limits, b.Limits, decidedSooner))
}
