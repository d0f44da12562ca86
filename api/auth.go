package api

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"weir/api/policy"
	"weir/counters"
)

// authorize lets requests of /v1/* pass that carry a configured bearer token.
// It is middleware of the whole server, because echo answers a wrong method
// with 404 in a group that has middleware.
func (s *Server) authorize(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if strings.HasPrefix(c.Request().URL.Path, "/v1/") {
			if err := s.checkToken(c); err != nil {
				c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="weir"`)
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
	known := *s.tokens.Load()
	if len(known) == 0 {
		return nil
	}
	scheme, _, _ := strings.Cut(c.Request().Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
	}
	if known.of(c.Request()) == 0 {
		return newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
	}
	return nil
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
	return p.refusal(s.authorizeBy(c, active, p))
}

// authorizeBy answers what is asked of p, one of the active policies. An error
// may be a problem.
func (s *Server) authorizeBy(c echo.Context, active *activePolicies, p *decider) error {
	q := check{policy: p.Name, cost: 1}
	if found, err := s.identify(c.Request(), p, &q); err != nil {
		return err
	} else if !found {
		if p.OnMissingClient == policy.MissingClientAllow {
			return c.NoContent(http.StatusOK)
		}
		return badRequest("no client: the request has none of %v", p.Identify)
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	var room [4]*policy.Route
	var method, target string
	if len(p.Routes) > 0 {
		if method, target = s.target(c.Request()); target == "" {
			s.noteMissingPath(active.metrics[p.Name], p.Policy)
			if p.OnMissingPath == policy.MissingPathDeny {
				return badRequest("no path: policy %q has routes, and the proxy doesn't say which path it asks about", p.Name)
			}
		}
	}
	routes := p.MatchRoutes(room[:0], method, target)
	for i, route := range routes {
		if q.route, q.cost = route, 1; route != nil {
			q.cost = route.Cost
		}
		a, err := active.decide(&ctx, q, now)
		switch {
		case err != nil:
			return err
		case !a.allowed:
			return a.writeDenial(c)
		case i == len(routes)-1:
			return a.writeNothing(c)
		}
		a.release()
	}
	return nil
}

// refusal returns err as proxies and users may see it: a problem has the status
// that p has for it, and names no client.
func (p *decider) refusal(err error) error {
	refused, ok := err.(*problem)
	switch {
	case !ok:
	case refused.Type == typeReducedCapacity:
		refused.Status, refused.Client = p.AuthDenyStatus, ""
	case refused.Status == http.StatusBadRequest:
		refused.Status = cmp.Or(p.AuthBadRequestStatus, http.StatusBadRequest)
		refused.Title = http.StatusText(refused.Status)
	}
	return err
}

// identify names the client in q by the first of p.Identify that r has, and
// reports whether r has any. The error is a problem: of several values the app
// may take another than weir.
func (s *Server) identify(r *http.Request, p *decider, q *check) (bool, error) {
	for _, i := range p.Identify {
		if i.Header == "" {
			address := trustedProxies(s.cfg.TrustedProxies).clientOf(r)
			if address.IsValid() {
				q.client, q.network = p.ByAddress(address)
			}
			return address.IsValid(), nil
		}
		values := r.Header.Values(i.Header)
		if len(values) > 1 {
			return false, badRequest("no client: the request has %s more than once", i.Header)
		}
		if len(values) == 1 && values[0] != "" {
			q.client, q.header = values[0], true
			// Otherwise anybody could use up what an address has.
			if policy.IsNetwork(q.client) && slices.Contains(p.Identify, policy.Identifier{}) {
				q.client = i.Header + ":" + q.client
			}
			return true, nil
		}
	}
	return false, nil
}

// noteMissingPath counts a request to which no route of p can apply, and warns of
// the first.
func (s *Server) noteMissingPath(m *policyMetrics, p *policy.Policy) {
	m.missingPath.Inc()
	m.warnOfMissingPath.Do(func() {
		s.cfg.Log.Warn("routes don't count: a proxy asks without a path; it has to send X-Forwarded-Uri, and to be one of -trusted-proxies",
			slog.String("policy", p.Name))
	})
}

// target returns the method and the target of the request that a proxy asks
// about: those in its headers if the peer is a trusted proxy, else its own. A
// path below that of the policy comes before the header, which a proxy that
// sends such a path may pass on from its client. Of several values the last is
// the proxy's. The target is "" if nobody says it.
func (s *Server) target(r *http.Request) (method, target string) {
	method, path := r.Method, strings.TrimPrefix(r.URL.EscapedPath(), "/v1/auth/")
	below := strings.IndexByte(path, '/')
	if below >= 0 {
		target = path[below:]
	}
	if !trustedProxies(s.cfg.TrustedProxies).has(peer(r)) {
		return method, target
	}
	if values := r.Header["X-Forwarded-Method"]; len(values) > 0 {
		method = values[len(values)-1]
	}
	if values := r.Header["X-Forwarded-Uri"]; below < 0 && len(values) > 0 {
		target = values[len(values)-1]
	}
	return method, target
}
