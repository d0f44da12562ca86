package decide

import (
	"context"
	"slices"
	"strings"
	"time"

	"weir/counters"
)

// An Outcome is that of one check of several: an Answer, or why there is none.
// Err is an Invalid, an UnknownPolicy, a *Refused with its Answer, a *Panic, which
// several checks may share, or ErrLeft.
type Outcome struct {
	*Answer
	Err error
}

// CheckMany decides checks that came at the same moment from different callers, and calls
// done with the number and the outcome of each as soon as it is known. Calls of done may
// come concurrently. If beside isn't nil, it is called while the store is asked; if that
// panics, so does CheckMany. CheckMany returns after the last.
func (e *Engine) CheckMany(checks []Check, now time.Time, beside func(), done func(i int, o Outcome)) {
	ctx := &counters.Deadline{At: now.Add(e.StoreTimeout)}
	if len(checks) == 1 && beside == nil {
		done(0, e.decide(ctx, checks[0], now))
		return
	}
	byClient := make([]int, len(checks)) // those of one client follow one another
	for i := range byClient {
		byClient[i] = i
	}
	slices.SortFunc(byClient, func(a, b int) int { return strings.Compare(checks[a].Client, checks[b].Client) })
	t := e.newIndependent(ctx, now, len(checks), done)
	for _, i := range byClient {
		t.add(i, checks[i])
	}
	var panicked *Panic
	if beside != nil {
		t.askWaiting(false)
		panicked = contain(beside)
	}
	t.end()
	if panicked != nil {
		panic(panicked)
	}
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

// independentChecks are decided each by itself, and ask the store together. Those of an
// allOrNone depend on each other.
type independentChecks struct {
	run
	*Engine
	caller  context.Context // nil if there are several
	askings []asking        // never grow
	done    func(i int, o Outcome)
}

// newIndependent returns independentChecks with room for n checks. They call done as
// Engine.CheckMany does.
func (e *Engine) newIndependent(ctx *counters.Deadline, now time.Time, n int, done func(i int, o Outcome)) *independentChecks {
	t := &independentChecks{run: newRun(ctx, now, e.StoreTimeout, 1), Engine: e, askings: askingScratch.Get(n)[:0], done: done}
	t.by = t
	return t
}

// add finds the limits of the check of that number, and has the first of them asked.
func (t *independentChecks) add(number int, q Check) {
	t.askings = append(t.askings, asking{number: number})
	one := &t.askings[len(t.askings)-1]
	t.try(one, func() {
		if one.decider, one.err = t.ForChecks(q.Policy); one.err == nil {
			one.Answer, one.err = one.decider.prepare(q)
		}
		switch {
		case one.err != nil:
		case len(one.Limits) > 0:
			if one.limits = one.Limits; one.firstOf(one.limits, t.at(one)) == 0 {
				t.begin(one)
			} else {
				t.askAlone(one)
			}
		default:
			t.finish(one)
		}
	})
}

// finish asks the limits that haven't been, unless the caller has left before the
// first, and ends the check.
func (t *independentChecks) finish(one *asking) {
	now := t.at(one)
	if one.next < len(one.limits) {
		if one.next == 0 && t.caller != nil && t.caller.Err() != nil {
			one.Answer, one.err = nil, ErrLeft
			return
		}
		one.ask(t.ctx, now, one.limits[one.next:])
	}
	one.conclude(t.ctx, now)
	one.Answer, one.err = one.decider.report(one.Answer, now)
	t.done(one.number, Outcome{one.Answer, one.err})
	one.told = true
}

// end waits for all outcomes, and tells those that haven't been told. t isn't used any more.
func (t *independentChecks) end() {
	t.wait()
	told := true
	for i := range t.askings {
		if one := &t.askings[i]; !one.told {
			t.done(one.number, Outcome{one.Answer, one.err})
			told = false
		}
	}
	if told { // else a panic may have left others at work
		askingScratch.Put(t.askings)
	}
}
