package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Requests are counted by route, never by path, whatever they are answered.
func TestRequestsAreCountedByRouteAndCode(t *testing.T) {
	t.Parallel()
	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	nginx := newPolicy("nginx", fixed("per-minute", 1, time.Minute))
	nginx.AuthDenyStatus = http.StatusForbidden
	s := newServiceWith(func(cfg *Config) { cfg.Tokens = []Token{{Secret: "secret"}} },
		newPolicy("api", fixed("per-minute", 1, time.Minute)), nginx, newPolicy("buggy", buggy))
	send := func(method, target, body string) {
		s.do(t, method, target, body, "Authorization", "Bearer secret")
	}
	for range 3 {
		send(http.MethodPost, "/v1/check", `{"policy":"api","client":"alice"}`)
	}
	send(http.MethodPost, "/v1/check", `{`)
	send(http.MethodPost, "/v1/check", `{"policy":"buggy","client":"alice"}`)
	s.check(t, `{"policy":"api","client":"alice"}`)
	send(http.MethodPut, "/v1/check", "")
	send(http.MethodPost, "/v1/check/batch", `{"checks":[]}`)
	send(http.MethodGet, "/v1/auth/nginx", "")
	send(http.MethodPut, "/v1/auth/nginx/alice", "")
	send(http.MethodGet, "/v1/policies/api/clients/alice", "")
	send(http.MethodDelete, "/v1/policies/api/clients/alice", "")
	send(http.MethodGet, "/v1/policies/none/clients/alice", "")
	send(http.MethodGet, "/alice", "")
	send(http.MethodGet, "/v1/policies/api/clients", "")
	send(http.MethodHead, "/healthz", "")

	requireMetrics(t, s,
		`weir_http_requests_total{code="200",route="/v1/check"} 1`,
		`weir_http_requests_total{code="429",route="/v1/check"} 2`,
		`weir_http_requests_total{code="400",route="/v1/check"} 1`,
		`weir_http_requests_total{code="500",route="/v1/check"} 1`,
		`weir_http_requests_total{code="401",route="/v1/check"} 1`,
		`weir_http_requests_total{code="405",route="/v1/check"} 1`,
		`weir_http_requests_total{code="200",route="/v1/check/batch"} 1`,
		`weir_http_requests_total{code="200",route="/v1/auth/{policy}"} 1`,
		`weir_http_requests_total{code="403",route="/v1/auth/{policy}"} 1`,
		`weir_http_requests_total{code="200",route="/v1/policies/{policy}/clients/{client}"} 1`,
		`weir_http_requests_total{code="204",route="/v1/policies/{policy}/clients/{client}"} 1`,
		`weir_http_requests_total{code="404",route="/v1/policies/{policy}/clients/{client}"} 1`,
		`weir_http_requests_total{code="404",route="other"} 2`,
		`weir_http_requests_total{code="200",route="/healthz"} 1`,
	)
	body := s.do(t, http.MethodGet, "/metrics", "").Body
	assert.Contains(t, body, `weir_http_requests_total{code="200",route="/metrics"} 1`)
	assert.NotContains(t, body, "alice")
}

// Not parallel: it counts the allocations of the whole process.
func TestCountingARequestAllocatesNothing(t *testing.T) {
	s := newService()
	require.NotNil(t, s.requests["/v1/check"])
	s.requests.Count("/v1/check", http.StatusOK)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { s.requests.Count("/v1/check", http.StatusOK) }))
}
