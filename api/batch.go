package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// batchWorkers is how many checks of a batch are under way at once.
const batchWorkers = 128

// checkBatch answers POST /v1/check/batch. Checks of one client are made in
// their order. A check that can't be made gets the status of its problem, and
// the others are still made.
func (s *Server) checkBatch(c echo.Context) error {
	b, err := readBody(c.Request(), maxBatchBytes)
	if err != nil {
		return err
	}
	defer b.release()
	batch, err := b.decodeBatch()
	if err != nil {
		return err
	}
	results := bytes.Join(s.decideBatch(c, batch), []byte{','})
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, fmt.Appendf(nil, `{"results":[%s]}`+"\n", results))
}

// decideBatch returns the encoded results of a batch, in its order.
func (s *Server) decideBatch(c echo.Context, batch []check) [][]byte {
	// The checks of one client of one policy are a group: they are made in
	// order, and share one store timeout while the store doesn't answer.
	type groupKey struct{ policy, client string }
	groups := make(map[groupKey][]int)
	for i, q := range batch {
		k := groupKey{q.policy, q.client}
		groups[k] = append(groups[k], i)
	}
	queue := make(chan []int, len(groups))
	for _, group := range groups {
		queue <- group
	}
	close(queue)
	results := make([][]byte, len(batch))
	var workers sync.WaitGroup
	for range min(batchWorkers, len(groups)) {
		workers.Go(func() {
			for group := range queue {
				s.decideGroup(c, batch, group, results)
			}
		})
	}
	workers.Wait()
	return results
}

// decideGroup makes the checks of batch that group lists.
func (s *Server) decideGroup(c echo.Context, batch []check, group []int, results [][]byte) {
	var ctx counters.Deadline
	answered := true // by the store, within the last context
	for _, i := range group {
		now := s.cfg.Now()
		if answered {
			ctx = counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
		}
		a, err := s.decideOrRecover(c, &ctx, batch[i], now)
		if err != nil {
			results[i], _ = json.Marshal(err) // can't fail for a problem
		} else {
			results[i] = a.appendJSON(nil, a.status(http.StatusTooManyRequests))
		}
		answered = a != nil && !a.degraded
	}
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
