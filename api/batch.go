package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

const (
	// resultBytes is about how long a result is.
	resultBytes = 320
	// maxKeptOutput is the size of the largest buffer that is kept for another
	// batch.
	maxKeptOutput = 1 << 20
)

var batchOutputs = sync.Pool{New: func() any { return new([]byte) }}

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
	outcomes := s.decideBatch(c, q.checks)
	out := batchOutputs.Get().(*[]byte)
	*out = appendOutcomes((*out)[:0], outcomes)
	// Otherwise it goes in chunks, and who reads it can't know how much room it
	// needs.
	c.Response().Header().Set(echo.HeaderContentLength, strconv.Itoa(len(*out)))
	err = c.Blob(http.StatusOK, echo.MIMEApplicationJSON, *out)
	if cap(*out) <= maxKeptOutput {
		batchOutputs.Put(out)
	}
	return err
}

// decideBatch returns the outcomes of checks, in their order.
func (s *Server) decideBatch(c echo.Context, checks []check) []decided {
	now, ctx, leave := s.beginBatch(c, len(checks))
	defer leave()
	r := batchRun{
		Server: s, c: c, ctx: ctx, now: now,
		policies: s.policies.Load(), checks: checks, outcomes: make([]decided, len(checks)),
		alone: counters.Workers{AtOnce: maxAtOnce, Patience: s.cfg.StoreTimeout / shifts},
	}
	r.run()
	return r.outcomes
}

// appendOutcomes appends the body with the outcomes, whose answers must not be
// used any more.
func appendOutcomes(b []byte, outcomes []decided) []byte {
	b = append(slices.Grow(b, len(outcomes)*resultBytes), `{"results":[`...)
	for i, d := range outcomes {
		if i > 0 {
			b = append(b, ',')
		}
		if d.problem != nil {
			result, _ := json.Marshal(d.problem) // can't fail for a problem
			b = append(b, result...)
		} else {
			b = d.appendJSON(b, d.status(http.StatusTooManyRequests))
		}
		if d.answer != nil {
			d.release()
		}
	}
	return append(b, "]}\n"...)
}
