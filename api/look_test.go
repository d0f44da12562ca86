package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lookAt asks for what is at several paths.
func (s *service) lookAt(t *testing.T, paths []string, headers ...string) result {
	return s.do(t, http.MethodGet, "/v1/look?"+url.Values{"get": paths}.Encode(), "", headers...)
}

var storeTimes = regexp.MustCompile(`"store_p99":[^,]*,`) // of each moment

// Each look of a request is answered, refused to those who may not have it, and counted as it would
// be in a request of its own.
func TestLookAnswersAsEachAlone(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "secret"}, {Secret: "gateway", ChecksOnly: true}}
	}, newPolicy("api", fixed("per-minute", 3, time.Minute)))
	paths := []string{"/v1/policies", "/v1/policies/api", "/v1/status", "/v1/audit", "/v1/audit?n=0", "/v1/policies/none/history", "/v1/policies/api/top?by=denied&n=3&scope=fleet", "/v1/policies/api/overrides"}
	for _, client := range []string{"alice", "a/b", "%2F", "a&get=/v1/status", "\x00\n\"<", "\xff", strings.Repeat("\xff", 1024), strings.Repeat("x", 1025)} {
		paths = append(paths, "/v1/policies/api/clients/"+url.PathEscape(client)+"/state")
	}
	for _, token := range []string{"secret", "gateway"} {
		bearer := []string{"Authorization", "Bearer " + token}
		s.do(t, http.MethodPost, "/v1/check", `{"policy":"api","client":"a/b"}`, bearer...)
		r := s.lookAt(t, paths, bearer...)
		require.Equal(t, http.StatusOK, r.Code, r.Body)
		var j struct {
			Answers []struct {
				Status int
				Body   json.RawMessage
			}
		}
		require.NoError(t, json.Unmarshal([]byte(r.Body), &j), r.Body)
		require.Len(t, j.Answers, len(paths))
		for i, path := range paths {
			if path == "/v1/audit" && token == "gateway" {
				continue // which has a line more each time
			}
			alone := s.do(t, http.MethodGet, path, "", bearer...)
			assert.Equal(t, alone.Code, j.Answers[i].Status, path)
			measured := func(body string) string { return storeTimes.ReplaceAllString(strings.TrimSpace(body), "") }
			assert.Equal(t, measured(alone.Body), measured(string(j.Answers[i].Body)), path)
		}
	}
	require.Equal(t, http.StatusUnauthorized, s.lookAt(t, paths).Code)
	requireMetrics(t, s, `weir_http_requests_total{code="200",route="/v1/look"} 2`, `weir_http_requests_total{code="401",route="/v1/look"} 1`,
		`weir_http_requests_total{code="200",route="/v1/status"} 4`, `weir_http_requests_total{code="403",route="/v1/audit"} 3`)
}

// Nothing that decides, changes or isn't JSON is to be had so, nor a request within one.
func TestLookOnlyLooks(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for _, path := range []string{
		"", "x", "status", "/v1", "/v1/auth/api", "/v1/look?get=/v1/status", "/v1/check", "/metrics", "/healthz", "/openapi.yaml", "/console/", "/v1/statuses", "/v1/status/",
		"http://evil.example/metrics", "//evil.example/metrics", "/v1/%70olicies/%zz", "/v1/policies\x00",
	} {
		requireProblem(t, s.lookAt(t, []string{"/v1/status", path}), http.StatusBadRequest, "must be a path of /v1")
	}
	for _, path := range []string{"/v1/policies/../auth/api", "/v1/policies/%2e%2e/auth/api", "/v1/policiesx"} {
		r := s.lookAt(t, []string{path})
		require.Equal(t, http.StatusOK, r.Code, path)
		assert.True(t, strings.HasPrefix(r.Body, `{"answers":[{"status":404,`), r.Body)
	}
	requireUntouched(t, s)
	requireProblem(t, s.lookAt(t, nil), http.StatusBadRequest, "get is given 0 times and must be 1 to 16")
	requireProblem(t, s.lookAt(t, make([]string, 17)), http.StatusBadRequest, "get is given 17 times and must be 1 to 16")
}
