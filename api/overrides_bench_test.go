package api

import (
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

// BenchmarkCheckBesideOverrides has a service check in turns with and without a thousand
// overrides for others, and tells how many times as long it takes with them at best: rounds
// are short, so that both have some that nothing else disturbs.
func BenchmarkCheckBesideOverrides(b *testing.B) {
	const body, rounds, round = `{"policy":"api","client":"alice"}`, 20, 50
	s := newServiceWith(func(cfg *Config) {
		cfg.Now = nil
		cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(memory.New(nil)), cfg.Metrics, newPolicy("api", fixed("per-day", 1_000_000_000_000, 24*time.Hour)))
	})
	all := make(map[policy.ClientKey]policy.Terms)
	for i := range 1000 {
		key, err := policy.ParseClientKey(fmt.Sprintf([]string{"client-%d", "2001:db8:%x::/48", "team-%d:*"}[i%3], i))
		require.NoError(b, err)
		all[key] = policy.Terms{Blocked: true, Until: time.Now().Add(time.Hour)}
	}
	reader, w := strings.NewReader(body), &reusedRecorder{header: make(http.Header)}
	r := httptest.NewRequest(http.MethodPost, "/v1/check", nil)
	r.Header.Set("Content-Type", "application/json")
	r.ContentLength = int64(len(body))
	took := func(best *time.Duration, overrides map[policy.ClientKey]policy.Terms) {
		s.setOverrides(map[string]map[policy.ClientKey]policy.Terms{"api": overrides})
		for range rounds {
			began := time.Now()
			for range round {
				reader.Reset(body)
				r.Body = io.NopCloser(reader)
				clear(w.header)
				s.handler.ServeHTTP(w, r)
			}
			*best = min(*best, time.Since(began))
		}
	}
	for _, c := range []struct {
		name  string
		other map[policy.ClientKey]policy.Terms
	}{{"with/without", all}, {"without/without", nil}} {
		b.Run(c.name, func(b *testing.B) {
			with, without := time.Hour, time.Hour
			for b.Loop() {
				took(&without, nil)
				took(&with, c.other)
			}
			b.ReportMetric(float64(without)/round, "best-ns/check")
			b.ReportMetric(float64(with)/float64(without), "ratio")
		})
	}
}
