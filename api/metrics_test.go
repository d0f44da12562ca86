package api

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
)

func TestMetricsCountWhatWasDecided(t *testing.T) {
	t.Parallel()
	open, closed := newPolicy("open", fixed("per-minute", 2, time.Minute)), newPolicy("closed", fixed("per-minute", 2, time.Minute))
	open.OnStoreError, closed.OnStoreError = policy.StoreErrorAllow, policy.StoreErrorDeny
	s := newService(open, closed)
	// Present before the first check.
	requireMetrics(t, s, `weir_checks_total{decision="allowed",policy="open"} 0`, `weir_settlements_total{outcome="late",policy="open"} 0`, `weir_settled_units_total{direction="charged",policy="open"} 0`)

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
		`weir_store_operations_total{operation="add",outcome="ok",server="embedded"} 4`,
		`weir_store_operations_total{operation="add",outcome="timeout",server="embedded"} 2`,
		`weir_store_operations_total{operation="read",outcome="error",server="embedded"} 1`,
		`weir_store_operations_total{operation="subtract",outcome="ok",server="embedded"} 0`,
		`weir_local_denials_total{policy="open"} 1`,
		`weir_local_denials_total{policy="closed"} 0`,
		`weir_batch_size_count 6`,
		`weir_batch_size_sum 6`,
		`weir_store_operations_total{operation="read",outcome="ok",server="embedded"} 1`,
		`weir_store_operations_total{operation="delete",outcome="ok",server="embedded"} 1`,
		`weir_store_operation_duration_seconds_count{operation="add"} 6`,
		`weir_config_reloads_total{outcome="ok"} 0`,
		`weir_config_reloads_total{outcome="error"} 0`,
		`weir_config_last_reload_success_timestamp_seconds 0`,
		`weir_limit_denials_total{limit="per-minute",policy="open"} 1`,
		`weir_limit_denials_total{limit="per-minute",policy="closed"} 0`,
		`weir_held_requests 0`,
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
	m.Ahead()
	body := s.do(t, http.MethodGet, "/metrics", "").Body
	for _, line := range []string{
		`weir_store_operations_total{operation="swap",outcome="ok",server="embedded"} 2`, `weir_store_operations_total{operation="load",outcome="ok",server="embedded"} 1`,
		`weir_local_denials_total{policy="p"} 1`, `weir_cas_attempts_bucket{le="1"} 2`, `weir_cas_attempts_bucket{le="4"} 3`, "weir_cas_attempts_count 3", "weir_cas_conflicts_total 2", "weir_cas_foreign_values_total 1", "weir_cas_ahead_total 1",
	} {
		assert.Contains(t, body, line+"\n")
	}
}

// A check that several limits deny counts for each of them, and one that is
// denied without them for none.
func TestDenialsAreCountedByLimit(t *testing.T) {
	t.Parallel()
	both := newPolicy("both", fixed("per-minute", 2, time.Minute), fixed("per-hour", 2, time.Hour), fixed("per-day", 9, 24*time.Hour))
	both.Clients = clients(map[string]policy.Terms{"abuser": {Blocked: true}})
	trial := newPolicy("trial", fixed("per-minute", 1, time.Minute))
	trial.Shadow = true
	s := newService(both, trial)
	s.admits(t, `{"policy":"both","client":"alice","cost":2}`)
	s.denies(t, `{"policy":"both","client":"alice"}`)
	s.denies(t, `{"policy":"both","client":"abuser"}`)
	s.clock.at(time.Minute)
	s.denies(t, `{"policy":"both","client":"alice"}`)
	s.admits(t, `{"policy":"trial","client":"alice"}`)
	s.admits(t, `{"policy":"trial","client":"alice"}`)
	requireMetrics(t, s,
		`weir_limit_denials_total{limit="per-minute",policy="both"} 1`,
		`weir_limit_denials_total{limit="per-hour",policy="both"} 2`,
		`weir_limit_denials_total{limit="per-day",policy="both"} 0`,
		`weir_limit_denials_total{limit="per-minute",policy="trial"} 1`,
	)
}

func TestMetricsOfReloads(t *testing.T) {
	t.Parallel()
	s := newService()
	m, at := s.cfg.Metrics, time.UnixMilli(1_750_000_000_500)
	requireReloads := func(ok, failed int, loaded string, right int) {
		t.Helper()
		requireMetrics(t, s, fmt.Sprintf(`weir_config_reloads_total{outcome="ok"} %d`, ok), fmt.Sprintf(`weir_config_reloads_total{outcome="error"} %d`, failed),
			"weir_config_last_reload_success_timestamp_seconds "+loaded, fmt.Sprintf("weir_config_last_reload_successful %d", right))
	}
	m.Loaded(at)
	m.FilesRight(true)
	requireReloads(0, 0, "1.7500000005e+09", 1)
	m.Reloaded(false)
	m.Reloaded(false)
	m.FilesRight(false)
	requireReloads(0, 2, "1.7500000005e+09", 0)
	m.Reloaded(true)
	m.Loaded(at.Add(time.Hour))
	requireReloads(1, 2, "1.7500036005e+09", 0)
}

func TestMetricsOfViews(t *testing.T) {
	t.Parallel()
	s := newService()
	telemetry.RegisterViews(s.registry, func() int { return 7 }, func() int { return 100 })
	requireMetrics(t, s, "weir_views 7", "weir_views_limit 100")
}

// Policies that come and go would otherwise leave more series with each reload.
func TestMetricsForgetPoliciesThatAreGone(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("kept", fixed("per-minute", 2, time.Minute)), newPolicy("gone", fixed("per-minute", 2, time.Minute)))
	s.admits(t, `{"policy":"kept","client":"alice"}`)
	s.admits(t, `{"policy":"gone","client":"alice"}`)
	scrape := func(names ...string) string {
		t.Helper()
		var policies []*policy.Policy
		for _, name := range names {
			policies = append(policies, newPolicy(name, fixed("per-minute", 2, time.Minute)))
		}
		s.SetPolicies(bindLimiters(s.store, s.cfg.Metrics, policies...))
		return s.do(t, http.MethodGet, "/metrics", "").Body
	}
	assert.Contains(t, scrape("kept"), `weir_checks_total{decision="allowed",policy="gone"} 1`, "checks may be under way")
	assert.Contains(t, scrape("kept", "gone"), `weir_checks_total{decision="allowed",policy="gone"} 1`, "it is back")
	scrape("kept")
	last := scrape("kept")
	assert.NotContains(t, last, `"gone"`)
	assert.Contains(t, last, `weir_checks_total{decision="allowed",policy="kept"} 1`)
}
