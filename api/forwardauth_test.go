package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
)

// cidrs parses networks.
func cidrs(networks ...string) []netip.Prefix {
	var parsed []netip.Prefix
	for _, network := range networks {
		parsed = append(parsed, policy.Network(netip.MustParsePrefix(network)))
	}
	return parsed
}

// clients returns exceptions by keys as the policy file has them.
func clients(exceptions map[string]policy.Terms) map[policy.ClientKey]policy.Terms {
	byKey := make(map[policy.ClientKey]policy.Terms)
	for key, c := range exceptions {
		k, err := policy.ParseClientKey(key)
		must(err)
		byKey[k] = c
	}
	return byKey
}

// requireUsed asserts how much the client has used of the policy's first limit.
func requireUsed(t require.TestingT, s *service, policy, client string, used int64) {
	l := s.do(t, http.MethodGet, "/v1/policies/"+policy+"/clients/"+url.PathEscape(client), "").Limits[0]
	require.Equal(t, used, l.Limit-l.Remaining, "%s", client)
}

func TestForwardAuthFindsTheClient(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 100, time.Minute))
	p.Identify = []policy.Identifier{{Header: "X-Api-Key"}, {Header: "X-User"}, {}}
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
		{"a peer over IPv6", "[2001:db8::7]:80", nil, "2001:db8::/64"},
		{"a peer on this link", "[fe80::7%eth0]:80", nil, "fe80::/64"},
		{"a peer over IPv4 on a socket of IPv6", "[::ffff:203.0.113.7]:80", nil, "203.0.113.7"},
		{"a trusted proxy's client", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9"}, "203.0.113.9"},
		{"a trusted proxy's over IPv6", "[fd00::1]:80", []string{"X-Forwarded-For", "2001:db8:0:1::9"}, "2001:db8:0:1::/64"},
		{"with a port", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9:5678"}, "203.0.113.9"},
		{"with brackets", "10.0.0.1:80", []string{"X-Forwarded-For", "[2001:db8:0:1::9]"}, "2001:db8:0:1::/64"},
		{"with brackets and a port", "10.0.0.1:80", []string{"X-Forwarded-For", "[2001:db8:0:1::9]:5678"}, "2001:db8:0:1::/64"},
		{"proxies with ports", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9:1,[fd00::2]:3 , 10.0.0.2:4"}, "203.0.113.9"},
		{"IPv4 as IPv6", "[::ffff:10.0.0.1]:80", []string{"X-Forwarded-For", "::ffff:203.0.113.9"}, "203.0.113.9"},
		{"empty entries", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9,, ,"}, "203.0.113.9"},
		{"an empty header", "10.0.0.1:80", []string{"X-Forwarded-For", ""}, "10.0.0.1"},
		{"only proxies", "10.0.0.1:80", []string{"X-Forwarded-For", "10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"no address", "10.0.0.1:80", []string{"X-Forwarded-For", "unknown"}, "10.0.0.1"},
		{"no address before a proxy", "10.0.0.1:80", []string{"X-Forwarded-For", "203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"no address before the client", "10.0.0.1:80", []string{"X-Forwarded-For", "[2001:db8::9, 203.0.113.9"}, "203.0.113.9"},
		{"brackets that don't close", "10.0.0.1:80", []string{"X-Forwarded-For", "[2001:db8::9"}, "10.0.0.1"},
		{"something behind the brackets", "10.0.0.1:80", []string{"X-Forwarded-For", "[2001:db8::9]x"}, "10.0.0.1"},
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
			s.do(t, http.MethodDelete, "/v1/policies/api/clients/"+test.client, "")
		})
	}
}

// A proxy may append to what its client sent by a header of its own.
func TestForwardedForInSeveralHeaders(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("10.0.0.0/8") }, newPolicy("api", fixed("per-minute", 100, time.Minute)))
	r := newRequest(http.MethodGet, "/v1/auth/api", "")
	r.RemoteAddr = "10.0.0.1:80"
	r.Header["X-Forwarded-For"] = []string{"198.51.100.1", "203.0.113.9:77, 10.0.0.2", "10.0.0.3"}
	require.Equal(t, http.StatusOK, s.serve(t, r).Code)
	requireUsed(t, s, "api", "203.0.113.9", 1)
}

func TestAddressesAreCountedByPrefix(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ipv4, ipv6     int
		address, other string // of one client
		third          string // of another
		client         string
	}{
		{0, 0, "2001:db8::1", "2001:db8::ffff:0:0:2", "2001:db8:0:1::1", "2001:db8::/64"},
		{0, 0, "203.0.113.7", "::ffff:203.0.113.7", "203.0.113.8", "203.0.113.7"},
		{24, 48, "203.0.113.7", "203.0.113.8", "203.0.114.7", "203.0.113.0/24"},
		{24, 48, "2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:2:2::1", "2001:db8:1::/48"},
		{32, 128, "2001:db8::1", "2001:db8:0::1", "2001:db8::2", "2001:db8::1"},
	} {
		p := newPolicy("api", fixed("per-minute", 1, time.Minute))
		p.IPv4Prefix, p.IPv6Prefix = test.ipv4, test.ipv6
		s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("192.0.2.0/24") }, p)
		ask := func(address string) int {
			return s.do(t, http.MethodGet, "/v1/auth/api", "", "X-Forwarded-For", address).Code
		}
		assert.Equal(t, http.StatusOK, ask(test.address))
		assert.Equal(t, http.StatusTooManyRequests, ask(test.other), "%s and %s", test.address, test.other)
		assert.Equal(t, http.StatusOK, ask(test.third), "%s and %s", test.address, test.third)
		requireUsed(t, s, "api", test.client, 1)
	}
}

// An exception for part of a prefix is counted apart from its neighbours. A
// header that looks like an address is a name.
func TestExceptionsForAddresses(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1, time.Minute))
	p.Identify = []policy.Identifier{{Header: "X-Api-Key"}, {}}
	p.Clients = clients(map[string]policy.Terms{
		"203.0.113.0/24": {Exempt: true}, "203.0.113.9": {Blocked: true}, "2001:db8::/32": {Limits: map[string]int64{"per-minute": 2}},
		"2001:db8::7": {Limits: map[string]int64{"per-minute": 3}}, "key:*": {Exempt: true},
	})
	s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("192.0.2.0/24") }, p)
	admitted := func(header, value string) (n int) {
		for range 10 {
			if s.do(t, http.MethodGet, "/v1/auth/api", "", header, value).Code == http.StatusOK {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 10, admitted("X-Forwarded-For", "203.0.113.8:99"))
	assert.Zero(t, admitted("X-Forwarded-For", "203.0.113.9"))
	assert.Equal(t, 1, admitted("X-Forwarded-For", "203.0.114.1"))
	assert.Equal(t, 2, admitted("X-Forwarded-For", "2001:db8::1"))
	assert.Equal(t, 3, admitted("X-Forwarded-For", "2001:db8::7"), "of its own, though its network is spent")
	assert.Zero(t, admitted("X-Forwarded-For", "2001:db8::2"))
	requireUsed(t, s, "api", "2001:db8::/64", 2)
	requireUsed(t, s, "api", "2001:db8::7", 3)
	assert.Equal(t, 1, admitted("X-Api-Key", "203.0.113.8"))
	assert.Equal(t, 1, admitted("X-Api-Key", "203.0.113.9"))
	assert.Equal(t, 10, admitted("X-Api-Key", "key:7"))
}

// Who sends an address as a key uses up nothing of what the address has.
func TestAKeyIsNoAddress(t *testing.T) {
	t.Parallel()
	p, keys := newPolicy("api", fixed("per-minute", 1, time.Minute)), newPolicy("keys", fixed("per-minute", 1, time.Minute))
	p.Identify, keys.Identify = []policy.Identifier{{Header: "X-Api-Key"}, {}}, []policy.Identifier{{Header: "X-Api-Key"}}
	s := newServiceWith(func(cfg *Config) { cfg.TrustedProxies = cidrs("192.0.2.0/24") }, p, keys)
	ask := func(policy, header, value string) int {
		return s.do(t, http.MethodGet, "/v1/auth/"+policy, "", header, value).Code
	}
	for address, name := range map[string]string{"203.0.113.7": "203.0.113.7", "2001:db8::7": "2001:db8::/64"} {
		assert.Equal(t, http.StatusOK, ask("api", "X-Api-Key", name))
		assert.Equal(t, http.StatusTooManyRequests, ask("api", "X-Api-Key", name))
		requireUsed(t, s, "api", "X-Api-Key:"+name, 1)
		assert.Equal(t, http.StatusOK, ask("api", "X-Forwarded-For", address))
		assert.Equal(t, http.StatusOK, ask("keys", "X-Api-Key", name))
		requireUsed(t, s, "keys", name, 1)
	}
}

func TestForwardAuthWithoutAClient(t *testing.T) {
	t.Parallel()
	deny, allow := newPolicy("api", fixed("per-minute", 1, time.Minute)), newPolicy("open", fixed("per-minute", 1, time.Minute))
	for _, p := range []*policy.Policy{deny, allow} {
		p.Identify = []policy.Identifier{{Header: "X-Api-Key"}, {Header: "X-User"}}
	}
	deny.OnMissingClient, allow.OnMissingClient = policy.MissingClientDeny, policy.MissingClientAllow
	s := newService(deny, allow)
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/api", ""), http.StatusBadRequest,
		"no client: the request has none of [header:X-Api-Key header:X-User]")
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/api", "", "X-User", strings.Repeat("a", 1025)), http.StatusBadRequest,
		"client is 1025 bytes long")
	r := s.do(t, http.MethodHead, "/v1/auth/api", "")
	assert.Equal(t, http.StatusBadRequest, r.Code)
	assert.Empty(t, r.Body)
	for range 3 {
		r = s.do(t, http.MethodGet, "/v1/auth/open", "")
		assert.Equal(t, http.StatusOK, r.Code)
		assert.Empty(t, r.Body)
		assert.NotContains(t, r.Header, "Ratelimit", "nothing was asked")
	}
	requireUntouched(t, s)
	assert.Equal(t, http.StatusOK, s.do(t, http.MethodGet, "/v1/auth/open", "", "X-User", "alice").Code)
	assert.Equal(t, http.StatusTooManyRequests, s.do(t, http.MethodGet, "/v1/auth/open", "", "X-User", "alice").Code)
	assert.Equal(t, "ip", policy.Identifier{}.String())
}

// nginx's auth_request, and the like, take few statuses.
func TestForwardAuthRefusesWithThePolicysStatus(t *testing.T) {
	t.Parallel()
	p, plain := newPolicy("nginx", fixed("per-minute", 1, time.Minute)), newPolicy("plain", fixed("per-minute", 1, time.Minute))
	for _, p := range []*policy.Policy{p, plain} {
		p.Identify = []policy.Identifier{{Header: "X-Api-Key"}}
	}
	p.AuthBadRequestStatus = http.StatusUnauthorized
	s := newService(p, plain)
	for _, keys := range [][]string{nil, {"alice", "other"}, {strings.Repeat("a", 1025)}} {
		for policy, status := range map[string]int{"nginx": http.StatusUnauthorized, "plain": http.StatusBadRequest} {
			r := newRequest(http.MethodGet, "/v1/auth/"+policy, "")
			r.Header["X-Api-Key"] = keys
			answer := s.serve(t, r)
			requireProblem(t, answer, status, "client")
			assert.NotContains(t, answer.Header, "Www-Authenticate", "no token is missing")
		}
	}
	requireUntouched(t, s)
	// The status is for forward auth alone.
	requireProblem(t, s.check(t, `{"policy":"nginx","client":""}`), http.StatusBadRequest, "client is missing")
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/none", ""), http.StatusNotFound, "there is no policy")
}

// The app may take another value than weir, or one where weir finds none: who
// sends two would get a limit with each, or no limit.
func TestForwardAuthRefusesSeveralKeys(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1, time.Minute))
	p.Identify, p.OnMissingClient = []policy.Identifier{{Header: "X-Api-Key"}}, policy.MissingClientAllow
	s := newService(p)
	for _, values := range [][]string{{"alice", "other"}, {"other", "alice"}, {"", "alice"}, {"alice", ""}, {"alice", "alice"}} {
		r := newRequest(http.MethodGet, "/v1/auth/api", "")
		r.Header["X-Api-Key"] = values
		requireProblem(t, s.serve(t, r), http.StatusBadRequest, "no client: the request has X-Api-Key more than once")
	}
	requireUntouched(t, s)
}

// A denial is shown to users, so it doesn't say who the client is.
func TestForwardAuthDeniesWithThePolicysStatus(t *testing.T) {
	t.Parallel()
	proxied := newPolicy("nginx", fixed("per-minute", 1, time.Minute), fixed("per-hour", 1, time.Hour), fixed("per-day", 9, 24*time.Hour))
	plain := newPolicy("plain", fixed("per-minute", 1, time.Minute))
	proxied.AuthDenyStatus = http.StatusForbidden
	proxied.Clients = clients(map[string]policy.Terms{"abuser": {Blocked: true}})
	proxied.Identify = []policy.Identifier{{Header: "X-User"}, {}}
	s := newService(proxied, plain)
	for policy, want := range map[string]struct {
		status int
		body   string
	}{
		"nginx": {http.StatusForbidden, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
			`"status":403,"detail":"too many requests; try again in 3600 s","policy":"nginx","violated-policies":["per-minute","per-hour"]}`},
		"plain": {http.StatusTooManyRequests, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded",` +
			`"status":429,"detail":"too many requests; try again in 60 s","policy":"plain","violated-policies":["per-minute"]}`},
	} {
		r := s.do(t, http.MethodGet, "/v1/auth/"+policy, "")
		assert.Equal(t, http.StatusOK, r.Code)
		assert.Contains(t, r.Header.Get("RateLimit"), `"per-minute";r=0;t=60`)
		assert.Contains(t, r.Header.Get("RateLimit-Policy"), `"per-minute";q=1;w=60`)
		assert.NotContains(t, r.Header, "Retry-After")
		assert.NotContains(t, r.Header, "Content-Type")
		assert.Empty(t, r.Body)

		r = s.do(t, http.MethodGet, "/v1/auth/"+policy, "")
		assert.Equal(t, want.status, r.Code)
		assert.Equal(t, "application/problem+json", r.Header.Get("Content-Type"))
		assert.JSONEq(t, want.body, r.Body)
		assert.NotEmpty(t, r.Header.Get("Retry-After"))
		assert.Contains(t, r.Header.Get("RateLimit"), `"per-minute";r=0;t=60`)

		r = s.do(t, http.MethodHead, "/v1/auth/"+policy, "")
		assert.Equal(t, want.status, r.Code)
		assert.Empty(t, r.Body)
	}
	requireProblem(t, s.do(t, http.MethodGet, "/v1/auth/nginx", "", "X-User", "abuser"), http.StatusForbidden, "this client is blocked")
	// The status is for forward auth alone.
	assert.Equal(t, http.StatusTooManyRequests, s.check(t, `{"policy":"nginx","client":"abuser"}`).Code)
}

// nginx would turn a 503 into a 500.
func TestForwardAuthWithoutTheStore(t *testing.T) {
	t.Parallel()
	p := newPolicy("nginx", fixed("per-minute", 1, time.Minute))
	p.OnStoreError, p.AuthDenyStatus, p.Identify = policy.StoreErrorDeny, http.StatusForbidden, []policy.Identifier{{Header: "X-Api-Key"}}
	s := newService(p)
	s.store.failWith(counters.ErrTimeout)
	r := s.do(t, http.MethodGet, "/v1/auth/nginx", "", "X-Api-Key", "secret-key")
	assert.Equal(t, http.StatusForbidden, r.Code)
	assert.EqualValues(t, http.StatusForbidden, r.Status)
	assert.Equal(t, typeReducedCapacity, r.Type)
	assert.Equal(t, []string{"per-minute"}, r.Violated)
	assert.NotContains(t, r.Body, "secret-key")
	assert.Equal(t, http.StatusServiceUnavailable, s.check(t, `{"policy":"nginx","client":"secret-key"}`).Code)
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
