package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"weir/api/policy"
)

// An asking is the limit i of a check.
type asking struct {
	*limitAnswer
	of *answer
	i  int
}

// A joint is checks that are decided as one: all are admitted, or none.
type joint struct {
	ctx     context.Context
	now     time.Time
	timeout time.Duration // of the store
	answers []*answer
	// groups are the limits of each client. Those of one group are asked in
	// their order, groups at once.
	groups [][]asking
}

// decideJointly asks the limits of answers, which prepare has found, and
// consumes their costs from all or from none. What shadow mode would deny denies
// none of the others.
//
// The limits are asked at once, so that they share their round trips to the
// store. Only those that are known to deny come first: then the others needn't
// be asked.
func decideJointly(ctx context.Context, now time.Time, timeout time.Duration, answers []*answer) {
	j := &joint{ctx: ctx, now: now, timeout: timeout, answers: answers}
	j.group()
	j.ask()
	denied, refused := false, false
	for _, a := range answers {
		a.judge()
		denied = denied || !a.allowed && !a.policy.Shadow
		refused = refused || a.refused
	}
	for _, a := range answers {
		a.vetoed, a.refused = denied, refused
	}
	j.refund()
	for _, a := range answers {
		a.finish()
	}
}

// group puts the limits into groups.
func (j *joint) group() {
	type key struct {
		limiter policy.Limiter
		client  string
	}
	places := make(map[key]int)
	for _, a := range j.answers {
		for i := range a.limits {
			l := &a.limits[i]
			k := key{l.Limiter, l.client}
			place, ok := places[k]
			if !ok {
				place = len(j.groups)
				places[k], j.groups = place, append(j.groups, nil)
			}
			j.groups[place] = append(j.groups[place], asking{l, a, i})
		}
	}
}

// ask asks the groups, or as many as it takes for a denial. Where denied
// requests count, it asks all.
func (j *joint) ask() {
	denied := slices.ContainsFunc(j.answers, func(a *answer) bool { return !a.allowed && !a.policy.Shadow })
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
		left = slices.DeleteFunc(left, func(group []asking) bool { return !group[0].of.policy.CountDenied })
	}
	atOnce(len(left), j.timeout, func(i int) { j.askGroup(left[i]) })
}

// seemsSpent reports whether the process remembers that nothing remains, so that
// one will deny.
func (j *joint) seemsSpent(one asking) bool {
	if p := one.of.policy; p.CountDenied || p.Shadow || one.leniency != policy.Strict {
		return false
	}
	d, known := one.Limiter.PeekLocal(one.request(j.now))
	return known && !d.Allowed && d.Remaining == 0
}

// denied reports whether one was asked and denies all.
func (one asking) denied() bool {
	p := one.of.policy
	return one.asked && !p.Shadow && (one.overrules() || one.undecided(p))
}

// askGroup asks limits of one client, and of one policy, in their order. Equal
// ones that follow each other are asked at once, which takes a few store
// operations however many they are; as they are equal, their answers can be put
// in the order that they would have had.
func (j *joint) askGroup(group []asking) {
	for len(group) > 0 {
		n := 1
		for n < len(group) && group[n].equals(group[0]) {
			n++
		}
		equal := group[:n]
		atOnce(n, j.timeout, func(i int) {
			one := equal[i]
			one.of.ask(j.ctx, j.now, one.of.limits[one.i:one.i+1])
		})
		sortAnswers(equal)
		if !equal[0].of.policy.CountDenied && slices.ContainsFunc(equal, asking.denied) {
			return
		}
		group = group[n:]
	}
}

// equals reports whether one and other ask the same.
func (one asking) equals(other asking) bool {
	return one.Limit == other.Limit && one.limit == other.limit && one.cost == other.cost && one.leniency == other.leniency
}

// sortAnswers puts the answers of equal limits in the order in which they were
// decided: admissions before denials, and more remaining before less.
func sortAnswers(equal []asking) {
	if len(equal) == 1 {
		return
	}
	sorted := make([]limitAnswer, len(equal))
	for i, one := range equal {
		sorted[i] = *one.limitAnswer
	}
	slices.SortStableFunc(sorted, func(a, b limitAnswer) int {
		switch {
		case a.Allowed == b.Allowed:
			return cmp.Compare(b.Remaining, a.Remaining)
		case a.Allowed:
			return -1
		default:
			return 1
		}
	})
	for i, one := range equal {
		*one.limitAnswer = sorted[i]
	}
}

// refund undoes what was admitted of the checks that are denied, as
// answer.refund does.
func (j *joint) refund() {
	var consumed, unsettled []asking
	known := true
	for _, a := range j.answers {
		known = known && a.denialKnown()
		if a.allowed && !a.vetoed || a.policy.CountDenied {
			continue
		}
		for i := range a.limits {
			one := asking{&a.limits[i], a, i}
			if one.consumed() {
				consumed = append(consumed, one)
			}
			if one.unsettled() && !a.refused {
				unsettled = append(unsettled, one)
			}
		}
	}
	atOnce(len(consumed), j.timeout, func(i int) { consumed[i].refund(j.ctx, j.now) })
	unknown := slices.DeleteFunc(unsettled, func(one asking) bool { return one.lookBack(one.of.policy, j.now, known) })
	atOnce(len(unknown), j.timeout, func(i int) { unknown[i].look(j.ctx, unknown[i].of.policy, j.now) })
}
