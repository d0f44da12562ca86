package decide

import (
	"context"
	"slices"
	"time"

	"weir/counters"
)

// All decides at most MaxBatch checks of which all are admitted or none. The error
// is a *Refused or an *AtError; with the latter nothing was consumed, and the
// answers are those of the checks before. Nothing is begun for a caller that has
// ended: the error is ErrLeft then.
func (e *Engine) All(caller context.Context, checks []Check) ([]*Answer, error) {
	now, ctx, leave := e.enter(caller, len(checks))
	defer leave()
	if caller.Err() != nil {
		return nil, ErrLeft
	}
	answers := make([]*Answer, 0, len(checks))
	for i, q := range checks {
		d, err := e.ForChecks(q.Policy)
		var a *Answer
		if err == nil {
			a, err = d.prepare(q)
		}
		if err != nil {
			return answers, &AtError{i, err}
		}
		answers = append(answers, a)
	}
	err := decideAllOrNone(ctx, now, e.StoreTimeout, answers)
	took := e.Now().Sub(now)
	for _, a := range answers {
		e.deciders[a.Policy.Name].observer.Decided(a, now, took)
		if a.Degraded == nil {
			e.queue.decided.Add(1)
		}
	}
	return answers, err
}

// fewOneByOne is how many clients of a limit are asked one by one: they share a round
// trip with the other limits, on the connection on which their states were read, and
// cost no more.
const fewOneByOne = 8

// allOrNone is checks that are decided as one: all are admitted, or none.
type allOrNone struct {
	run
	timeout time.Duration // of the store
	answers []*Answer
	// groups are the limits by limiter and client, each limit in an asking of its own. A group
	// is asked in its order, beside the other groups.
	groups [][]asking
}

// decideAllOrNone asks the limits of answers, which prepare has found, and
// consumes their costs from all or from none. A denial in shadow mode doesn't deny
// the others. The error is the *Refused of the first that on_store_error refuses.
//
// The limits are asked at once, so that they share their round trips to the store.
// Limits that seem spent are asked before: if one denies, the others needn't be
// asked.
func decideAllOrNone(ctx *counters.Deadline, now time.Time, timeout time.Duration, answers []*Answer) (err error) {
	j := &allOrNone{run: newRun(ctx, now, timeout, fewOneByOne), timeout: timeout, answers: answers}
	j.by = j
	j.group()
	j.askAll()
	denied := false
	for _, a := range answers {
		a.Now = now
		a.judge()
		denied = denied || !a.Allowed && !a.Policy.Shadow
		if a.Refused && err == nil {
			err = refused(a)
		}
	}
	for _, a := range answers {
		a.vetoed, a.Refused = denied, err != nil
	}
	j.refund()
	for _, a := range answers {
		a.sumUp()
	}
	return err
}

func (j *allOrNone) group() {
	type key struct {
		limiter counters.Limiter
		client  string
	}
	places := make(map[key]int)
	for _, a := range j.answers {
		for i := range a.Limits {
			l := &a.Limits[i]
			k := key{l.Limiter, l.Client}
			place, ok := places[k]
			if !ok {
				place = len(j.groups)
				places[k], j.groups = place, append(j.groups, nil)
			}
			j.groups[place] = append(j.groups[place], asking{Answer: a, limits: a.Limits[i:][:1]})
		}
	}
}

// askAll asks the groups until one denies. Where denied requests count, it asks all.
func (j *allOrNone) askAll() {
	denied := slices.ContainsFunc(j.answers, func(a *Answer) bool { return !a.Allowed && !a.Policy.Shadow })
	var left [][]asking
	for _, group := range j.groups {
		if denied || !slices.ContainsFunc(group, j.seemsSpent) {
			left = append(left, group)
		} else {
			j.askGroup(group)
			denied = slices.ContainsFunc(group, asking.denied)
		}
	}
	if denied {
		left = slices.DeleteFunc(left, func(group []asking) bool { return !group[0].limits[0].countsDenied(group[0].Policy) })
	}
	if len(left) == 1 {
		j.askGroup(left[0])
	} else {
		j.askAtOnce(left)
	}
}

func (j *allOrNone) askAtOnce(groups [][]asking) {
	for _, group := range groups {
		if one := &group[0]; len(group) == 1 {
			j.begin(one)
		} else {
			j.alone.Go(func() { j.try(one, func() { j.askGroup(group) }) })
		}
	}
	j.wait()
	for _, group := range groups {
		if err := group[0].err; err != nil {
			panic(err)
		}
	}
}

func (j *allOrNone) finish(one *asking) { one.ask(j.ctx, j.now, one.limits[one.next:]) }

// seemsSpent reports whether one seems to deny all.
func (j *allOrNone) seemsSpent(one asking) bool {
	return !one.Policy.Shadow && one.limits[0].seemsSpent(one.Policy, j.now)
}

// denied reports whether one was asked and denies all.
func (one asking) denied() bool {
	l := &one.limits[0]
	return l.asked && !one.Policy.Shadow && l.denies(one.Policy)
}

// askGroup asks limits of one client, and of one policy, in their order. Equal
// ones that follow each other are asked as if in turn.
func (j *allOrNone) askGroup(group []asking) {
	for len(group) > 0 {
		n := 1
		for n < len(group) && group[n].equals(group[0]) {
			n++
		}
		equal := group[:n]
		ask := func(i int) LimitCheck {
			equal[i].ask(j.ctx, j.now, equal[i].limits)
			return equal[i].limits[0]
		}
		if n == 1 {
			ask(0)
		} else {
			for i, answered := range asIfInTurn(n, ask, decidedSooner) {
				equal[i].limits[0] = answered
			}
		}
		if !equal[0].limits[0].countsDenied(equal[0].Policy) && slices.ContainsFunc(equal, asking.denied) {
			return
		}
		group = group[n:]
	}
}

func (one asking) equals(other asking) bool {
	a, b := &one.limits[0], &other.limits[0]
	return a.Limit == b.Limit && a.Value == b.Value && a.Cost == b.Cost
}

// refund undoes what was admitted of the checks that are denied, as
// Answer.refund does.
func (j *allOrNone) refund() {
	var consumed, open []asking
	known := true
	for _, a := range j.answers {
		known = known && a.denialKnown()
		if a.Allowed && !a.vetoed {
			continue
		}
		for i := range a.Limits {
			one := asking{Answer: a, limits: a.Limits[i:][:1]}
			if one.limits[0].countsDenied(a.Policy) {
				continue
			}
			if one.limits[0].Consumed() {
				consumed = append(consumed, one)
			}
			if one.limits[0].needsLook() && !a.Refused {
				open = append(open, one)
			}
		}
	}
	AtOnce(len(consumed), j.timeout, func(i int) { consumed[i].limits[0].refund(j.ctx, j.now) })
	unknown := slices.DeleteFunc(open, func(one asking) bool { return one.limits[0].lookLocally(one.Policy, j.now, known) })
	AtOnce(len(unknown), j.timeout, func(i int) { unknown[i].limits[0].look(j.ctx, unknown[i].Policy, j.now) })
}
