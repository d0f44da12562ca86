package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBearerTokens(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "first-token"}, {Secret: "second-token", Name: "second"}}
	},
		newPolicy("api", fixed("per-minute", 100, time.Minute)))
	requests := func() []*http.Request {
		return []*http.Request{
			newRequest(http.MethodPost, "/v1/check", `{"policy":"api","client":"alice"}`),
			newRequest(http.MethodPost, "/v1/check/batch", `{"checks":[]}`),
			newRequest(http.MethodGet, "/v1/policies", ""),
			newRequest(http.MethodGet, "/v1/policies/api", ""),
			newRequest(http.MethodGet, "/v1/policies/api/clients/a%2Fb", ""),
			newRequest(http.MethodDelete, "/v1/policies/api/clients/alice", ""),
			newRequest(http.MethodPut, "/v1/auth/api", ""),
			newRequest("PURGE", "/v1/auth/api/x", ""),
		}
	}
	for _, test := range []struct{ value, detail string }{
		{"", "a bearer token is needed: Authorization: Bearer <token>"},
		{"first-token", "a bearer token is needed"},
		{"Basic first-token", "a bearer token is needed"},
		{"Bearer", "not one of the configured tokens"},
		{"Bearer ", "not one of the configured tokens"},
		{"Bearer third-token", "not one of the configured tokens"},
		{"Bearer first-token second-token", "not one of the configured tokens"},
		{"Bearer FIRST-TOKEN", "not one of the configured tokens"},
	} {
		// Not even unknown paths answer without a token.
		for _, r := range append(requests(), newRequest(http.MethodGet, "/v1/nothing", ""), newRequest(http.MethodPut, "/v1/check", "")) {
			r.Header.Set("Authorization", test.value)
			answer := s.serve(t, r)
			requireProblem(t, answer, http.StatusUnauthorized, test.detail)
			assert.Equal(t, `Bearer realm="weir"`, answer.Header.Get("WWW-Authenticate"))
			assert.NotContains(t, answer.Body, "first-token")
		}
	}
	requireUntouched(t, s)

	for _, value := range []string{"Bearer first-token", "Bearer second-token", "bearer first-token", "BEARER  first-token "} {
		for _, r := range requests() {
			r.Header.Set("Authorization", value)
			assert.Contains(t, []int{http.StatusOK, http.StatusNoContent}, s.serve(t, r).Code, "%s %s %q", r.Method, r.URL, value)
		}
	}
	for _, target := range []string{"/healthz", "/readyz", "/metrics", "/openapi.yaml"} {
		assert.Equal(t, http.StatusOK, s.do(t, http.MethodGet, target, "").Code, target)
	}
}
