package envoy

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters/racetest"
)

// A modelRule is a descriptor of the model: a list of lists, as in a file.
type modelRule struct {
	key, value string
	limit      int64 // 0: none
	below      []*modelRule
}

// modelFind is the documentation of envoyproxy/ratelimit in a few lines: at each
// level the whole key and value, then the first that matches as a pattern, then
// the key alone; and a limit counts only for the last entry.
func modelFind(level []*modelRule, entries []*common.RateLimitDescriptor_Entry) int64 {
	if len(entries) == 0 || len(level) == 0 {
		return 0
	}
	name := entries[0].Key + "_" + entries[0].Value
	var chosen *modelRule
	for _, matches := range []func(own string) bool{
		func(own string) bool { return own == name },
		func(own string) bool {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(own), `\*`, `(?s:.*)`)
			return strings.Contains(own, "*") && regexp.MustCompile("^"+pattern+"$").MatchString(name)
		},
		func(own string) bool { return own == entries[0].Key },
	} {
		for _, r := range level {
			own := r.key
			if r.value != "" {
				own += "_" + r.value
			}
			if chosen == nil && matches(own) {
				chosen = r
			}
		}
	}
	switch {
	case chosen == nil:
		return 0
	case len(entries) == 1:
		return chosen.limit
	default:
		return modelFind(chosen.below, entries[1:])
	}
}

var (
	modelKeys     = []string{"a", "b", "a_x", "path"}
	modelValues   = []string{"", "x", "xy", "x*", "*y", "x*y", "*", "x*y*z", "**", "/api/*/run"}
	requestValues = []string{"", "x", "xy", "xyz", "xayz", "y", "x*", "yx", "/api/7/run", "/api//run", "/api/run", "xyxy"}
)

// randomRules returns descriptors, and the same as the model has them. Each
// limit is one of its own.
func randomRules(r *rand.Rand, depth int, next *int64) ([]*Descriptor, []*modelRule) {
	var descriptors []*Descriptor
	var model []*modelRule
	parent := new(Descriptor)
	for range r.IntN(7) {
		d := &Descriptor{Key: modelKeys[r.IntN(len(modelKeys))], Value: modelValues[r.IntN(len(modelValues))]}
		m := &modelRule{key: d.Key, value: d.Value}
		if parent.Add(d) != nil {
			continue // there already
		}
		if r.IntN(3) > 0 {
			*next++
			m.limit = *next
			d.Rule = &Rule{Unit: "year", Limit: policy.Limit{Limit: *next}}
		}
		if depth > 1 {
			var below []*Descriptor
			below, m.below = randomRules(r, depth-1, next)
			for _, child := range below {
				if err := d.Add(child); err != nil {
					panic(err)
				}
			}
		}
		descriptors, model = append(descriptors, d), append(model, m)
	}
	return descriptors, model
}

// The limit that an answer of the service shows is that of the model.
func TestRandomRequestsMatchAsTheModelSays(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const files, requests = 50, 200
	found := 0
	for file := range files {
		r := rand.New(rand.NewPCG(uint64(file), 14))
		next := int64(1_000_000)
		descriptors, model := randomRules(r, 3, &next)
		f := serve(t, Off, false, descriptors...)
		for range requests {
			var list []*common.RateLimitDescriptor
			for range 1 + r.IntN(3) {
				d := new(common.RateLimitDescriptor)
				for range r.IntN(5) {
					d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{
						Key: modelKeys[r.IntN(len(modelKeys))], Value: requestValues[r.IntN(len(requestValues))],
					})
				}
				list = append(list, d)
			}
			answer := f.ask(t, list...)
			for i, d := range list {
				want := modelFind(model, d.Entries)
				require.EqualValuesf(t, want, answer.Statuses[i].GetCurrentLimit().GetRequestsPerUnit(), "file %d: %v", file, d.Entries)
				if want > 0 {
					found++
				}
			}
		}
	}
	t.Logf("%d requests, %d limits found", files*requests, found)
	assert.Greater(t, found, 1000)
}

// No two lists of entries are one client.
func TestClientsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, list := range [][]string{
		{"a", "b"}, {"a", "b=c"}, {"a=b", "c"}, {"a", "b|c=d"}, {"a", "b", "c", "d"}, {"a", `b\`, "c", "d"}, {"a", ""}, {"a", "", "", ""},
		{"a", strings.Repeat("x", 2000)}, {"a", strings.Repeat("x", 2001)},
	} {
		client := clientOf("d", entries(list...).Entries)
		assert.Empty(t, seen[client], list)
		assert.LessOrEqual(t, len(client), 1024)
		seen[client] = fmt.Sprint(list)
	}
}

// What detailed_metric, value_to_metric and a name call a limit is what
// envoyproxy/ratelimit calls it.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	leaf := func(change func(*Descriptor)) *Config {
		root := &Descriptor{}
		route := &Descriptor{Key: "route", Value: "api/*"}
		method := limited("method", "", 5)
		change(route)
		if route.DetailedMetric {
			method.DetailedMetric = true
		}
		require.NoError(t, route.Add(method))
		require.NoError(t, root.Add(route))
		return &Config{Domains: map[string]*Descriptor{"d": root}}
	}
	request := entries("route", "api/v1", "method", "GET").Entries
	for _, test := range []struct {
		want   string
		change func(*Descriptor)
	}{
		{"", func(*Descriptor) {}},
		{"d.route_api/v1.method", func(d *Descriptor) { d.ValueToMetric = true }},
		{"d.route_api/*.method", func(d *Descriptor) { d.ValueToMetric, d.ShareThreshold = true, true }},
		{"d.route_api/v1.method_GET", func(d *Descriptor) { d.DetailedMetric = true }},
		{"d.route_api/*.method_GET", func(d *Descriptor) { d.DetailedMetric, d.ShareThreshold = true, true }},
	} {
		assert.Equal(t, test.want, leaf(test.change).find("d", request).metric)
	}
	// All values stand in a detailed name, empty ones too, if nothing in it is shared.
	for share, want := range map[bool]string{false: "d.route_api/v1.method_", true: "d.route_api/*.method"} {
		c := leaf(func(d *Descriptor) { d.DetailedMetric, d.ShareThreshold = true, share })
		assert.Equal(t, want, c.find("d", entries("route", "api/v1", "method", "").Entries).metric)
	}
	named := leaf(func(*Descriptor) {})
	named.EachRule(func(r *Rule, _ string) { r.Name = "n" })
	assert.Equal(t, "d.route_api/*.method", named.find("d", request).metric)
}

// A client's name says what it is made of, whatever that has in it.
func FuzzEntriesOf(f *testing.F) {
	f.Add("shop", "user", "a|b=c", "path", `\\`)
	f.Add("", "", "", "=", "|")
	f.Fuzz(func(t *testing.T, domain, key1, value1, key2, value2 string) {
		want := entries(key1, value1, key2, value2).Entries
		name := clientOf(domain, want)
		if strings.HasPrefix(name, "sha256:") {
			t.Skip("it is a hash")
		}
		gotDomain, got := entriesOf(name)
		assert.Equal(t, domain, gotDomain)
		require.Len(t, got, len(want))
		for i := range want {
			assert.Equal(t, want[i].Key, got[i].Key)
			assert.Equal(t, want[i].Value, got[i].Value)
		}
	})
}

// The limit of a client is found by its name, as it is by a request, and limits are listed
// by what their clients' names have in common.
func TestLimitsAreFoundByTheNamesOfClients(t *testing.T) {
	t.Parallel()
	shared, deep := limited("files", "files/*", 10), limited("user", "a|b", 5)
	shared.ShareThreshold = true
	require.NoError(t, deep.Add(limited("path", "", 1)))
	c := &Config{Domains: map[string]*Descriptor{"d": {}, "e=": {}}}
	for _, d := range []*Descriptor{shared, deep, limited("user", "", 3), {Key: "free", Rule: &Rule{Unlimited: true}}} {
		require.NoError(t, c.Domains["d"].Add(d))
	}
	require.NoError(t, c.Domains["e="].Add(limited("user", "", 4)))
	c.List()
	var patterns []string
	for _, l := range c.All() {
		patterns = append(patterns, l.Pattern)
	}
	assert.Equal(t, []string{`d|files=files/*`, `d|user=*`, `d|user=a\|b`, `d|user=a\|b|path=*`, `e\=|user=*`}, patterns)
	for client, want := range map[string]struct {
		limit     int64 // 0 if there is none
		countedAs string
	}{
		"d|user=x": {3, "d|user=x"}, "d|user=": {3, "d|user="}, `d|user=a\|b`: {5, `d|user=a\|b`}, `d|user=a\|b|path=/`: {1, `d|user=a\|b|path=/`},
		"d|files=files/x": {10, "d|files=files/*"}, "d|files=files/*": {10, "d|files=files/*"}, `e\=|user=x`: {4, `e\=|user=x`},
		"d": {}, "": {}, "user=x": {}, "e|user=x": {}, "d|user=x|path=/": {}, "d|user": {3, "d|user="}, "d|free=x": {}, "d|": {}, "sha256:0": {},
	} {
		l, countedAs := c.Find(client)
		if want.limit == 0 {
			assert.Nil(t, l, client)
			assert.Equal(t, client, countedAs)
			continue
		}
		if assert.NotNil(t, l, client) {
			assert.Equal(t, want.limit, l.Limit, client)
			assert.Equal(t, want.countedAs, countedAs)
		}
	}

	const nobody = "it holds for nobody: no limit of the policy counts such a client"
	const own = "it holds only where requests bring limits of their own: none of the policy counts such a client"
	p := &policy.Policy{Name: PolicyName, Finder: c}
	for key, want := range map[string]string{
		"d|user=x": "", "d|user=*": "", "d|*": "", "*": "", "d|user=x*": "", `d|user=a\|b|path=*`: "", `"d|files=files/*"`: "",
		"user=x": own, "d": own, "d|user=x|path=/": own, "d|free=x": own, "e|*": own, "d|free=*": own, "10.0.0.0/8": nobody, "10.1.2.3": nobody,
		"d|files=files/x": `it holds for nobody: this client is counted as "d|files=files/*"`, "d|user": `it holds for nobody: this client is counted as "d|user="`,
	} {
		k, err := policy.ParseClientKey(key)
		require.NoError(t, err)
		assert.Equal(t, want, p.NoteOn(&policy.Exception{Key: k, Terms: policy.Terms{Blocked: true}}), key)
	}
	k, err := policy.ParseClientKey("d|user=x")
	require.NoError(t, err)
	other := policy.Terms{Limits: map[string]int64{"path": 7}}
	assert.Equal(t, `the limit "path" isn't one of those that count such a client`, p.NoteOn(&policy.Exception{Key: k, Terms: other}))
}

func FuzzWildcard(f *testing.F) {
	for _, seed := range [][2]string{{"a*", "ab"}, {"a*b*c", "abbc"}, {"*", ""}, {"a*a", "a"}, {"**", "x"}, {"a", "a"}, {"\xff*", "\xff\xfe"}, {"*\xa9", "é"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		w := wildcard{parts: strings.Split(pattern, "*")}
		if len(w.parts) == 1 {
			return
		}
		expression := `^` + strings.ReplaceAll(regexp.QuoteMeta(runes(pattern)), `\*`, `(?s:.*)`) + `$`
		want := regexp.MustCompile(expression).MatchString(runes(name))
		assert.Equal(t, want, w.matches(name))
	})
}

// runes returns a rune for each byte of s, as regexp sees no bytes.
func runes(s string) string {
	var all []rune
	for _, b := range []byte(s) {
		all = append(all, rune(b))
	}
	return string(all)
}
