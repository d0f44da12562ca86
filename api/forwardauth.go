package api

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
)

// forwardAuth answers /v1/auth/{policy}: it decides a request for a proxy that
// forwards its headers. It takes no options from the query, because proxies
// pass on the query of their clients.
func (s *Server) forwardAuth(c echo.Context) error {
	// Loaded once: a reload mustn't let one policy name the client and
	// another decide.
	active := s.active.Load()
	d, err := active.ForChecks(c.Param("policy"))
	if err != nil {
		return err
	}
	return refusal(s.decideForwarded(c, d, active.checks[d.Name]), d.Policy)
}

// decideForwarded answers what is asked of the policy of d, whose checks are counted in
// checks.
func (s *Server) decideForwarded(c echo.Context, d *decide.Decider, checks *telemetry.Checks) error {
	q := decide.Check{Policy: d.Name, Cost: 1, Trace: traceOf(c.Request())}
	if found, err := s.identify(c.Request(), d, &q); err != nil {
		return err
	} else if !found {
		if d.OnMissingClient == policy.MissingClientAllow {
			return c.NoContent(http.StatusOK)
		}
		return badRequest("no client: the request has none of %v", d.Identify)
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	var room [4]*policy.Route
	var method, target string
	if len(d.Routes) > 0 {
		if method, target = s.target(c.Request()); target == "" {
			if checks.MissingPath() {
				s.cfg.Log.Warn("routes don't count: a proxy asks without a path; it has to send X-Forwarded-Uri, and to be one of -trusted-proxies",
					slog.String("policy", d.Name))
			}
			if d.OnMissingPath == policy.MissingPathDeny {
				return badRequest("no path: policy %q has routes, and the proxy doesn't say which path it asks about", d.Name)
			}
		}
	}
	routes := d.MatchRoutes(room[:0], method, target)
	var before []*decide.Answer // for all readings of the path but the last
	for i, route := range routes {
		if q.Route, q.Cost = route, 1; route != nil {
			q.Cost = route.Cost
		}
		a, err := d.Check(&ctx, q, now)
		if err != nil || !a.Allowed {
			for _, admitted := range before {
				admitted.TakeBack(&ctx)
			}
		}
		switch {
		case err != nil:
			return err
		case !a.Allowed:
			return writeDenial(c, a)
		case i < len(routes)-1:
			before = append(before, a)
		default:
			writeHeaders(c, a)
			a.Release()
		}
	}
	// nginx and Caddy read no body of an answer that admits: they would close a connection
	// that has one.
	return c.NoContent(http.StatusOK)
}

// refusal returns err as proxies and users may see it: a problem has the status
// that p has for it, and names no client.
func refusal(err error, p *policy.Policy) error {
	refused := knownProblem(err)
	switch {
	case refused == nil:
		return err
	case refused.Type == typeReducedCapacity:
		refused.Status, refused.Client = p.AuthDenyStatus, ""
	case refused.Status == http.StatusBadRequest:
		refused.Status = cmp.Or(p.AuthBadRequestStatus, http.StatusBadRequest)
		refused.Title = http.StatusText(refused.Status)
	}
	return refused
}

// identify names the client in q by the first of d.Identify that r has, and
// reports whether r has any. The error is a problem: of several values the app
// may take another than weir.
func (s *Server) identify(r *http.Request, d *decide.Decider, q *decide.Check) (bool, error) {
	for _, i := range d.Identify {
		if i.Header == "" {
			address := trustedProxies(s.cfg.TrustedProxies).clientOf(r)
			if address.IsValid() {
				q.Client, q.Network = d.ByAddress(address)
			}
			return address.IsValid(), nil
		}
		values := r.Header.Values(i.Header)
		if len(values) > 1 {
			return false, badRequest("no client: the request has %s more than once", i.Header)
		}
		if len(values) == 1 && values[0] != "" {
			q.Client, q.Header = values[0], true
			// Otherwise anybody could use up what an address has.
			if policy.IsNetwork(q.Client) && slices.Contains(d.Identify, policy.Identifier{}) {
				q.Client = i.Header + ":" + q.Client
			}
			return true, nil
		}
	}
	return false, nil
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
