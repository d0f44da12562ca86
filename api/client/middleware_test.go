package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/client"
	"weir/api/policy"
)

// hello is what a handler behind a middleware answers.
var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) })

func byKey(r *http.Request) client.Check {
	return client.Check{Policy: "api", Client: r.Header.Get("X-Api-Key")}
}

// serve returns the answer of a handler to a request of a client.
func serve(handler http.Handler, name string) *http.Response {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", name)
	handler.ServeHTTP(w, r)
	return w.Result()
}

func TestMiddlewareServesWhatIsAllowed(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("api", 1))
	setClient(p, "abuser", policy.Terms{Blocked: true})
	setClient(p, "probe", policy.Terms{Exempt: true})
	w, c := start(t, client.Config{}, p)
	w.at(17*time.Second + 300*time.Millisecond)
	handler := client.Middleware(c, byKey)(hello)

	admitted := serve(handler, "alice")
	assert.Equal(t, http.StatusOK, admitted.StatusCode)
	assert.Equal(t, `"per-minute";q=1`, admitted.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"per-minute";r=0;t=43`, admitted.Header.Get("RateLimit"))
	assert.NotContains(t, admitted.Header, "Retry-After")

	denied := serve(handler, "alice")
	assert.Equal(t, http.StatusTooManyRequests, denied.StatusCode)
	assert.Equal(t, "application/problem+json", denied.Header.Get("Content-Type"))
	assert.Equal(t, "43", denied.Header.Get("Retry-After"))
	assert.Equal(t, `"per-minute";r=0;t=43`, denied.Header.Get("RateLimit"))
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",
		"status":429,"detail":"too many requests; try again in 43 s","violated-policies":["per-minute"]}`, bodyOf(t, denied))

	blocked := serve(handler, "abuser")
	assert.Equal(t, http.StatusTooManyRequests, blocked.StatusCode)
	assert.NotContains(t, blocked.Header, "Retry-After")
	assert.NotContains(t, bodyOf(t, blocked), "abuser")
	exempt := serve(handler, "probe")
	assert.Equal(t, http.StatusOK, exempt.StatusCode)
	assert.NotContains(t, exempt.Header, "Ratelimit")
}

func bodyOf(t *testing.T, r *http.Response) string {
	var body json.RawMessage
	require.NoError(t, json.NewDecoder(r.Body).Decode(&body))
	return string(body)
}

// A limiterFunc limits in the process.
type limiterFunc func(ctx context.Context, q client.Check) (client.Answer, error)

func (f limiterFunc) Check(ctx context.Context, q client.Check) (client.Answer, error) {
	return f(ctx, q)
}

func TestMiddlewareWithoutADecision(t *testing.T) {
	t.Parallel()
	allows := true
	handler := client.Middleware(limiterFunc(func(_ context.Context, q client.Check) (client.Answer, error) {
		assert.Equal(t, client.Check{Policy: "api", Client: "alice"}, q)
		return client.Answer{Allowed: allows}, errors.New("a secret")
	}), byKey)(hello)
	assert.Equal(t, http.StatusOK, serve(handler, "alice").StatusCode)
	allows = false
	closed := serve(handler, "alice")
	assert.Equal(t, http.StatusServiceUnavailable, closed.StatusCode)
	assert.NotContains(t, bodyOf(t, closed), "secret")
}

// A visitor that can't be named has made a mistake: weir isn't at fault, nor may
// such a visitor get round the limit.
func TestMiddlewareRefusesWhatCannotBeLimited(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{FailOpen: true}, newPolicy("api", fixed("api", 1)))
	handler := client.Middleware(c, byKey)(hello)
	for _, name := range []string{"", strings.Repeat("a", 1025), "\xff"} {
		refused := serve(handler, name)
		assert.Equal(t, http.StatusBadRequest, refused.StatusCode)
		assert.JSONEq(t, `{"type":"about:blank","title":"Bad Request","status":400,"detail":"this request can't be limited: it must say who sends it, in 1 to 1024 bytes of UTF-8, and may not cost more than the whole limit"}`, bodyOf(t, refused))
	}
	// Who sets weir up wrong isn't the visitor.
	unknown := client.Middleware(c, func(*http.Request) client.Check { return client.Check{Policy: "none", Client: "alice"} })(hello)
	assert.Equal(t, http.StatusServiceUnavailable, serve(unknown, "alice").StatusCode)
}

// Behind a leaky bucket, requests are served one at a time.
func TestMiddlewareWaits(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("api", queue("api", 2, time.Second)))
	a := check(t, c, client.Check{Policy: "api", Client: "alice"})
	assert.Zero(t, a.Wait)
	a = check(t, c, client.Check{Policy: "api", Client: "alice"})
	assert.Equal(t, 500*time.Millisecond, a.Wait)

	synctest.Test(t, func(t *testing.T) {
		handler := client.Middleware(limiterFunc(func(context.Context, client.Check) (client.Answer, error) { return a, nil }), byKey)(hello)
		began := time.Now()
		assert.Equal(t, http.StatusOK, serve(handler, "alice").StatusCode)
		assert.Equal(t, 500*time.Millisecond, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		w := httptest.NewRecorder()
		began = time.Now()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		assert.Equal(t, 200*time.Millisecond, time.Since(began))
		assert.Equal(t, http.StatusServiceUnavailable, w.Code)
		assert.NotContains(t, w.Body.String(), "hello")
	})
}
