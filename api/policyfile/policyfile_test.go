package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parseText returns the policies in a file, which has to be right by the schema
// too.
func parseText(t *testing.T, text string) policy.Policies {
	t.Helper()
	policies, err := Parse("p.yaml", []byte(text))
	require.NoError(t, err)
	require.NoError(t, newJudge(t).verdict(t, text))
	return policies
}

// embedded returns limiters on a store of this process.
func embedded() *Limiters {
	metrics := telemetry.NewMetrics(prometheus.NewRegistry(), "test")
	return NewLimiters(memory.New(nil), counters.Options{ClockSkew: -1, StoreTimeout: -1}, metrics, nil)
}

// byKey returns exceptions by the keys that the policy file has for them.
func byKey(t *testing.T, clients map[string]policy.Terms) map[policy.ClientKey]policy.Terms {
	t.Helper()
	keyed := make(map[policy.ClientKey]policy.Terms)
	for text, c := range clients {
		key, err := policy.ParseClientKey(text)
		require.NoError(t, err)
		keyed[key] = c
	}
	return keyed
}

// A log is exact as long as its limit is small.
func TestEntriesOfALog(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]policy.Limit{
		"limit: 10000":             {MaxLimit: 10_000},
		"limit: 10001":             {Entries: 64},
		"limit: 100, entries: 9":   {Entries: 9},
		"limit: 20000, entries: 8": {Entries: 8},
	} {
		l := parseText(t, limit("algorithm: sliding_log, window: 1m, "+fields))["p"].Limits[0]
		assert.Equal(t, want, policy.Limit{Entries: l.Entries, MaxLimit: l.MaxLimit}, fields)
	}
}

func TestPolicyFile(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/policies.yaml")
	require.NoError(t, err)
	assert.Equal(t, policy.Policies{
		"api": {
			Name:        "api",
			Description: "public API",
			Limits: []policy.Limit{
				{Name: "per-minute", Algorithm: "sliding_window", Limit: 100, Window: time.Minute, SubWindows: 10, Estimate: "strict"},
				{Name: "fixed-window", Algorithm: "fixed_window", Limit: 20_000, Window: 7 * 24 * time.Hour},
			},
			CountDenied:  true,
			SettleWithin: time.Minute,
			OnStoreError: policy.StoreErrorDeny,
			Shadow:       true,
			Clients: byKey(t, map[string]policy.Terms{
				"gold-co":      {Limits: map[string]int64{"per-minute": 1000, "fixed-window": 500_000}},
				"health-probe": {Exempt: true},
				"abuser":       {Blocked: true},
				"odd one\n":    {},
				"10.0.0.0/8":   {Exempt: true},
				"2001:db8::7":  {Exempt: true},
				"user:*":       {Limits: map[string]int64{"per-minute": 10}},
			}),
			Identify:             []policy.Identifier{{Header: "X-Api-Key"}, {}},
			AuthDenyStatus:       403,
			AuthBadRequestStatus: 401,
			OnMissingClient:      policy.MissingClientAllow, OnMissingPath: policy.MissingPathDeny, IPv4Prefix: 24, IPv6Prefix: 56,
			Routes: []policy.Route{
				{Method: "POST", Path: "/login", Cost: 1, Limits: []policy.Limit{
					{Name: "per-minute", Algorithm: "sliding_window", Limit: 5, Window: time.Minute, SubWindows: 10, Estimate: "strict", Route: "POST /login"},
				}},
				{Path: "/export", Cost: 10},
				{Path: "/static files", Cost: 0},
			},
		},
		"queue": {
			Name: "queue",
			Limits: []policy.Limit{
				{Name: "leaky-bucket", Algorithm: "leaky_bucket", Limit: 10, Window: time.Second, Drains: true, Burst: 50},
				{Name: "token-bucket", Algorithm: "token_bucket", Limit: 20, Window: time.Second, Drains: true},
				{Name: "sliding-log", Algorithm: "sliding_log", Limit: 10_000, Window: time.Hour, MaxLimit: 10_000, CountsRequests: true},
				{Name: "in-flight", Algorithm: "concurrency", Limit: 8, Window: 30 * time.Second, Lease: 30 * time.Second, MaxLimit: 1000},
			},
			Hold:                 true,
			SettleWithin:         10 * time.Minute,
			OnStoreError:         policy.StoreErrorLocal,
			Identify:             []policy.Identifier{{}},
			AuthDenyStatus:       429,
			AuthBadRequestStatus: 400,
			OnMissingClient:      policy.MissingClientDeny, OnMissingPath: policy.MissingPathAllow, IPv4Prefix: 32, IPv6Prefix: 64,
		},
		"plain": {
			Name: "plain",
			Limits: []policy.Limit{
				{Name: "sliding-window", Algorithm: "sliding_window", Limit: 1, Window: 36 * time.Hour, SubWindows: 10, Estimate: "weighted"},
			},
			SettleWithin:         10 * time.Minute,
			OnStoreError:         policy.StoreErrorLocal,
			Identify:             []policy.Identifier{{}},
			AuthDenyStatus:       429,
			AuthBadRequestStatus: 400,
			OnMissingClient:      policy.MissingClientDeny, OnMissingPath: policy.MissingPathAllow, IPv4Prefix: 32, IPv6Prefix: 64,
		},
	}, parseText(t, string(data)))
}

func TestPolicyFileAliases(t *testing.T) {
	t.Parallel()
	policies := parseText(t, `
policies:
  one:
    limits: &limits
      - &fixed {algorithm: fixed_window, limit: &most 7, window: &length 1m}
      - {name: slow, algorithm: sliding_window, limit: *most, window: *length}
    clients: &clients
      vip: &vip {limits: {slow: 70}}
      other: *vip
    identify: &identify [header:X-User]
    routes: &routes [&route {path: /a, limits: &few {slow: 3}}, {path: /b, limits: *few}]
  two: {limits: *limits, clients: *clients, identify: *identify, routes: *routes}
  three: {limits: [*fixed]}
`)
	one, two := policies["one"], policies["two"]
	assert.Equal(t, one.Limits, two.Limits)
	assert.Equal(t, one.Limits[:1], policies["three"].Limits)
	assert.EqualValues(t, 7, one.Limits[1].Limit)
	assert.Equal(t, time.Minute, one.Limits[1].Window)
	assert.Equal(t, byKey(t, map[string]policy.Terms{
		"vip":   {Limits: map[string]int64{"slow": 70}},
		"other": {Limits: map[string]int64{"slow": 70}},
	}), two.Clients)
	assert.Equal(t, one.Routes, two.Routes)
	assert.EqualValues(t, 3, two.Routes[0].Limits[0].Limit)
	assert.Equal(t, []policy.Identifier{{Header: "X-User"}}, two.Identify)
}

// What is common to policies has a place at the top, whatever it is.
// A key that is an alias is what it stands for, and not its name.
func TestPolicyFileAliasesOfKeys(t *testing.T) {
	t.Parallel()
	p := parseText(t, `
x-abuser: &abuser 203.0.113.9
policies:
  p:
    limits: [{algorithm: fixed_window, limit: 1, window: 1m}]
    clients:
      *abuser : {blocked: true}
`)["p"]
	assert.Equal(t, byKey(t, map[string]policy.Terms{"203.0.113.9": {Blocked: true}}), p.Clients)
}

func TestPolicyFileIgnoresExtensions(t *testing.T) {
	t.Parallel()
	policies := parseText(t, `
x-limits: &limits
  - &fixed {algorithm: fixed_window, limit: 7, window: 1m}
x-note: 5
policies:
  one: {limits: *limits}
  two: {limits: [*fixed]}
x-: [{unknown: [key]}]
`)
	assert.Len(t, policies, 2)
	assert.EqualValues(t, 7, policies["one"].Limits[0].Limit)
	assert.Equal(t, policies["one"].Limits, policies["two"].Limits)

	_, err := Parse("p.yaml", []byte("x-policies: {}\n"))
	assert.EqualError(t, err, "p.yaml:1: policies is missing")
	// A mistake in it counts where it is used, and stands where it is written.
	_, err = Parse("p.yaml", []byte("x-limit: &limit {algorithm: fixed_window, limit: 0, window: 1m}\npolicies: {p: {limits: [*limit]}}\n"))
	assert.EqualError(t, err, `p.yaml:1: limit "0" must be a whole number from 1 to 1000000000000`)
}

func TestPolicyFileIsNotTooLarge(t *testing.T) {
	t.Parallel()
	padded := func(size int) string {
		return more() + strings.Repeat("#", size-len(more())-1) + "\n"
	}
	for size, mistake := range map[int]string{maxPolicyBytes: "", maxPolicyBytes + 1: "the file is larger than 1 MB, the most that a policy file may have"} {
		file := filepath.Join(t.TempDir(), "p.yaml")
		require.NoError(t, os.WriteFile(file, []byte(padded(size)), 0o600))
		data, err := Read(file)
		if mistake == "" {
			require.NoError(t, err)
			_, err = Parse(file, data)
			assert.NoError(t, err)
		} else {
			assert.EqualError(t, err, file+": "+mistake)
		}
	}
}

// Clients and routes may come before the limits that they name.
func TestPolicyFileOrderOfKeysIsFree(t *testing.T) {
	t.Parallel()
	policies := parseText(t, `
policies:
  p:
    routes: [{limits: {fixed-window: 3}, path: /login, method: post}]
    clients: {vip: {limits: {fixed-window: 70}}}
    limits: [{window: 1s, limit: 7, algorithm: fixed_window}]
`)
	p := policies["p"]
	assert.Equal(t, byKey(t, map[string]policy.Terms{"vip": {Limits: map[string]int64{"fixed-window": 70}}}), p.Clients)
	assert.Equal(t, "POST /login", p.Routes[0].Limits[0].Route)
}

// limit is a policy file with one limit, {fields}, on line 4.
func limit(fields string) string {
	return "policies:\n  p:\n    limits:\n      - {" + fields + "}\n"
}

// more is a policy file with a right limit, and more lines from line 4.
func more(lines ...string) string {
	return "policies:\n  p:\n    limits: [{algorithm: fixed_window, limit: 9, window: 1m}]\n    " +
		strings.Join(lines, "\n    ") + "\n"
}

// A policyMistake is a policy file that is refused.
type policyMistake struct {
	name string
	text string
	want []string // without the file's name
}

func policyMistakes() []policyMistake {
	const policyKeys = "description, limits, count_denied, hold, settle_within, on_store_error, mode, clients, identify, on_missing_client, on_missing_path, ipv4_prefix, ipv6_prefix, auth_deny_status, auth_bad_request_status, routes"
	const limitKeys = "name, algorithm, limit, window, counts, sub_windows, estimate, burst, entries, lease"
	const algorithms = "fixed_window or sliding_window or token_bucket or leaky_bucket or sliding_log or concurrency"
	const badName = "must be 1 to 63 of a-z, 0-9 and -, and not begin with -"
	const badLimit = "must be a whole number from 1 to 1000000000000"
	const badWindow = "must be whole milliseconds from 100ms to 366 days"
	const badDuration = "must be a duration such as 500ms, 1m, 24h or 7d"
	long := strings.Repeat("x", 64)
	return []policyMistake{
		{"empty file", "", []string{" the file is empty; it needs the key policies"}},
		{"comments only", "# nothing\n", []string{" the file is empty; it needs the key policies"}},
		{"no mapping", "\n- policies\n", []string{"2: the file must be a mapping, keys with values"}},
		{"text", "policies", []string{"1: the file must be a mapping, keys with values"}},
		{"null", "---\n", []string{"2: the file must be a mapping, keys with values; it is empty: indent its keys further"}},
		{"no policies", "{}", []string{"1: policies is missing"}},
		{"policies without value", "policies:\n", []string{"1: policies must be a mapping, keys with values; it is empty: indent its keys further"}},
		{"empty policies", "\npolicies: {}\n", []string{"2: policies is empty; it needs at least one policy"}},
		{"list of policies", "policies: [p]\n", []string{"1: policies must be a mapping, keys with values"}},
		{"second document", more() + "---\npolicies: {}\n", []string{"5: a second document begins here; a policy file is one"}},
		{"tab", "policies:\n\tp: {}\n", []string{"2: the line is indented with a tab; YAML takes only spaces there"}},
		{"unclosed", "policies:\n  p: {limits: [\n", []string{"2: did not find expected node content; a bracket that opens in front of this isn't closed, or a comma is one too many"}},
		{"two commas", limit("algorithm: fixed_window, limit: 1,, window: 1m"),
			[]string{"4: did not find expected node content; a bracket that opens in front of this isn't closed, or a comma is one too many"}},
		{"a brace too many in a list", limit("algorithm: fixed_window, limit: 1, window: 1m}"), []string{"4: a } closes what isn't open"}},
		{"a brace too many in a mapping", "policies:\n  p: {limits: [{algorithm: fixed_window, limit: 1, window: 1m}]}} # {\n", []string{"2: a } closes what isn't open"}},
		{"a bracket too many", "policies:\n  p:\n    identify: [\"header:[\"]]\n    limits: []\n", []string{"3: a ] closes what isn't open"}},
		{"a bracket in a text, and another mistake below", "policies:\n  p:\n    description: b) see [a]]\n    limits: []\n   mode: shadow\n",
			[]string{"5: wrong indentation: the line begins with 3 spaces, and 4, 2 or 0 would be right"}},
		{"unclosed in front of others", "policies:\n  p:\n    limits: [{limit: 1}\n    mode: enforce\n",
			[]string{"3: did not find expected ',' or ']'; a bracket that opens here isn't closed, or a comma is missing"}},
		{"no comma", "policies:\n  p:\n    limits: [{limit: 1 window: 1m}]\n",
			[]string{"3: did not find expected ',' or '}'; a bracket that opens here isn't closed, or a comma is missing"}},
		{"no space behind a colon", "policies:\n  p:\n    limits:\n      - algorithm: fixed_window\n        limit:5\n        window: 1m\n", []string{`5: a space is missing behind "limit:"`}},
		{"no space behind the first colon", "policies:\n  p:\n    limits:\n      - algorithm:fixed_window\n        limit: 5\n", []string{`4: a space is missing behind "algorithm:"`}},
		{"no space behind the last colon", more("mode:shadow"), []string{`4: a space is missing behind "mode:"`}},
		{"no space behind a colon in braces", limit("algorithm: fixed_window, limit:5, window: 1m"), []string{`4: a limit has no key "limit:5"; a space is missing behind "limit:"`}},
		{"no space behind a dash", "policies:\n  p:\n    limits:\n      -algorithm: fixed_window\n       limit: 5\n", []string{`4: a space is missing behind the -`}},
		{"no space behind a dash and in front of braces", "policies:\n  p:\n    limits:\n      -{algorithm: fixed_window, limit: 5}\n", []string{`4: a space is missing behind the -`}},
		{"no space behind a dash further down", "policies:\n  p:\n    limits:\n      - {algorithm: fixed_window, limit: 5, window: 1m}\n      - {algorithm: fixed_window, limit: 5, window: 1s}\n      -{algorithm: fixed_window, limit: 5, window: 1h}\n", []string{`6: a space is missing behind the -`}},
		{"no space in front of a path", more("routes:", "  - path:/login", "    cost: 2"), []string{`5: a space is missing behind "path:"`}},
		{"a header is no key", more("identify:", "  - header:X", "  y: z"), []string{"5: did not find expected '-' indicator"}},
		{"unclosed quote", limit(`algorithm: fixed_window, limit: "5, window: 1m`), []string{"4: found unexpected end of stream; a quote that opens in front of this isn't closed"}},
		{"begins with a character that YAML has for itself", more("description: @home"), []string{"4: found character that cannot start any token; a value that begins with @, ` or % has to be in quotes"}},
		{"text behind text", "policies:\n  p:\n    limits: \"x\" y\n", []string{"3: did not find expected key"}},
		{"no such anchor", "policies: *p\n", []string{"1: unknown anchor 'p' referenced; a key or value that begins with * or & has to be in quotes"}},
		{"star and a word as a client", more("# *foobar", "clients:", "  *foobar : {}", "  *foo: {exempt: true}"),
			[]string{"6: unknown anchor 'foobar' referenced; a key or value that begins with * or & has to be in quotes"}},
		{"control character", more("# \u00e9", "description: \"a\x01b\""), []string{`5: control characters are not allowed; take out what can't be seen there`}},
		{"YAML 1.2", "# weir\n%YAML 1.2\n---\npolicies: {}\n", []string{"2: found incompatible YAML document; leave this line out"}},
		{"YAML 1.2 on the first line", "%YAML 1.2\n---\npolicies: {}\n", []string{"1: found incompatible YAML document; leave this line out"}},
		{"no such tag", "policies:\n  api: !a!b {}\n", []string{"2: found undefined tag handle"}},
		{"Latin-1", more("description: caf\u00e9", "mode: caf\xe9"), []string{"5: incomplete UTF-8 octet sequence; the file has to be in UTF-8"}},
		{"star as a client", more("clients:", "  a: {}", "  *: {exempt: true}", "mode: shadow"),
			[]string{"6: did not find expected alphabetic or numeric character; a key or value that begins with * or & has to be in quotes"}},
		{"star and a domain as a client", more("clients:", "  *.example.com: {exempt: true}", "mode: shadow"),
			[]string{"5: did not find expected alphabetic or numeric character; a key or value that begins with * or & has to be in quotes"}},
		{"star on the first line", "policies: *\n",
			[]string{"1: did not find expected alphabetic or numeric character; a key or value that begins with * or & has to be in quotes"}},
		{"anchor without a name", more("clients:", "  c: &", "  d: {}"),
			[]string{"5: did not find expected alphabetic or numeric character; a key or value that begins with * or & has to be in quotes"}},
		{"syntax error in a second document", "policies: {}\n---\n\t\n", []string{"3: the line is indented with a tab; YAML takes only spaces there"}},

		{"a window of what is under way", limit("algorithm: concurrency, limit: 1, lease: 1m, window: 1m"),
			[]string{`4: a concurrency has a lease, and no window: it limits how many are under way at once`}},
		{"no lease", limit("algorithm: concurrency, limit: 1"),
			[]string{`4: the limit has no lease, how long what is under way counts if it is neither settled nor renewed, such as 30s`}},
		{"a short lease", limit("algorithm: concurrency, limit: 1, lease: 999ms"), []string{`4: lease "999ms" must be a duration from 1 s to 1 h`}},
		{"too many places", limit("algorithm: concurrency, limit: 1001, lease: 1m"),
			[]string{`4: limit 1001 of what is under way at once must be from 1 to 1000`}},
		{"forward auth of what is under way", limit("algorithm: concurrency, limit: 1, lease: 1m") + "    identify: [ip]\n",
			[]string{`5: identify is for /v1/auth, and policy "p" has the limit "concurrency" of what is under way: a proxy doesn't tell when that ends`}},
		{"receipts of two days", more("settle_within: 2d"), []string{`4: settle_within "2d" must be a duration from 1 s to 1 day`}},
		{"unknown key of the file", "policy: {}\n", []string{`1: the file has no key "policy"; it may have policies`}},
		{"unknown key of a policy", more("limit: []"), []string{`4: policy "p" has no key "limit", but a limit has: check the indentation, or did you mean "limits"? It may have ` + policyKeys}},
		{"unknown key of a limit", limit("algorithm: fixed_window, limit: 1, window: 1m, per: 1m"),
			[]string{`4: a limit has no key "per"; it may have ` + limitKeys}},
		{"unknown key of a client", more("clients:", "  c: {limit: 1}"),
			[]string{`5: client "c" has no key "limit", but a limit has: check the indentation, or did you mean "limits"? It may have limits, exempt, blocked`}},
		{"merge key", more("<<: {mode: shadow}"), []string{`4: policy "p" has no key "<<"; mappings aren't merged: use an alias for each value, such as limits: *name`}},

		{"an address in brackets", more("clients:", "  [2001:db8::1]: {blocked: true}"), []string{`5: clients has a key that is no text; one that begins with [ or { has to be in quotes`}},
		{"policies twice", more() + "policies: {}\n", []string{`5: the file has "policies" already, on line 1`}},
		{"policy twice", more() + "  p: {}\n", []string{`5: policies has "p" already, on line 2`}},
		{"key of a policy twice", more("mode: shadow", "mode: enforce"), []string{`5: policy "p" has "mode" already, on line 4`}},
		{"key of a limit twice", limit("algorithm: fixed_window, limit: 1, window: 1m, limit: 2"),
			[]string{`4: a limit has "limit" already, on line 4`}},
		{"client twice", more("clients:", "  c: {}", "  c: {}"), []string{`6: clients has "c" already, on line 5`}},

		{"policy name", "policies:\n  A b: {}\n", []string{`2: policy name "A b" ` + badName}},
		{"policy name begins with -", "policies:\n  -p: {}\n", []string{`2: policy name "-p" ` + badName}},
		{"long policy name", "policies:\n  " + long + ": {}\n", []string{`2: policy name "` + long + `" ` + badName}},
		{"policy without limits", "policies:\n  p: {mode: shadow}\n", []string{`2: policy "p" has no limits; it needs at least one`}},
		{"policy without value", "policies:\n  p:\n", []string{`2: policy "p" must be a mapping, keys with values; it is empty: indent its keys further`}},
		{"empty limits", "policies:\n  p:\n    limits: []\n", []string{`3: limits is empty; policy "p" needs at least one limit`}},
		{"limits is a mapping", "policies:\n  p:\n    limits: {a: 1}\n", []string{"3: limits must be a list, with - in front of each item"}},
		{"limit is a number", "policies:\n  p:\n    limits: [100]\n", []string{"3: a limit must be a mapping, keys with values"}},

		{"no algorithm", limit("limit: 1, window: 1m"), []string{"4: the limit has no algorithm; it must be " + algorithms}},
		{"no limit", limit("algorithm: fixed_window, window: 1m"), []string{"4: the limit has no limit, the number that is admitted per window"}},
		{"no window", limit("algorithm: fixed_window, limit: 1"), []string{"4: the limit has no window, a duration such as 1m"}},
		{"ip twice", more("identify: [ip, header:A, ip]"), []string{`4: identify has "ip" already; leave it out here`}},
		{"header twice", more("identify: [ip, header:X-Key, header:x-key]"), []string{`4: identify has "header:X-Key" already; leave it out here`}},
		{"unknown algorithm", limit("algorithm: fixed, limit: 1, window: 1m"),
			[]string{`4: algorithm "fixed" must be ` + algorithms + `; did you mean "fixed_window"?`}},
		{"limit 0", limit("algorithm: fixed_window, limit: 0, window: 1m"), []string{`4: limit "0" ` + badLimit}},
		{"limit too large", limit("algorithm: fixed_window, limit: 1000000000001, window: 1m"), []string{`4: limit "1000000000001" ` + badLimit}},
		{"limit beyond 64 bits", limit("algorithm: fixed_window, limit: 99999999999999999999, window: 1m"), []string{`4: limit "99999999999999999999" ` + badLimit}},
		{"limit is a fraction", limit("algorithm: fixed_window, limit: 1.5, window: 1m"), []string{`4: limit "1.5" ` + badLimit}},
		{"limit is text", limit("algorithm: fixed_window, limit: '100', window: 1m"), []string{`4: limit "100" is text; write it without quotes`}},
		{"window without unit", limit("algorithm: fixed_window, limit: 1, window: 60"), []string{`4: window "60" ` + badDuration}},
		{"window in part days", limit("algorithm: fixed_window, limit: 1, window: 1.5d"), []string{`4: window "1.5d" ` + badDuration}},
		{"window is a list", limit("algorithm: fixed_window, limit: 1, window: [1m]"), []string{`4: window "" ` + badDuration}},
		{"limit that begins with 0", limit("algorithm: fixed_window, limit: 0100, window: 1m"), []string{`4: limit "0100" begins with 0, by which YAML means the base 8; write it without`}},
		{"limit that begins with 0 and _", limit("algorithm: fixed_window, limit: 0_100, window: 1m"), []string{`4: limit "0_100" begins with 0, by which YAML means the base 8; write it without`}},
		{"window too short", limit("algorithm: fixed_window, limit: 1, window: 99ms"), []string{`4: window 99ms ` + badWindow}},
		{"window negative", limit("algorithm: sliding_window, limit: 1, window: -1m"), []string{`4: window "-1m" ` + badDuration}},
		{"window too long", limit("algorithm: sliding_window, limit: 1, window: 367d"), []string{`4: window 8808h0m0s ` + badWindow}},
		{"window beyond 64 bits", limit("algorithm: fixed_window, limit: 1, window: 999999d"), []string{`4: window "999999d" ` + badDuration}},
		{"window in part milliseconds", limit("algorithm: fixed_window, limit: 1, window: 1s1us"), []string{`4: window 1.000001s ` + badWindow}},
		{"slots in part milliseconds", limit("algorithm: sliding_window, limit: 1, window: 1m, sub_windows: 7"),
			[]string{"4: sub_windows 7 cuts 1m0s into slots that aren't whole milliseconds; use 6 or 8"}},
		{"default slots in part milliseconds", limit("algorithm: sliding_window, limit: 1, window: 101ms"),
			[]string{"4: sub_windows 10 cuts 101ms into slots that aren't whole milliseconds; use 1 or 101"}},
		{"no slots", limit("algorithm: sliding_window, limit: 1, window: 1m, sub_windows: 0"),
			[]string{`4: sub_windows "0" must be a whole number from 1 to 3600`}},
		{"too many slots", limit("algorithm: sliding_window, limit: 1, window: 1h, sub_windows: 3601"),
			[]string{`4: sub_windows "3601" must be a whole number from 1 to 3600`}},
		{"estimate", limit("algorithm: sliding_window, limit: 1, window: 1m, estimate: exact"),
			[]string{`4: estimate "exact" must be weighted or capped or strict`}},
		{"sub_windows of a fixed window", limit("algorithm: fixed_window, limit: 1, window: 1m, sub_windows: 4"),
			[]string{"4: sub_windows and estimate are for sliding_window only, and this limit is a fixed_window"}},
		{"estimate of a fixed window", limit("algorithm: fixed_window, limit: 1, window: 1m, estimate: strict"),
			[]string{"4: sub_windows and estimate are for sliding_window only, and this limit is a fixed_window"}},
		{"burst of a window", limit("algorithm: sliding_window, limit: 1, window: 1m, burst: 5"),
			[]string{"4: burst is for token_bucket and leaky_bucket only, and this limit is a sliding_window"}},
		{"burst of a log", limit("algorithm: sliding_log, limit: 1, window: 1m, burst: 5"),
			[]string{"4: burst is for token_bucket and leaky_bucket only, and this limit is a sliding_log"}},
		{"burst 0", limit("algorithm: token_bucket, limit: 1, window: 1m, burst: 0"), []string{`4: burst "0" ` + badLimit}},
		{"sub_windows of a bucket", limit("algorithm: token_bucket, limit: 1, window: 1m, sub_windows: 4"),
			[]string{"4: sub_windows and estimate are for sliding_window only, and this limit is a token_bucket"}},
		{"window of a bucket", limit("algorithm: leaky_bucket, limit: 1, window: 99ms"), []string{`4: window 99ms ` + badWindow}},
		{"entries of a bucket", limit("algorithm: token_bucket, limit: 1, window: 1m, entries: 8"),
			[]string{"4: entries is for sliding_log only, and this limit is a token_bucket"}},
		{"too few entries", limit("algorithm: sliding_log, limit: 1, window: 1m, entries: 7"), []string{`4: entries "7" must be a whole number from 8 to 1024`}},
		{"too many entries", limit("algorithm: sliding_log, limit: 1, window: 1m, entries: 1025"), []string{`4: entries "1025" must be a whole number from 8 to 1024`}},
		{"a client's log that is too long", "policies:\n  p:\n    limits: [{algorithm: sliding_log, limit: 9, window: 1m}]\n    clients: {c: {limits: {sliding-log: 10001}}}\n",
			[]string{`4: sliding-log "10001" must be a whole number from 1 to 10000`}},
		{"hold without a queue", more("hold: true"), []string{`4: hold needs a limit that makes requests wait, a leaky_bucket, and policy "p" has none`}},
		{"hold", more("hold: 1"), []string{`4: hold "1" must be true or false`}},
		{"limit name", limit("name: Per_Minute, algorithm: fixed_window, limit: 1, window: 1m"), []string{`4: limit name "Per_Minute" ` + badName}},
		{"limit name is a number", limit("name: 5, algorithm: fixed_window, limit: 1, window: 1m"), []string{`4: name must be text; write it in quotes: "5"`}},
		{"limit names twice", "policies:\n  p:\n    limits:\n" + strings.Repeat("      - {algorithm: fixed_window, limit: 1, window: 1m}\n", 2),
			[]string{`5: policy "p" has a limit named "fixed-window" already; give this one a name of its own`}},

		{"description", more("description: [a]"), []string{"4: description must be text"}},
		{"count_denied", more("count_denied: 'yes'"), []string{`4: count_denied "yes" must be true or false`}},
		{"on_store_error", more("on_store_error: ignore"), []string{`4: on_store_error "ignore" must be local or allow or deny`}},
		{"mode", more("mode: {a: b}"), []string{`4: mode "" must be enforce or shadow`}},
		{"auth_deny_status", more("auth_deny_status: 200"), []string{`4: auth_deny_status "200" must be a whole number from 400 to 599`}},
		{"identify is text", more("identify: ip"), []string{"4: identify must be a list, with - in front of each item"}},
		{"identify by something else", more("identify: [ip, cookie:id]"), []string{`4: identify "cookie:id" must be ip or header:<name>, such as header:X-Api-Key`}},
		{"identify by no header", more("identify: ['header:']"), []string{`4: identify "header:" must be ip or header:<name>, such as header:X-Api-Key`}},
		{"identify by an impossible header", more("identify: ['header:X Y']"), []string{`4: identify "header:X Y" names no header that can exist; its name may have letters, digits, - and _`}},
		{"identify by a header that is no ASCII", more("identify: ['header:Schlüssel']"), []string{`4: identify "header:Schlüssel" names no header that can exist; its name may have letters, digits, - and _`}},
		{"identify by what never arrives", more("identify:", "  - header:host", "  - header:Transfer-Encoding"), []string{
			`5: identify "header:host": Host never arrives as clients send it; name another header, such as X-Forwarded-Host or X-Api-Key`,
			`6: identify "header:Transfer-Encoding": Transfer-Encoding never arrives as clients send it; name another header, such as X-Forwarded-Host or X-Api-Key`,
		}},
		{"on_missing_client", more("on_missing_client: 400"), []string{`4: on_missing_client "400" must be deny or allow`}},
		{"ipv4_prefix", more("ipv4_prefix: 0"), []string{`4: ipv4_prefix "0" must be a whole number from 1 to 32`}},
		{"ipv6_prefix", more("ipv6_prefix: /64"), []string{`4: ipv6_prefix "/64" must be a whole number from 1 to 128`}},
		{"identify by nothing", more("identify: []"), []string{"4: identify is empty; leave it out to identify clients by ip"}},
		{"clients is a list", more("clients: [a]"), []string{"4: clients must be a mapping, keys with values"}},
		{"client is empty", more("clients: {'': {}}"), []string{"4: a client must be 1 to 1024 bytes"}},
		{"client is long", more("clients:", "  ? "+strings.Repeat("x", 1025), "  : {}"), []string{"5: a client must be 1 to 1024 bytes"}},
		{"client that is a wrong range", more("clients:", "  10.0.0.0/33: {exempt: true}", "  10.0.0.1/8: {exempt: maybe}"), []string{
			`5: client "10.0.0.0/33" is no address range; one is 10.0.0.0/8 or 2001:db8::/32`,
			`6: client "10.0.0.1/8" names an address within a range; write 10.0.0.0/8 for the range, or the address alone`,
			`6: exempt "maybe" must be true or false`,
		}},
		{"client with a * within", more("clients:", "  'a*b': {exempt: true}"), []string{
			`5: client "a*b" has a * before its end; only at the end does it stand for what follows, and a name that has one is a key in double quotes`}},
		{"client twice in other words", more("clients:", "  2001:db8::1: {}", "  2001:DB8:0::1/128: {}"), []string{
			`6: client "2001:DB8:0::1/128" is the same as the one on line 5`}},
		{"client without value", more("clients:", "  c:"), []string{`5: client "c" must be a mapping, keys with values; it is empty: indent its keys further`}},
		{"client's unknown limit", more("clients:", "  c:", "    limits:", "      per-hour: 1"), []string{`7: policy "p" has no limit "per-hour"; it has fixed-window`}},
		{"client's bad limit", more("clients:", "  c: {limits: {fixed-window: none}}"), []string{`5: fixed-window "none" ` + badLimit}},
		{"client exempt and blocked", more("clients:", "  c: {exempt: true, blocked: true}"), []string{`5: client "c" can't be both exempt and blocked`}},
		{"client exempt by text", more("clients: {c: {exempt: 1}}"), []string{`4: exempt "1" must be true or false`}},

		{"routes is a mapping", more("routes: {path: /}"), []string{"4: routes must be a list, with - in front of each item"}},
		{"no routes", more("routes: []"), []string{"4: routes is empty; leave it out if all requests are alike"}},
		{"route is a path", more("routes: [/login]"), []string{"4: a route must be a mapping, keys with values"}},
		{"route's key", more("routes: [{paths: /login}]"), []string{`4: a route has no key "paths"; did you mean "path"? It may have method, path, limits, cost`}},
		{"route without path", more("routes: [{method: POST, cost: 2}]"), []string{"4: the route has no path; / is all paths"}},
		{"route that changes nothing", more("routes:", "  - {method: POST, path: /login}", "  - {path: /x, limits: {}}"), []string{
			"5: the route POST /login has neither limits nor a cost, so it changes nothing",
			"6: the route /x has neither limits nor a cost, so it changes nothing",
		}},
		{"route's method", more("routes:", "  - {method: '*', path: /, cost: 2}", "  - {method: [GET], path: /, cost: 2}"), []string{
			`5: method "*" must be an HTTP method such as POST; leave it out for all methods`,
			`6: method "" must be an HTTP method such as POST; leave it out for all methods`,
		}},
		{"route's path", more("routes:", "  - {path: login, cost: 2}", "  - {path: /a//b/, cost: 2}", "  - {path: /users/*, cost: 2}"), []string{
			`5: path "login" must begin with /`,
			`6: path "/a//b/" must be written as "/a/b"; it holds for all paths below it too`,
			`7: path "/users/*" has a placeholder; a path holds for all paths below it, so end it before that`,
		}},
		{"route twice", more("routes:", "  - {method: post, path: /login, cost: 2}", "  - {path: /login, cost: 2}", "  - {method: POST, path: /Login, cost: 3}"), []string{
			`7: policy "p" has a route POST /Login already, on line 5; upper and lower case make no difference`}},
		{"route's unknown limit", more("routes:", "  - {path: /, limits: {per-hour: 1}}"), []string{`5: policy "p" has no limit "per-hour"; it has fixed-window`}},
		{"route's bad limit", more("routes:", "  - {path: /, limits: {fixed-window: 0}}"), []string{`5: fixed-window "0" ` + badLimit}},
		{"route's bad cost", more("routes:", "  - {path: /, cost: 1000000001}"), []string{`5: cost "1000000001" must be a whole number from 0 to 1000000000`}},
		{"route that costs too much", more("routes:", "  - {path: /a, cost: 10}", "  - {path: /b, cost: 9}", "  - {path: /c, cost: 9, limits: {fixed-window: 8}}"), []string{
			`5: cost 10 of the route /a is above the limit "fixed-window", which admits at most 9 at once, and could never be admitted`,
			`7: cost 9 of the route /c is above the limit "fixed-window", which admits at most 8 at once, and could never be admitted`,
		}},
		{"route that costs too much for a client", more("routes:", "  - {path: /a, cost: 9}", "  - {path: /b, cost: 9, limits: {fixed-window: 9}}", "clients: {'user:*': {limits: {fixed-window: 8}}}"), []string{
			`5: cost 9 of the route /a is above the fixed-window of each client that begins with "user:", which is 8, and could never be admitted`,
		}},
		{"misspelt key of a policy", more("on_store_eror: deny"),
			[]string{`4: policy "p" has no key "on_store_eror"; did you mean "on_store_error"? It may have ` + policyKeys}},
		{"key of a policy in other letters", more("countDenied: true"),
			[]string{`4: policy "p" has no key "countDenied"; did you mean "count_denied"? It may have ` + policyKeys}},
		{"misspelt key of a limit", limit("algorithm: sliding_window, limit: 1, window: 1m, subwindows: 4"),
			[]string{`4: a limit has no key "subwindows"; did you mean "sub_windows"? It may have ` + limitKeys}},
		{"misspelt key of a client", more("clients: {c: {exmept: true}}"),
			[]string{`4: client "c" has no key "exmept"; did you mean "exempt"? It may have limits, exempt, blocked`}},
		{"misspelt algorithm", limit("algorithm: tokn-bucket, limit: 1, window: 1m"),
			[]string{`4: algorithm "tokn-bucket" must be ` + algorithms + `; did you mean "token_bucket"?`}},
		{"beginning of two algorithms", limit("algorithm: sliding, limit: 1, window: 1m"), []string{`4: algorithm "sliding" must be ` + algorithms}},
		{"misspelt estimate", limit("algorithm: sliding_window, limit: 1, window: 1m, estimate: Strikt"),
			[]string{`4: estimate "Strikt" must be weighted or capped or strict; did you mean "strict"?`}},
		{"misspelt on_store_error", more("on_store_error: alow"), []string{`4: on_store_error "alow" must be local or allow or deny; did you mean "allow"?`}},
		{"misspelt mode", more("mode: shaddow"), []string{`4: mode "shaddow" must be enforce or shadow; did you mean "shadow"?`}},
		{"misspelt limit of a client", more("clients: {c: {limits: {fixed_window: 5}}}"),
			[]string{`4: policy "p" has no limit "fixed_window"; did you mean "fixed-window"?`}},

		{"number in quotes", more(`auth_deny_status: "403"`), []string{`4: auth_deny_status "403" is text; write it without quotes`}},
		{"wrong number in quotes", more(`auth_deny_status: "200"`), []string{`4: auth_deny_status "200" must be a whole number from 400 to 599`}},
		{"client's number in quotes", more("clients: {c: {limits: {fixed-window: '5'}}}"), []string{`4: fixed-window "5" is text; write it without quotes`}},
		{"boolean in quotes", more("hold: 'false'"), []string{`4: hold "false" is text; write it without quotes`}},
		{"text that is a number", more("description: 5"), []string{`4: description must be text; write it in quotes: "5"`}},

		{"variable", limit(`algorithm: fixed_window, limit: "${LIMIT}", window: 1m`),
			[]string{`4: limit "${LIMIT}" ` + badLimit + "; environment variables aren't expanded"}},
		{"variable that breaks YAML", limit(`algorithm: fixed_window, limit: ${LIMIT}, window: 1m`),
			[]string{"4: environment variables aren't expanded; write the value in the place of ${LIMIT}"}},
		{"variable without braces", more("mode: $MODE"), []string{`4: mode "$MODE" must be enforce or shadow; environment variables aren't expanded`}},
		{"variable as a client", more("clients:", "  ${VIP}: {}"), []string{`5: client "${VIP}" has no name; environment variables aren't expanded`}},
		{"variable as a policy", "policies:\n  ${NAME}: {}\n", []string{`2: policy name "${NAME}" ` + badName + "; environment variables aren't expanded"}},

		{"tab after a list's dash", "policies:\n  p:\n    limits:\n      -\talgorithm: fixed_window\n",
			[]string{"4: the line is indented with a tab; YAML takes only spaces there"}},
		{"tab further down", more("mode: shadow", "clients:", "\tc: {}"), []string{"6: the line is indented with a tab; YAML takes only spaces there"}},

		{"indented too little", "policies:\n  p:\n    mode: shadow\n   limits: []\n",
			[]string{"4: wrong indentation: the line begins with 3 spaces, and 4, 2 or 0 would be right"}},
		{"indented by one space", "policies:\n  p:\n    mode: shadow\n limits: []\n",
			[]string{"4: wrong indentation: the line begins with 1 space, and 4, 2 or 0 would be right"}},
		{"indented too far", "policies:\n  p:\n    mode: shadow\n      limits: []\n",
			[]string{"4: wrong indentation: the line begins with 6 spaces, and 4, 2 or 0 would be right"}},
		{"no colon", "policies\n\n  # all\n  p: {}\n", []string{`1: a colon is missing behind "policies": the lines below it are indented`}},
		{"no colon further down", more("clients # ours", "  c: {}"), []string{`4: a colon is missing behind "clients": the lines below it are indented`}},
		{"indented too little in a list", "policies:\n  p:\n    limits:\n      - algorithm: fixed_window\n       limit: 1\n",
			[]string{"5: wrong indentation: the line begins with 7 spaces, and 8, 6, 4, 2 or 0 would be right"}},
		{"indented too far in a list", "policies:\n  p:\n    limits:\n      - algorithm: fixed_window\n         limit: 1\n",
			[]string{"5: wrong indentation: the line begins with 9 spaces, and 8, 6, 4, 2 or 0 would be right"}},
		{"two dashes at different columns", "policies:\n  p:\n    limits:\n      - {algorithm: fixed_window, limit: 1, window: 1m}\n     - {algorithm: fixed_window, limit: 1, window: 1m}\n",
			[]string{"5: wrong indentation: the line begins with 5 spaces, and 8, 6, 4, 2 or 0 would be right"}},
		{"indented wrongly below a comment, a text and brackets", "policies:\n# no\n  p:\n    description: |\n         a: b\n       c\n    limits: [\n {algorithm: fixed_window,\n limit: 1, window: 1m}]\n   mode: shadow\n",
			[]string{"10: wrong indentation: the line begins with 3 spaces, and 4, 2 or 0 would be right"}},
		{"colon in a text", more("description: public: API"), []string{`4: mapping values are not allowed in this context; a value with ": " in it has to be in quotes`}},
		{"keys beside their policy", "policies:\n  p:\n  limits: []\n  count_denied: true\n", []string{
			`2: policy "p" must be a mapping, keys with values; it is empty: indent its keys further`,
			`3: policy "limits" must be a mapping, keys with values; or if it is meant as a key of a policy, check the indentation`,
			`4: policy "count_denied" must be a mapping, keys with values; or if it is meant as a key of a policy, check the indentation`,
		}},
		{"policies beside policies", "policies:\np:\n  limits: []\n", []string{
			"1: policies must be a mapping, keys with values; it is empty: indent its keys further",
			`2: the file has no key "p"; it may have policies`,
		}},
		{"key of a policy in the file", more() + "mode: shadow\n", []string{`5: the file has no key "mode", but a policy has: check the indentation; it may have policies`}},
		{"key of a limit in a policy", "policies:\n  p:\n    limits:\n    - algorithm: fixed_window\n      limit: 1\n    window: 1m\n", []string{
			"4: the limit has no window, a duration such as 1m",
			`6: policy "p" has no key "window", but a limit has: check the indentation; it may have ` + policyKeys,
		}},
		{"key of a policy in a limit", limit("algorithm: fixed_window, limit: 1, window: 1m, on_store_error: deny"),
			[]string{`4: a limit has no key "on_store_error", but a policy has: check the indentation; it may have ` + limitKeys}},
		{"x- is for the top only", more("x-note: 1"), []string{`4: policy "p" has no key "x-note"; it may have ` + policyKeys}},

		{"many mistakes", strings.Join([]string{
			"polices: {}",            // 1
			"policies:",              // 2
			"  One: {}",              // 3
			"  two:",                 // 4
			"    limits:",            // 5
			"      - {algorithm: a}", // 6
			"      - name: slow",     // 7
			"        algorithm: fixed_window",
			"        limit: 1",    // 9
			"        window: 1ms", // 10
			"      - name: fast",  // 11
			"        limit: x",    // 12
			"    mode: off",       // 13
			"    clients:",        // 14
			"      c: {limits: {slow: 5, fast: 5, none: 5}}",
		}, "\n"), []string{
			`1: the file has no key "polices"; did you mean "policies"? It may have policies`,
			`3: policy name "One" ` + badName,
			`6: algorithm "a" must be ` + algorithms,
			`10: window 1ms ` + badWindow,
			`12: limit "x" ` + badLimit,
			`13: mode "off" must be enforce or shadow`,
			`15: policy "two" has no limit "none"; it has slow, fast`,
		}},
	}
}

func TestPolicyFileMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range policyMistakes() {
		t.Run(test.name, func(t *testing.T) {
			policies, err := Parse("p.yaml", []byte(test.text))
			require.Error(t, err)
			assert.Nil(t, policies)
			var want []string
			for _, message := range test.want {
				want = append(want, "p.yaml:"+message)
			}
			assert.Equal(t, want, strings.Split(err.Error(), "\n"))
		})
	}
}

// A file is refused with a message that names it, or it is one that a server
// takes, and the schema too.
func FuzzPolicyFile(f *testing.F) {
	schema := newJudge(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		policies, err := Parse("p.yaml", data)
		if err != nil {
			require.Nil(t, policies)
			for line := range strings.Lines(err.Error()) {
				require.NotEmpty(t, strings.TrimSpace(line))
			}
			require.Contains(t, err.Error(), "p.yaml:")
			return
		}
		require.NotEmpty(t, policies)
		require.NoError(t, schema.verdict(t, string(data)))
		require.NoError(t, embedded().Bind(policies))
		require.NotEmpty(t, Describe(policies))
	})
}
