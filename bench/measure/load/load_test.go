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

func TestQuickLoad(t *testing.T) {
	t.Parallel()
	r, printed, err := loaded(t, "-quick", "-policies", "fixed,log", "-rate", "500", "-connections", "32")
	require.NoError(t, err)
	for i, policy := range []string{"fixed", "log"} {
		row := r.Rows[i]
		assert.Equal(t, policy, row.Policy)
		assert.InDelta(t, 500, row.Rate, 1e-9)
		assert.Equal(t, row.Statuses[200]+row.Statuses[429], sum(row.Statuses))
		assert.Positive(t, row.Statuses[200])
		require.NotNil(t, row.Store)
		assert.Positive(t, row.Store.Writes)
	}
	assert.Greater(t, r.Rows[1].Store.KeysRead, 0.5, "a log is read")
	assert.Less(t, r.Rows[0].Store.KeysRead, 0.1, "a fixed window only writes")
	assert.Equal(t, sum(r.Rows[0].Statuses), sum(r.Rows[1].Statuses), "the same arrivals for each")
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
	assert.ErrorContains(t, err, "no-such: the first check: status 404")
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

func TestRowOfABenchThatIsBehind(t *testing.T) {
	t.Parallel()
	sampled := func(latency, lag time.Duration) *loadgen.Sample {
		s := loadgen.NewSample(loadgen.Pace{Rate: 1, Length: time.Second})
		s.Due, s.Sent, s.Statuses[200], s.Elapsed = 1, 1, 1, time.Second
		loadgen.Record(s.Latency, latency)
		loadgen.Record(s.Lag, lag)
		return s
	}
	assert.Nil(t, newRow("p", sampled(12*time.Millisecond, 6*time.Millisecond)).Latency)
	row := newRow("p", sampled(12*time.Millisecond, 0))
	assert.Equal(t, []float64{1, 1}, []float64{row.Rate, row.Achieved})
	assert.InEpsilon(t, 12*time.Millisecond, row.Latency.P99, 0.01)
	late := sampled(9*time.Millisecond, 0)
	late.Unsent = 1
	assert.Equal(t, "not sent: 1", newRow("p", late).Fault)
}
