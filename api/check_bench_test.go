package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		others int // for whom there are overrides
	}{
		{"fixed", fixed("per-day", plenty, 24*time.Hour), 0, http.StatusOK, 0},
		{"fixed, 1000 overrides", fixed("per-day", plenty, 24*time.Hour), 0, http.StatusOK, 1000},
		{"sliding60", sliding("per-minute", plenty, time.Minute, 60, "weighted"), 0, http.StatusOK, 0},
		{"denied", fixed("per-year", 1, 365*24*time.Hour), 1, http.StatusTooManyRequests, 0},
	} {
		b.Run(benchmark.name, func(b *testing.B) {
			s := newServiceWith(func(cfg *Config) {
				cfg.Now = nil
				// Not the watched store, which remembers every
				// key.
				cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(memory.New(nil)), cfg.Metrics, newPolicy("api", benchmark.limit))
			})
			all := make(map[policy.ClientKey]policy.Terms)
			for i := range benchmark.others {
				key, err := policy.ParseClientKey(fmt.Sprintf([]string{"client-%d", "2001:db8:%x::/48", "team-%d:*"}[i%3], i))
				require.NoError(b, err)
				all[key] = policy.Terms{Blocked: true, Until: time.Now().Add(time.Hour)}
			}
			s.setOverrides(map[string]map[policy.ClientKey]policy.Terms{"api": all})
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

// BenchmarkSettle measures a check and its settlement.
func BenchmarkSettle(b *testing.B) {
	const plenty, body = 1_000_000_000_000, `{"policy":"api","client":"alice","cost":3,"settle":true}`
	for name, limit := range map[string]policy.Limit{
		"fixed": fixed("per-day", plenty, 24*time.Hour), "sliding10": sliding("per-minute", plenty, time.Minute, 10, "weighted"),
		"places": places("in-flight", 8, time.Minute),
	} {
		b.Run(name, func(b *testing.B) {
			s := newServiceWith(func(cfg *Config) {
				cfg.Now = nil
				store := cfg.Metrics.InstrumentStore(memory.New(nil))
				cfg.Claims.Store = store
				cfg.Policies = bindLimiters(store, cfg.Metrics, newPolicy("api", limit))
			})
			w := &keptBody{reusedRecorder: reusedRecorder{header: make(http.Header)}}
			post := func(path string, text []byte) {
				clear(w.header)
				w.body = w.body[:0]
				r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(text))
				r.Header.Set("Content-Type", "application/json")
				s.handler.ServeHTTP(w, r)
				if w.status != http.StatusOK {
					b.Fatalf("status %d: %s", w.status, w.body)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				post("/v1/check", []byte(body))
				_, after, _ := bytes.Cut(w.body, []byte(`"receipt":"`))
				receipt, _, _ := bytes.Cut(after, []byte(`"`))
				post("/v1/settle", fmt.Appendf(nil, `{"receipt":"%s","cost":1}`, receipt))
			}
		})
	}
}

// keptBody is a reusedRecorder that keeps the last body.
type keptBody struct {
	reusedRecorder
	body []byte
}

func (w *keptBody) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}
