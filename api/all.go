package api

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// checkAll answers a batch whose checks are all admitted, or none. If one can't
// be made, none is, and the answer is its problem.
func (s *Server) checkAll(c echo.Context, checks []check) error {
	answers, err := s.decideAll(c, checks)
	defer func() {
		for _, a := range answers {
			a.release()
		}
	}()
	if err != nil {
		return err
	}
	sum := sumUp(answers)
	if sum.retry > 0 {
		c.Response().Header().Set(echo.HeaderRetryAfter, strconv.FormatInt(wholeSeconds(sum.retry), 10))
	}
	out := outputs.Get().(*[]byte)
	defer outputs.Put(out)
	*out = sum.appendJSON((*out)[:0], answers)
	return c.Blob(sum.status(), echo.MIMEApplicationJSON, *out)
}

// decideAll is decideBatch for checks that are all admitted, or none. The error is
// a problem.
func (s *Server) decideAll(c echo.Context, checks []check) ([]*answer, error) {
	now, ctx, leave := s.beginBatch(c, len(checks))
	defer leave()
	if c.Request().Context().Err() != nil {
		return nil, errCallerLeft()
	}
	answers, err := s.policies.Load().decideAll(ctx, s.cfg.StoreTimeout, checks, now)
	for _, a := range answers {
		if a.degraded == nil {
			s.batches.decided.Add(1)
		}
	}
	return answers, err
}

// decideAll is decide for checks that are all admitted, or none.
func (p *activePolicies) decideAll(ctx *counters.Deadline, timeout time.Duration, checks []check, now time.Time) ([]*answer, error) {
	answers := make([]*answer, 0, len(checks))
	for i, q := range checks {
		policy, err := p.policy(q.policy)
		var a *answer
		if err == nil {
			a, err = policy.prepare(q)
		}
		if err != nil {
			return answers, at(checkPath(i), err)
		}
		answers = append(answers, a)
	}
	decideJointly(ctx, now, timeout, answers)
	took := p.now().Sub(now)
	var refusal error
	for _, a := range answers {
		p.count(a, now, took)
		if refusal == nil && a.unanswered() {
			refusal = reducedCapacity(a)
		}
	}
	return answers, refusal
}

// at returns a problem with where in the body it is in front.
func at(path string, err error) error {
	var p *problem
	if errors.As(err, &p) {
		p.Detail = path + ": " + p.Detail
	}
	return err
}

// A summary is the answer to checks of which all are admitted, or none.
type summary struct {
	allowed, degraded bool
	retry, wait       time.Duration
}

// sumUp returns the summary of answers.
func sumUp(answers []*answer) summary {
	s := summary{allowed: true}
	blocked := false
	for _, a := range answers {
		s.allowed = s.allowed && a.allowed
		s.degraded = s.degraded || a.degraded != nil
		s.retry, s.wait = max(s.retry, a.retry), max(s.wait, a.wait)
		blocked = blocked || a.blocked && !a.policy.Shadow
	}
	if blocked { // then waiting is no help
		s.retry = 0
	}
	return s
}

func (s summary) status() int {
	if s.allowed {
		return http.StatusOK
	}
	return http.StatusTooManyRequests
}

// appendJSON appends s and its answers as a JSON object.
func (s summary) appendJSON(b []byte, answers []*answer) []byte {
	b = strconv.AppendBool(append(b, `{"allowed":`...), s.allowed)
	b = appendSeconds(append(b, `,"retry_after":`...), s.retry)
	b = appendSeconds(append(b, `,"wait":`...), s.wait)
	b = strconv.AppendBool(append(b, `,"degraded":`...), s.degraded)
	b = append(b, `,"results":[`...)
	for i, a := range answers {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.appendJSON(b, s.status())
	}
	return append(b, "]}\n"...)
}
