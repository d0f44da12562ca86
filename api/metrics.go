package api

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"weir/counters"
)

// durationBuckets start where a check on a nearby store ends.
var durationBuckets = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 250e-3}

// Metrics are the metrics of one process.
type Metrics struct {
	checks         *prometheus.CounterVec
	checkDuration  *prometheus.HistogramVec
	degraded       *prometheus.CounterVec
	operations     *prometheus.CounterVec
	operationTimes *prometheus.HistogramVec
	localDenials   *prometheus.CounterVec
	batchSize      prometheus.Histogram
	casAttempts    prometheus.Histogram
	casConflicts   prometheus.Counter
	casForeign     prometheus.Counter
	// Reloads counts attempts to load the policy file again, by outcome: ok or
	// error.
	Reloads *prometheus.CounterVec
}

// NewMetrics returns metrics registered with r. version is shown by
// weir_build_info.
func NewMetrics(r prometheus.Registerer, version string) *Metrics {
	f := promauto.With(r)
	m := &Metrics{
		checks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_checks_total",
			Help: "Checks by policy and decision: allowed, denied, shadow_denied (allowed only because the policy is in shadow mode), error (refused because the store could not decide).",
		}, []string{"policy", "decision"}),
		checkDuration: f.NewHistogramVec(histogram(
			"weir_check_duration_seconds", "Time from reading a check to its decision.",
		), []string{"policy"}),
		degraded: f.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_degraded_checks_total",
			Help: "Checks that the store could not decide, by policy and by what on_store_error made of them.",
		}, []string{"policy", "mode"}),
		operations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_store_operations_total",
			Help: "Operations on the store by outcome: ok, timeout, error.",
		}, []string{"operation", "outcome"}),
		operationTimes: f.NewHistogramVec(histogram(
			"weir_store_operation_duration_seconds", "Time that an operation on the store took.",
		), []string{"operation"}),
		localDenials: f.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_local_denials_total",
			Help: "Denials by policy that needed no store operation, because the process knew that the check could not fit.",
		}, []string{"policy"}),
		batchSize: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_batch_size",
			Help:    "Checks of one client and limit that were decided together.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		casAttempts: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_cas_attempts",
			Help:    "Attempts to write a client's state until one succeeded or the time was over, per batch of checks.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		casConflicts: f.NewCounter(prometheus.CounterOpts{
			Name: "weir_cas_conflicts_total",
			Help: "Attempts to write a client's state that another instance forestalled.",
		}),
		casForeign: f.NewCounter(prometheus.CounterOpts{
			Name: "weir_cas_foreign_values_total",
			Help: "Values found in the place of a client's state that are none of this version; the client started anew.",
		}),
		Reloads: f.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_config_reloads_total",
			Help: "Attempts to load the policy file again, by outcome: ok, error.",
		}, []string{"outcome"}),
	}
	m.Reloads.WithLabelValues("ok")
	m.Reloads.WithLabelValues("error")
	f.NewGaugeVec(prometheus.GaugeOpts{
		Name: "weir_build_info",
		Help: "Always 1; the label says which version runs.",
	}, []string{"version"}).WithLabelValues(version).Set(1)
	return m
}

func histogram(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name:                           name,
		Help:                           help,
		Buckets:                        durationBuckets,
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 100,
	}
}

// policyMetrics are the metrics of one policy, with the labels resolved.
type policyMetrics struct {
	allowed, denied, shadowDenied, failed, degraded prometheus.Counter
	localDenied                                     prometheus.Counter
	duration                                        prometheus.Observer
}

func (m *Metrics) policy(p *Policy) *policyMetrics {
	return &policyMetrics{
		allowed:      m.checks.WithLabelValues(p.Name, "allowed"),
		denied:       m.checks.WithLabelValues(p.Name, "denied"),
		shadowDenied: m.checks.WithLabelValues(p.Name, "shadow_denied"),
		failed:       m.checks.WithLabelValues(p.Name, "error"),
		degraded:     m.degraded.WithLabelValues(p.Name, string(p.OnStoreError)),
		localDenied:  m.localDenials.WithLabelValues(p.Name),
		duration:     m.checkDuration.WithLabelValues(p.Name),
	}
}

// count counts an answer that took the given time.
func (m *policyMetrics) count(a *answer, took time.Duration) {
	switch {
	case a.refused:
		m.failed.Inc()
	case a.denied && a.allowed:
		m.shadowDenied.Inc()
	case a.allowed:
		m.allowed.Inc()
	default:
		m.denied.Inc()
	}
	if a.degraded {
		m.degraded.Inc()
	}
	if a.local() {
		m.localDenied.Inc()
	}
	m.duration.Observe(took.Seconds())
}

// Batch counts a batch of checks that were decided together.
func (m *Metrics) Batch(size int) { m.batchSize.Observe(float64(size)) }

// Swaps counts what writing a state took: all attempts, and those of them that
// lost a race.
func (m *Metrics) Swaps(attempts, lost int) {
	m.casAttempts.Observe(float64(attempts))
	m.casConflicts.Add(float64(lost))
}

// Foreign counts a value that should be a state and isn't.
func (m *Metrics) Foreign() { m.casForeign.Inc() }

// MeterStore returns store with each operation counted and timed.
func (m *Metrics) MeterStore(store counters.Store) counters.Store {
	return &meteredStore{
		Store:    store,
		add:      m.operation("add"),
		read:     m.operation("read"),
		subtract: m.operation("subtract"),
		delete:   m.operation("delete"),
	}
}

type meteredStore struct {
	counters.Store
	add, read, subtract, delete operationMetrics
}

type operationMetrics struct {
	ok, timeout, failed prometheus.Counter
	duration            prometheus.Observer
}

func (m *Metrics) operation(name string) operationMetrics {
	return operationMetrics{
		ok:       m.operations.WithLabelValues(name, "ok"),
		timeout:  m.operations.WithLabelValues(name, "timeout"),
		failed:   m.operations.WithLabelValues(name, "error"),
		duration: m.operationTimes.WithLabelValues(name),
	}
}

func (o *operationMetrics) count(start time.Time, err error) {
	o.duration.Observe(time.Since(start).Seconds())
	switch {
	case err == nil:
		o.ok.Inc()
	case errors.Is(err, counters.ErrTimeout):
		o.timeout.Inc()
	default:
		o.failed.Inc()
	}
}

func (s *meteredStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	start := time.Now()
	n, err := s.Store.Add(ctx, a)
	s.add.count(start, err)
	return n, err
}

func (s *meteredStore) Read(ctx context.Context, keys []string, counts []int64) error {
	start := time.Now()
	err := s.Store.Read(ctx, keys, counts)
	s.read.count(start, err)
	return err
}

func (s *meteredStore) Subtract(ctx context.Context, key string, delta int64) error {
	start := time.Now()
	err := s.Store.Subtract(ctx, key, delta)
	s.subtract.count(start, err)
	return err
}

func (s *meteredStore) Delete(ctx context.Context, keys []string) error {
	start := time.Now()
	err := s.Store.Delete(ctx, keys)
	s.delete.count(start, err)
	return err
}

// MeterStates returns store with each operation counted and timed.
func (m *Metrics) MeterStates(store counters.StateStore) counters.StateStore {
	return &meteredStates{
		store: store,
		load:  m.operation("load"), swap: m.operation("swap"), delete: m.operation("delete"),
	}
}

type meteredStates struct {
	store              counters.StateStore
	load, swap, delete operationMetrics
}

func (s *meteredStates) Load(ctx context.Context, key string) (counters.State, error) {
	start := time.Now()
	state, err := s.store.Load(ctx, key)
	s.load.count(start, err)
	return state, err
}

func (s *meteredStates) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	start := time.Now()
	state, swapped, err := s.store.Swap(ctx, key, old, value, ttl)
	s.swap.count(start, err)
	return state, swapped, err
}

func (s *meteredStates) Delete(ctx context.Context, keys []string) error {
	start := time.Now()
	err := s.store.Delete(ctx, keys)
	s.delete.count(start, err)
	return err
}

// RegisterViews registers weir_views, which asks views at each scrape.
func RegisterViews(r prometheus.Registerer, views func() int) {
	promauto.With(r).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_views",
		Help: "Clients that are remembered, over all limits.",
	}, func() float64 { return float64(views()) })
}

// serversUp tells at each scrape which servers of the store answer.
type serversUp struct {
	health func(context.Context) []counters.ServerStatus
	up     *prometheus.Desc
}

// RegisterHealth registers weir_store_up, which asks health at each scrape.
func RegisterHealth(r prometheus.Registerer, health func(context.Context) []counters.ServerStatus) {
	r.MustRegister(&serversUp{health: health, up: prometheus.NewDesc("weir_store_up",
		"Whether a server of the store answers.", []string{"server"}, nil)})
}

func (s *serversUp) Describe(ch chan<- *prometheus.Desc) { ch <- s.up }

func (s *serversUp) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	for _, server := range s.health(ctx) {
		up := 0.0
		if server.Err == nil {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(s.up, prometheus.GaugeValue, up, server.Server)
	}
}
