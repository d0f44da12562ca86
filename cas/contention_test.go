package cas

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
)

// testConfig is that of a limit whose instances have the same clock.
func testConfig(clients int) Config {
	return Config{Options: counters.Options{Policy: "p", Limit: "l", ClockSkew: -1, Clients: clients}}
}

// testKeys is where a token bucket with testConfig has its states.
const testKeys = counters.Namespace("weir:p/l:token_bucket:")

// openStore returns a store of its own, with sockets of its own, on the server,
// as a process has one.
func openStore(t testing.TB, server *memcachedtest.Server) counters.StateStore {
	t.Helper()
	m, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

type taker interface {
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
}

// plainLoop is what each caller does by itself without a Limiter: load, step
// and swap until it isn't forestalled.
type plainLoop struct {
	store  counters.StateStore
	bucket bucket
}

func (l plainLoop) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	key := testKeys.StateKey(r.Client)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		old, err := l.store.Load(ctx, key)
		if err != nil {
			return counters.Decision{}, err
		}
		var s bucketState
		if old.Exists() {
			if s, err = l.bucket.decode(old.Value); err != nil {
				return counters.Decision{}, err
			}
		}
		s, d := l.bucket.step(s, r)
		if !d.Allowed {
			return d, nil
		}
		_, swapped, err := l.store.Swap(ctx, key, old, l.bucket.encode(nil, s), counters.TTL(l.bucket.ttl(s, r), 0))
		if err != nil || swapped {
			return d, err
		}
		if deadline, _ := ctx.Deadline(); time.Until(deadline) < pause {
			return d, ErrContended
		}
		time.Sleep(pause/2 + rand.N(pause/2))
	}
}

// A crowd is what callers of several processes were told.
type crowd struct {
	decisions, admitted, failed, contended int64
	p99                                    time.Duration
	unluckiest                             float64 // decisions of the caller with the fewest, as a part of the mean
}

// storm lets callers of each process ask for one client until the time is over.
func storm(processes []taker, callers int, r counters.Request, timeout, length time.Duration) crowd {
	var c crowd
	var admitted, failed, contended atomic.Int64
	took := make([][]time.Duration, len(processes)*callers)
	var done sync.WaitGroup
	end := time.Now().Add(length)
	for i := range took {
		done.Go(func() {
			for {
				r := r
				r.Now = time.Now()
				if r.Now.After(end) {
					return
				}
				ctx, cancel := context.WithDeadline(context.Background(), r.Now.Add(timeout))
				d, err := processes[i%len(processes)].Take(ctx, r)
				cancel()
				took[i] = append(took[i], time.Since(r.Now))
				switch {
				case d.Contended || errors.Is(err, ErrContended): // the plain loop's
					contended.Add(1)
				case err != nil:
					failed.Add(1)
				case d.Allowed:
					admitted.Add(1)
				}
			}
		})
	}
	done.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	fewest := len(all)
	for _, t := range took {
		fewest = min(fewest, len(t))
	}
	c.decisions, c.admitted, c.failed, c.contended = int64(len(all)), admitted.Load(), failed.Load(), contended.Load()
	c.p99 = all[len(all)*99/100]
	c.unluckiest = float64(fewest*len(took)) / float64(len(all))
	return c
}

func BenchmarkContention(b *testing.B) {
	bucket, err := newBucket(formatTokenBucket, time.Second, 0, false)
	require.NoError(b, err)
	// A limit that nobody reaches, so that each decision writes.
	r := counters.Request{Client: "c", Cost: 1, Limit: counters.MaxLimit}
	for _, test := range []struct {
		name      string
		processes int
		callers   []int
	}{
		{"one process", 1, []int{1, 4, 16, 64, 256}},
		{"eight processes", 8, []int{1, 32}},
	} {
		for _, callers := range test.callers {
			for _, plain := range []bool{true, false} {
				name := test.name + "/limiter"
				if plain {
					name = test.name + "/plain"
				}
				b.Run(fmt.Sprint(name, "/", callers), func(b *testing.B) {
					server := memcachedtest.StartSocket(b)
					var processes []taker
					var lost, attempts atomic.Int64
					for range test.processes {
						store := openStore(b, server)
						if plain {
							processes = append(processes, plainLoop{store, bucket})
							continue
						}
						cfg := testConfig(10)
						cfg.Swaps = func(a, n int) { lost.Add(int64(n)); attempts.Add(int64(a)) }
						l, err := NewTokenBucket(store, time.Second, 0, cfg)
						require.NoError(b, err)
						processes = append(processes, l)
					}
					b.ResetTimer()
					c := storm(processes, callers, r, 50*time.Millisecond, 2*time.Second)
					b.ReportMetric(float64(c.decisions-c.failed-c.contended)/2, "decisions/s")
					b.ReportMetric(float64(c.failed+c.contended), "errors")
					b.ReportMetric(c.p99.Seconds()*1e3, "p99-ms")
					b.ReportMetric(c.unluckiest, "unluckiest")
					b.ReportMetric(float64(attempts.Load())/2, "attempts/s")
					b.ReportMetric(float64(lost.Load())/2, "lost/s")
				})
			}
		}
	}
}

// Where an operation takes more than half of the store timeout, callers that wait for
// their own instance find the store too slow. Nobody contends with it.
func (by way) TestASlowStoreIsNoContention(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{Store: memory.New(nil), takes: 30 * time.Millisecond, swaps: true}
				cfg := testConfig(10)
				cfg.StoreTimeout = 50 * time.Millisecond
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				var callers sync.WaitGroup
				for i := range 8 {
					callers.Go(func() {
						time.Sleep(time.Duration(i) * 7 * time.Millisecond)
						for range 50 {
							d, err := l.Take(&counters.Deadline{At: time.Now().Add(50 * time.Millisecond)}, counters.Request{Client: "c", Cost: 1, Limit: 10_000, Now: time.Now()})
							assert.True(t, err != nil || d.Allowed, "%+v", d)
						}
					})
				}
				callers.Wait()
				time.Sleep(time.Second)
				l.(interface{ Flush() }).Flush()
			})
		})
	}
}
