package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/labstack/echo/v4"
)

// Problem types registered by draft-ietf-httpapi-ratelimit-headers-11.
const typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

const contentTypeProblem = "application/problem+json"

// A problem is an error that is answered with RFC 9457 problem details.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	// Of an answer that on_store_error: deny decided.
	Policy           string   `json:"policy,omitempty"`
	Client           string   `json:"client,omitempty"`
	Degraded         bool     `json:"degraded,omitempty"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

func (p *problem) Error() string { return p.Detail }

// newProblem returns a problem without a type of its own: status says it all.
func newProblem(status int, format string, args ...any) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *problem {
	return newProblem(http.StatusBadRequest, format, args...)
}

func unknownPolicy(name string) *problem {
	return newProblem(http.StatusNotFound, "there is no policy %q; GET /v1/policies lists them", name)
}

// reducedCapacity returns the problem of a check that the store could not
// decide, under on_store_error: deny.
func reducedCapacity(a *answer) *problem {
	p := storeFailed("the store could not decide in time and policy %q denies then; try again", a.policy.Name)
	p.Policy, p.Client, p.Degraded = a.policy.Name, a.client, true
	for _, l := range a.limits {
		if !l.known {
			p.ViolatedPolicies = append(p.ViolatedPolicies, l.Name)
		}
	}
	return p
}

func storeFailed(format string, args ...any) *problem {
	p := newProblem(http.StatusServiceUnavailable, format, args...)
	p.Type, p.Title = typeReducedCapacity, "Temporary Reduced Capacity"
	return p
}

// writeError answers any error of a handler or of echo with problem details.
func (s *Server) writeError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	var p *problem
	var status *echo.HTTPError
	switch {
	case errors.As(err, &p):
	case errors.As(err, &status):
		p = statusProblem(status.Code, c.Request())
	default:
		s.log.LogAttrs(c.Request().Context(), slog.LevelError, "request failed",
			slog.String("method", c.Request().Method), slog.String("path", c.Path()), slog.Any("error", err))
		p = newProblem(http.StatusInternalServerError, "the request failed inside weir; its log says why")
	}
	if p.Status == http.StatusUnauthorized {
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="weir"`)
	}
	c.Response().Header().Set(echo.HeaderContentType, contentTypeProblem)
	if c.Request().Method == http.MethodHead {
		err = c.NoContent(p.Status)
	} else {
		err = c.JSON(p.Status, p)
	}
	if err != nil {
		s.log.LogAttrs(c.Request().Context(), slog.LevelDebug, "answer not written", slog.Any("error", err))
	}
}

// statusProblem returns the problem for a status that echo found.
func statusProblem(status int, r *http.Request) *problem {
	switch status {
	case http.StatusNotFound:
		return newProblem(status, "there is nothing at %s", r.URL.Path)
	case http.StatusMethodNotAllowed:
		return newProblem(status, "%s is not possible at %s; the Allow header lists what is", r.Method, r.URL.Path)
	default:
		return newProblem(status, "%s", http.StatusText(status))
	}
}
