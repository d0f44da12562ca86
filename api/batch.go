package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
)

// resultBytes is about how long a result is.
const resultBytes = 320

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
	outcomes := s.active.Load().Batch(c.Request().Context(), q.checks)
	return writeAppended(c, http.StatusOK, jsonType, func(b []byte) []byte {
		b = s.appendOutcomes(c, b, outcomes)
		// Without it the body is sent in chunks, and a reader can't reserve room for it.
		c.Response().Header().Set(echo.HeaderContentLength, strconv.Itoa(len(b)))
		return b
	})
}

// appendOutcomes appends the body with the outcomes, which must not be used any more,
// nor their answers.
func (s *Server) appendOutcomes(c echo.Context, b []byte, outcomes []decide.Outcome) []byte {
	b = append(slices.Grow(b, len(outcomes)*resultBytes), `{"results":[`...)
	var last error
	var result []byte // of last
	for _, o := range outcomes {
		b = appendComma(b)
		if o.Err == nil {
			b = s.appendAnswer(b, o.Answer, statusOf(o.Allowed, http.StatusTooManyRequests))
			o.Release()
			continue
		}
		if o.Err != last { // checks share a panic, which is logged once
			last, result = o.Err, nil
			result, _ = json.Marshal(s.problemOf(o.Err, c)) // can't fail for a problem
		}
		b = append(b, result...)
	}
	if last == nil { // else a panic may have left others at work
		decide.Release(outcomes)
	}
	return append(b, "]}\n"...)
}

// checkAll answers a batch whose checks are all admitted, or none. If one can't
// be made, none is, and the answer is its problem.
func (s *Server) checkAll(c echo.Context, checks []decide.Check) error {
	answers, err := s.active.Load().All(c.Request().Context(), checks)
	defer func() {
		for _, a := range answers {
			a.Release()
		}
	}()
	if err != nil {
		return err
	}
	allowed, degraded, blocked := true, false, false
	var retry, wait time.Duration
	for _, a := range answers {
		allowed, degraded = allowed && a.Allowed, degraded || a.Degraded != nil
		retry, wait = max(retry, a.Retry), max(wait, a.Wait)
		blocked = blocked || a.Blocked && !a.Policy.Shadow && a.Retry == 0
	}
	if blocked { // then waiting is no help
		retry = 0
	}
	if retry > 0 {
		c.Response().Header().Set(echo.HeaderRetryAfter, strconv.FormatInt(decide.WholeSeconds(retry), 10))
	}
	status := statusOf(allowed, http.StatusTooManyRequests)
	return writeAppended(c, status, jsonType, func(b []byte) []byte {
		b = strconv.AppendBool(append(b, `{"allowed":`...), allowed)
		b = appendSeconds(append(b, `,"retry_after":`...), retry)
		b = appendSeconds(append(b, `,"wait":`...), wait)
		b = strconv.AppendBool(append(b, `,"degraded":`...), degraded)
		b = append(b, `,"results":[`...)
		for _, a := range answers {
			b = s.appendAnswer(appendComma(b), a, status)
		}
		return append(b, "]}\n"...)
	})
}
