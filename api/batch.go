package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// checkBatch answers POST /v1/check/batch. Checks of one client are made in
// their order. A check that can't be made gets the status of its problem, and
// the others are still made, unless all are to be admitted or none.
func (s *Server) checkBatch(c echo.Context) error {
	b, err := readBody(c.Request(), maxBatchBytes)
	if err != nil {
		return err
	}
	defer b.release()
	q, err := b.decodeBatch()
	if err != nil {
		return err
	}
	if q.all {
		return s.checkAll(c, q.checks)
	}
	results := bytes.Join(s.decideBatch(c, q.checks), []byte{','})
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, fmt.Appendf(nil, `{"results":[%s]}`+"\n", results))
}

// decideBatch returns the encoded results of a batch, in its order. All checks
// share the store timeout of one, however many they are.
func (s *Server) decideBatch(c echo.Context, checks []check) [][]byte {
	// The checks of one client of one policy are a group: they are made in
	// order.
	type groupKey struct{ policy, client string }
	numbers := make(map[groupKey]int)
	var groups [][]int
	for i, q := range checks {
		k := groupKey{q.policy, q.client}
		number, ok := numbers[k]
		if !ok {
			number = len(groups)
			numbers[k], groups = number, append(groups, nil)
		}
		groups[number] = append(groups[number], i)
	}
	results := make([][]byte, len(checks))
	ctx := &counters.Deadline{At: s.cfg.Now().Add(s.cfg.StoreTimeout)}
	atOnce(len(groups), s.cfg.StoreTimeout, func(i int) { s.decideGroup(c, ctx, checks, groups[i], results) })
	return results
}

// decideGroup puts in the results of the checks of one client of one policy,
// whose indexes are group, in their order.
func (s *Server) decideGroup(c echo.Context, ctx *counters.Deadline, checks []check, group []int, results [][]byte) {
	for len(group) > 0 {
		first := checks[group[0]]
		results[group[0]] = s.decideResult(c, ctx, first).encode()
		equal := 1
		for equal < len(group) && checks[group[equal]].cost == first.cost && slices.Equal(checks[group[equal]].limits, first.limits) {
			equal++
		}
		s.decideEqual(c, ctx, first, group[1:equal], results)
		group = group[equal:]
	}
}

// decideEqual puts in the results of checks that are all q. One by one, a
// thousand would take longer than they may. As concurrent callers they cost a
// few store operations; and as they are equal, their answers can be put in the
// order that they would have had.
func (s *Server) decideEqual(c echo.Context, ctx *counters.Deadline, q check, indexes []int, results [][]byte) {
	outcomes := make([]decided, len(indexes))
	var callers sync.WaitGroup
	for i := range outcomes {
		callers.Go(func() { outcomes[i] = s.decideResult(c, ctx, q) })
	}
	callers.Wait()
	slices.SortStableFunc(outcomes, decidedFirst)
	for i, d := range outcomes {
		results[indexes[i]] = d.encode()
	}
}

// decided is the outcome of a check of a batch: an answer, or a problem.
type decided struct {
	*answer
	problem error
}

func (s *Server) decideResult(c echo.Context, ctx *counters.Deadline, q check) decided {
	a, err := s.decideOrRecover(c, ctx, q, s.cfg.Now())
	return decided{a, err}
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

// encode returns the result. The answer must not be used any more.
func (d decided) encode() []byte {
	if d.problem != nil {
		result, _ := json.Marshal(d.problem) // can't fail for a problem
		return result
	}
	return d.appendJSON(nil, d.status(http.StatusTooManyRequests))
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
		return nil, newProblem(http.StatusServiceUnavailable, "the caller left before this check began")
	}
	return s.policies.Load().decide(ctx, q, now)
}
