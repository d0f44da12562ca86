package api

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/counters"
)

// A Store keeps everything that limiters keep.
type Store interface {
	counters.Store
	counters.StateStore
}

// InstrumentStore returns store with each operation counted and timed. It
// changes neither results nor errors, and is safe for concurrent use if store
// is.
func (m *Metrics) InstrumentStore(store Store) Store {
	return &instrumentedStore{
		store:    store,
		add:      m.operation("add"),
		read:     m.operation("read"),
		subtract: m.operation("subtract"),
		raise:    m.operation("raise"),
		load:     m.operation("load"),
		swap:     m.operation("swap"),
		put:      m.operation("put"),
		delete:   m.operation("delete"),
	}
}

type instrumentedStore struct {
	store Store

	add, read, subtract, raise, load, swap, put, delete operationMetrics
}

// operationMetrics are the metrics of one operation, with the labels resolved.
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

// done counts an operation that began at start and ended with *err. It takes a
// pointer so that it can be deferred without a closure.
func (o *operationMetrics) done(start time.Time, err *error) {
	o.duration.Observe(time.Since(start).Seconds())
	switch {
	case *err == nil:
		o.ok.Inc()
	case errors.Is(*err, counters.ErrTimeout):
		o.timeout.Inc()
	default:
		o.failed.Inc()
	}
}

func (s *instrumentedStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	defer s.add.done(time.Now(), &err)
	return s.store.Add(ctx, a)
}

func (s *instrumentedStore) Read(ctx context.Context, keys []string, counts []int64) (err error) {
	defer s.read.done(time.Now(), &err)
	return s.store.Read(ctx, keys, counts)
}

func (s *instrumentedStore) Subtract(ctx context.Context, key string, delta int64) (err error) {
	defer s.subtract.done(time.Now(), &err)
	return s.store.Subtract(ctx, key, delta)
}

func (s *instrumentedStore) Raise(ctx context.Context, floors []counters.Floor) (err error) {
	defer s.raise.done(time.Now(), &err)
	return s.store.Raise(ctx, floors)
}

func (s *instrumentedStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	defer s.load.done(time.Now(), &err)
	return s.store.Load(ctx, key)
}

func (s *instrumentedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (now counters.State, swapped bool, err error) {
	defer s.swap.done(time.Now(), &err)
	return s.store.Swap(ctx, key, old, value, ttl)
}

func (s *instrumentedStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) (err error) {
	defer s.put.done(time.Now(), &err)
	return s.store.Put(ctx, key, value, ttl)
}

func (s *instrumentedStore) Delete(ctx context.Context, keys []string) (err error) {
	defer s.delete.done(time.Now(), &err)
	return s.store.Delete(ctx, keys)
}
