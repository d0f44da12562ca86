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

const (
	// batchWorkers is how many checks of a batch are begun at once.
	batchWorkers = 128
	// batchShifts is how often as many are begun again until the store timeout:
	// enough for all of a batch.
	batchShifts = 16
)

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

// decideBatch returns the encoded results of a batch, in its order. All checks
// share the store timeout of one, however many they are.
func (s *Server) decideBatch(c echo.Context, batch []check) [][]byte {
	// The checks of one client of one policy are a group: they are made in
	// order.
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
	ctx := &counters.Deadline{At: s.cfg.Now().Add(s.cfg.StoreTimeout)}
	var workers sync.WaitGroup
	begun := make(chan struct{}) // closed when all groups are
	allBegun := sync.OnceFunc(func() { close(begun) })
	for started := 0; started < len(groups); {
		for range min(batchWorkers, len(groups)-started) {
			started++
			workers.Go(func() {
				for group := range queue {
					for _, i := range group {
						results[i] = s.decideResult(c, ctx, batch[i])
					}
				}
				allBegun()
			})
		}
		// Those whose server is silent take all the time there is, so others
		// begin what they can't.
		select {
		case <-begun:
			started = len(groups)
		case <-time.After(s.cfg.StoreTimeout / batchShifts):
		}
	}
	workers.Wait()
	return results
}

// decideResult returns the encoded result of a check.
func (s *Server) decideResult(c echo.Context, ctx *counters.Deadline, q check) []byte {
	a, err := s.decideOrRecover(c, ctx, q, s.cfg.Now())
	if err != nil {
		result, _ := json.Marshal(err) // can't fail for a problem
		return result
	}
	return a.appendJSON(nil, a.status(http.StatusTooManyRequests))
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
