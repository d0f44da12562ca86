package api

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

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

func BenchmarkInstrument(b *testing.B) {
	store := NewMetrics(prometheus.NewRegistry(), "").InstrumentStore(emptyStore{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = store.Add(ctx, counters.Addition{})
	}
}
