package api

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/api/telemetry"
)

// defaultAudited is how many changes are listed if nobody says how many.
const defaultAudited = 100

// changed notes and logs a change. What more the log says is appended.
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

// operator returns a change by whoever asks, of a policy and a client. The error is a
// problem if that may change nothing.
func (s *Server) operator(c echo.Context, policy, client string) (change, error) {
	by := change{Peer: c.RealIP(), Policy: policy, Client: client}
	tokens := s.tokens.Load()
	if err := tokens.check(c.Request()); err != nil { // they may have changed since it was let in
		return by, err
	}
	token, _ := tokens.of(c.Request())
	by.By = token.Name
	if token.ChecksOnly {
		by.What = "refused to one who may only make checks: " + c.Request().Method + " " + c.Path()
		s.changed(by)
		return by, newProblem(http.StatusForbidden, "this token may only make checks; one that may operate is needed")
	}
	return by, nil
}

// listChanges answers GET /v1/audit.
func (s *Server) listChanges(c echo.Context) error {
	if _, err := s.operator(c, "", ""); err != nil {
		return err
	}
	n, err := number(c, "n", defaultAudited, maxAudited)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string][]change{"changes": s.audit.last(n)})
}
