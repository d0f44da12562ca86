package api

import (
	"crypto/sha256"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// authorize lets requests of /v1/* pass that carry a configured bearer token.
// It is middleware of the whole server, because echo answers a wrong method
// with 404 in a group that has middleware.
func (s *Server) authorize(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			if err := s.checkToken(c); err != nil {
				return err
			}
		}
		return next(c)
	}
}

// checkToken returns a problem unless the request carries a configured bearer
// token, or none is configured. It looks tokens up by their hashes, so that its
// timing tells nothing about them.
func (s *Server) checkToken(c echo.Context) error {
	if len(s.tokens) == 0 {
		return nil
	}
	scheme, token, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
	}
	if _, ok := s.tokens[sha256.Sum256([]byte(strings.TrimSpace(token)))]; !ok {
		return newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
	}
	return nil
}

// ipExtractor returns a function that finds the address of a request's client.
// It is the peer's or, when the peer is a trusted proxy, the last address in
// X-Forwarded-For that isn't a trusted proxy's.
func ipExtractor(trusted []*net.IPNet) echo.IPExtractor {
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, network := range trusted {
		options = append(options, echo.TrustIPRange(network))
	}
	return echo.ExtractIPFromXFFHeader(options...)
}

// forwardAuth answers /v1/auth/{policy}: it decides a request for a proxy that
// forwards its headers. It takes no options from the query, because proxies
// pass on the query of their clients.
func (s *Server) forwardAuth(c echo.Context) error {
	// Loaded once: a reload mustn't let one policy name the client and
	// another decide.
	active := s.policies.Load()
	p, err := active.policy(c.Param("policy"))
	if err != nil {
		return err
	}
	client := p.identify(c)
	if client == "" {
		return badRequest("no client: the request has none of %v", p.Identify)
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	a, err := active.decide(&ctx, check{policy: p.Name, client: client, cost: 1}, now)
	if err != nil {
		return err
	}
	if a.allowed {
		return a.writeNothing(c)
	}
	return a.write(c, p.AuthDenyStatus)
}

// identify returns the first client that p.Identify finds in the request, or
// "".
func (p *Policy) identify(c echo.Context) string {
	for _, i := range p.Identify {
		if i.Header == "" {
			return c.RealIP()
		}
		if value := c.Request().Header.Get(i.Header); value != "" {
			return value
		}
	}
	return ""
}
