package api

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func TestMetricsCountWhatWasDecided(t *testing.T) {
	t.Parallel()
	open, closed := newPolicy("open", fixed("per-minute", 2, time.Minute)), newPolicy("closed", fixed("per-minute", 2, time.Minute))
	open.OnStoreError, closed.OnStoreError = StoreErrorAllow, StoreErrorDeny
	s := newService(open, closed)
	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="open"} 0`) // present before the first check

	s.admits(t, `{"policy":"open","client":"secret-client"}`)
	s.admits(t, `{"policy":"open","client":"secret-client"}`)
	s.denies(t, `{"policy":"open","client":"secret-client"}`)
	s.do(t, http.MethodGet, "/v1/policies/open/clients/secret-client", "")
	s.check(t, `{"policy":"open","client":""}`)
	s.check(t, `{"policy":"none","client":"secret-client"}`)
	s.do(t, http.MethodDelete, "/v1/policies/open/clients/secret-client", "")
	s.store.failWith(counters.ErrTimeout)
	s.admits(t, `{"policy":"open","client":"secret-client"}`)
	s.check(t, `{"policy":"closed","client":"secret-client"}`)
	s.store.failWith(counters.ErrUnavailable)
	s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[{"policy":"closed","client":"secret-client"}]}`)

	requireMetrics(t, s,
		`weir_checks_total{decision="allowed",policy="open"} 3`,
		`weir_checks_total{decision="denied",policy="open"} 1`,
		`weir_checks_total{decision="error",policy="open"} 0`,
		`weir_checks_total{decision="error",policy="closed"} 2`,
		`weir_checks_total{decision="denied",policy="closed"} 0`,
		`weir_check_duration_seconds_count{policy="open"} 4`,
		`weir_check_duration_seconds_count{policy="closed"} 2`,
		`weir_degraded_checks_total{mode="allow",policy="open"} 1`,
		`weir_degraded_checks_total{mode="deny",policy="closed"} 2`,
		`weir_store_operations_total{operation="add",outcome="ok"} 5`,
		`weir_store_operations_total{operation="add",outcome="timeout"} 2`,
		`weir_store_operations_total{operation="add",outcome="error"} 1`,
		`weir_store_operations_total{operation="subtract",outcome="ok"} 0`,
		`weir_local_denials_total{policy="open"} 1`,
		`weir_local_denials_total{policy="closed"} 0`,
		`weir_batch_size_count 6`,
		`weir_batch_size_sum 6`,
		`weir_store_operations_total{operation="read",outcome="ok"} 1`,
		`weir_store_operations_total{operation="delete",outcome="ok"} 1`,
		`weir_store_operation_duration_seconds_count{operation="add"} 8`,
		`weir_config_reloads_total{outcome="ok"} 0`,
		`weir_config_reloads_total{outcome="error"} 0`,
		`weir_build_info{version="v1.2.3"} 1`,
		`weir_store_up{server="embedded"} 1`,
	)
	assert.NotContains(t, s.do(t, http.MethodGet, "/metrics", "").Body, "secret-client")
	problems, err := testutil.GatherAndLint(s.registry)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func TestCheckDurationIsInSeconds(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	s.store.onCall(func(context.Context, string, string) error {
		s.clock.at(30 * time.Millisecond)
		return nil
	})
	s.admits(t, `{"policy":"api","client":"alice"}`)
	requireMetrics(t, s, `weir_check_duration_seconds_sum{policy="api"} 0.03`)
}

func TestMetricsOfBuckets(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("p", token("t", 2, time.Minute, 0)))
	for range 3 {
		s.check(t, `{"policy":"p","client":"c"}`)
	}
	s.do(t, http.MethodGet, "/v1/policies/p/clients/c", "")
	m := s.cfg.Metrics
	m.Swaps(4, 2)
	m.Foreign()
	assert.Equal(t, 2.0, testutil.ToFloat64(m.operations.WithLabelValues("swap", "ok")))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.operations.WithLabelValues("load", "ok")))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.localDenials.WithLabelValues("p")))
	assert.Equal(t, 2.0, testutil.ToFloat64(m.casConflicts))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.casForeign))
	body := s.do(t, http.MethodGet, "/metrics", "").Body
	for _, line := range []string{
		`weir_cas_attempts_bucket{le="1"} 2`, `weir_cas_attempts_bucket{le="4"} 3`, "weir_cas_attempts_count 3", "weir_cas_conflicts_total 2", "weir_cas_foreign_values_total 1",
	} {
		assert.Contains(t, body, line+"\n")
	}
}
