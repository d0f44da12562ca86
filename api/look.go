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
	query, err := queryOf(c, "get")
	if err != nil {
		return err
	}
	paths := query["get"]
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
		w := keptResponse{header: make(http.Header), status: http.StatusOK}
		s.ServeHTTP(&w, &r)
		b = strconv.AppendInt(append(appendComma(b), `{"status":`...), int64(w.status), 10)
		b = append(append(append(b, `,"body":`...), bytes.TrimSpace(w.body)...), '}')
	}
	return writeBlob(c, http.StatusOK, jsonType, append(b, "]}\n"...))
}

// looksOnly reports whether a GET of the path only looks, and answers with JSON.
func looksOnly(path string) bool {
	return strings.HasPrefix(path, "/v1/policies") || path == "/v1/status" || path == "/v1/audit"
}

// A keptResponse is a ResponseWriter that keeps what it is given.
type keptResponse struct {
	header http.Header
	status int
	body   []byte
}

func (w *keptResponse) Header() http.Header    { return w.header }
func (w *keptResponse) WriteHeader(status int) { w.status = status }

func (w *keptResponse) Write(b []byte) (int, error) {
	w.body = append(w.body, b...)
	return len(b), nil
}
