package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/api/telemetry"
)

// defaultAudited is how many changes are listed if nobody says how many.
const defaultAudited = 100

// maxAuditedName and maxAuditedPath are how many bytes of a name and of a path the audit keeps of
// a request that was refused: its caller may have made them up, as long as it likes.
const maxAuditedName, maxAuditedPath = 100, 200

// changed adds a change to the audit, and logs it. What more the log says is appended.
func (s *Server) changed(c change, more ...slog.Attr) {
	c.Time = s.cfg.Now()
	if !s.cfg.LogClients && c.Client != "" {
		c.Client = telemetry.HashClient(c.Client)
	}
	s.audit.add(c)
	attributes := make([]slog.Attr, 0, 8)
	for _, a := range []struct{ name, value string }{
		{"policy", c.Policy}, {"client", c.Client}, {"peer", c.Peer}, {"by", c.By}, {"reason", c.Reason}, {"error", c.Error},
	} {
		if a.value != "" {
			attributes = append(attributes, slog.String(a.name, a.value))
		}
	}
	s.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, c.What, append(attributes, more...)...)
}

// operators returns a handler for those who may operate: do gets a change by whoever asks,
// of the policy and the client that the path names. Others are refused before anything else
// is looked at, and the audit has a line of it.
func (s *Server) operators(do func(c echo.Context, by change) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		by := change{Peer: c.RealIP(), Policy: c.Param("policy")}
		by.Client, _ = unescaped(c, cmp.Or(c.Param("client"), c.Param("key"), c.Param("*")), "client")
		token, err := s.tokens.Load().of(c.Request())
		if err != nil { // the tokens may have changed since authorize let c pass
			return err
		}
		if by.By = token.Name; !token.ChecksOnly {
			return do(c, by)
		}
		path := c.Request().URL.Path
		if s.cfg.LogClients {
			by.Client = by.Client[:min(len(by.Client), maxAuditedName)]
		} else {
			path, _ = hideClient(path, "")
		}
		path = path[:min(len(path), maxAuditedPath)]
		by.What, by.refused = "refused to one who may only make checks: "+c.Request().Method+" "+path, true
		by.Policy = by.Policy[:min(len(by.Policy), maxAuditedName)]
		s.changed(by)
		return newProblem(http.StatusForbidden, "this token may only make checks; one that may operate is needed")
	}
}

// listChanges answers GET /v1/audit.
func (s *Server) listChanges(c echo.Context, _ change) error {
	n, err := onlyNumber(c, "n", defaultAudited, maxAudited)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string][]change{"changes": s.audit.last(n)})
}
