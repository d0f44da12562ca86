package api

import (
	"fmt"
	"net/http"
)

// Registered by draft-ietf-httpapi-ratelimit-headers-11.
const (
	typeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
)

// A problem is an error that is answered with RFC 9457 problem details.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`

	// Only of a check that on_store_error: deny refused.
	Policy           string   `json:"policy,omitempty"`
	Client           string   `json:"client,omitempty"`
	Degraded         bool     `json:"degraded,omitempty"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

func (p *problem) Error() string { return p.Detail }

// newProblem returns a problem without a type of its own: the status says what
// kind it is.
func newProblem(status int, format string, args ...any) *problem {
	return &problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *problem {
	return newProblem(http.StatusBadRequest, format, args...)
}

// storeFailed returns the problem of a request that the store failed.
func storeFailed(format string, args ...any) *problem {
	p := newProblem(http.StatusServiceUnavailable, format, args...)
	p.Type, p.Title = typeReducedCapacity, "Temporary Reduced Capacity"
	return p
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
