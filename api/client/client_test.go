package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/client"
	"weir/api/policy"
	"weir/counters"
)

func check(t *testing.T, c *client.Client, q client.Check) client.Answer {
	t.Helper()
	a, err := c.Check(t.Context(), q)
	require.NoError(t, err)
	return a
}

func TestCheckIsAnsweredByWeir(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{Token: "secret"}, newPolicy("api", fixed("api", 3)))
	w.at(20 * time.Second)

	assert.Equal(t, client.Answer{Allowed: true, Limits: []client.Limit{{
		Name: "per-minute", Algorithm: "fixed_window", Allowed: true, Limit: 3, Remaining: 1, ResetAfter: 40 * time.Second,
	}}}, check(t, c, client.Check{Policy: "api", Client: "alice", Cost: 2}))
	assert.Equal(t, client.Answer{RetryAfter: 40 * time.Second, Limits: []client.Limit{{
		Name: "per-minute", Algorithm: "fixed_window", Limit: 3, Remaining: 1, ResetAfter: 40 * time.Second, RetryAfter: 40 * time.Second,
	}}}, check(t, c, client.Check{Policy: "api", Client: "alice", Cost: 2}))
	a := check(t, c, client.Check{Policy: "api", Client: "alice", Limits: map[string]int64{"per-minute": 10}})
	assert.True(t, a.Allowed, "by a limit of the caller's own")
	assert.EqualValues(t, 7, a.Limits[0].Remaining)

	requests := w.asked()
	require.Len(t, requests, 3)
	for _, r := range requests {
		assert.Equal(t, "Bearer secret", r.token)
		assert.Equal(t, requests[0].connection, r.connection)
	}
}

func TestPeekConsumesNothingAndResetGivesBack(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	// Names that a path could be taken for.
	for _, name := range []string{"alice", "a/b", "..", "%2F", "a b?c=d#e", "zoë", `"<&>"`} {
		for range 2 {
			a, err := c.Peek(t.Context(), "api", name)
			require.NoError(t, err, name)
			assert.True(t, a.Allowed, name)
			assert.EqualValues(t, 1, a.Limits[0].Remaining, name)
		}
		assert.True(t, check(t, c, client.Check{Policy: "api", Client: name}).Allowed, name)
		a, err := c.Peek(t.Context(), "api", name)
		require.NoError(t, err)
		assert.False(t, a.Allowed, name)
		assert.Equal(t, time.Minute, a.RetryAfter)
		require.NoError(t, c.Reset(t.Context(), "api", name))
		assert.True(t, check(t, c, client.Check{Policy: "api", Client: name}).Allowed, name)
	}
	connections := map[string]bool{}
	for _, r := range w.asked() {
		connections[r.connection] = true
	}
	assert.Len(t, connections, 1)
}

func TestCheckManyKeepsTheOrder(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 2)))
	results := c.CheckMany(t.Context(), []client.Check{
		{Policy: "api", Client: "alice"},
		{Policy: "api", Client: "bob", Cost: 2},
		{Policy: "api", Client: ""},
		{Policy: "none", Client: "alice"},
		{Policy: "api", Client: "alice", Cost: 3},
		{Policy: "api", Client: "alice"},
		{Policy: "api", Client: "alice"},
	})
	require.Len(t, results, 7)
	var problem *client.Problem
	for i, status := range []int{0, 0, http.StatusBadRequest, http.StatusNotFound, http.StatusBadRequest, 0, 0} {
		if status == 0 {
			require.NoError(t, results[i].Err)
			continue
		}
		require.ErrorAs(t, results[i].Err, &problem)
		assert.Equal(t, status, problem.Status)
		assert.NotEmpty(t, problem.Detail)
		assert.False(t, results[i].Allowed)
	}
	assert.True(t, results[0].Allowed)
	assert.True(t, results[1].Allowed)
	assert.True(t, results[5].Allowed)
	assert.False(t, results[6].Allowed)
	assert.Equal(t, []int{6}, w.batches(), "without what can't be sent")

	assert.Empty(t, c.CheckMany(t.Context(), nil))
	assert.Empty(t, w.asked())
}

func TestCheckManySplitsWhatIsTooMuchForOneBatch(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1700)))
	checks := make([]client.Check, 2500)
	for i := range checks {
		checks[i] = client.Check{Policy: "api", Client: "alice"}
	}
	admitted := 0
	for i, r := range c.CheckMany(t.Context(), checks) {
		require.NoError(t, r.Err)
		if r.Allowed {
			admitted++
			assert.Less(t, i, 1700)
		}
	}
	assert.Equal(t, 1700, admitted)
	assert.Equal(t, []int{1000, 1000}, w.batches(), "the last 500 are known to be denied")

	// 8 MiB hold 129 checks of 63 KiB, as their limits have such long names.
	long := map[string]int64{strings.Repeat("x", 63<<10): 1}
	for i := range checks {
		checks[i].Limits = long
	}
	for _, r := range c.CheckMany(t.Context(), checks[:140]) {
		var problem *client.Problem
		require.ErrorAs(t, r.Err, &problem)
		assert.Equal(t, http.StatusBadRequest, problem.Status)
		assert.Contains(t, problem.Detail, "has no limit", "but weir reads it")
	}
	assert.Len(t, w.batches(), 2)
}

// What could make weir refuse a whole batch isn't sent.
func TestCheckAllAdmitsAllOrNone(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{FailOpen: true}, newPolicy("user", fixed("user", 2)), newPolicy("route", fixed("route", 1)))
	checks := []client.Check{{Policy: "user", Client: "alice"}, {Policy: "route", Client: "export"}}
	all, results, err := c.CheckAll(t.Context(), checks)
	require.NoError(t, err)
	assert.True(t, all.Allowed)
	require.Len(t, results, 2)
	assert.EqualValues(t, 1, results[0].Limits[0].Remaining)

	w.at(20 * time.Second)
	all, results, err = c.CheckAll(t.Context(), checks)
	require.NoError(t, err)
	assert.False(t, all.Allowed)
	assert.Equal(t, 40*time.Second, all.RetryAfter)
	assert.False(t, results[0].Allowed)
	assert.True(t, results[0].Limits[0].Allowed)
	assert.EqualValues(t, 1, results[0].Limits[0].Remaining, "given back")
	assert.False(t, results[1].Limits[0].Allowed)

	var p *client.Problem
	all, results, err = c.CheckAll(t.Context(), append(checks, client.Check{Policy: "none", Client: "x"}))
	require.ErrorAs(t, err, &p)
	assert.Equal(t, http.StatusNotFound, p.Status)
	assert.Contains(t, p.Detail, "checks[2]")
	assert.False(t, all.Allowed, "what weir refuses isn't admitted")
	assert.Empty(t, results)
	_, _, err = c.CheckAll(t.Context(), []client.Check{{Policy: "user"}})
	require.ErrorAs(t, err, &p)

	w.answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		http.Error(rw, `{"title":"Slow down"}`, http.StatusTooManyRequests) // another's, not weir's
		return true
	})
	all, _, err = c.CheckAll(t.Context(), checks)
	require.Error(t, err)
	assert.True(t, all.Allowed, "weir couldn't be asked")
}

func TestWhatCanNotBeSentIsRefusedHere(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{FailOpen: true}, newPolicy("api", fixed("api", 1)))
	many := make(map[string]int64)
	for i := range 10_000 {
		many[string(rune('a'+i%26))+strings.Repeat("b", i/26)] = 1
	}
	for what, q := range map[string]client.Check{
		"no client":                {Policy: "api"},
		"a long client":            {Policy: "api", Client: strings.Repeat("a", 1025)},
		"a client that isn't text": {Policy: "api", Client: "\xff"},
		"a limit that isn't text":  {Policy: "api", Client: "alice", Limits: map[string]int64{"\xff": 1, "\xfe": 1}},
		"too large":                {Policy: "api", Client: "alice", Limits: many},
		"a policy that is long":    {Policy: strings.Repeat("a", 64<<10), Client: "alice"},
	} {
		a, err := c.Check(t.Context(), q)
		var problem *client.Problem
		require.ErrorAs(t, err, &problem, what)
		assert.Equal(t, http.StatusBadRequest, problem.Status, what)
		assert.False(t, a.Allowed, what)
	}
	_, err := c.Peek(t.Context(), "api", "")
	assert.Error(t, err)
	assert.Error(t, c.Reset(t.Context(), "api", "\xff"))
	assert.Empty(t, w.asked())
	assert.True(t, check(t, c, client.Check{Policy: "api", Client: strings.Repeat("<", 1024)}).Allowed)
}

// FailOpen is for a weir that can't be asked. What weir refuses, it refuses.
func TestFailOpenOrClosed(t *testing.T) {
	t.Parallel()
	status := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	const (
		reduced  = `"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporary Reduced Capacity","detail":"x"`
		ordinary = `"type":"about:blank","title":"x","detail":"x"`
	)
	failures := []struct {
		what    string
		answer  func(http.ResponseWriter, *http.Request) bool
		policy  string
		failing bool
	}{
		{"a connection that is cut", func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, "api", true},
		{"a failing proxy", status(502, "<html>Bad Gateway</html>"), "api", true},
		{"a proxy that is too busy", status(429, "Too Many Requests"), "api", true},
		{"a proxy that hasn't got all in time", status(408, "Request Timeout"), "api", true},
		{"something else", status(200, "hello"), "api", true},
		{"too few results", status(200, `{"results":[]}`), "api", true},
		{"an error inside", status(200, `{"results":[{"status":500,`+ordinary+`}]}`), "api", true},
		{"a policy that denies then", status(200, `{"results":[{"status":503,`+reduced+`}]}`), "api", false},
		{"no token", status(401, `{"status":401,`+ordinary+`}`), "api", false},
		{"no such policy", nil, "none", false},
	}
	for _, open := range []bool{true, false} {
		w, c := start(t, client.Config{FailOpen: open}, newPolicy("api", fixed("api", 1)))
		for _, f := range failures {
			w.answers(f.answer)
			a, err := c.Check(t.Context(), client.Check{Policy: f.policy, Client: "alice"})
			require.Error(t, err, f.what)
			allows := open && f.failing
			assert.Equal(t, client.Answer{Allowed: allows, Degraded: allows}, a, "%s: %v", f.what, err)
			r := c.CheckMany(t.Context(), []client.Check{{Policy: f.policy, Client: "alice"}})
			assert.Equal(t, a, r[0].Answer, f.what)
			assert.Error(t, r[0].Err, f.what)
		}
	}
}

func TestSilenceEndsInTime(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} {
		w, c := start(t, client.Config{FailOpen: open, Timeout: 20 * time.Millisecond}, newPolicy("api", fixed("api", 1)))
		w.holds()
		alice := client.Check{Policy: "api", Client: "alice"}
		a, err := c.Check(t.Context(), alice)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, client.Answer{Allowed: open, Degraded: open}, a)
		assert.Equal(t, []client.Result{{Answer: a}}, withoutErrors(c.CheckMany(t.Context(), []client.Check{alice})))
		_, err = c.Peek(t.Context(), "api", "alice")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorIs(t, c.Reset(t.Context(), "api", "alice"), context.DeadlineExceeded)
	}
}

func withoutErrors(results []client.Result) []client.Result {
	for i := range results {
		results[i].Err = nil
	}
	return results
}

// Whatever else listens where weir should may answer anything.
func TestAnswersOfAnotherServerAreErrors(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 2)))
	receipt := check(t, c, client.Check{Policy: "llm", Client: "alice", Settle: true}).Receipt
	for _, body := range []string{"<html>", "{}", `{"status":"ok"}`, `{"results":[]}`, `{"allowed":true}`} {
		w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, body)
			return true
		})
		a, err := c.Peek(t.Context(), "llm", "alice")
		assert.ErrorContains(t, err, "what answers isn't weir", body)
		assert.Zero(t, a, body)
		a, err = c.Charge(t.Context(), client.Charge{Policy: "llm", Client: "alice"})
		assert.ErrorContains(t, err, "what answers isn't weir", body)
		assert.Zero(t, a, body)
		same, err := c.Renew(t.Context(), receipt)
		assert.ErrorContains(t, err, "what answers isn't weir", body)
		assert.Equal(t, receipt, same)
		_, err = c.Settle(t.Context(), receipt, 0)
		assert.ErrorIs(t, err, client.ErrSettledLater, body)
		assert.ErrorContains(t, c.Reset(t.Context(), "llm", "alice"), "weir answers 200 OK", body)
	}
	w.answers(nil)
	a, err := c.Peek(t.Context(), "llm", "alice")
	require.NoError(t, err)
	assert.Len(t, a.Limits, 1)
	assert.NoError(t, c.Reset(t.Context(), "llm", "alice"))
}

// A reset for which weir's store isn't there is done later, and no error.
func TestResetIsAccepted(t *testing.T) {
	t.Parallel()
	w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, http.MethodDelete, r.Method)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer w.Close()
	c, err := client.New(client.Config{URL: w.URL, Timeout: patience})
	require.NoError(t, err)
	defer c.Close()
	assert.NoError(t, c.Reset(t.Context(), "api", "alice"))
}

// A client of an address where nobody listens.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	w := startWeir()
	w.Close()
	c, err := client.New(client.Config{URL: w.URL, FailOpen: true})
	require.NoError(t, err)
	defer c.Close()
	a, err := c.Check(t.Context(), client.Check{Policy: "api", Client: "alice"})
	assert.Error(t, err)
	assert.True(t, a.Allowed)
	_, err = c.Peek(t.Context(), "api", "alice")
	assert.Error(t, err)
	assert.Error(t, c.Reset(t.Context(), "api", "alice"))
}

// A caller that hangs up isn't admitted, whatever its client is for.
func TestACanceledCheckIsNotAdmitted(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{FailOpen: true}, newPolicy("api", fixed("api", 1)))
	h := w.holds()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		a, err := c.Check(ctx, client.Check{Policy: "api", Client: "alice"})
		assert.False(t, a.Allowed)
		done <- err
	}()
	<-h.arrived
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
	close(h.release)
	w.answers(nil)
	w.asked()

	for range 200 {
		_, err := c.Check(ctx, client.Check{Policy: "api", Client: "alice"})
		assert.ErrorIs(t, err, context.Canceled)
	}
	assert.Empty(t, w.asked(), "the caller had gone before")
}

func TestTheStoreFailsAndThePolicyDenies(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", policy.Limit{Name: "broken", Limit: 1, Window: time.Minute, Limiter: brokenLimiter{}})
	p.OnStoreError = policy.StoreErrorDeny
	_, c := start(t, client.Config{FailOpen: true}, p)
	a, err := c.Check(t.Context(), client.Check{Policy: "api", Client: "alice"})
	var problem *client.Problem
	require.ErrorAs(t, err, &problem)
	assert.Equal(t, http.StatusServiceUnavailable, problem.Status)
	assert.False(t, a.Allowed)
	_, err = c.Peek(t.Context(), "api", "alice")
	require.ErrorAs(t, err, &problem)
	assert.Equal(t, http.StatusServiceUnavailable, problem.Status)
}

// A brokenLimiter has a store that never answers.
type brokenLimiter struct{ counters.Limiter }

func (brokenLimiter) Take(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{}, counters.ErrTimeout
}

func (brokenLimiter) Peek(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{}, counters.ErrTimeout
}

func (brokenLimiter) Recall(counters.Request) (counters.Decision, bool) {
	return counters.Decision{}, false
}

func TestConfigsThatCanNotWork(t *testing.T) {
	t.Parallel()
	for _, cfg := range []client.Config{
		{}, {URL: "localhost:8080"}, {URL: "ftp://localhost"}, {URL: "http://"}, {URL: "http://localhost/?a=b"},
		{URL: "http://localhost/#a"}, {URL: "http://a b"}, {URL: "http://localhost", Timeout: -1},
		{URL: "http://localhost", Token: "read from a file\n"},
	} {
		_, err := client.New(cfg)
		assert.Error(t, err, cfg)
	}
	c, err := client.New(client.Config{URL: "http://localhost:8080/weir/", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		assert.Equal(t, "http://localhost:8080/weir/v1/policies/api/clients/alice", r.URL.String())
		return nil, errors.New("not now")
	})})
	require.NoError(t, err)
	assert.ErrorContains(t, c.Reset(t.Context(), "api", "alice"), "not now")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A connection may die without a word: behind a firewall that has forgotten it,
// or with the machine at its end.
func TestADeadConnectionIsLeft(t *testing.T) {
	t.Parallel()
	var first atomic.Pointer[string]
	var dead atomic.Bool
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first.CompareAndSwap(nil, &r.RemoteAddr)
		if dead.Load() && r.RemoteAddr == *first.Load() {
			_, _ = io.Copy(io.Discard, r.Body) // then r ends with its connection
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, `{"results":[{"status":200,"allowed":true,"limits":[]}]}`)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c, err := client.New(client.Config{URL: server.URL})
	require.NoError(t, err)
	defer c.Close()
	c.TrustAnybody()
	alice := client.Check{Policy: "api", Client: "alice"}
	require.Eventually(t, func() bool { // also on a machine that is busy
		_, err := c.Check(t.Context(), alice)
		return err == nil
	}, patience, time.Millisecond)

	dead.Store(true)
	require.Eventually(t, func() bool {
		_, err := c.Check(t.Context(), alice)
		return err == nil
	}, patience, time.Millisecond)
}

// Programs put a transport of their own in the place of the default one, to
// trace requests.
func TestTheDefaultTransportIsAnother(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = http.NewFileTransport(http.Dir("."))
	_, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	assert.True(t, check(t, c, client.Check{Policy: "api", Client: "alice"}).Allowed)
}
