package policyfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/envoy"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memory"
)

// envoyRules returns the rules of a file by the name that headers give them.
func envoyRules(t *testing.T, text string) map[string]*envoy.Rule {
	t.Helper()
	config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(text)}}, EnvoyOptions{Algorithm: "fixed_window"})
	require.NoError(t, err)
	rules := map[string]*envoy.Rule{}
	config.EachRule(func(r *envoy.Rule, _ string) { rules[r.Limit.Name] = r })
	return rules
}

func TestEnvoyFile(t *testing.T) {
	t.Parallel()
	rules := envoyRules(t, `
domain: shop
descriptors:
  - key: tenant
    value: 42                   # as text, as theirs reads it
    rate_limit: {unit: Minute, requests_per_unit: 7, name: t, replaces: [{name: other}]}
    shadow_mode: yes
  - key: tenant
    rate_limit: {unit: month, requests_per_unit: 0}
    quota_mode: true
    metadata: {team: [a, b], weir: {algorithm: sliding_window, sub_windows: 6, estimate: strict}}
    descriptors:
      - key: path
        value: /a/*/b
        share_threshold: true
        detailed_metric: true
        value_to_metric: true
        rate_limit: {unit: year, requests_per_unit: 4294967295}
  - key: both
    rate_limit: {unit: day, requests_per_unit: 1}
    shadow_mode: true
    quota_mode: true
  - key: free
    rate_limit: {unlimited: true}
    descriptors:
  - key: whitelisted
`)
	require.Len(t, rules, 4)
	assert.Equal(t, policy.ShadowQuota, rules["both"].Limit.Leniency)
	named := rules["tenant_42"]
	assert.Equal(t, "t", named.Name)
	assert.Equal(t, []string{"other"}, named.Replaces)
	assert.Equal(t, policy.Shadow, named.Limit.Leniency)
	assert.Equal(t, policy.Limit{Name: "tenant_42", Algorithm: "fixed_window", Limit: 7, Window: time.Minute, Leniency: policy.Shadow, CountDenied: true}, named.Limit)
	assert.Equal(t, policy.Limit{Name: "tenant", Algorithm: "sliding_window", Window: 30 * 24 * time.Hour, SubWindows: 6, Estimate: "strict", Leniency: policy.Quota},
		rules["tenant"].Limit)
	assert.Equal(t, policy.Quota, rules["tenant"].Limit.Leniency)
	assert.EqualValues(t, 4294967295, rules["tenant.path_/a/*/b"].Limit.Limit)
	assert.Equal(t, 365*24*time.Hour, rules["tenant.path_/a/*/b"].Limit.Window)
}

// Rules that count in different ways have limits of their own in the store; a
// larger or smaller number is none.
func TestEnvoyLimitsInTheStore(t *testing.T) {
	t.Parallel()
	config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: sliding_log}}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 90}, metadata: {weir: {algorithm: sliding_log, entries: 32}}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 20000}, metadata: {weir: {algorithm: sliding_log}}}
  - {key: d, rate_limit: {unit: day, requests_per_unit: 50000}, metadata: {weir: {algorithm: sliding_log}}}
  - {key: e, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: token_bucket, burst: 20}}}
  - {key: f, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: token_bucket}}}
  - {key: g, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: token_bucket, count_denied: true}}}
  - {key: h, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {count_denied: false}}}
  - {key: i, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {count_denied: true}}}
`)}}, EnvoyOptions{Algorithm: "fixed_window"})
	require.NoError(t, err)
	shared, _ := EnvoyPolicy(config, EnvoyOptions{})
	var names []string
	for _, l := range shared.Limits[len(envoy.Units):] {
		names = append(names, l.Name)
	}
	assert.ElementsMatch(t, []string{"sliding-log-day", "sliding-log-day-32", "sliding-log-day-64", "token-bucket-day-20", "token-bucket-day",
		"token-bucket-day-asked", "fixed-window-day-admitted"}, names)
}

func TestTheFileOfDeployIsRight(t *testing.T) {
	t.Parallel()
	files, err := ReadEnvoy("../../deploy/envoy/limits.yaml")
	require.NoError(t, err)
	_, err = ParseEnvoy(files, EnvoyOptions{Algorithm: "fixed_window"})
	require.NoError(t, err)
}

// All mistakes of all files are named, and what is right is said.
func TestEnvoyFileMistakes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files []string
		want  []string
	}{
		"empty":            {[]string{""}, []string{"0.yaml: the file is empty; it needs the key domain"}},
		"no domain":        {[]string{"descriptors: []"}, []string{"0.yaml:1: domain is missing"}},
		"not YAML":         {[]string{"domain: [a"}, []string{"0.yaml:1"}},
		"twice in files":   {[]string{"domain: a\ndescriptors: [{key: b}]", "domain: a\ndescriptors: [{key: b}]"}, []string{`1.yaml:2: the list has a descriptor "b" already; a key and its value may be there once; one is on line 2 of 0.yaml`}},
		"metadata":         {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day}\n  metadata: {x: [!!binary gA==]}"}, []string{"0.yaml:5: metadata: "}},
		"two documents":    {[]string{"domain: a\n---\ndomain: b"}, []string{"0.yaml:2: a second document"}},
		"unknown":          {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limits: {}"}, []string{`0.yaml:4: a descriptor has no key "rate_limits"`}},
		"no key":           {[]string{"domain: a\ndescriptors:\n- value: b"}, []string{"0.yaml:3: the descriptor has no key"}},
		"twice":            {[]string{"domain: a\ndescriptors:\n- key: b\n- key: b"}, []string{`0.yaml:4: the list has a descriptor "b" already; a key and its value may be there once; one is on line 3 of 0.yaml`}},
		"twice in two":     {[]string{"domain: a\ndescriptors:\n- key: b_c\n- {key: b, value: c}"}, []string{`0.yaml:4: the list has a descriptor "b_c" already; a key and its value may be there once; one is on line 3 of 0.yaml`}},
		"no unit":          {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {requests_per_unit: 1}"}, []string{`0.yaml:4: unit "" must be second or minute`}},
		"fortnight":        {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit:\n    unit: fortnight"}, []string{`0.yaml:5: unit "fortnight" must be`}},
		"minutes":          {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: minutes}"}, []string{`0.yaml:4: unit "minutes" must be second or minute or hour or day or week or month or year; did you mean "minute"?`}},
		"negative":         {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day, requests_per_unit: -1}"}, []string{"0.yaml:4: requests_per_unit"}},
		"unlimited":        {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day, unlimited: true}"}, []string{"0.yaml:4: unit has no meaning"}},
		"own name":         {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day, name: n, replaces: [{name: n}]}"}, []string{"0.yaml:4: replaces has the limit's own name"}},
		"nobody":           {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day, replaces: [{}]}"}, []string{"0.yaml:4: an item of replaces has no name"}},
		"share":            {[]string{"domain: a\ndescriptors:\n- key: b\n  share_threshold: true"}, []string{"0.yaml:4: share_threshold needs a value with a *"}},
		"algorithm":        {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day}\n  metadata: {weir: {algorithm: token}}"}, []string{`0.yaml:5: algorithm "token" must be`}},
		"option":           {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day}\n  metadata: {weir: {sub_windows: 7}}"}, []string{"0.yaml:5: sub_windows and estimate are for sliding_window only"}},
		"slots":            {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: second}\n  metadata: {weir: {algorithm: sliding_window, sub_windows: 7}}"}, []string{"0.yaml:5: sub_windows 7 cuts 1s"}},
		"no lease":         {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: second}\n  metadata: {weir: {algorithm: concurrency}}"}, []string{"0.yaml:4: the limit has no lease, how long"}},
		"counts":           {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: second}\n  metadata: {weir: {counts: requests}}"}, []string{`0.yaml:5: metadata weir has no key "counts"`}},
		"denied places":    {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: second}\n  metadata: {weir: {algorithm: concurrency, lease: 5s,\n    count_denied: true}}"}, []string{"0.yaml:6: count_denied is not for a concurrency"}},
		"log":              {[]string{"domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day,\n    requests_per_unit: 4000000000}\n  metadata: {weir: {algorithm: sliding_log, entries: 7}}"}, []string{"0.yaml:6: entries"}},
		"no limit":         {[]string{"domain: a\ndescriptors:\n- key: b\n  metadata: {weir: {}}"}, []string{"0.yaml:4: metadata has options of weir"}},
		"several in files": {[]string{"domain: a\ndescriptors: 5\nx: 1", "domain: b\ny: 1"}, []string{"0.yaml:2: descriptors must be a list", "0.yaml:3:", "1.yaml:2:"}},
		"itself":           {[]string{"domain: a\ndescriptors: &d\n- key: b\n  descriptors: *d"}, []string{"nested deeper than 32 times"}},
	} {
		var files []EnvoyFile
		for i, text := range test.files {
			files = append(files, EnvoyFile{Name: string(rune('0'+i)) + ".yaml", Data: []byte(text)})
		}
		_, err := ParseEnvoy(files, EnvoyOptions{Algorithm: "fixed_window"})
		if !assert.Error(t, err, name) {
			continue
		}
		for _, want := range test.want {
			assert.Contains(t, err.Error(), want, name)
		}
		assert.Len(t, strings.Split(err.Error(), "\n"), len(test.want), name)
	}
}

// Denied requests count in fixed windows, and in other limits where one says so or all
// are told to.
func TestWhereDeniedRequestsCount(t *testing.T) {
	t.Parallel()
	for all, want := range map[bool]string{
		false: "fixed log-true requests-minute",
		true:  "fixed log-true plain requests-minute",
	} {
		config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: fixed-false, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {count_denied: false}}}
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: sliding_window}}}
  - {key: log-true, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: sliding_log, count_denied: true}}}
  - {key: log-false, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: sliding_log, count_denied: false}}}
  - {key: held, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {algorithm: concurrency, lease: 10s}}}
`)}}, EnvoyOptions{Algorithm: "fixed_window", CountDenied: all})
		require.NoError(t, err)
		var counting []string
		config.EachRule(func(r *envoy.Rule, _ string) {
			if r.Limit.CountDenied {
				counting = append(counting, r.Limit.Name)
			}
		})
		if config.Default["minute"].CountDenied {
			counting = append(counting, "requests-minute")
		}
		slices.Sort(counting)
		assert.Equal(t, want, strings.Join(counting, " "))
	}
}

// What the options say holds for limits that don't say otherwise, and for those that
// requests bring.
func TestEnvoyOptions(t *testing.T) {
	t.Parallel()
	file := []EnvoyFile{{Name: "f.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: dry, rate_limit: {unit: day, requests_per_unit: 10}, shadow_mode: true}
  - {key: told, rate_limit: {unit: day, requests_per_unit: 10}, metadata: {weir: {on_store_error: deny}, 1: [2, {3: 2026-01-02}]}}
`)}, {Name: "g.yaml", Data: []byte("domain: shop\ndescriptors: [{key: more, rate_limit: {unit: day}}]")}}
	options := EnvoyOptions{Algorithm: "fixed_window", OnStoreError: "allow", Mode: EnvoyQuota}
	config, err := ParseEnvoy(file, options)
	require.NoError(t, err)
	rules := map[string]*envoy.Rule{}
	config.EachRule(func(r *envoy.Rule, _ string) { rules[r.Limit.Name] = r })
	assert.Len(t, rules, 4, "files of one domain are read as one")
	assert.Equal(t, policy.Quota, rules["plain"].Limit.Leniency)
	assert.Equal(t, policy.ShadowQuota, rules["dry"].Limit.Leniency)
	assert.Equal(t, policy.Quota, config.Default["day"].Leniency)
	assert.Equal(t, policy.StoreErrorDeny, rules["told"].Limit.OnStoreError)
	assert.Equal(t, map[string]any{"1": []any{2.0, map[string]any{"3": "2026-01-02T00:00:00Z"}}, "weir": map[string]any{"on_store_error": "deny"}},
		rules["told"].Metadata.AsMap())
	shared, _ := EnvoyPolicy(config, options)
	assert.Equal(t, policy.StoreErrorAllow, shared.OnStoreError)
	assert.Len(t, shared.Limits, len(envoy.Units), "what they do when the store fails makes no limiter another")
	options.Mode = EnvoyShadow
	shared, _ = EnvoyPolicy(config, options)
	assert.True(t, shared.Shadow)
}

// What a limit takes in Memcached is said by the name that it has there.
func TestEnvoyLimitsAreDescribedByTheirKeys(t *testing.T) {
	t.Parallel()
	options := EnvoyOptions{Algorithm: "sliding_window"}
	config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte("domain: shop\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 100}}]")}}, options)
	require.NoError(t, err)
	shared, bind := EnvoyPolicy(config, options)
	policies := policy.Policies{envoy.PolicyName: shared}
	metrics := telemetry.NewMetrics(prometheus.NewRegistry(), "test")
	require.NoError(t, NewLimiters(memory.New(nil), counters.Options{KeyPrefix: "weir"}, metrics, nil).Bind(policies))
	bind()
	// An item called weir:envoy/sliding-window-minute-10-weighted:6000:twelve-chars_299300419 takes 152 B.
	assert.Contains(t, Describe(policies), "shop|k=*: about 100 in any 60 s, and at most 200 whatever the traffic, counted in 10 slots of 6 s, about 12 Memcached keys, 1.8 kB per")
}

// Rules that count alike share a limiter, whatever their limits are.
func TestEnvoyLimitersAreShared(t *testing.T) {
	t.Parallel()
	config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(`
domain: a
descriptors:
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: d, rate_limit: {unit: minute, requests_per_unit: 3}, metadata: {weir: {algorithm: token_bucket, burst: 9}}}
`)}}, EnvoyOptions{Algorithm: "fixed_window"})
	require.NoError(t, err)
	shared, _ := EnvoyPolicy(config, EnvoyOptions{})
	assert.Len(t, shared.Limits, len(envoy.Units)+1)
}

// Logs of one limiter are remembered of as many clients as fit if each is as long as the longest:
// and by the same limiter as before when a file is read again, which has them in another order.
func TestASharedLogIsAsLongAsTheLongest(t *testing.T) {
	t.Parallel()
	options := EnvoyOptions{Algorithm: "sliding_log"}
	limiters := NewLimiters(memory.New(nil), counters.Options{KeyPrefix: "weir"}, telemetry.NewMetrics(prometheus.NewRegistry(), "test"), nil)
	before := make(map[string]counters.Limiter)
	for range 20 {
		config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(`
domain: a
descriptors:
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 9000}}
  - {key: d, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: e, rate_limit: {unit: hour, requests_per_unit: 70}}
`)}}, options)
		require.NoError(t, err)
		shared, _ := EnvoyPolicy(config, options)
		require.NoError(t, limiters.Bind(policy.Policies{envoy.PolicyName: shared}))
		for i := range shared.Limits {
			l := &shared.Limits[i]
			if l.Name == "sliding-log-minute" {
				require.EqualValues(t, 9000, l.Limit)
				require.Less(t, l.Limiter.(Limiter).ClientLimit(), 2000)
			}
			if known := before[l.Name]; known != nil {
				require.Same(t, known, l.Limiter, l.Name)
			}
			before[l.Name] = l.Limiter
		}
	}
}

// A folder is read as envoyproxy/ratelimit reads it: with those below it, and
// whatever its files are called.
func TestReadEnvoy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := ReadEnvoy(dir)
	require.ErrorContains(t, err, "has no file")
	for _, name := range []string{"b.yaml", "a.yml", ".c.yaml", "d", "sub/e.yaml", "..data/b.yaml", "..data/team/g.yaml"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(name), 0o600))
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	require.NoError(t, os.Symlink("..data/b.yaml", filepath.Join(dir, "f.yaml")))
	require.NoError(t, os.Symlink("..data/team", filepath.Join(dir, "team"))) // so Kubernetes mounts folders
	for _, dir := range []string{dir, link} {
		files, err := ReadEnvoy(dir)
		require.NoError(t, err)
		var want []EnvoyFile
		for _, file := range [][2]string{{"a.yml", "a.yml"}, {"b.yaml", "b.yaml"}, {"d", "d"}, {"f.yaml", "..data/b.yaml"}, {"sub/e.yaml", "sub/e.yaml"}, {"team/g.yaml", "..data/team/g.yaml"}} {
			want = append(want, EnvoyFile{Name: filepath.Join(dir, file[0]), Data: []byte(file[1])})
		}
		assert.Equal(t, want, files)
	}
	files, err := ReadEnvoy(filepath.Join(dir, "d"))
	require.NoError(t, err)
	assert.Len(t, files, 1)
	_, err = ReadEnvoy(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.Symlink(".", filepath.Join(dir, "sub", "round")))
	_, err = ReadEnvoy(dir)
	require.ErrorIs(t, err, syscall.ELOOP)
}

func FuzzEnvoyFile(f *testing.F) {
	f.Add("domain: a\ndescriptors:\n- key: b\n  rate_limit: {unit: day, requests_per_unit: 1}\n  metadata: {weir: {algorithm: sliding_log}}")
	f.Add("domain: a\ndescriptors: &d\n- key: b\n  descriptors: *d")
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := ParseEnvoy([]EnvoyFile{{Name: "f.yaml", Data: []byte(text)}}, EnvoyOptions{Algorithm: "fixed_window"})
		if err == nil {
			shared, _ := EnvoyPolicy(config, EnvoyOptions{})
			assert.NotEmpty(t, shared.Limits)
		}
	})
}

// Most limits of a file are alike: these are completed once. Not parallel: it counts the
// allocations of the whole process.
func TestAlikeLimitsAreCompletedOnce(t *testing.T) {
	const descriptors = 1000
	text := strings.Builder{}
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range descriptors {
		fmt.Fprintf(&text, "- {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1000}}\n", i)
	}
	files := []EnvoyFile{{Name: "f", Data: []byte(text.String())}}
	each := testing.AllocsPerRun(3, func() {
		_, err := ParseEnvoy(files, EnvoyOptions{Algorithm: "sliding_window"})
		require.NoError(t, err)
	}) / descriptors
	assert.Less(t, each, 170.0, "85 of reading YAML; completing a limit is 230 more")
}
