package telemetry

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
// is. If store has a method Server(key string) string, that says which server
// an operation is counted for, by the names of Config.Health; otherwise it is
// "embedded".
func (m *Metrics) InstrumentStore(store Store) Store {
	s := &instrumentedStore{store: store, server: func(string) string { return "embedded" }, counts: &m.operations}
	if servers, ok := store.(interface{ Server(key string) string }); ok {
		s.server = servers.Server
	}
	for o, name := range operationNames {
		s.times[o] = m.operationTimes.WithLabelValues(name)
	}
	if many, ok := store.(togetherStore); ok {
		return &instrumentedManyStore{s, many}
	}
	return s
}

// A togetherStore does operations for many clients at once.
type togetherStore interface {
	counters.ManyStore
	counters.ManyStateStore
}

// An instrumentedManyStore counts and times each of many additions, reads and
// swaps.
type instrumentedManyStore struct {
	*instrumentedStore
	many togetherStore
}

// An exchange is one of many with a store.
type exchange struct {
	begun     time.Time
	additions []counters.Addition // of an AddMany, as begun
	swap      operation           // of a SwapMany
}

func (s *instrumentedManyStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	exchanges := begunNow(len(keys))
	s.many.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		exchanges[i].begun = time.Now()
		additions, turn := begin(i, to)
		if turn == counters.Now {
			exchanges[i].additions = additions[len(to):]
		}
		return additions, turn
	}, func(i int, added []counters.Added, err error) (more bool) {
		e := exchanges[i]
		for k, one := range added {
			o := opAdd
			switch a := e.additions[k]; {
			case a.Key == "":
				o = opRead
			case a.Delta < 0:
				o = opSubtract
			}
			s.doneOne(o, keys[i], e.begun, one.Err)
		}
		if err != nil {
			s.doneOne(opAdd, keys[i], e.begun, err)
		}
		return done(i, added, err)
	})
	exchangeScratch.Put(exchanges)
}

func (s *instrumentedManyStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	exchanges := begunNow(len(keys))
	s.many.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
		exchanges[i] = exchange{begun: time.Now(), swap: opSwap}
		r, turn := begin(i)
		if r.Value == nil {
			exchanges[i].swap = opLoad
		}
		return r, turn
	}, func(i int, now counters.State, swapped bool, err error) bool {
		s.doneOne(exchanges[i].swap, keys[i], exchanges[i].begun, err)
		return done(i, now, swapped, err)
	})
	exchangeScratch.Put(exchanges)
}

var exchangeScratch counters.Scratch[exchange]

// begunNow returns n exchanges that begin now, unless their begin is called later.
func begunNow(n int) []exchange {
	exchanges, none := exchangeScratch.Get(n), exchange{begun: time.Now(), swap: opSwap}
	for i := range exchanges {
		exchanges[i] = none
	}
	return exchanges
}

// doneOne is done for one of many operations.
func (s *instrumentedManyStore) doneOne(o operation, key string, start time.Time, err error) {
	if !errors.Is(err, counters.ErrNotAdded) {
		s.done(o, key, start, &err)
	}
}

type instrumentedStore struct {
	store  Store
	server func(key string) string
	counts *operationCounts
	times  [numOperations]prometheus.Observer
}

// done counts an operation on key that began at start and ended with *err. It
// takes a pointer so that it can be deferred without a closure.
func (s *instrumentedStore) done(o operation, key string, start time.Time, err *error) {
	s.times[o].Observe(time.Since(start).Seconds())
	ended := endedOK
	switch {
	case *err == nil:
	case errors.Is(*err, counters.ErrTimeout):
		ended = endedTimeout
	default:
		ended = endedError
	}
	s.counts.of(s.server(key))[o][ended].Add(1)
}

func (s *instrumentedStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	defer s.done(opAdd, a.Key, time.Now(), &err)
	return s.store.Add(ctx, a)
}

func (s *instrumentedStore) Read(ctx context.Context, keys []string, counts []int64) (err error) {
	if len(keys) == 0 {
		return nil
	}
	defer s.done(opRead, keys[0], time.Now(), &err)
	return s.store.Read(ctx, keys, counts)
}

func (s *instrumentedStore) Subtract(ctx context.Context, key string, delta int64) (err error) {
	defer s.done(opSubtract, key, time.Now(), &err)
	return s.store.Subtract(ctx, key, delta)
}

func (s *instrumentedStore) Raise(ctx context.Context, floors []counters.Floor) (err error) {
	if len(floors) == 0 {
		return nil
	}
	defer s.done(opRaise, floors[0].Key, time.Now(), &err)
	return s.store.Raise(ctx, floors)
}

func (s *instrumentedStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	defer s.done(opLoad, key, time.Now(), &err)
	return s.store.Load(ctx, key)
}

func (s *instrumentedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (now counters.State, swapped bool, err error) {
	defer s.done(opSwap, key, time.Now(), &err)
	return s.store.Swap(ctx, key, old, value, ttl)
}

func (s *instrumentedStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) (err error) {
	defer s.done(opPut, key, time.Now(), &err)
	return s.store.Put(ctx, key, value, ttl)
}

func (s *instrumentedStore) Delete(ctx context.Context, keys []string) (err error) {
	if len(keys) == 0 {
		return nil
	}
	defer s.done(opDelete, keys[0], time.Now(), &err)
	return s.store.Delete(ctx, keys)
}
