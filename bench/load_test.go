package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
)

// loaded runs load with the arguments and returns the report it wrote and what it
// printed.
func loaded(t *testing.T, args ...string) (r loadReport, printed string, err error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "results")
	var out bytes.Buffer
	err = execute(t.Context(), append([]string{"load", "-out", dir}, args...), &out)
	encoded, readErr := os.ReadFile(filepath.Join(dir, "load.json"))
	require.NoError(t, readErr, "%v", err)
	require.NoError(t, json.Unmarshal(encoded, &r))
	if slices.ContainsFunc(r.Rows, func(row loadRow) bool { return row.Latency != nil }) {
		for name, magic := range map[string]string{"load.png": "\x89PNG\r\n", "load.svg": "<?xml"} {
			drawn, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			assert.Truef(t, strings.HasPrefix(string(drawn), magic), "%s begins with %.20q", name, drawn)
		}
	}
	return r, out.String(), err
}

func TestQuickLoad(t *testing.T) {
	r, printed, err := loaded(t, "-quick", "-policies", "fixed,log", "-p99", "20ms", "-connections", "32")
	require.NoError(t, err)
	require.Len(t, r.Searches, 2)
	lowest := min(r.Searches[0].Highest, r.Searches[1].Highest)
	for i, policy := range []string{"fixed", "log"} {
		search := r.Searches[i]
		assert.Equal(t, policy, search.Policy)
		assert.Positive(t, search.Highest)
		assert.LessOrEqual(t, search.Lowest, 1.5*search.Highest)
		assert.GreaterOrEqual(t, len(search.Steps), 4)

		row := r.Rows[i]
		assert.Equal(t, policy, row.Policy)
		assert.InDelta(t, lowest/2, row.Rate, 1e-9)
		assert.Len(t, row.Slices, loadSlices)
		assert.Equal(t, row.Statuses[200]+row.Statuses[429], sum(row.Statuses))
		assert.Positive(t, row.Statuses[200])
		require.NotNil(t, row.Store)
		assert.Positive(t, row.Store.Writes)
	}
	assert.Greater(t, r.Rows[1].Store.KeysRead, 0.5, "a log is read")
	assert.Less(t, r.Rows[0].Store.KeysRead, 0.1, "a fixed window only writes")
	assert.Equal(t, sum(r.Rows[0].Statuses), sum(r.Rows[1].Statuses), "the same arrivals for each")
	assert.Contains(t, printed, "highest rate")
	assert.Contains(t, printed, "a weir of the bench's own on memcached "+r.Machine.Memcached)
}

func TestQuickRamp(t *testing.T) {
	r, printed, err := loaded(t, "-quick", "-policies", "token", "-ramp", "100:1100", "-arrivals", "even", "-connections", "8")
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
	assert.True(t, r.Ramp)
	require.Len(t, r.Rows[0].Slices, rampSlices)
	for i, s := range r.Rows[0].Slices {
		assert.InDelta(t, 150+100*float64(i), s.Rate, 1e-9)
	}
	// 15, 25, ... 105 evenly spaced checks in tenths of a second.
	assert.Equal(t, int64(600), sum(r.Rows[0].Statuses))
	assert.Empty(t, r.Searches)
	assert.Contains(t, printed, "ramp")
}

func sum(statuses map[int]int64) int64 {
	n := int64(0)
	for _, count := range statuses {
		n += count
	}
	return n
}

func TestLoadOfATarget(t *testing.T) {
	m, s := startedSide(t, workload{fixedWindow, hot})
	// The policy's limit is never reached; each check of one of so many clients makes a counter.
	r, printed, err := loaded(t, "-quick", "-target", "http://"+s.addr, "-memcached", m.addr, "-policies", workload{fixedWindow, hot}.policy(),
		"-rate", "500", "-clients", "10000000", "-zipf", "0", "-connections", "4")
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
	assert.Equal(t, s.addr, r.Target)
	assert.Regexp(t, `^\d+\.\d+\.\d+`, r.Machine.Memcached)
	assert.Equal(t, sum(r.Rows[0].Statuses), r.Rows[0].Statuses[200])
	assert.InDelta(t, 500, sum(r.Rows[0].Statuses), 120)
	// The add and the incr of a new counter go out together.
	assert.InDelta(t, 2, r.Rows[0].Store.Writes, 0.01)
	assert.Contains(t, printed, s.addr)

	r, printed, err = loaded(t, "-quick", "-target", s.addr, "-policies", workload{fixedWindow, hot}.policy(), "-rate", "100", "-connections", "4")
	require.NoError(t, err)
	assert.Nil(t, r.Rows[0].Store, "nobody said where memcached is")
	assert.Empty(t, r.Machine.Memcached)
	assert.Regexp(t, `- +-\n`, printed)

	err = execute(t.Context(), []string{"load", "-target", s.addr, "-policies", "no-such", "-rate", "100", "-connections", "1"}, io.Discard)
	assert.ErrorContains(t, err, "no-such: the first check was answered with status 404")
}

func TestRatelimitFormat(t *testing.T) {
	body := regexp.MustCompile(`^{"domain":"shop","descriptors":\[{"entries":\[{"key":"per_client","value":"client-(\d{8})"}\]}\]}$`)
	var checks atomic.Int64
	seen := make(map[string]bool)
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/json", r.URL.Path)
		assert.Equal(t, http.MethodPost, r.Method)
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		got, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		client := body.FindSubmatch(got)
		if !assert.NotNil(t, client, "%s", got) {
			return
		}
		mu.Lock()
		seen[string(client[1])] = true
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		code := "OK"
		if checks.Add(1)%4 == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			code = "OVER_LIMIT"
		}
		_, err = fmt.Fprintf(w, `{"overallCode":%q,"statuses":[{"code":%q,"limitRemaining":7}]}`, code, code)
		assert.NoError(t, err)
	}))
	defer s.Close()
	r, _, err := loaded(t, "-quick", "-format", "ratelimit", "-domain", "shop", "-policies", "per_client", "-target", s.URL,
		"-rate", "400", "-arrivals", "even", "-connections", "8", "-zipf", "0")
	require.NoError(t, err)
	assert.Equal(t, map[int]int64{200: 300, 429: 100}, r.Rows[0].Statuses)
	assert.Equal(t, "ratelimit", r.Format)
	assert.Greater(t, len(seen), 350, "of 100,000 clients")
}

func TestFaultsFailTheLoad(t *testing.T) {
	var checks atomic.Int64
	handler := func(fail http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if checks.Add(1)%50 == 0 {
				fail(w, r)
			}
		}
	}
	unavailable := httptest.NewServer(handler(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer unavailable.Close()
	r, printed, err := loaded(t, "-quick", "-target", unavailable.URL, "-policies", "p", "-rate", "500", "-connections", "4", "-arrivals", "even")
	assert.ErrorContains(t, err, "p: unexpected answers: 10, such as status 503")
	assert.Equal(t, map[int]int64{200: 490, 503: 10}, r.Rows[0].Statuses)
	assert.Contains(t, printed, "503")

	closing := httptest.NewServer(handler(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer closing.Close()
	_, _, err = loaded(t, "-quick", "-target", closing.URL, "-policies", "p", "-rate", "500", "-connections", "4")
	assert.ErrorContains(t, err, "not answered")

	// A search below which nothing holds.
	r, printed, err = loaded(t, "-quick", "-target", closing.URL, "-policies", "p", "-connections", "4", "-p99", "1ns")
	assert.ErrorContains(t, err, "p: not even 125 checks/s held")
	assert.Empty(t, r.Rows)
	assert.Contains(t, printed, "failed at")
}

func TestLoadEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var checks atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if checks.Add(1) == 50 {
			cancel()
		}
	}))
	defer s.Close()
	err := execute(ctx, []string{"load", "-target", s.URL, "-policies", "p", "-rate", "500", "-duration", "1h", "-out", t.TempDir()}, io.Discard)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestParseTarget(t *testing.T) {
	for given, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080", "http://weir:8080": "weir:8080", "http://weir:8080/": "weir:8080", "http://weir": "weir:80", "http://[::1]:9": "[::1]:9",
		"weir": "", "https://weir:8080": "", "http://weir/path": "", "http://weir?x": "", "http://%zz": "",
	} {
		got, err := parseTarget(given)
		if want == "" {
			assert.Error(t, err, given)
		} else {
			require.NoError(t, err)
			assert.Equal(t, want, got)
		}
	}
}

func TestSearchStep(t *testing.T) {
	sampled := func(latency, lag time.Duration) *sample {
		s := newSample(pace{1, 1, time.Second})
		s.due, s.sent, s.statuses[200], s.elapsed = 1, 1, 1, time.Second
		record(s.latency, latency)
		record(s.lag, lag)
		return s
	}
	assert.Empty(t, newSearchStep(sampled(9*ms, 0), 10*ms).Failed)
	assert.Equal(t, "p99 12.1 ms", newSearchStep(sampled(12*ms, 0), 10*ms).Failed)
	assert.Equal(t, "the bench was behind by 6.03 ms", newSearchStep(sampled(12*ms, 6*ms), 10*ms).Failed)
	assert.Empty(t, newSearchStep(sampled(9*ms, 6*ms), 10*ms).Failed, "the bench's own delay is in the 9 ms")
	late := sampled(9*ms, 0)
	late.unsent = 1
	assert.Equal(t, "not sent: 1", newSearchStep(late, 10*ms).Failed)
}

func TestCurve(t *testing.T) {
	h := newHistogram()
	for i := range 1000 {
		record(h, time.Duration(i+1)*ms)
	}
	points := percentileCurve(h)
	require.Len(t, points, 17, "from all to one in a hundred")
	assert.InDelta(t, 0, points[0].Percent, 1e-9)
	assert.InDelta(t, 90, points[8].Percent, 1e-9)
	assert.InDelta(t, 99, points[16].Percent, 1e-9)
	assertDuration(t, 900*ms, points[8].Latency, "p90")
	assertDuration(t, 990*ms, points[16].Latency, "p99")
	assert.Empty(t, percentileCurve(newHistogram()))
}

func TestLoadReport(t *testing.T) {
	figures := loadFigures{Rate: 1000, Achieved: 999.6, Late: 2 * ms, Lag: 250 * time.Microsecond, Latency: &latencies{
		P50: 500 * time.Microsecond, P90: ms, P99: 12 * ms, P999: 20 * ms, Max: 123 * ms, ServiceP99: 8 * ms,
	}}
	behind := loadFigures{Rate: 1000, Achieved: 800, Late: 9 * ms, Lag: 9 * ms}
	r := loadReport{
		Machine: machine{Cores: 2, Go: "go1.26.8", Memcached: "1.6.18"}, Poisson: true, Clients: 100, Zipf: 1.5, Connections: 256, Seed: 7, Bound: 10 * ms,
		Searches: []searchRow{{Policy: "fixed", Highest: 20000, Lowest: 22000, Steps: []searchStep{
			{loadFigures{Rate: 20000}, ""}, {loadFigures{Rate: 22000}, "p99 12.0 ms"}, {loadFigures{Rate: 24000}, "not sent: 1"},
		}}},
		Rows: []loadRow{
			{Policy: "fixed", loadFigures: figures, Statuses: map[int]int64{200: 900, 429: 90, 503: 6, 500: 3, 404: 1}, Degraded: 2, Store: &storeCost{1.25, 17.66}, Slices: []loadFigures{figures, figures}},
			{Policy: "token", loadFigures: behind, Statuses: map[int]int64{200: 1000}},
		},
	}
	print := func() string {
		var out bytes.Buffer
		r.print(&out)
		return out.String()
	}
	assert.Contains(t, print(), "a weir of the bench's own on memcached 1.6.18; the bench with go1.26.8 on 2 cores; Poisson arrivals; 100 clients, Zipf 1.5; 256 connections; seed 7\n")
	assert.Contains(t, print(), `
  highest rate  checks/s  failed at  tries   because of
         fixed     20000      22000      3  p99 12.0 ms
`)
	assert.Contains(t, print(), `
  policy  checks/s  achieved  p50 ms  p90 ms  p99 ms  p999 ms  max ms  service  late    lag   200  429  503  other  degraded  writes  keys
   fixed      1000      1000   0.500    1.00    12.0     20.0   123.0     8.00  2.00  0.250   900   90    6      4         2    1.25  17.7
   token      1000       800       -       -       -        -       -        -  9.00   9.00  1000    0    0      0         0       -     -
`)
	assert.Contains(t, print(), "took turns in 2 slices")
	assert.Contains(t, print(), "token: the bench was behind: this run says nothing about latency\n")
	assert.NotContains(t, print(), "fixed: the bench")
	require.NoError(t, r.broken())

	r.Ramp, r.Target, r.Machine.Memcached, r.Poisson = true, "weir:80", "", false
	assert.Contains(t, print(), "weir:80; the bench with go1.26.8 on 2 cores; evenly spaced arrivals;")
	assert.Contains(t, print(), `
   ramp  checks/s  achieved  p50 ms  p90 ms  p99 ms  p999 ms  max ms  service  late    lag
  fixed      1000      1000   0.500    1.00    12.0     20.0   123.0     8.00  2.00  0.250
  fixed      1000      1000   0.500    1.00    12.0     20.0   123.0     8.00  2.00  0.250
`)

	r.Rows[1].Fault = "not sent: 5"
	r.Searches = append(r.Searches, searchRow{Policy: "log", Lowest: 125, Steps: []searchStep{{loadFigures{Rate: 125}, "EOF"}}})
	assert.EqualError(t, r.broken(), "log: not even 125 checks/s held: EOF\ntoken: not sent: 5")
}

func TestLoadPlotsAreMadeOfTheReport(t *testing.T) {
	at := func(rate float64, p99 time.Duration) loadFigures {
		return loadFigures{Rate: rate, Latency: &latencies{P99: p99}}
	}
	r := loadReport{
		Searches: []searchRow{{Policy: "fixed", Steps: []searchStep{
			{at(4000, 2*ms), ""}, {at(4000, 90*ms), "p99"}, {at(4000, 3*ms), ""}, {at(8000, 9*ms), ""}, {at(8000, 8*ms), ""}, {loadFigures{Rate: 9000}, "behind"},
		}}},
		Rows: []loadRow{{Policy: "fixed", Curve: []curvePoint{{0, ms}, {50, 2 * ms}, {99, 5 * ms}}, Slices: []loadFigures{at(1, ms)}}, {Policy: "behind"}},
	}
	curves := r.percentiles()
	require.Len(t, curves, 1)
	require.Len(t, curves[0].points, 3)
	for i, want := range [][2]float64{{1, 1}, {2, 2}, {100, 5}} {
		assert.InDelta(t, want[0], curves[0].points[i].X, 1e-9)
		assert.InDelta(t, want[1], curves[0].points[i].Y, 1e-9)
	}
	curves = r.byRate()
	require.Len(t, curves, 1, "slices of a constant rate are no curve")
	require.Len(t, curves[0].points, 2)
	assert.InDelta(t, 4000, curves[0].points[0].X, 1e-9)
	assert.InDelta(t, 3, curves[0].points[0].Y, 1e-9)
	assert.InDelta(t, 8000, curves[0].points[1].X, 1e-9)
	assert.InDelta(t, 9, curves[0].points[1].Y, 1e-9)
	r.Ramp = true
	assert.Len(t, r.byRate(), 2)

	labels := func(p interface {
		Ticks(low, high float64) []plot.Tick
	}, low, high float64) (labels []string) {
		for _, tick := range p.Ticks(low, high) {
			labels = append(labels, tick.Label)
		}
		return labels
	}
	assert.Equal(t, []string{"0", "50", "90", "99"}, labels(percents{}, 1, 500))
	assert.Equal(t, []string{"500", "1k", "2k", "5k", "10k"}, labels(doublings{}, 300, 12_000))
}
