// Package telemetry counts and logs what weir does, and what its store does.
//
// Where a metric is made: NewMetrics. Where it is counted: checks.go for checks,
// envoyhits.go for Envoy's limits, store.go for operations on the store, httprequests.go
// for HTTP requests, and metrics.go for the rest. Some aren't counted but asked for at each
// scrape: servers.go makes those of the store's servers, metrics.go the others.
//
// Where else decisions are kept: history.go has those of the last minutes for the page for
// operators, decisionlog.go writes each as a line.
package telemetry

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of one process. Make them with NewMetrics: the
// zero Metrics aren't usable. They are safe for concurrent use.
type Metrics struct {
	// Of checks, and of limits.
	checks, degraded, localDenials, limitDenials, missingPath *prometheus.CounterVec
	settlements, settledUnits, chargedUnits                   *prometheus.CounterVec
	leases, overridden, envoyHits                             *prometheus.CounterVec
	checkDuration                                             *prometheus.HistogramVec
	batchSize, casAttempts                                    prometheus.Histogram
	casConflicts, casForeign, casAhead                        prometheus.Counter
	refundsFailed, reseeded                                   prometheus.Counter
	// Of the store.
	operations     operationCounts
	operationTimes *prometheus.HistogramVec
	storeLatency   storeLatency
	// Of HTTP, and of the policies in force.
	requests, reloads        *prometheus.CounterVec
	held, loaded, lastReload prometheus.Gauge
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
			Name: name, Help: help, Buckets: durationBuckets[:],
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
			"Checks by policy and decision: allowed, denied, shadow_denied (allowed only because the policy is in shadow mode), contended (denied because other instances changed the client's state first at each attempt), error (refused because the store could not decide).", "policy", "decision"),
		checkDuration: seconds("weir_check_duration_seconds",
			"Time from reading a check to its decision.", "policy"),
		degraded: counter("weir_degraded_checks_total",
			"Checks that the store could not decide, by policy and by what on_store_error made of them.", "policy", "mode"),
		operationTimes: seconds("weir_store_operation_duration_seconds",
			"Time that an operation on the store took.", "operation"),
		localDenials: counter("weir_local_denials_total",
			"Denials by policy that needed no store operation, because the process knew that the check could not fit.", "policy"),
		batchSize: sizes("weir_batch_size",
			"Checks of one client and limit that were decided together.", 10),
		casAttempts: sizes("weir_cas_attempts",
			"Attempts to write a client's state until one succeeded or the time was up, per batch of checks.", 7),
		casConflicts: counter("weir_cas_conflicts_total",
			"Attempts to write a client's state that lost to another instance.").WithLabelValues(),
		casForeign: counter("weir_cas_foreign_values_total",
			"Values in the place of a client's state that this version can't read, and the client started anew; or of the list of overrides, and what was known of it holds.").WithLabelValues(),
		casAhead: counter("weir_cas_ahead_total",
			"Clients' states found from a clock that was further ahead than the clock skew; they were taken as of now.").WithLabelValues(),
		refundsFailed: counter("weir_refunds_failed_total",
			"Refunds of which nobody knows whether they were done, or were due. What they should have given back may stay in use until its time has passed.").WithLabelValues(),
		reseeded: counter("weir_reseeded_counters_total",
			"Counters and states that the store had lost and that were put back.").WithLabelValues(),
		requests: counter("weir_http_requests_total",
			"HTTP requests by route and status code. The route other stands for every path that isn't there.", "route", "code"),
		limitDenials: counter("weir_limit_denials_total",
			"Checks that a limit denied, in shadow mode too. One that several limits deny counts for each of them.", "policy", "limit"),
		envoyHits: counter("weir_envoy_hits_total",
			"Hits of Envoy's limits as envoyproxy/ratelimit tells them, by the limit's name there and by kind: total_hits, within_limit, over_limit, near_limit (more than 0.8 of the limit in use), over_limit_with_local_cache (denied without asking the store), shadow_mode. Kinds overlap.", "limit", "kind"),
		missingPath: counter("weir_auth_missing_path_total",
			"Requests to /v1/auth by policies with routes in which the proxy did not say the path, so that no route could count.", "policy"),
		settlements: counter("weir_settlements_total",
			"Settlements by policy and outcome: refunded (less was used than reserved), charged (more was), equal, already (settled before), late (too late: what was reserved stays), failed (answered with an error; what the store has done all the same counts again then).", "policy", "outcome"),
		settledUnits: counter("weir_settled_units_total",
			"Costs that settlements have given back or charged, by policy and direction: refunded, charged.", "policy", "direction"),
		chargedUnits: counter("weir_charged_units_total",
			"Costs that charges have counted, which no check had asked about, by policy.", "policy"),
		leases: counter("weir_leases_total",
			"Leases by policy, limit and outcome: granted, renewed, released, lost (they had ended, and there was no room to renew them).", "policy", "limit", "outcome"),
		overridden: counter("weir_override_decisions_total",
			"Checks that an override decided, or whose limits it replaced, by policy and kind: blocked, exempt, limits.", "policy", "kind"),
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

// Held counts answers that begin to be held, or end if the number is negative.
func (m *Metrics) Held(answers int) { m.held.Add(float64(answers)) }

// Silence returns a function that reports whether a server of the store has answered
// nothing since the function was called last, or whether none was ever asked. One
// goroutine at a time may call it.
func (m *Metrics) Silence() func() bool { return m.operations.silence() }

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
func (m *Metrics) FilesRight(right bool) { m.lastReload.Set(one(right)) }

// Sample ends a second of how long operations on the store took. It is to be called once a
// second.
func (m *Metrics) Sample() { m.storeLatency.sample(m.operationTimes) }

// StoreLatency returns how long 99 of 100 operations on the store took at most, in the last
// half to whole minute or since the process began, as one of the bounds that their histogram has; 0 if there were none,
// and a second if it was longer than all bounds.
func (m *Metrics) StoreLatency() time.Duration { return m.storeLatency.p99(m.operationTimes) }

// Files returns when the policies in force were loaded, and whether all files were right when
// they were last read.
func (m *Metrics) Files() (loaded time.Time, right bool) {
	return time.UnixMilli(int64(math.Round(valueOf(m.loaded) * 1000))).UTC(), valueOf(m.lastReload) == 1
}

// RegisterViews registers weir_views and weir_views_limit with r, once. Each
// scrape calls views and limit, which return how many clients are remembered
// and how many can be, over all limits; scrapes may overlap.
func RegisterViews(r prometheus.Registerer, views, limit func() int) {
	gauge := func(name, help string, value func() int) {
		promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	gauge("weir_views", "Clients that are remembered, over all limits.", views)
	gauge("weir_views_limit", "How many clients can be remembered, over all limits.", limit)
}

// RegisterOverrides registers weir_overrides and weir_overrides_age_seconds with r, once.
// Each scrape calls count, which calls f for each override that is in force, and age,
// which returns how long ago the store last told which are; scrapes may overlap.
func RegisterOverrides(r prometheus.Registerer, count func(f func(policy, kind string)), age func() time.Duration) {
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_overrides_age_seconds", Help: "How long ago the store last told which overrides are in force.",
	}, func() float64 { return age().Seconds() })
	r.MustRegister(overrides{prometheus.NewDesc("weir_overrides", "Overrides that are in force, by policy and kind: blocked, exempt, limits.", []string{"policy", "kind"}, nil), count})
}

// overrides are a prometheus.Collector.
type overrides struct {
	desc  *prometheus.Desc
	count func(f func(policy, kind string))
}

func (o overrides) Describe(to chan<- *prometheus.Desc) { to <- o.desc }

func (o overrides) Collect(to chan<- prometheus.Metric) {
	counts := make(map[[2]string]int)
	o.count(func(policy, kind string) { counts[[2]string{policy, kind}]++ })
	for of, n := range counts {
		to <- prometheus.MustNewConstMetric(o.desc, prometheus.GaugeValue, float64(n), of[0], of[1])
	}
}

// one is 1 if something holds, else 0.
func one(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
