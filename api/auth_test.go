package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBearerTokens(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.Tokens = []string{"first-token", "second-token"} },
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

// cidrs parses networks.
func cidrs(networks ...string) []*net.IPNet {
	var parsed []*net.IPNet
	for _, network := range networks {
		_, n, err := net.ParseCIDR(network)
		must(err)
		parsed = append(parsed, n)
	}
	return parsed
}

// requireUsed asserts how much the client has used of the policy's first limit.
func requireUsed(t require.TestingT, s *service, policy, client string, used int64) {
	l := s.do(t, http.MethodGet, "/v1/policies/"+policy+"/clients/"+url.PathEscape(client), "").Limits[0]
	require.Equal(t, used, l.Limit-l.Remaining, "%s", client)
}

func TestForwardAuthFindsTheClient(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 100, time.Minute))
	p.Identify = []Identifier{{Header: "X-Api-Key"}, {Header: "X-User"}, {}}
	s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("10.0.0.0/8", "fd00::/8") }, p)
	for _, test := range []struct {
		what, peer string
		headers    []string
		client     string
	}{
		{"the first header", "10.0.0.1:80", []string{"X-Api-Key", "key", "X-User", "alice"}, "key"},
		{"the next one", "10.0.0.1:80", []string{"X-User", "alice"}, "alice"},
		{"an empty header is none", "10.0.0.1:80", []string{"X-Api-Key", "", "X-User", "alice"}, "alice"},
		{"the peer", "203.0.113.7:80", nil, "203.0.113.7"},
		{"a peer over IPv6", "[2001:db8::7]:80", nil, "2001:db8::7"},
		{"a trusted proxy's client", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9"}, "203.0.113.9"},
		{"a trusted proxy's over IPv6", "[fd00::1]:80", []string{"X-Forwarded-For", "2001:db8::9"}, "2001:db8::9"},
		{"the last that no trusted proxy is", "10.0.0.1:80", []string{"X-Forwarded-For", "198.51.100.1, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"a forged header of an untrusted peer", "203.0.113.7:80", []string{"X-Forwarded-For", "198.51.100.1"}, "203.0.113.7"},
		{"a private peer isn't trusted unless named", "192.168.0.1:80", []string{"X-Forwarded-For", "198.51.100.1"}, "192.168.0.1"},
		{"loopback isn't trusted unless named", "127.0.0.1:80", []string{"X-Forwarded-For", "198.51.100.1"}, "127.0.0.1"},
		{"other headers don't count", "10.0.0.1:80", []string{"X-Real-Ip", "198.51.100.1", "Forwarded", "for=198.51.100.1"}, "10.0.0.1"},
	} {
		t.Run(test.what, func(t *testing.T) {
			r := newRequest(http.MethodGet, "/v1/auth/api", "", test.headers...)
			r.RemoteAddr = test.peer
			requireUsed(t, s, "api", test.client, 0)
			require.Equal(t, http.StatusOK, s.serve(t, r).Code)
			requireUsed(t, s, "api", test.client, 1)
			s.do(t, http.MethodDelete, "/v1/policies/api/clients/"+url.PathEscape(test.client), "")
		})
	}
}

func TestForwardAuthWithoutAClient(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 100, time.Minute))
	p.Identify = []Identifier{{Header: "X-Api-Key"}, {Header: "X-User"}}
	s := newService(p)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/api", ""), http.StatusBadRequest,
		"no client: the request has none of [header:X-Api-Key header:X-User]")
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/api", "", "X-User", strings.Repeat("a", 1025)), http.StatusBadRequest,
		"client is 1025 bytes long")
	r := s.do(t, http.MethodHead, "/v1/auth/api", "")
	assert.Equal(t, http.StatusBadRequest, r.Code)
	assert.Empty(t, r.Body)
	requireUntouched(t, s)
	assert.Equal(t, "ip", Identifier{}.String())
}

func TestForwardAuthDeniesWithThePolicysStatus(t *testing.T) {
	t.Parallel()
	proxied, plain := newPolicy("nginx", fixed("per-minute", 1, time.Minute)), newPolicy("plain", fixed("per-minute", 1, time.Minute))
	proxied.AuthDenyStatus = http.StatusForbidden
	proxied.Clients = map[string]Client{"abuser": {Blocked: true}}
	proxied.Identify = []Identifier{{Header: "X-User"}, {}}
	s := newService(proxied, plain)
	for policy, status := range map[string]int{"nginx": http.StatusForbidden, "plain": http.StatusTooManyRequests} {
		r := s.do(t, http.MethodGet, "/v1/auth/"+policy, "")
		assert.Equal(t, http.StatusOK, r.Code)
		assert.Equal(t, `"per-minute";r=0;t=60`, r.Header.Get("RateLimit"))
		assert.Equal(t, `"per-minute";q=1;w=60`, r.Header.Get("RateLimit-Policy"))
		assert.NotContains(t, r.Header, "Retry-After")
		assert.NotContains(t, r.Header, "Content-Type")
		assert.Empty(t, r.Body)

		r = s.do(t, http.MethodGet, "/v1/auth/"+policy, "")
		assert.Equal(t, status, r.Code)
		assert.False(t, r.Allowed)
		assert.Equal(t, "60", r.Header.Get("Retry-After"))
	}
	assert.Equal(t, http.StatusForbidden, s.do(t, http.MethodGet, "/v1/auth/nginx", "", "X-User", "abuser").Code)
	// The status is for forward auth alone.
	assert.Equal(t, http.StatusTooManyRequests, s.check(t, `{"policy":"nginx","client":"abuser"}`).Code)
}

// Envoy sends the original method and path, Caddy the client's query.
func TestForwardAuthTakesAnyMethodPathAndQuery(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	used := int64(0)
	for _, method := range []string{
		"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "MKCOL", "PURGE", "QUERY", "LOCK", "x-own",
	} {
		for _, target := range []string{
			"/v1/auth/api", "/v1/auth/api/", "/v1/auth/api/orders/7", "/v1/auth/api/a%2Fb/%ff", "/v1/auth/api/..", "/v1/auth/api?client=bob&cost=50&policy=x",
		} {
			request, err := http.NewRequest(method, server.URL+target, nil)
			require.NoError(t, err)
			response, err := server.Client().Do(request)
			require.NoError(t, err)
			r := decodeResult(t, response)
			require.Equal(t, http.StatusOK, r.Code, "%s %s: %s", method, target, r.Body)
			require.Empty(t, r.Body)
			used++
		}
	}
	requireUsed(t, s, "api", "127.0.0.1", used)
}

// A proxy that reads no body of an admitted answer, as nginx and Caddy do, can
// use its connection again for the next question.
func TestForwardAuthKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 1000, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	proxy, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer proxy.Close()
	answers := bufio.NewReader(proxy)
	for _, request := range []string{
		"GET /v1/auth/api HTTP/1.1\r\nHost: weir\r\n\r\n",
		"HEAD /v1/auth/api HTTP/1.1\r\nHost: weir\r\n\r\n",
		"OPTIONS /v1/auth/api/orders HTTP/1.1\r\nHost: weir\r\n\r\n",
		"POST /v1/auth/api/orders HTTP/1.1\r\nHost: weir\r\nContent-Length: 5\r\n\r\nhello",
		"POST /v1/auth/api/orders HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"GET /v1/auth/api HTTP/1.1\r\nHost: weir\r\n\r\n",
	} {
		_, err := io.WriteString(proxy, request)
		require.NoError(t, err)
		var head []string
		for len(head) == 0 || head[len(head)-1] != "" {
			line, err := answers.ReadString('\n')
			require.NoError(t, err)
			head = append(head, strings.TrimSuffix(line, "\r\n"))
		}
		require.Equal(t, "HTTP/1.1 200 OK", head[0], request)
		require.Contains(t, head, `Ratelimit-Policy: "per-minute";q=1000;w=60`)
		require.NotContains(t, head, "Connection: close", request)
		require.NotContains(t, head, "Transfer-Encoding: chunked", request)
		if !strings.HasPrefix(request, "HEAD") {
			require.Contains(t, head, "Content-Length: 0", request)
		}
		require.Zero(t, answers.Buffered(), "a body of %s", request)
	}
}

func TestForwardAuthReadsNoBody(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
	r := newRequest(http.MethodPost, "/v1/auth/api/upload", "not JSON", "Content-Type", "text/plain")
	assert.Equal(t, http.StatusOK, s.serve(t, r).Code)
}
