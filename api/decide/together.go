package decide

import (
	"slices"
	"strings"
	"time"

	"weir/counters"
)

// Together decides checks that came at the same moment from different callers, and calls
// done with the number and the outcome of each as soon as it is known. Calls of done may
// come concurrently. If beside isn't nil, it is called while the store is asked; if that
// panics, so does Together. Together returns after the last.
func (e *Engine) Together(checks []Check, now time.Time, beside func(), done func(i int, o Outcome)) {
	ctx := &counters.Deadline{At: now.Add(e.StoreTimeout)}
	if len(checks) == 1 && beside == nil {
		done(0, e.decide(ctx, checks[0], now))
		return
	}
	t := &together{run: newRun(ctx, now, e.StoreTimeout, 1), done: done, askings: make([]asking, len(checks)), told: make([]bool, len(checks))}
	t.by = t
	for i, q := range checks {
		one := &t.askings[i]
		one.number = i
		if one.decider, one.err = e.ForChecks(q.Policy); one.err == nil {
			t.try(one, func() { one.Answer, one.err = one.decider.prepare(q) })
		}
	}
	// Those of one client follow one another.
	slices.SortFunc(t.askings, func(a, b asking) int { return strings.Compare(checks[a.number].Client, checks[b.number].Client) })
	for i := range t.askings {
		one := &t.askings[i]
		switch {
		case one.err != nil:
		case len(one.Limits) > 0:
			one.limits = one.Limits
			t.begin(one)
		default:
			t.try(one, func() { t.finish(one) })
		}
	}
	var panicked *Panic
	if beside != nil {
		t.askWaiting(false)
		panicked = contain(beside)
	}
	t.wait()
	for i := range t.askings {
		if one := &t.askings[i]; !t.told[one.number] {
			done(one.number, Outcome{one.Answer, one.err})
		}
	}
	if panicked != nil {
		panic(panicked)
	}
}

// A together is checks of several requests.
type together struct {
	run
	askings []asking
	told    []bool // by number: done has been called
	done    func(i int, o Outcome)
}

// finish asks the limits that haven't been, and ends the check.
func (t *together) finish(one *asking) {
	if one.asked < len(one.limits) {
		one.ask(t.ctx, t.now, one.limits[one.asked:])
	}
	one.conclude(t.ctx, t.now)
	one.Answer, one.err = one.decider.close(one.Answer, t.now)
	t.done(one.number, Outcome{one.Answer, one.err})
	t.told[one.number] = true
}
