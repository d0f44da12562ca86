package api

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/counters"
)

// peekClient answers GET /v1/policies/{policy}/clients/{client}.
func (s *Server) peekClient(c echo.Context) error {
	d, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	a, err := d.Peek(&ctx, client, now)
	if err != nil {
		return err
	}
	return s.writeBody(c, a, http.StatusOK)
}

// resetClient answers DELETE /v1/policies/{policy}/clients/{client}.
func (s *Server) resetClient(c echo.Context, by change) error {
	if strings.HasSuffix(c.Param("*"), "/state") { // a GET of the same path shows the state
		return badRequest("a reset is of a client, not of its state: DELETE the client without /state, or with %%2Fstate if its name ends so")
	}
	d, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	var failed error
	for _, name := range d.NamesOf(client) {
		r := lateReset{d.Name, name}
		if err = s.reset(d, name, now); err == nil {
			s.resets.done(r, now)
			continue
		}
		if !s.resets.add(r, now) {
			by.What, by.Error = "client perhaps reset, in some limits", err.Error()
			s.changed(by)
			return storeFailed(err, "the client was not reset in all limits, and %d others wait for the store; do it again", maxResets)
		}
		d.Forget(name)
		failed = err
	}
	if failed != nil {
		by.What, by.Error = "client reset in this process; the store follows when it answers", failed.Error()
		s.changed(by)
		return c.NoContent(http.StatusAccepted)
	}
	by.What = "client reset"
	s.changed(by)
	return c.NoContent(http.StatusNoContent)
}

// reset makes the client that is counted by a name start fresh, as of now, within the store
// timeout.
func (s *Server) reset(d *decide.Decider, name string, now time.Time) error {
	ctx := counters.Deadline{At: s.cfg.Now().Add(s.cfg.StoreTimeout)}
	return d.Reset(&ctx, name, now)
}

// RetryResets does the resets that were answered with 202, as far as the store
// answers, and returns how many still wait for it. It takes a few store timeouts at
// most. One goroutine at a time may call it, twice a second or so.
func (s *Server) RetryResets() (waiting int) {
	asked := s.resets.waiting()
	resets := slices.Collect(maps.Keys(asked))
	decide.AtOnce(len(resets), s.cfg.StoreTimeout, func(i int) {
		r := resets[i]
		d, err := s.active.Load().Find(r.policy)
		if err != nil { // nothing counts the client any more
			s.resets.done(r, asked[r])
		} else if s.reset(d, r.name, asked[r]) == nil {
			s.resets.done(r, asked[r])
			s.changed(change{What: "client reset, as asked before", Policy: d.Name, Client: r.name}, slog.Duration("after", s.cfg.Now().Sub(asked[r])))
		}
	})
	return len(s.resets.waiting())
}

// clientOfPath returns the policy and the client that the path names.
func (s *Server) clientOfPath(c echo.Context) (*decide.Decider, string, error) {
	d, err := s.active.Load().Find(c.Param("policy"))
	if err != nil {
		return nil, "", err
	}
	client := cmp.Or(c.Param("client"), c.Param("*"))
	if client == "" {
		return nil, "", echo.ErrNotFound
	}
	if client, err = unescaped(c, client, "client"); err != nil {
		return nil, "", err
	}
	return d, client, decide.ValidateClient(client)
}
