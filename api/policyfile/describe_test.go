package policyfile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// What a file costs in Memcached is what a real one takes for the key of a
// client, and how long it keeps it.
func TestKeptIsWhatMemcachedTakes(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	policies := parseText(t, `
policies:
  default: {limits: [{algorithm: sliding_window, limit: 100, window: 1m}]}
  short: {limits: [{algorithm: fixed_window, limit: 100, window: 500ms}]}
  fixed: {limits: [{algorithm: fixed_window, limit: 100, window: 1m}]}
  n1: {limits: [{algorithm: sliding_window, limit: 100, window: 1m, sub_windows: 1}]}
  strict: {limits: [{algorithm: sliding_window, limit: 1000000, window: 1m, sub_windows: 60, estimate: strict}]}
  `+strings.Repeat("long-name-", 5)+`: {limits: [{name: `+strings.Repeat("x", 63)+`, algorithm: sliding_window, limit: 100, window: 1m}]}
  token: {limits: [{algorithm: token_bucket, limit: 100, window: 1m}]}
  leaky: {limits: [{algorithm: leaky_bucket, limit: 10, window: 1s, burst: 200}]}
  log: {limits: [{algorithm: sliding_log, limit: 100, window: 1m}]}
  counting: {limits: [{algorithm: sliding_log, limit: 2000, window: 1m, entries: 64}]}
  long: {limits: [{algorithm: sliding_log, limit: 2000, window: 1m}]}
  year: {limits: [{algorithm: sliding_log, limit: 2000, window: 366d}]}
  year-counting: {limits: [{algorithm: sliding_log, limit: 2000, window: 366d, entries: 64}]}
`)
	for name, p := range policies {
		t.Run(name[:min(10, len(name))], func(t *testing.T) {
			t.Parallel()
			m := memcachedtest.Start(t)
			o := counters.Options{KeyPrefix: "weir", StoreTimeout: counters.MaxTimeout}
			store, err := memcached.New(memcached.Config{Servers: []string{m.Addr}, Timeout: o.StoreTimeout})
			require.NoError(t, err)
			t.Cleanup(func() { _ = store.Close() })
			limiters := NewLimiters(store, o, telemetry.NewMetrics(prometheus.NewRegistry(), "test"), nil)
			require.NoError(t, limiters.Bind(policy.Policies{name: p}))
			l := &p.Limits[0]
			items, bytes := Kept(l)

			// A window is filled at the beginning of a slot, a state evenly.
			width, cost := l.Window, int64(1)
			if l.SubWindows > 0 {
				width /= time.Duration(l.SubWindows)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			last := time.Now().Truncate(width)
			if findAlgorithm(l).window != nil {
				cost = l.Limit
			}
			for left := l.Limit; left > 0; left -= cost {
				at := last.Add(-time.Duration(left-1) * (l.Window / time.Duration(l.Limit)))
				if cost > 1 {
					at = last
				}
				d, err := l.Limiter.Take(ctx, counters.Request{Client: usualClient, Cost: cost, Limit: l.Limit, Now: at})
				require.NoError(t, err)
				require.True(t, d.Allowed)
			}

			// While Memcached still answers, it has items that it has replaced, and
			// doesn't show those that it answers from.
			var keys []string
			var chunks map[int]int
			require.Eventually(t, func() bool {
				keys, chunks = m.Keys(), chunksInUse(t, m)
				return len(keys) == 1 && len(chunks) == 1
			}, patience, time.Millisecond)
			assert.Equal(t, map[int]int{bytes / items: 1}, chunks)
			if findAlgorithm(l).window == nil {
				assert.Equal(t, 1, items)
				return
			}
			// Its clock may have ticked since.
			ttl := time.Duration(m.TTL(keys[0])) * time.Second
			assert.Contains(t, []int{int((ttl + width - 1) / width), int((ttl + time.Second + width - 1) / width)}, items)
		})
	}
}

// chunksInUse returns how many chunks of which sizes hold items.
func chunksInUse(t *testing.T, m *memcachedtest.Server) map[int]int {
	t.Helper()
	chunks, size := make(map[int]int), 0
	for _, line := range m.Do("stats slabs", "END") {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		_, field, _ := strings.Cut(name, ":")
		if field != "chunk_size" && field != "used_chunks" {
			continue
		}
		n, err := strconv.Atoi(value)
		require.NoError(t, err)
		if field == "chunk_size" { // comes first
			size = n
		} else if n > 0 {
			chunks[size] = n
		}
	}
	return chunks
}

// The most that the words allow in any window is what an attacker gets who
// knows the clock, and no more.
func TestWordsAreTrue(t *testing.T) {
	t.Parallel()
	const length = time.Second
	most := regexp.MustCompile(`at most (\d+)(?: admitted in any| in any| whatever the traffic)`)
	for fields, want := range map[string]int{
		"algorithm: fixed_window":                                      20,
		"algorithm: sliding_window, sub_windows: 1":                    20,
		"algorithm: sliding_window, sub_windows: 10":                   20,
		"algorithm: sliding_window, sub_windows: 2, estimate: capped":  20,
		"algorithm: sliding_window, sub_windows: 10, estimate: capped": 12,
		"algorithm: sliding_window, sub_windows: 10, estimate: strict": 10,
		"algorithm: token_bucket":                                      20,
		"algorithm: token_bucket, burst: 3":                            13,
		"algorithm: leaky_bucket, burst: 25":                           35,
		"algorithm: sliding_log":                                       10,
		"algorithm: sliding_log, entries: 8":                           10,
	} {
		t.Run(fields, func(t *testing.T) {
			t.Parallel()
			policies := parseText(t, limit(fields+", limit: 10, window: 1s"))
			limiters := embedded()
			require.NoError(t, limiters.Bind(policies))
			l := &policies["p"].Limits[0]
			said := describeLimit(l)
			words := most.FindStringSubmatch(said)
			require.NotNil(t, words, said)
			assert.Equal(t, strconv.Itoa(want), words[1], said)

			// All that is admitted, at moments around the ends of slots and
			// windows, and pauses in between in which buckets fill again.
			random := rand.New(rand.NewPCG(1, 2))
			at := time.Unix(1_800_000_000, 0)
			var admitted []time.Time
			fullest := 0
			for range 3000 {
				slot := at.Truncate(length / 10)
				switch random.IntN(8) {
				case 0:
					at = at.Add(3 * length)
				case 1:
					at = at.Truncate(length).Add(2*length - time.Nanosecond)
				case 2, 3:
					at = slot.Add(length / 10)
				case 4:
					at = slot.Add(length/10 - time.Nanosecond)
				default:
					at = at.Add(time.Duration(random.Int64N(int64(length / 10))))
				}
				for {
					d, err := l.Limiter.Take(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: l.Limit, Now: at})
					require.NoError(t, err)
					if !d.Allowed {
						break
					}
					admitted = append(admitted, at)
				}
				for len(admitted) > 0 && at.Sub(admitted[0]) >= length {
					admitted = admitted[1:]
				}
				fullest = max(fullest, len(admitted))
			}
			assert.LessOrEqual(t, fullest, want)
			// Chance doesn't find the very best moments.
			assert.GreaterOrEqual(t, fullest, want-want/10)
		})
	}
}

// An address that is mistyped is a name, which is said.
func TestMistypedAddressesAreTold(t *testing.T) {
	t.Parallel()
	policies := parseText(t, more(`clients: {10.0.0.256: {blocked: true}, 10.0.0.1: {blocked: true}, a-b: {exempt: true}, "[::1]": {blocked: true}}`))
	require.NoError(t, embedded().Bind(policies))
	told := Describe(policies)
	assert.Contains(t, told, "  client \"10.0.0.256\" is always denied\n  \"10.0.0.256\" counts as a name: ")
	assert.Contains(t, told, "  client \"[::1]\" is always denied\n  \"[::1]\" counts as a name: ")
	assert.Equal(t, 2, strings.Count(told, "counts as a name"))
}

// A header behind ip names nobody, which is said.
func TestHeadersBehindIPAreTold(t *testing.T) {
	t.Parallel()
	for identify, told := range map[string]bool{"[ip, header:X-Api-Key]": true, "[header:X-Api-Key, ip]": false, "[ip]": false, "[header:X-Api-Key]": false} {
		policies := parseText(t, more("identify: "+identify))
		require.NoError(t, embedded().Bind(policies))
		assert.Equal(t, told, strings.Contains(Describe(policies), "never gets to header:X-Api-Key: each request has an address"), identify)
	}
}

// A header to which each proxy adds an address begins as users like, which is said.
func TestHeadersOfAddressesAreTold(t *testing.T) {
	t.Parallel()
	for identify, told := range map[string]bool{"[header:x-forwarded-for, ip]": true, "[header:Forwarded]": true, "[header:X-Real-Ip]": false, "[ip]": false} {
		policies := parseText(t, more("identify: "+identify))
		require.NoError(t, embedded().Bind(policies))
		assert.Equal(t, told, strings.Contains(Describe(policies), "users may write its beginning"), identify)
	}
}

// Only where there are routes a request has to come with a path.
func TestPathsAreToldWhereTheyMatter(t *testing.T) {
	t.Parallel()
	for routes, told := range map[string]bool{"": false, "\n    routes: [{path: /export, cost: 9}]": true} {
		policies := parseText(t, more("on_missing_path: deny"+routes))
		require.NoError(t, embedded().Bind(policies))
		assert.Equal(t, told, strings.Contains(Describe(policies), "refuses requests whose path it isn't told"), routes)
	}
}

// What a policy says together with another key is told as it is then.
func TestKeysThatMeanNothingTogetherAreNotTold(t *testing.T) {
	t.Parallel()
	const (
		leaky    = "policies: {p: {%slimits: [{algorithm: leaky_bucket, limit: 5, window: 1s}]}}"
		leases   = "policies: {p: {%slimits: [{algorithm: concurrency, limit: 5, lease: 1m}]}}"
		leaseAnd = "policies: {p: {%slimits: [{algorithm: concurrency, limit: 5, lease: 1m}, {algorithm: fixed_window, limit: 5, window: 1m}]}}"
		held     = "answers when the wait is over"
		denied   = "denied checks count too"
	)
	for _, c := range []struct {
		file, keys, words string
		told              bool
	}{
		{leaky, "hold: true, ", held, true},
		{leaky, "hold: true, mode: shadow, ", held, false}, // which never holds
		{leaseAnd, "count_denied: true, ", denied, true},
		{leases, "count_denied: true, ", denied, false}, // which gives its places back
	} {
		policies := parseText(t, fmt.Sprintf(c.file, c.keys))
		require.NoError(t, embedded().Bind(policies))
		assert.Equal(t, c.told, strings.Contains(Describe(policies), c.words), "%s%s", c.keys, c.file)
	}
}

// A route's cost is none to a limit that counts requests, which is said.
func TestCostsOfRoutesAreToldAsTheyCount(t *testing.T) {
	t.Parallel()
	for limit, told := range map[string]bool{"": false, ", counts: requests": true} {
		policies := parseText(t, "policies: {p: {limits: [{algorithm: fixed_window, limit: 5, window: 1m"+limit+"}], routes: [{path: /a, cost: 0}, {path: /b, cost: 1, limits: {fixed-window: 2}}]}}")
		require.NoError(t, embedded().Bind(policies))
		words := Describe(policies)
		assert.Equal(t, told, strings.Contains(words, "takes 0 for /a and what is below, but 1 of limits that count requests\n"), words)
		assert.Contains(t, words, "takes 1 for /b and what is below\n")
	}
}

func TestInWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		100 * time.Millisecond: "100 ms", time.Second: "1 s", 1500 * time.Millisecond: "1500 ms", time.Minute: "60 s", 90 * time.Second: "90 s",
		2 * time.Minute: "2 min", time.Hour: "1 h", 90 * time.Minute: "90 min", 24 * time.Hour: "1 day", 36 * time.Hour: "36 h", 168 * time.Hour: "7 days",
	} {
		assert.Equal(t, want, inWords(d))
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]string{120: "120 B", 999: "999 B", 1440: "1.4 kB", 7680: "7.7 kB", 432_000: "432.0 kB", 1_250_000: "1.2 MB"} {
		assert.Equal(t, want, size(bytes))
	}
}
