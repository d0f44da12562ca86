package api

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// BenchmarkBatch measures a batch of checks of different clients, from the
// router to the encoded answer, on Memcached and the real clock.
func BenchmarkBatch(b *testing.B) {
	const plenty, clients = 1_000_000_000_000, 10_000
	for _, limit := range []policy.Limit{sliding("sliding", plenty, time.Minute, 10, "weighted"), token("token", plenty, time.Minute, plenty)} {
		for _, size := range []int{10, 100, 1000} {
			b.Run(fmt.Sprint(limit.Name, "/", size), func(b *testing.B) {
				server := memcachedtest.Start(b)
				store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: time.Second})
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, store.Close()) })
				s := newServiceWith(func(cfg *Config) {
					cfg.Now = nil
					cfg.StoreTimeout = time.Second
					cfg.Policies = bindLimitersFor(10*clients, cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", limit))
				})
				bodies := make([][]byte, clients/size)
				for i := range bodies {
					var body bytes.Buffer
					for j := range size {
						fmt.Fprintf(&body, `,{"policy":"api","client":"client-%d"}`, i*size+j)
					}
					bodies[i] = fmt.Appendf(nil, `{"checks":[%s]}`, body.Bytes()[1:])
				}
				for _, callers := range []int{1, 16} {
					b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
						b.SetParallelism(callers)
						if callers == 1 {
							w := &reusedRecorder{header: make(http.Header)}
							b.ReportAllocs()
							for i := 0; b.Loop(); i++ {
								s.serveBatch(b, w, bodies[i%len(bodies)])
							}
						} else {
							b.ReportAllocs()
							b.RunParallel(func(pb *testing.PB) {
								w := &reusedRecorder{header: make(http.Header)}
								for i := rand.IntN(len(bodies)); pb.Next(); i++ {
									s.serveBatch(b, w, bodies[i%len(bodies)])
								}
							})
						}
						b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "checks/s")
					})
				}
			})
		}
	}
}

func (s *service) serveBatch(b testing.TB, w *reusedRecorder, body []byte) {
	r := httptest.NewRequest(http.MethodPost, "/v1/check/batch", nil)
	r.Header.Set("Content-Type", "application/json")
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	clear(w.header)
	s.handler.ServeHTTP(w, r)
	if w.status != http.StatusOK {
		b.Fatalf("status %d", w.status)
	}
}
