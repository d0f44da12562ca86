package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// BenchmarkSingleBesideBatches measures how long single checks take, by
// themselves and beside one batch after the other of 1000 clients whom nobody
// has seen before, whose windows have 60 slots: 61,000 keys each.
func BenchmarkSingleBesideBatches(b *testing.B) {
	server := memcachedtest.Start(b)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	s := newServiceWith(func(cfg *Config) {
		cfg.Now = nil
		cfg.StoreTimeout = 50 * time.Millisecond
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics,
			newPolicy("api", sliding("per-minute", 1_000_000_000, time.Minute, 60, "weighted")),
			newPolicy("hot", sliding("per-minute", 1_000_000_000, time.Minute, 10, "weighted")))
	})
	next := 0
	batches := func(stop <-chan struct{}) (n, degraded int) {
		w := &keptRecorder{}
		for {
			select {
			case <-stop:
				return n, degraded
			default:
			}
			var body bytes.Buffer
			for range 1000 {
				fmt.Fprintf(&body, `,{"policy":"api","client":"client-%d"}`, next)
				next++
			}
			w.Reset()
			s.post(b, w, "/v1/check/batch", fmt.Appendf(nil, `{"checks":[%s]}`, body.Bytes()[1:]))
			n, degraded = n+1, degraded+bytes.Count(w.Bytes(), []byte(`"degraded":true`))
		}
	}
	for _, test := range []string{"alone", "beside"} {
		b.Run(test, func(b *testing.B) {
			stop := make(chan struct{})
			var running sync.WaitGroup
			var n, degraded int
			if test == "beside" {
				running.Go(func() { n, degraded = batches(stop) })
			}
			w := &keptRecorder{}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				begin := time.Now()
				w.Reset()
				s.post(b, w, "/v1/check", fmt.Appendf(nil, `{"policy":"hot","client":"single-%d"}`, i%1000))
				took = append(took, time.Since(begin))
			}
			close(stop)
			running.Wait()
			slices.Sort(took)
			for _, percent := range []int{50, 90, 99} {
				b.ReportMetric(float64(took[len(took)*percent/100].Microseconds()), fmt.Sprintf("us-p%d", percent))
			}
			if n > 0 {
				b.ReportMetric(b.Elapsed().Seconds()*1000/float64(n), "ms/batch")
				b.ReportMetric(float64(degraded)/float64(n), "degraded/batch")
			}
		})
	}
}

// A keptRecorder keeps what was answered last.
type keptRecorder struct {
	bytes.Buffer
	header http.Header
}

func (w *keptRecorder) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *keptRecorder) WriteHeader(int) {}

func (s *service) post(b *testing.B, w http.ResponseWriter, path string, body []byte) {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.handler.ServeHTTP(w, r)
}
