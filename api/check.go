package api

import (
	"net/http"

	"github.com/labstack/echo/v4"
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
	now := s.now()
	b.context = newStoreContext(now, s.cfg.StoreTimeout)
	a, err := s.policies.Load().decide(&b.context, q, now)
	if err != nil {
		return err
	}
	if wait := a.wait(); wait > 0 && a.policy.Hold && !a.policy.Shadow {
		s.hold(c.Request().Context(), wait-s.now().Sub(now))
		a.held = s.now().Sub(now)
		s.closeWhenDraining(c.Response().Header())
	}
	return a.write(c, http.StatusTooManyRequests)
}
