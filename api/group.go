package api

import (
	"cmp"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// A group is the checks of one client of one policy, by their numbers. They are
// made in order.
type group struct {
	first int
	rest  []int
}

func (g *group) numbers() []int { return append([]int{g.first}, g.rest...) }

// groupByClient returns the groups of a batch, in its order.
func groupByClient(checks []check) []*group {
	type key struct{ policy, client string }
	found := make(map[key]*group, len(checks))
	all := make([]group, 0, len(checks)) // never grows
	groups := make([]*group, 0, len(checks))
	for i, q := range checks {
		k := key{q.policy, q.client}
		if g := found[k]; g != nil {
			g.rest = append(g.rest, i)
			continue
		}
		all = append(all, group{first: i})
		g := &all[len(all)-1]
		found[k], groups = g, append(groups, g)
	}
	return groups
}

// decided is the outcome of a check of a batch: an answer, or a problem.
type decided struct {
	*answer
	problem error
}

// decidedFirst compares the outcomes of equal checks by when they were decided:
// admissions before denials, and more remaining before less.
func decidedFirst(d, e decided) int {
	if d.problem != nil || e.problem != nil || d.denied != e.denied {
		return cmp.Compare(d.rank(), e.rank())
	}
	return slices.CompareFunc(d.limits, e.limits, func(d, e limitAnswer) int {
		return cmp.Compare(e.Remaining, d.Remaining)
	})
}

func (d decided) rank() int {
	switch {
	case d.problem != nil:
		return 2
	case d.denied:
		return 1
	default:
		return 0
	}
}

// decideGroup puts in the outcomes of the checks of one client of one policy,
// whose indexes are group, in their order.
func (s *Server) decideGroup(c echo.Context, ctx *counters.Deadline, checks []check, group []int, outcomes []decided) {
	for len(group) > 0 {
		first := checks[group[0]]
		outcomes[group[0]] = s.decideResult(c, ctx, first)
		equal := 1
		for equal < len(group) && checks[group[equal]].cost == first.cost && slices.Equal(checks[group[equal]].limits, first.limits) {
			equal++
		}
		s.decideEqual(c, ctx, first, group[1:equal], outcomes)
		group = group[equal:]
	}
}

// decideEqual puts in the results of checks that are all q. One by one, a
// thousand would take longer than they may. As concurrent callers they cost a
// few store operations; and as they are equal, their answers can be put in the
// order that they would have had.
func (s *Server) decideEqual(c echo.Context, ctx *counters.Deadline, q check, indexes []int, outcomes []decided) {
	equal := make([]decided, len(indexes))
	var callers sync.WaitGroup
	for i := range equal {
		callers.Go(func() { equal[i] = s.decideResult(c, ctx, q) })
	}
	callers.Wait()
	slices.SortStableFunc(equal, decidedFirst)
	for i, d := range equal {
		outcomes[indexes[i]] = d
	}
}

func (s *Server) decideResult(c echo.Context, ctx *counters.Deadline, q check) decided {
	a, err := s.decideOrRecover(c, ctx, q, s.cfg.Now())
	return decided{a, err}
}

// decideOrRecover decides q unless the caller has left: a long batch must not
// hold up a shutdown. It turns a panic into a problem: on a worker's goroutine,
// nothing else would keep it from ending the process.
func (s *Server) decideOrRecover(c echo.Context, ctx *counters.Deadline, q check, now time.Time) (a *answer, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.logPanic(c, fmt.Errorf("%v", v), debug.Stack())
		}
	}()
	if c.Request().Context().Err() != nil {
		return nil, errCallerLeft()
	}
	return s.policies.Load().decide(ctx, q, now)
}

func errCallerLeft() error {
	return newProblem(http.StatusServiceUnavailable, "the caller left before this check began")
}
