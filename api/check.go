package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// check answers POST /v1/check.
func (s *Server) check(c echo.Context) error {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return err
	}
	defer b.release()
	q, err := b.decodeCheck()
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	b.context = counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	a, err := s.policies.Load().decide(&b.context, q, now)
	if err != nil {
		return err
	}
	if a.wait > 0 && a.policy.Hold && !a.policy.Shadow {
		s.hold(c.Request().Context(), a.wait-s.cfg.Now().Sub(now))
		a.wait = max(0, a.wait-s.cfg.Now().Sub(now))
		s.closeWhenDraining(c.Response().Header())
	}
	return a.write(c, http.StatusTooManyRequests)
}
