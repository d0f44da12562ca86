package api

import (
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// peekClient answers GET /v1/policies/{policy}/clients/{client}.
func (s *Server) peekClient(c echo.Context) error {
	p, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	a, err := p.peek(&ctx, client, now)
	if err != nil {
		return err
	}
	return a.writeBody(c, http.StatusOK)
}

// resetClient answers DELETE /v1/policies/{policy}/clients/{client}.
func (s *Server) resetClient(c echo.Context) error {
	p, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	if err := p.reset(&ctx, client, now); err != nil {
		return storeFailed("the client was not reset in all limits; do it again: %v", err)
	}
	return c.NoContent(http.StatusNoContent)
}

// clientOfPath returns the policy and the client that the path names.
func (s *Server) clientOfPath(c echo.Context) (*Policy, string, error) {
	p, err := s.policies.Load().policy(c.Param("policy"))
	if err != nil {
		return nil, "", err
	}
	client := c.Param("client")
	// echo matches the escaped path when Go would escape it differently.
	if c.Request().URL.RawPath != "" {
		if client, err = url.PathUnescape(client); err != nil {
			return nil, "", badRequest("the client in the path is not well escaped: %v", err)
		}
	}
	return p, client, validateClient(client)
}
