package telemetry

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// emptyStore answers at once.
type emptyStore struct{ Store }

func (emptyStore) Add(context.Context, counters.Addition) (int64, error) { return 1, nil }

func (emptyStore) Swap(context.Context, string, counters.State, []byte, time.Duration) (counters.State, bool, error) {
	return counters.State{}, true, nil
}

// Not parallel: it counts the allocations of the whole process.
func TestInstrumentingAllocatesNothing(t *testing.T) {
	store := NewMetrics(prometheus.NewRegistry(), "").InstrumentStore(emptyStore{})
	ctx := context.Background()
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		_, _ = store.Add(ctx, counters.Addition{})
		_, _, _ = store.Swap(ctx, "", counters.State{}, nil, 0)
	}))
}

// A shardedStore keeps each key on the server that its first letter names.
type shardedStore struct{ emptyStore }

func (shardedStore) Server(key string) string { return key[:1] }

func (shardedStore) Delete(context.Context, []string) error { return counters.ErrTimeout }

// scrape returns what the metrics say of these servers.
func scrape(t *testing.T, m *Metrics, named bool, servers ...string) string {
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(m.Servers(func() (up []counters.ServerStatus) {
		for _, server := range servers {
			up = append(up, counters.ServerStatus{Server: server})
		}
		return up
	}, named)))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

func TestOperationsAreCountedByServer(t *testing.T) {
	t.Parallel()
	m := NewMetrics(nil, "")
	store := m.InstrumentStore(shardedStore{})
	ctx := context.Background()
	for _, key := range []string{"a1", "a2", "b1", "c1"} {
		_, _ = store.Add(ctx, counters.Addition{Key: key})
	}
	_ = store.Delete(ctx, []string{"a1", "a2"})
	named := scrape(t, m, true, "b", "a")
	for _, line := range []string{
		`{operation="add",outcome="ok",server="a"} 2`, `{operation="delete",outcome="timeout",server="a"} 1`,
		`{operation="add",outcome="ok",server="b"} 1`, `{operation="delete",outcome="timeout",server="b"} 0`,
	} {
		assert.Contains(t, named, "weir_store_operations_total"+line+"\n")
	}
	assert.NotContains(t, named, `server="c"`, "it isn't a server any more")
	assert.Contains(t, scrape(t, m, false, "b", "a"), `weir_store_operations_total{operation="add",outcome="ok",server="1"} 2`+"\n")

	_, _ = store.Add(ctx, counters.Addition{Key: "a3"})
	assert.Contains(t, scrape(t, m, false, "b", "a"), `weir_store_operations_total{operation="add",outcome="ok",server="1"} 3`+"\n")
	kept := 0
	m.operations.byServer.Range(func(any, any) bool { kept++; return true })
	assert.Equal(t, 2, kept, "those that left are forgotten")
}

// shardedMany begins as often as there is more for each key, and the last isn't added together.
type shardedMany struct{ shardedStore }

func (shardedMany) AddMany(_ context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	for i := range keys {
		if i == len(keys)-1 {
			done(i, nil, counters.ErrNotAdded)
			break
		}
		for more := true; more; {
			additions, _ := begin(i, nil)
			more = done(i, make([]counters.Added, len(additions)), nil)
		}
	}
	done(0, nil, counters.ErrTimeout)
}

func (shardedMany) SwapMany(context.Context, []string, func(int) (counters.Replacement, counters.Turn), func(int, counters.State, bool, error) bool) {
}

func TestOperationsOfManyAreCounted(t *testing.T) {
	t.Parallel()
	m := NewMetrics(nil, "")
	store := m.InstrumentStore(shardedMany{}).(counters.ManyStore)
	first := counters.Addition{Read: []string{"a"}, Counts: make([]int64, 1)}
	store.AddMany(t.Context(), []string{"a1", "a2", "a3"}, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		if first.Key == "" {
			return append(to, first), counters.Now
		}
		return append(to, first, counters.Addition{Key: "b", Delta: first.Delta}), counters.Now
	}, func(_ int, added []counters.Added, err error) bool {
		if err != nil {
			return false
		}
		switch {
		case first.Key == "":
			first = counters.Addition{Key: "a", Delta: 1}
		case first.Delta > 0:
			first.Delta = -1
		default:
			first.Key = ""
			return false
		}
		return true
	})
	said := scrape(t, m, true, "a")
	for _, line := range []string{
		`{operation="read",outcome="ok",server="a"} 2`, `{operation="add",outcome="ok",server="a"} 4`,
		`{operation="subtract",outcome="ok",server="a"} 4`, `{operation="add",outcome="timeout",server="a"} 1`,
	} {
		assert.Contains(t, said, "weir_store_operations_total"+line+"\n")
	}
}

func BenchmarkInstrument(b *testing.B) {
	store := NewMetrics(prometheus.NewRegistry(), "").InstrumentStore(emptyStore{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = store.Add(ctx, counters.Addition{})
	}
}
