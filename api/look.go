package api

import (
	"bytes"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
)

// maxLooks is how many answers one request gets at most.
const maxLooks = 16

// look answers GET /v1/look: what each of several GETs would answer, for less than they cost
// one by one. A page for operators asks so once a second.
func (s *Server) look(c echo.Context) error {
	paths := c.QueryParams()["get"]
	if len(paths) == 0 || len(paths) > maxLooks {
		return badRequest("get is given %d times and must be 1 to %d", len(paths), maxLooks)
	}
	b := []byte(`{"answers":[`)
	for _, path := range paths {
		target, err := url.ParseRequestURI(path)
		if err != nil || !looksOnly(target.Path) {
			return badRequest("get is %q and must be a path of /v1 by which nothing is decided, such as /v1/status", path)
		}
		r := *c.Request()
		r.URL, r.RequestURI = target, path
		a := answer{header: make(http.Header), status: http.StatusOK}
		s.ServeHTTP(&a, &r)
		b = strconv.AppendInt(append(appendComma(b), `{"status":`...), int64(a.status), 10)
		b = append(append(append(b, `,"body":`...), bytes.TrimSpace(a.body)...), '}')
	}
	return writeJSON(c, http.StatusOK, append(b, "]}\n"...))
}

// looksOnly reports whether a GET of the path only looks, and answers with JSON.
func looksOnly(path string) bool {
	return strings.HasPrefix(path, "/v1/policies") || path == "/v1/status" || path == "/v1/audit"
}

// An answer is a ResponseWriter that keeps what it is given.
type answer struct {
	header http.Header
	status int
	body   []byte
}

func (a *answer) Header() http.Header    { return a.header }
func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(b []byte) (int, error) {
	a.body = append(a.body, b...)
	return len(b), nil
}
