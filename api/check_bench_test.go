package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/api/policy"
	"weir/counters/memory"
)

// BenchmarkCheck measures a check from the router to the encoded answer, on the
// embedded store and the real clock.
func BenchmarkCheck(b *testing.B) {
	const plenty, body = 1_000_000_000_000, `{"policy":"api","client":"alice"}`
	for _, benchmark := range []struct {
		name   string
		limit  policy.Limit
		before int // checks
		status int
	}{
		{"fixed", fixed("per-day", plenty, 24*time.Hour), 0, http.StatusOK},
		{"sliding60", sliding("per-minute", plenty, time.Minute, 60, "weighted"), 0, http.StatusOK},
		{"denied", fixed("per-year", 1, 365*24*time.Hour), 1, http.StatusTooManyRequests},
	} {
		b.Run(benchmark.name, func(b *testing.B) {
			s := newServiceWith(func(cfg *Config) {
				cfg.Now = nil
				// Not the watched store, which remembers every
				// key.
				cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(memory.New(nil)), cfg.Metrics, newPolicy("api", benchmark.limit))
			})
			for range benchmark.before {
				s.admits(b, body)
			}
			reader := strings.NewReader(body)
			r := httptest.NewRequest(http.MethodPost, "/v1/check", nil)
			r.Header.Set("Content-Type", "application/json")
			r.ContentLength = int64(len(body))
			w := &reusedRecorder{header: make(http.Header)}
			b.ReportAllocs()
			for b.Loop() {
				reader.Reset(body)
				r.Body = io.NopCloser(reader)
				clear(w.header)
				s.handler.ServeHTTP(w, r)
				if w.status != benchmark.status {
					b.Fatalf("status %d", w.status)
				}
			}
		})
	}
}

// reusedRecorder is a ResponseWriter that costs nothing.
type reusedRecorder struct {
	header http.Header
	status int
}

func (w *reusedRecorder) Header() http.Header         { return w.header }
func (w *reusedRecorder) WriteHeader(status int)      { w.status = status }
func (w *reusedRecorder) Write(p []byte) (int, error) { return len(p), nil }
