package client_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/api/client"
	"weir/api/policy"
)

// A check has the form of encoding/json, whoever encodes it.
func TestChecksAreEncodedAsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := client.Check{
			Policy: rapid.OneOf(rapid.StringMatching(`[a-z0-9-]{0,63}`), rapid.String()).Draw(t, "policy"),
			Client: rapid.OneOf(rapid.StringMatching(`[ -~]{1,100}`), rapid.StringN(1, 100, 1024)).Draw(t, "client"),
			Cost:   rapid.OneOf(rapid.Just(int64(0)), rapid.Int64()).Draw(t, "cost"),
			Limits: rapid.OneOf(rapid.Just(map[string]int64(nil)), rapid.MapOf(rapid.String(), rapid.Int64())).Draw(t, "limits"),
		}
		got, err := q.Encoded()
		require.NoError(t, err)
		want, err := json.Marshal(q)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got))
	})
}

// bodies returns the bodies of weir's answers to all kinds of checks.
func bodies(t *testing.T) [][]byte {
	t.Helper()
	broken := newPolicy("broken", policy.Limit{Name: "broken", Limit: 1, Window: time.Minute, Limiter: brokenLimiter{}})
	broken.OnStoreError = policy.StoreErrorDeny
	shadow, several := newPolicy("shadow", fixed("shadow", 1)), newPolicy("several", fixed("several", 3), tokens("several", 1))
	shadow.Shadow = true
	setClient(several, "blocked", policy.Terms{Blocked: true})
	setClient(several, "exempt", policy.Terms{Exempt: true})
	w := startWeir(shadow, several, broken, newPolicy("queue", queue("queue", 2, time.Second)))
	defer w.Close()
	w.at(1234 * time.Millisecond)
	var bodies [][]byte
	c, err := client.New(client.Config{URL: w.URL, Timeout: patience, Denials: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		bodies = append(bodies, body)
		response.Body = io.NopCloser(bytes.NewReader(body))
		return response, err
	})})
	require.NoError(t, err)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var checks []client.Check
	for _, policy := range []string{"shadow", "several", "queue", "broken", "none"} {
		for _, name := range []string{"alice", "alice", "alice", "alice", "blocked", "exempt", "zoë", `a "quoted" <name>`, "\x00\u2028\\"} {
			checks = append(checks, client.Check{Policy: policy, Client: name})
		}
	}
	checks = append(checks, client.Check{Policy: "several", Client: "zoë", Limits: map[string]int64{"per-minute": 1e12}})
	for _, r := range c.CheckMany(t.Context(), checks) {
		assert.NotErrorIs(t, r.Err, io.ErrUnexpectedEOF)
	}
	_, _, err = c.CheckAll(t.Context(), checks[:18])
	require.NoError(t, err)
	_, _, err = c.CheckAll(t.Context(), checks)
	assert.Error(t, err, "a policy that there isn't")
	_, err = c.Peek(t.Context(), "several", "alice")
	require.NoError(t, err)
	_, err = c.Peek(t.Context(), "broken", "alice")
	assert.Error(t, err)
	require.Len(t, bodies, 5)
	return bodies
}

func TestWeirsAnswersAreScanned(t *testing.T) {
	t.Parallel()
	for _, body := range bodies(t) {
		all, results, ok := client.Scan(body)
		assert.True(t, ok, "left to encoding/json: %s", body)
		anyAll, anyResults, err := client.DecodeAny(body)
		require.NoError(t, err)
		assert.Equal(t, anyAll, all)
		assert.Equal(t, anyResults, results)
	}
}

// What is scanned means the same to encoding/json.
func FuzzScan(f *testing.F) {
	for _, body := range []string{
		`{"results":[{"status":429,"allowed":false,"policy":"p","client":"a","retry_after":58.766,"wait":0,"degraded":false,"shadow":true,"limits":[` +
			`{"name":"l","algorithm":"fixed_window","allowed":false,"limit":3,"remaining":1,"reset_after":58.766,"retry_after":58.766}]}]}`,
		`{"results":[{"type":"about:blank","title":"Not Found","status":404,"detail":"there is no policy \"x\"","violated-policies":["l"]}]}`,
		``, `{}`, `{"results":[]}`, `{"results":[{}]}` + "\n", ` {}`, `{} {}`, `{"results":[{}],"results":[]}`, `{"Allowed":true}`, `{"allowed":null}`,
		`{"limits":[{"limit":1}],"limits":[{"name":"a"}]}`, `{"limits":[{"limit":01}]}`, `{"limits":[{"limit":-1}]}`, `{"limits":[{"limit":1e3}]}`,
		`{"limits":[{"limit":9223372036854775807}]}`, `{"limits":[{"remaining":9223372036854775808}]}`, `{"limits":[null]}`, `{"limits":[{},]}`,
		`{"wait":1.2345}`, `{"wait":1.}`, `{"wait":0.001}`, `{"wait":1e9}`, `{"wait":99999999999.5}`, `{"client":"\q"}`, `{"client":"\ud800"}`, "{\"client\":\"\xff\"}",
		`{"status":200,"status":300}`, `{"detail":"\u0041\n"}`, `{"type":"a\"b","title":"a"b"}`, "{\"type\":\"\\\"\\\"\xff\",\"title\":\"\"\"\uFFFD\"}", `{"\u0073tatus":1}`, `{"results":[{"results":[{"status":1}]}]}`, `{"results":[{"status":1}],"status":2}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		all, results, ok := client.Scan(body)
		if !ok {
			return
		}
		anyAll, anyResults, err := client.DecodeAny(body)
		require.NoError(t, err)
		assert.Equal(t, anyAll, all)
		assert.Equal(t, anyResults, results)
	})
}

// Others may write an answer anew on its way, in another form.
func TestAnswersOfAnyFormAreRead(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{Denials: -1}, newPolicy("api", fixed("api", 1)))
	alice := client.Check{Policy: "api", Client: "alice"}
	w.answers(func(rw http.ResponseWriter, _ *http.Request) bool {
		_, _ = io.WriteString(rw, `{ "results" : [ {"limits": [{"new": {}, "limit": 3, "reset_after": 1.5e0, "name": "x"}], "allowed": true, "status": 200} ] }`)
		return true
	})
	assert.Equal(t, client.Answer{Allowed: true, Limits: []client.Limit{{Name: "x", Limit: 3, ResetAfter: 1500 * time.Millisecond}}}, check(t, c, alice))
}
