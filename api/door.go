package api

import (
	"net/http"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/plain"
)

// PlainServer returns a server for this service by HTTP without TLS. It answers most
// requests for less than h, which answers the others and is one of HTTPServer. An open page
// for operators asks each second: with its files, all of a connection's requests
// are those that cost less.
func (s *Server) PlainServer(h *http.Server) *plain.Server {
	srv := plain.NewServer(h, func(method, path string) bool {
		switch path {
		case "/v1/check", "/v1/check/batch", "/v1/settle", "/v1/settle/batch", "/v1/renew", "/v1/charge":
			return method == http.MethodPost
		}
		return strings.HasPrefix(path, "/v1/auth/") ||
			method == http.MethodGet && (strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/console/"))
	})
	if !s.logsRequests() {
		srv.Together = s.checkTogether
		srv.TakesTogether = func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == checkPath }
	}
	return srv
}

// checkPath is where single checks are made.
const checkPath = "/v1/check"

// checkTogether answers requests of POST /v1/check that came at the same moment, as ServeHTTP
// would. Those that may have to wait for their turn are left to it.
func (s *Server) checkTogether(requests []*plain.Exchange) {
	if !s.requests.TryRLock() {
		panic(http.ErrAbortHandler)
	}
	defer s.requests.RUnlock()
	engine := s.active.Load()
	asked := checkSets.Get().(*checkSet)
	defer asked.release()
	for _, x := range requests {
		c := s.begin(x.Writer, x.Request)
		c.SetPath(checkPath)
		var q decide.Check
		err := s.checkToken(c)
		if err == nil {
			err = fromElsewhere(x.Request, s.cfg.LocalOnly)
		}
		if err == nil {
			var b *body
			if b, q, err = readCheck(c); err == nil {
				b.release()
			}
		}
		if err == nil && engine.holds(q.Policy) {
			s.echo.ReleaseContext(c)
			x.Leave()
			continue
		}
		if err != nil {
			s.end(c, err)
			x.Answer()
			continue
		}
		asked.checks, asked.of, asked.contexts = append(asked.checks, q), append(asked.of, x), append(asked.contexts, c)
	}
	engine.Together(asked.checks, s.cfg.Now(), func(i int, o decide.Outcome) {
		c, err := asked.contexts[i], o.Err
		if err == nil {
			err = s.writeAnswer(c, o.Answer)
		}
		s.end(c, err)
		asked.of[i].Answer()
	})
}

// A checkSet is checks of several requests. It is reused.
type checkSet struct {
	checks   []decide.Check
	of       []*plain.Exchange
	contexts []echo.Context
}

var checkSets = sync.Pool{New: func() any { return new(checkSet) }}

func (t *checkSet) release() {
	clear(t.checks)
	clear(t.of)
	t.checks, t.of, t.contexts = t.checks[:0], t.of[:0], t.contexts[:0]
	checkSets.Put(t)
}

// holds reports whether checks by the policy of that name may have to wait.
func (active *activePolicies) holds(name string) bool {
	p := active.policies[name]
	return p != nil && p.Hold
}
