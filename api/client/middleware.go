package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Limiter decides checks: a *Client, or what limits in the process. Its
// answer counts even beside an error, as that of Client.Check does. Wrap one in
// another to log errors or to count denials. It is safe for concurrent use.
type Limiter interface {
	Check(ctx context.Context, q Check) (Answer, error)
}

// Middleware lets a handler serve only what l allows: Admit answers the rest.
// check says what a request asks for; it names the client, so take care that
// nobody can choose a name (behind a proxy, RemoteAddr is the proxy's). Nobody settles the check:
// for a policy that has the algorithm concurrency, and so answers 400 to all that aren't to be
// settled, there is Client.Concurrent.
func Middleware(l Limiter, check func(*http.Request) Check) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if Admit(w, r, l, check(r)) {
				next.ServeHTTP(w, r)
			}
		})
	}
}

// Admit reports whether r may be served, as l decides q. It sets the headers
// RateLimit-Policy and RateLimit, and waits for as long as the answer says. If
// it returns false, it has answered, with problem details: 429 for a denial,
// with Retry-After unless waiting makes no difference; 400 if q can't be
// decided, as it names no client; or 503 if there was no decision, or r's
// context ended while it waited.
func Admit(w http.ResponseWriter, r *http.Request, l Limiter, q Check) bool {
	a, err := l.Check(r.Context(), q)
	a.setHeaders(w.Header())
	var refusal *Problem
	switch {
	case a.Allowed && a.await(r.Context()):
		return true
	case a.Allowed: // writing nothing would be a 200
		writeProblem(w, unavailable("the time of this request ended before its turn came"))
	case errors.As(err, &refusal) && refusal.Status == http.StatusBadRequest:
		// Its own detail may name the client.
		writeProblem(w, problemBody{Type: refusal.Type, Title: refusal.Title, Status: refusal.Status, Detail: "this request can't be limited: it must say who sends it, in 1 to 1024 bytes of UTF-8, and may not cost more than the whole limit"})
	case err != nil:
		writeProblem(w, unavailable("it could not be decided whether this request is within its limits; try again"))
	default:
		writeProblem(w, a.problem())
	}
	return false
}

// await waits until an admitted request may proceed, and reports whether it
// may.
func (a *Answer) await(ctx context.Context) bool {
	if a.Wait <= 0 {
		return true
	}
	timer := time.NewTimer(a.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// setHeaders sets what draft-ietf-httpapi-ratelimit-headers-11 has. Windows are
// unknown here, so limits have no w.
func (a *Answer) setHeaders(h http.Header) {
	var policies, states []string
	for _, l := range a.Limits {
		t := l.ResetAfter
		if !l.Allowed {
			t = l.RetryAfter
		}
		name := strconv.Quote(l.Name)
		quota := name + ";q=" + strconv.FormatInt(l.Limit, 10)
		if l.Algorithm == "concurrency" {
			quota += `;qu="concurrent-requests"`
		}
		policies = append(policies, quota)
		states = append(states, name+";r="+strconv.FormatInt(l.Remaining, 10)+";t="+wholeSeconds(t))
	}
	if len(a.Limits) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
		h.Set("RateLimit", strings.Join(states, ", "))
	}
	if a.RetryAfter > 0 {
		h.Set("Retry-After", wholeSeconds(a.RetryAfter))
	}
}

// wholeSeconds rounds d up, so that a client that waits isn't early.
func wholeSeconds(d time.Duration) string {
	s := d / time.Second
	if d%time.Second > 0 {
		s++
	}
	return strconv.FormatInt(int64(s), 10)
}

// A problemBody is what Admit answers, by RFC 9457. It doesn't name the client: whoever asks
// may not know how it is called here.
type problemBody struct {
	Type             string   `json:"type"`
	Title            string   `json:"title"`
	Status           int      `json:"status"`
	Detail           string   `json:"detail"`
	ViolatedPolicies []string `json:"violated-policies,omitempty"`
}

// problem returns how a denial is answered.
func (a *Answer) problem() problemBody {
	p := problemBody{
		Type:  "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title: "Quota Exceeded", Status: http.StatusTooManyRequests, Detail: "this request is not allowed",
	}
	if a.RetryAfter > 0 {
		p.Detail = "too many requests; try again in " + wholeSeconds(a.RetryAfter) + " s"
	}
	for _, l := range a.Limits {
		if !l.Allowed {
			p.ViolatedPolicies = append(p.ViolatedPolicies, l.Name)
		}
	}
	return p
}

func unavailable(detail string) problemBody {
	return problemBody{Type: reducedCapacity, Title: "Temporary Reduced Capacity", Status: http.StatusServiceUnavailable, Detail: detail}
}

func writeProblem(w http.ResponseWriter, p problemBody) {
	body, _ := json.Marshal(p) // can't fail
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the one who asked may have left
}
