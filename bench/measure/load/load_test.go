package load

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
	"weir/bench/internal/loadgen"
)

// loaded runs load with the arguments and returns the report it wrote and what
// it printed.
func loaded(t *testing.T, args ...string) (r Report, printed string, err error) {
	t.Helper()
	_, printed, err = benchtest.Run(t, Run, "load", &r, args...)
	return r, printed, err
}

const ms = time.Millisecond

func TestQuickLoad(t *testing.T) {
	t.Parallel()
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

func sum(statuses map[int]int64) int64 {
	n := int64(0)
	for _, count := range statuses {
		n += count
	}
	return n
}

func TestLoadOfATarget(t *testing.T) {
	t.Parallel()
	w := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Fixed), Traffic: loadgen.Hot}
	m := benchtest.Memcached(t)
	s, err := benchtest.Build(t, loadgen.PolicyFile([]loadgen.Workload{w})).Start(t.Context(), m.Addr)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	r, printed, err := loaded(t, "-quick", "-target", s.Addr, "-policies", w.Policy(),
		"-rate", "500", "-connections", "4")
	require.NoError(t, err)
	require.Len(t, r.Rows, 1)
	assert.Equal(t, s.Addr, r.Target)
	assert.Equal(t, sum(r.Rows[0].Statuses), r.Rows[0].Statuses[200])
	assert.InDelta(t, 500, sum(r.Rows[0].Statuses), 120)
	assert.Contains(t, printed, s.Addr)
	assert.Nil(t, r.Rows[0].Store, "nobody knows where its memcached is")
	assert.Regexp(t, `- +-\n`, printed)

	err = Run(t.Context(), []string{"-target", s.Addr, "-policies", "no-such", "-rate", "100", "-connections", "1"}, io.Discard)
	assert.ErrorContains(t, err, "no-such: the first check was answered with status 404")
}

// What isn't this repository's doesn't overwrite its results.
func TestGuestsWriteNothing(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	t.Chdir(t.TempDir())
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{"-target", s.Listener.Addr().String(), "-policies", "p", "-rate", "100", "-connections", "1", "-duration", "100ms"}, &out))
	assert.Contains(t, out.String(), "Nothing is written: -out names a directory")
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	assert.Empty(t, files)
}

func TestFaultsFailTheLoad(t *testing.T) {
	t.Parallel()
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
	r, _, err := loaded(t, "-quick", "-target", unavailable.Listener.Addr().String(), "-policies", "p", "-rate", "500", "-connections", "4")
	assert.ErrorContains(t, err, "such as status 503")
	assert.InDelta(t, float64(sum(r.Rows[0].Statuses))/50, r.Rows[0].Statuses[503], 1)

	closing := httptest.NewServer(handler(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer closing.Close()
	_, _, err = loaded(t, "-quick", "-target", closing.Listener.Addr().String(), "-policies", "p", "-rate", "500", "-connections", "4")
	assert.ErrorContains(t, err, "not answered")

	// A search below which nothing holds.
	r, printed, err := loaded(t, "-quick", "-target", closing.Listener.Addr().String(), "-policies", "p", "-connections", "4", "-p99", "1ns")
	assert.ErrorContains(t, err, "p: not even 125 checks/s held")
	assert.Empty(t, r.Rows)
	assert.Contains(t, printed, "failed at")
}

func TestLoadEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var checks atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if checks.Add(1) == 50 {
			cancel()
		}
	}))
	defer s.Close()
	err := Run(ctx, []string{"-target", s.Listener.Addr().String(), "-policies", "p", "-rate", "500", "-duration", "1h", "-out", t.TempDir()}, io.Discard)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestSearchStep(t *testing.T) {
	t.Parallel()
	sampled := func(latency, lag time.Duration) *loadgen.Sample {
		s := loadgen.NewSample(loadgen.Constant(1, time.Second))
		s.Due, s.Sent, s.Statuses[200], s.Elapsed = 1, 1, 1, time.Second
		loadgen.Record(s.Latency, latency)
		loadgen.Record(s.Lag, lag)
		return s
	}
	assert.Empty(t, newSearchStep(sampled(9*ms, 0), 10*ms).Failed)
	assert.Equal(t, "p99 12.1 ms", newSearchStep(sampled(12*ms, 0), 10*ms).Failed)
	assert.Equal(t, "the bench was behind by 6.03 ms", newSearchStep(sampled(12*ms, 6*ms), 10*ms).Failed)
	assert.Empty(t, newSearchStep(sampled(9*ms, 6*ms), 10*ms).Failed, "the bench's own delay is in the 9 ms")
	assert.Nil(t, newFigures(sampled(12*ms, 6*ms)).Latency)
	f := newFigures(sampled(12*ms, 0))
	assert.Equal(t, []float64{1, 1}, []float64{f.Rate, f.Achieved})
	assert.InEpsilon(t, 12*ms, f.Latency.P99, 0.01)
	late := sampled(9*ms, 0)
	late.Unsent = 1
	assert.Equal(t, "not sent: 1", newSearchStep(late, 10*ms).Failed)
}

// rates returns what the search tries on a server that holds so many checks per
// second.
func (s *search) rates(capacity float64) []float64 {
	var tried []float64
	for s.rate > 0 {
		tried = append(tried, s.rate)
		s.vote(s.rate <= capacity)
	}
	return tried
}

func TestSearch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		capacity  float64
		tried     []float64 // twice each
		low, high float64
	}{
		{"above the first rate", 20_000, []float64{4000, 8000, 16000, 32000, 24000, 20000, 22000}, 20000, 22000},
		{"below the first rate", 700, []float64{4000, 2000, 1000, 500, 750, 625, 687.5}, 687.5, 750},
		{"nothing", 0, []float64{4000, 2000, 1000, 500, 250, 125}, 0, 125},
		{"everything", 1e9, []float64{4000, 8000, 16000, 32000, 64000, 128000, 256000, 512000}, 512000, 0},
	} {
		s := newSearch(4000, 1.1)
		var twice []float64
		for _, rate := range tt.tried {
			twice = append(twice, rate, rate)
		}
		assert.Equal(t, twice, s.rates(tt.capacity), tt.name)
		assert.Equal(t, []float64{tt.low, tt.high}, []float64{s.low, s.high}, tt.name)
	}
}

func TestOneStallDoesNotDecideTheSearch(t *testing.T) {
	t.Parallel()
	s := newSearch(4000, 1.1)
	for _, held := range []bool{true, false, true} {
		assert.InDelta(t, 4000.0, s.rate, 0)
		s.vote(held)
	}
	assert.InDelta(t, 8000.0, s.rate, 0)
	assert.InDelta(t, 4000.0, s.low, 0)
	for _, held := range []bool{false, true, false} {
		assert.InDelta(t, 8000.0, s.rate, 0)
		s.vote(held)
	}
	assert.InDelta(t, 6000.0, s.rate, 0)
	assert.InDelta(t, 8000.0, s.high, 0)
}

func TestSearchFindsTheCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Float64Range(200, 500_000).Draw(t, "capacity")
		s := newSearch(firstRate, 1.1)
		assert.Less(t, len(s.rates(capacity)), 50)
		assert.LessOrEqual(t, s.low, capacity)
		assert.Greater(t, s.high, capacity)
		assert.LessOrEqual(t, s.high, s.low*1.1)
	})
}
