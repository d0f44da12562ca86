package api

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/counters"
)

// check answers POST /v1/check.
func (s *Server) check(c echo.Context) error {
	b, q, err := readCheck(c)
	if err != nil {
		return err
	}
	defer b.release() // not earlier: the check's context is in it
	now := s.cfg.Now()
	b.context = counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	d, err := s.active.Load().ForChecks(q.Policy)
	if err != nil {
		return err
	}
	a, err := d.Check(&b.context, q, now)
	if err != nil {
		return err
	}
	if a.Wait > 0 && a.Policy.Hold && !a.Policy.Shadow {
		s.hold(c.Request().Context(), a.Wait-s.cfg.Now().Sub(now))
		a.Held = s.cfg.Now().Sub(now)
		a.Wait = max(0, a.Wait-a.Held)
		s.closeWhenDraining(c.Response().Header())
	}
	return s.writeAnswer(c, a)
}

// readCheck returns the check that c asks for, and the body that it is in.
func readCheck(c echo.Context) (*body, decide.Check, error) {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return nil, decide.Check{}, err
	}
	q, err := b.decodeCheck()
	if err != nil {
		b.release()
		return nil, decide.Check{}, err
	}
	q.Trace = traceOf(c.Request())
	return b, q, nil
}

// writeAnswer answers a check with a, which must not be used any more.
func (s *Server) writeAnswer(c echo.Context, a *decide.Answer) error {
	writeHeaders(c, a)
	return s.writeBody(c, a, statusOf(a.Allowed, http.StatusTooManyRequests))
}

const (
	// maxHold is the longest that an answer is held. It leaves time to
	// write the answer before writeTimeout.
	maxHold = 10 * time.Second
	// maxHeld is how many answers are held at once.
	maxHeld = 10_000
)

// hold returns when the wait is over, or earlier: after maxHold, when the
// caller leaves, when the server drains, and at once when maxHeld others are
// held. A caller that leaves keeps its turn: later turns are already assigned,
// so this one isn't reused.
func (s *Server) hold(ctx context.Context, wait time.Duration) {
	defer s.held.Add(-1)
	if s.held.Add(1) > maxHeld {
		return
	}
	s.cfg.Metrics.Held(1)
	defer s.cfg.Metrics.Held(-1)
	select {
	case <-time.After(min(wait, maxHold)):
	case <-ctx.Done():
	case <-s.drained:
	}
}
