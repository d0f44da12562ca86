package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/decide"
	"weir/api/policy"
	"weir/counters"
)

// A client in a path is any bytes: percent-encoding is undone once.
func TestClientInThePath(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	send := func(method, path string) result {
		request, err := http.NewRequest(method, server.URL+"/v1/policies/api/clients/"+path, nil)
		require.NoError(t, err)
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		return decodeResult(t, response)
	}
	limiter := s.cfg.Policies["api"].Limits[0].Limiter
	for _, test := range []struct{ path, client, shown string }{
		{"alice", "alice", "alice"},
		{"a%2Fb", "a/b", "a/b"},
		{"a%2fb", "a/b", "a/b"},
		{"a/b", "a/b", "a/b"},
		{"%2F", "/", "/"},
		{"%00", "\x00", "\x00"},
		{"a%0Ab", "a\nb", "a\nb"},
		{"%20", " ", " "},
		{"a+b", "a+b", "a+b"},
		{"%F0%9F%90%A2", "🐢", "🐢"},
		{"%f0%9f%90%a2%2F", "🐢/", "🐢/"},
		{"%25", "%", "%"},
		{"%2525", "%25", "%25"},
		{"%252F", "%2F", "%2F"},
		{"%25%2F", "%/", "%/"},
		{"..", "..", ".."},
		{"%2e%2e%2f", "../", "../"},
		{"a%3Fb%23c", "a?b#c", "a?b#c"},
		{"%ff", "\xff", "\ufffd"},
		{"a%FF%2F%fe", "a\xff/\xfe", "a\ufffd/\ufffd"},
		{":client", ":client", ":client"},
		{strings.Repeat("%00", 1024), strings.Repeat("\x00", 1024), strings.Repeat("\x00", 1024)},
	} {
		t.Run(test.path[:min(20, len(test.path))], func(t *testing.T) {
			request := counters.Request{Client: test.client, Cost: 2, Limit: 2, Now: s.clock.now()}
			_, err := limiter.Take(t.Context(), request)
			require.NoError(t, err)

			r := send(http.MethodGet, test.path)
			require.Equal(t, http.StatusOK, r.Code, r.Body)
			assert.Equal(t, test.shown, r.Client)
			assert.Zero(t, r.Limits[0].Remaining, "this client has used all")

			r = send(http.MethodDelete, test.path)
			require.Equal(t, http.StatusNoContent, r.Code)
			d, err := limiter.Peek(t.Context(), request)
			require.NoError(t, err)
			assert.EqualValues(t, 2, d.Remaining, "this client was reset")
		})
	}
}

func TestBadClientInThePath(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		for path, detail := range map[string]string{
			strings.Repeat("a", 1025):       "client is 1025 bytes long; at most 1024 are possible",
			strings.Repeat("%2F", 1025):     "client is 1025 bytes long",
			strings.Repeat("%F0%9F", 512+1): "client is 1026 bytes long",
		} {
			requireProblem(t, s.do(t, method, "/v1/policies/api/clients/"+path, ""), http.StatusBadRequest, detail)
		}
		// net/http refuses such a path before weir sees it.
		r := newRequest(method, "/v1/policies/api/clients/x", "")
		r.URL = &url.URL{Path: "/v1/policies/api/clients/%zz", RawPath: "/v1/policies/api/clients/%zz"}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		requireProblem(t, decodeResult(t, w.Result()), http.StatusBadRequest, "the client in the path is not well escaped")
		r = newRequest(method, "/v1/policies/api/clients/", "")
		assert.Equal(t, http.StatusNotFound, s.serve(t, r).Code)
	}
	requireUntouched(t, s)
}

func TestPeekConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute), sliding("ten", 5, 10*time.Second, 10, "weighted")))
	peek := func() result { return s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "") }
	for range 3 {
		r := peek()
		assert.True(t, r.Allowed)
		assert.EqualValues(t, 2, r.Limits[0].Remaining)
		assert.Zero(t, r.Limits[0].ResetAfter)
	}
	assert.Zero(t, s.memory.Len())

	s.clock.at(20 * time.Second)
	checked := s.admits(t, `{"policy":"api","client":"alice"}`)
	before := s.store.counts(t)
	assert.Equal(t, checked.Body, peek().Body, "the same body as a check")
	s.admits(t, `{"policy":"api","client":"alice"}`)
	r := peek()
	assert.Equal(t, http.StatusOK, r.Code, "the question was answered")
	assert.False(t, r.Allowed)
	assert.Equal(t, 40.0, r.RetryAfter)
	assert.NotContains(t, r.Header, "Retry-After")
	assert.NotEqual(t, before, s.store.counts(t))
	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="api"} 2`, `weir_checks_total{decision="denied",policy="api"} 0`)
}

func TestPeekOnAFailingStore(t *testing.T) {
	t.Parallel()
	allow, deny := newPolicy("allow", fixed("per-minute", 2, time.Minute)), newPolicy("deny", fixed("per-minute", 2, time.Minute))
	deny.OnStoreError = policy.StoreErrorDeny
	s := newService(allow, deny)
	s.store.failWith(counters.ErrTimeout)
	r := s.do(t, http.MethodGet, "/v1/policies/allow/clients/alice", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.True(t, r.Allowed)
	assert.True(t, r.Degraded)
	r = s.do(t, http.MethodGet, "/v1/policies/deny/clients/alice", "")
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.Equal(t, []string{"per-minute"}, r.Violated)
}

func TestResetLetsAClientStartFresh(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute), sliding("ten", 2, 10*time.Second, 5, "strict")))
	s.clock.at(3 * time.Second)
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.clock.at(7 * time.Second)
	s.admits(t, `{"policy":"api","client":"alice"}`)
	s.admits(t, `{"policy":"api","client":"bob","cost":2}`)
	s.denies(t, `{"policy":"api","client":"alice"}`)

	r := s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "")
	assert.Equal(t, http.StatusNoContent, r.Code)
	assert.Empty(t, r.Body)
	for _, l := range s.do(t, http.MethodGet, "/v1/policies/api/clients/alice", "").Limits {
		assert.EqualValues(t, 2, l.Remaining)
		assert.Zero(t, l.ResetAfter)
	}
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	s.denies(t, `{"policy":"api","client":"bob"}`)
	// The state of bob isn't a client whom nobody knows, of whom all would be well.
	requireProblem(t, s.do(t, http.MethodDelete, "/v1/policies/api/clients/bob/state", ""), http.StatusBadRequest, "DELETE the client without /state")
	assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/bob%2Fstate", "").Code)
	// A client that has used nothing can be reset too.
	assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/carol", "").Code)
}

// slowReset resets nothing, and takes its time for it.
type slowReset struct {
	counters.Limiter
	meanwhile func()
}

func (l slowReset) Reset(context.Context, string, time.Time) error {
	l.meanwhile()
	return nil
}

// The resets of many limits may take long. What another limit counts before its own turn comes is
// from before that limit's reset: its refund takes nothing from what comes after.
func TestRefundsKnowWhenEachLimitWasReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRefundsKnowWhenEachLimitWasReset)
}

func testRefundsKnowWhenEachLimitWasReset(t *testing.T) {
	second := fixed("second", 10, time.Minute)
	s := newService(newPolicy("other", second))
	limiter := s.active.Load().policies["other"].Limits[0].Limiter
	request := counters.Request{Client: "alice", Cost: 10, Limit: 10, Now: epoch.Add(290 * time.Millisecond)}
	ctx := &counters.Deadline{At: time.Now().Add(time.Minute)}
	var taken counters.Decision
	limits := make([]policy.Limit, 129) // more than are reset at once
	for i := range limits {
		limits[i] = fixed("first", 10, time.Minute)
		limits[i].Limiter = slowReset{meanwhile: func() { time.Sleep(time.Second) }}
	}
	limits[1].Limiter = slowReset{meanwhile: func() {
		time.Sleep(300 * time.Millisecond)
		var err error
		taken, err = limiter.Take(ctx, request)
		require.NoError(t, err)
	}}
	second.Limiter = limiter
	p := decide.NewDecider(decide.Config{}, newPolicy("api", append(limits, second)...), nil)
	require.NoError(t, p.Reset(ctx, "alice", epoch))
	later := request
	later.Now = epoch.Add(time.Second)
	d, err := limiter.Take(ctx, later)
	require.NoError(t, err)
	require.True(t, d.Allowed, "the limit is free after the reset")
	require.NoError(t, limiter.Refund(ctx, request, taken))
	d, err = limiter.Peek(ctx, later)
	require.NoError(t, err)
	assert.Zero(t, d.Remaining)
}
