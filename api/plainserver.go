package api

import (
	"net/http"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/plain"
)

// PlainServer returns a server of this service for HTTP without TLS. It reads plain requests to
// most paths itself, which costs less, and leaves all others to h, which HTTPServer has made.
// The page for operators asks once a second: so its files are among these paths, as a connection
// that was left to h stays with it.
func (s *Server) PlainServer(h *http.Server) *plain.Server {
	srv := plain.NewServer(h, func(method, path string) bool {
		switch path {
		case "/v1/check", "/v1/check/batch", "/v1/settle", "/v1/settle/batch", "/v1/renew", "/v1/charge", "/json":
			return method == http.MethodPost
		}
		return strings.HasPrefix(path, "/v1/auth/") ||
			method == http.MethodGet && (strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/console/"))
	})
	if !s.logsRequests() {
		srv.Together = s.together
		srv.TakesTogether = func(r *http.Request) bool {
			path := echo.GetPath(r)
			return r.Method == http.MethodPost && (path == checkPath || path == settlePath)
		}
	}
	return srv
}

const checkPath, settlePath = "/v1/check", "/v1/settle"

// together answers single checks and settlements that came at the same moment, as ServeHTTP
// would.
func (s *Server) together(requests []*plain.Exchange) {
	if !s.underWay.TryRLock() {
		panic(http.ErrAbortHandler)
	}
	defer s.underWay.RUnlock()
	active := s.active.Load()
	t := requestSets.Get().(*requestSet)
	defer t.release()
	for _, x := range requests {
		s.readInto(t, x, active)
	}
	settle := func() {
		active.Settle(t.settlements, func(i int, settled *decide.Settlement, err error) {
			if err == nil {
				err = writeSettlement(t.settleAskers[i].Context, settled)
			}
			s.finish(t.settleAskers[i], err)
		})
	}
	switch {
	case len(t.checks) == 0:
		settle()
		return
	case len(t.settleAskers) == 0:
		settle = nil
	}
	active.CheckMany(t.checks, s.cfg.Now(), settle, func(i int, o decide.Outcome) {
		err := o.Err
		if err == nil {
			err = s.writeAnswer(t.checkAskers[i].Context, o.Answer)
		}
		s.finish(t.checkAskers[i], err)
	})
}

// readInto adds what x asks to t. A request with a mistake is answered at once. One whose answer
// may be held is left to ServeHTTP.
func (s *Server) readInto(t *requestSet, x *plain.Exchange, active *activePolicies) {
	c := s.begin(x.Writer, x.Request)
	c.SetPath(x.Request.URL.Path)
	one := asker{x, c}
	err := s.checkToken(c)
	if err == nil {
		err = fromElsewhere(x.Request, s.cfg.LocalOnly)
	}
	if err == nil && c.Path() == settlePath {
		var q decide.Settling
		if q, err = s.readSettlement(c); err == nil {
			t.settlements, t.settleAskers = append(t.settlements, q), append(t.settleAskers, one)
			return
		}
	}
	if err != nil {
		s.finish(one, err)
		return
	}
	b, q, err := readCheck(c)
	if err != nil {
		s.finish(one, err)
		return
	}
	if b.release(); active.holds(q.Policy) {
		s.echo.ReleaseContext(c)
		x.Leave()
		return
	}
	t.checks, t.checkAskers = append(t.checks, q), append(t.checkAskers, one)
}

// An asker waits for the answer to a request that came together with others.
type asker struct {
	*plain.Exchange
	echo.Context
}

// finish ends a request that was handled with err, and sends its answer.
func (s *Server) finish(a asker, err error) {
	s.end(a.Context, err)
	a.Exchange.Answer()
}

// A requestSet is requests that came at the same moment, by what they ask. It is reused.
type requestSet struct {
	checks                    []decide.Check
	settlements               []decide.Settling
	checkAskers, settleAskers []asker // who asks for these
}

var requestSets = sync.Pool{New: func() any { return new(requestSet) }}

func (t *requestSet) release() {
	clear(t.checks)
	clear(t.settlements)
	clear(t.checkAskers)
	clear(t.settleAskers)
	*t = requestSet{t.checks[:0], t.settlements[:0], t.checkAskers[:0], t.settleAskers[:0]}
	requestSets.Put(t)
}

// holds reports whether checks by the policy of that name may have to wait.
func (active *activePolicies) holds(name string) bool {
	p := active.policies[name]
	return p != nil && p.Hold
}
