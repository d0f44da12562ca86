package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"

	"weir/api/decide"
	"weir/counters"
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

// reducedCapacity returns the problem of a request that the store failed.
func reducedCapacity(format string, args ...any) *problem {
	p := newProblem(http.StatusServiceUnavailable, format, args...)
	p.Type, p.Title = typeReducedCapacity, "Temporary Reduced Capacity"
	return p
}

// storeFailed is reducedCapacity, and says how the store has failed with err.
func storeFailed(err error, format string, args ...any) *problem {
	return reducedCapacity("%s: %s", fmt.Sprintf(format, args...), howFailed(err))
}

// howFailed returns what users need to know of an error of the store. Which server is down, and
// why, is for operators: logs and /readyz say it.
func howFailed(err error) string {
	switch {
	case errors.Is(err, counters.ErrTimeout):
		return "it did not answer in time"
	case errors.Is(err, counters.ErrRefused):
		return "it has refused the request"
	case errors.Is(err, counters.ErrUnavailable):
		return "it can't be reached"
	}
	return err.Error()
}

// knownProblem returns the problem of an error that the caller may be told of, or nil for any
// other, which problemOf logs.
func knownProblem(err error) *problem {
	switch err := err.(type) {
	case *problem:
		return err
	case decide.Invalid:
		return badRequest("%s", err)
	case decide.UnknownPolicy:
		if err == "" {
			return badRequest("policy is missing; GET /v1/policies lists them")
		}
		return newProblem(http.StatusNotFound, "there is no policy %q; GET /v1/policies lists them", string(err))
	case *decide.Refused:
		p := reducedCapacity("the store could not decide in time and policy %q denies then; try again", err.Policy)
		p.Policy, p.Client, p.Degraded, p.ViolatedPolicies = err.Policy, err.Client, true, err.Limits
		return p
	case *decide.AtError:
		p := knownProblem(err.Unwrap())
		p.Detail = elementPath("checks", err.Number) + ": " + p.Detail
		return p
	case *decide.Unclaimed:
		return storeFailed(err.Unwrap(), "the store could not tell whether this was done before, so nothing is done yet; send it again")
	}
	switch err {
	case decide.ErrLate:
		return newProblem(http.StatusGone, "the receipt is older than its settle_within; what was reserved stays consumed until it leaves the window")
	case decide.ErrLost:
		return newProblem(http.StatusConflict, "the lease has ended, and there is no room for another one")
	case decide.ErrSettled:
		return newProblem(http.StatusConflict, "the receipt was settled, so its lease has ended")
	case decide.ErrBlocked:
		return newProblem(http.StatusConflict, "the client is blocked, so its lease isn't renewed; it ends by itself, or when it is settled")
	case decide.ErrLeft:
		return newProblem(http.StatusServiceUnavailable, "the caller left before this check began")
	}
	return nil
}

// elementPath returns where element i of a batch is in its body.
func elementPath(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// statusProblem returns the problem for a status that echo found.
func statusProblem(status int, r *http.Request) *problem {
	switch status {
	case http.StatusNotFound:
		return newProblem(status, "there is nothing at %s", r.URL.EscapedPath())
	case http.StatusMethodNotAllowed:
		return newProblem(status, "%s is not possible at %s; the Allow header lists what is", r.Method, r.URL.EscapedPath())
	default:
		return newProblem(status, "%s", http.StatusText(status))
	}
}

// maxUnknown is how many names are told that no policy has.
const maxUnknown = 100

// unknownPolicies warns of names that no policy has and that callers ask by: once of each name, and
// of at most maxUnknown, so that nobody can fill the log.
type unknownPolicies struct {
	log  *slog.Logger
	mu   sync.Mutex
	told map[string]bool
}

func (u *unknownPolicies) asked(name string) {
	name = name[:min(len(name), counters.MaxNameBytes)] // no policy's is longer
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.told) == maxUnknown || u.told[name] {
		return
	}
	u.told[name] = true
	message := "there is no such policy: whoever asks by it gets 404"
	if len(u.told) == maxUnknown {
		message += "; no more of them are named until policies are loaded again"
	}
	u.log.Warn(message, slog.String("policy", name))
}
