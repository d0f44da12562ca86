package api

import (
	"crypto/sha256"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// authorize admits requests of /v1/* with one of the configured bearer tokens.
// Tokens are compared by their hashes, so that the time it takes says nothing.
// It isn't the group's: with middleware of its own, echo takes a group's wrong
// methods for unknown paths.
func (s *Server) authorize(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			return next(c)
		}
		scheme, token, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
		}
		if _, ok := s.tokens[sha256.Sum256([]byte(strings.TrimSpace(token)))]; !ok {
			return newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
		}
		return next(c)
	}
}

// An Identifier finds the client of a request that a proxy asks about: the
// value of Header, or when that is empty the IP address of the request.
type Identifier struct {
	Header string
}

func (i Identifier) String() string {
	if i.Header == "" {
		return "ip"
	}
	return "header:" + i.Header
}

// ipExtractor returns how to find the address of a request's client: that of
// the peer, or when the peer is a trusted proxy, the last one in
// X-Forwarded-For that isn't.
func ipExtractor(trusted []*net.IPNet) echo.IPExtractor {
	options := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, network := range trusted {
		options = append(options, echo.TrustIPRange(network))
	}
	return echo.ExtractIPFromXFFHeader(options...)
}

// forwardAuth decides a request on behalf of a proxy that forwards its headers.
// Options never come from the query: proxies pass on their client's.
func (s *Server) forwardAuth(c echo.Context) error {
	// A reload in between must not name the client by one set of policies and
	// decide by another.
	active := s.policies.Load()
	p, err := active.policy(c.Param("policy"))
	if err != nil {
		return err
	}
	client := p.identify(c)
	if client == "" {
		return badRequest("no client: the request has none of %v", p.Identify)
	}
	now := s.now()
	a, err := s.decideBy(s.storeContext(now), active, check{policy: p.Name, client: client, cost: 1}, now)
	if err != nil {
		return err
	}
	return a.write(c, p.AuthDenyStatus)
}

// identify returns the client that the request names first, or "".
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
