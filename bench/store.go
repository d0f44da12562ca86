package main

import (
	"context"
	"fmt"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"weir/counters"
)

// A storeWorkload is a row of the table about the store alone: so many callers
// incrementing 10,000 counters in turn.
type storeWorkload struct{ callers int }

func (w storeWorkload) String() string { return fmt.Sprintf("store, %d callers", w.callers) }

func storeWorkloads() []storeWorkload { return []storeWorkload{{1}, {16}, {64}, {256}} }

// measureStore compares weir's store with gomemcache's own pool.
func measureStore(ctx context.Context, cfg throughputConfig, w storeWorkload) (storeRow, error) {
	m, err := startMemcached(ctx, 64)
	if err != nil {
		return storeRow{}, err
	}
	defer m.stop()
	store, err := counters.NewMemcached(counters.MemcachedConfig{Servers: []string{m.addr}, KeyPrefix: keyPrefix})
	if err != nil {
		return storeRow{}, err
	}
	defer store.Close()
	pool := memcache.New(m.addr)
	pool.MaxIdleConns = 512
	pool.Timeout = time.Minute
	defer pool.Close()

	keys := make([]string, distinct.clients)
	namespace := counters.CounterNamespace(keyPrefix, "store", limitName, window)
	for n := range keys {
		keys[n] = counters.CounterKey(namespace.Client(clientName(int64(n))), 0)
	}
	deadline, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	add := func(n int64) (bool, error) {
		_, err := store.Add(deadline, counters.Addition{Key: keys[n], Delta: 1, TTL: time.Hour})
		return true, err
	}
	increment := func(n int64) (bool, error) {
		_, err := pool.Increment(keys[n], 1)
		return true, err
	}
	run := func(op operation, d time.Duration) (tally, error) {
		operations := make([]operation, w.callers)
		for i := range operations {
			operations[i] = op
		}
		return repeat(ctx, operations, &turn{clients: int64(len(keys))}, d)
	}
	// The counters have to be there before gomemcache can increment them.
	for n := range keys {
		if _, err := add(int64(n)); err != nil {
			return storeRow{}, err
		}
	}
	for _, op := range []operation{add, increment} {
		if _, err := run(op, cfg.warmUp/2); err != nil {
			return storeRow{}, err
		}
	}
	p := newPair()
	for range sliceCount {
		err := p.slice(
			func() (tally, error) { return run(increment, cfg.duration/sliceCount) },
			func() (tally, error) { return run(add, cfg.duration/sliceCount) },
		)
		if err != nil {
			return storeRow{}, err
		}
	}
	return newStoreRow(w, p), nil
}
