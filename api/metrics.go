package api

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"weir/api/policy"
)

// durationBuckets are in seconds and start where the fastest checks end. 25 ms is
// what the alert WeirSlow asks about.
var durationBuckets = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3}

// Metrics are the metrics of one process. Make them with NewMetrics: the
// zero Metrics aren't usable. They are safe for concurrent use.
type Metrics struct {
	checks         *prometheus.CounterVec
	checkDuration  *prometheus.HistogramVec
	degraded       *prometheus.CounterVec
	operations     operationCounts
	operationTimes *prometheus.HistogramVec
	localDenials   *prometheus.CounterVec
	batchSize      prometheus.Histogram
	casAttempts    prometheus.Histogram
	casConflicts   prometheus.Counter
	casForeign     prometheus.Counter
	casAhead       prometheus.Counter
	refundsFailed  prometheus.Counter
	reseeded       prometheus.Counter
	requests       *prometheus.CounterVec
	limitDenials   *prometheus.CounterVec
	missingPath    *prometheus.CounterVec
	held           prometheus.Gauge
	reloads        *prometheus.CounterVec
	loaded         prometheus.Gauge
	lastReload     prometheus.Gauge
}

// NewMetrics returns metrics registered with r, or nowhere if r is nil. It
// panics if r has them already. The version is the label of weir_build_info.
func NewMetrics(r prometheus.Registerer, version string) *Metrics {
	f := promauto.With(r)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	seconds := func(name, help, label string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: durationBuckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
		}, []string{label})
	}
	sizes := func(name, help string, doublings int) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1, 2, doublings+1),
		})
	}
	m := &Metrics{
		checks: counter("weir_checks_total",
			"Checks by policy and decision: allowed, denied, shadow_denied (allowed only because the policy is in shadow mode), contended (denied because other instances changed the client's state first at each attempt), error (refused because the store could not decide).",
			"policy", "decision"),
		checkDuration: seconds("weir_check_duration_seconds",
			"Time from reading a check to its decision.", "policy"),
		degraded: counter("weir_degraded_checks_total",
			"Checks that the store could not decide, by policy and by what on_store_error made of them.",
			"policy", "mode"),
		operationTimes: seconds("weir_store_operation_duration_seconds",
			"Time that an operation on the store took.", "operation"),
		localDenials: counter("weir_local_denials_total",
			"Denials by policy that needed no store operation, because the process knew that the check could not fit.",
			"policy"),
		batchSize: sizes("weir_batch_size",
			"Checks of one client and limit that were decided together.", 10),
		casAttempts: sizes("weir_cas_attempts",
			"Attempts to write a client's state until one succeeded or the time was up, per batch of checks.", 7),
		casConflicts: counter("weir_cas_conflicts_total",
			"Attempts to write a client's state that lost to another instance.").WithLabelValues(),
		casForeign: counter("weir_cas_foreign_values_total",
			"Values in the place of a client's state that this version can't read; the client started anew.").WithLabelValues(),
		casAhead: counter("weir_cas_ahead_total",
			"Clients' states found from a clock that was further ahead than the clock skew; they were taken as of now.").WithLabelValues(),
		refundsFailed: counter("weir_refunds_failed_total",
			"Refunds of which nobody knows whether they were done, or were due. What they should have given back may stay in use until its time has passed.").WithLabelValues(),
		reseeded: counter("weir_reseeded_counters_total",
			"Counters and states that the store had lost and that were put back.").WithLabelValues(),
		requests: counter("weir_http_requests_total",
			"HTTP requests by route and status code. The route other stands for every path that isn't there.", "route", "code"),
		limitDenials: counter("weir_limit_denials_total",
			"Checks that a limit denied, in shadow mode too. One that several limits deny counts for each of them.",
			"policy", "limit"),
		missingPath: counter("weir_auth_missing_path_total",
			"Requests to /v1/auth by policies with routes in which the proxy did not say the path, so that no route could count.",
			"policy"),
		held: gauge("weir_held_requests",
			"Answers that are being held until their wait is over."),
		reloads: counter("weir_config_reloads_total",
			"Files that were read again, as they had changed, by outcome: ok, error (what was read before stays in force).", "outcome"),
		loaded: gauge("weir_config_last_reload_success_timestamp_seconds",
			"When the policies in force were loaded, in seconds since 1970."),
		lastReload: gauge("weir_config_last_reload_successful",
			"Whether all files were right when they were last read."),
	}
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("error")
	f.NewGaugeVec(prometheus.GaugeOpts{Name: "weir_build_info", Help: "Always 1; the label says which version runs."},
		[]string{"version"}).WithLabelValues(version).Set(1)
	return m
}

// policyMetrics are the metrics of one policy, with the labels resolved.
type policyMetrics struct {
	decisions                          [numDecisions]prometheus.Counter
	degraded, localDenied, missingPath prometheus.Counter
	duration                           prometheus.Observer
	warnOfMissingPath                  *sync.Once
	limits                             []prometheus.Counter // denials of each of the policy's limits
	top                                *topClients
}

// policy returns the metrics of p. Its busiest clients, and what the log has said
// of it, go on from before, the metrics of its older version, unless that is nil.
func (m *Metrics) policy(p *policy.Policy, before *policyMetrics) *policyMetrics {
	pm := &policyMetrics{
		degraded:    m.degraded.WithLabelValues(p.Name, string(p.OnStoreError)),
		localDenied: m.localDenials.WithLabelValues(p.Name),
		missingPath: m.missingPath.WithLabelValues(p.Name),
		duration:    m.checkDuration.WithLabelValues(p.Name),
	}
	for d, name := range decisionNames {
		pm.decisions[d] = m.checks.WithLabelValues(p.Name, name)
	}
	for _, l := range p.Limits {
		pm.limits = append(pm.limits, m.limitDenials.WithLabelValues(p.Name, l.Name))
	}
	if before != nil {
		pm.top, pm.warnOfMissingPath = before.top, before.warnOfMissingPath
	} else {
		pm.top, pm.warnOfMissingPath = newTopClients(), new(sync.Once)
	}
	return pm
}

// forget ends the series of a policy: those of policies that come and go would
// add up.
func (m *Metrics) forget(policy string) {
	for _, vec := range []*prometheus.MetricVec{
		m.checks.MetricVec, m.checkDuration.MetricVec, m.degraded.MetricVec, m.localDenials.MetricVec, m.limitDenials.MetricVec, m.missingPath.MetricVec,
	} {
		vec.DeletePartialMatch(prometheus.Labels{"policy": policy})
	}
}

// count counts an answer to a check that began at now, and the time that it
// took.
func (m *policyMetrics) count(a *answer, now time.Time, took time.Duration) {
	m.countDecision(a, took)
	if a.denied {
		for i := range a.limits { // all of the policy's, or none
			if !a.limits[i].Allowed {
				m.limits[i].Inc()
			}
		}
	}
	m.top.count(a, now)
}

// countDecision counts what was decided, whatever limits were asked.
func (m *policyMetrics) countDecision(a *answer, took time.Duration) {
	m.decisions[a.decision()].Inc()
	if a.degraded != nil {
		m.degraded.Inc()
	}
	if a.local {
		m.localDenied.Inc()
	}
	m.duration.Observe(took.Seconds())
}

// Batch counts a batch of size checks that were decided together.
func (m *Metrics) Batch(size int) { m.batchSize.Observe(float64(size)) }

// Swaps counts the attempts that it took to write a state, and how many of them
// lost a race.
func (m *Metrics) Swaps(attempts, lost int) {
	m.casAttempts.Observe(float64(attempts))
	m.casConflicts.Add(float64(lost))
}

// Foreign counts a value in the place of a state that isn't one.
func (m *Metrics) Foreign() { m.casForeign.Inc() }

// Ahead counts a state from a clock that was further ahead than clocks may differ.
func (m *Metrics) Ahead() { m.casAhead.Inc() }

// Reseeded counts n counters or states that were put back.
func (m *Metrics) Reseeded(n int) { m.reseeded.Add(float64(n)) }

// RefundFailed counts a refund that failed.
func (m *Metrics) RefundFailed() { m.refundsFailed.Inc() }

// Loaded notes that the policies in force were loaded at that time.
func (m *Metrics) Loaded(at time.Time) { m.loaded.Set(float64(at.UnixMilli()) / 1000) }

// Reloaded counts that files were read again.
func (m *Metrics) Reloaded(ok bool) {
	outcome := "ok"
	if !ok {
		outcome = "error"
	}
	m.reloads.WithLabelValues(outcome).Inc()
}

// FilesRight notes whether all files were right when they were last read.
func (m *Metrics) FilesRight(right bool) {
	value := 0.0
	if right {
		value = 1
	}
	m.lastReload.Set(value)
}

// RegisterViews registers weir_views and weir_views_limit with r, once. Each
// scrape calls views and limit, which return how many clients are remembered
// and how many can be, over all limits; scrapes may overlap.
func RegisterViews(r prometheus.Registerer, views, limit func() int) {
	for _, gauge := range []struct {
		name, help string
		value      func() int
	}{
		{"weir_views", "Clients that are remembered, over all limits.", views},
		{"weir_views_limit", "How many clients can be remembered, over all limits.", limit},
	} {
		promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{Name: gauge.name, Help: gauge.help},
			func() float64 { return float64(gauge.value()) })
	}
}
