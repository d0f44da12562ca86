package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/decide"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
)

// queue has batches wait that decide more checks than these at once.
func (s *service) queue(checks int, silent func() bool) {
	s.batches = decide.NewQueue(checks, s.cfg.StoreTimeout, silent)
	s.SetPolicies(s.active.Load().policies)
}

// Far more batches than can be decided within the store timeout at once are all
// decided by the store, whose time is theirs from when they begin. So are those
// that are admitted as a whole.
func (by way) TestBatchesWaitForThoseThatHaveBegun(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all=", all), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { by.testBatchesWait(t, all) })
		})
	}
}

func (by way) testBatchesWait(t *testing.T, all bool) {
	s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted")))
	s.queue(100, func() bool { return true }) // as a server that has been down for long
	var mu sync.Mutex
	asking := make(map[int]int) // checks of each batch
	most := 0
	s.store.onCall(func(_ context.Context, _, key string) error {
		var batch int
		_, err := fmt.Sscanf(key, "weir:api/per-minute:6000:b%d-", &batch)
		assert.NoError(t, err)
		mu.Lock()
		asking[batch]++
		most = max(most, len(asking))
		mu.Unlock()
		time.Sleep(8 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		if asking[batch]--; asking[batch] == 0 {
			delete(asking, batch)
		}
		return nil
	})
	ask := s.batch
	if all {
		ask = s.all
	}
	var batches sync.WaitGroup
	for b := range 10 {
		batches.Go(func() {
			for _, one := range ask(t, clientChecks(fmt.Sprintf("b%d", b), 100)...).Results {
				assert.True(t, one.Allowed)
				assert.False(t, one.Degraded)
			}
		})
	}
	batches.Wait()
	require.Equal(t, 2, most)
}

// oddAndEven is a store of two servers, one for clients with an odd number and one for the
// others.
type oddAndEven struct{ manyStore }

func (oddAndEven) Server(key string) string {
	var batch, client int
	_, err := fmt.Sscanf(key, "weir:api/per-minute:6000:b%d-%d", &batch, &client)
	must(err)
	return [...]string{"even", "odd"}[client%2]
}

// Batches end with their store timeout while a server is silent, however many
// there are.
func TestBatchesDontWaitForASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 700 * time.Millisecond
		watched := &watchedStore{Store: memory.New(nil), keys: make(map[string]bool)}
		store := oddAndEven{manyStore{watched}}
		s := newServiceWith(func(cfg *Config) {
			cfg.Now, cfg.StoreTimeout = nil, timeout
			cfg.Policies = bindLimiters(cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted")))
		})
		s.queue(1, s.cfg.Metrics.Silence())
		s.batch(t, clientChecks("b9", 100)...)
		watched.onCall(func(ctx context.Context, operation, key string) error {
			if store.Server(key) == "odd" {
				return waitForDeadline(ctx, operation, key)
			}
			return nil
		})
		begin := time.Now()
		var all sync.WaitGroup
		for b := range 4 {
			all.Go(func() {
				for i, one := range s.batch(t, clientChecks(fmt.Sprintf("b%d", b), 40)...).Results {
					assert.Equal(t, i%2 == 1, one.Degraded)
				}
				// The first look of the queue still finds others decided.
				assert.LessOrEqual(t, time.Since(begin), timeout+10*time.Millisecond, "one that waits for another takes as long again")
			})
		}
		all.Wait()
	})
}

// A countingStore calls answered for each answer that many operations get.
type countingStore struct {
	*memcached.Store
	answered func()
}

func (s countingStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	s.Store.AddMany(ctx, keys, begin, func(i int, added []counters.Added, err error) bool {
		s.answered()
		return done(i, added, err)
	})
}

func (s countingStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	s.Store.SwapMany(ctx, keys, begin, func(i int, now counters.State, swapped bool, err error) bool {
		s.answered()
		return done(i, now, swapped, err)
	})
}

// Callers who cut their connections, while a batch waits in the queue or in its middle,
// leave nothing behind: no check is counted twice, no client is led any more, and
// there is as much room inside as before. Those of a batch that is admitted as a
// whole are all counted or none.
func TestCallersWhoCutTheirConnections(t *testing.T) {
	t.Parallel()
	const timeout, batches, size = counters.MaxTimeout, 40, 100
	server := memcachedtest.Start(t)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Far(time.Millisecond)}, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	// Once all have come they leave one after the other, each when a quarter of a batch more has
	// been decided. Nothing more is decided before the server knows that it has left, so they
	// do however busy the machine is.
	var callers, at [batches]context.Context // at the server
	var leave, gone [batches]context.CancelFunc
	for b := range callers {
		callers[b], leave[b] = context.WithCancel(t.Context())
		at[b], gone[b] = context.WithCancel(t.Context())
		defer leave[b]()
		defer gone[b]()
	}
	var coming sync.WaitGroup
	var asking atomic.Bool
	var answers atomic.Int64
	counting := countingStore{store, func() {
		if !asking.Load() {
			return
		}
		n := answers.Add(1)
		coming.Wait()
		if b := n / (size / 2); n%(size/2) == 0 && b < batches { // of two limits
			leave[b]()
			<-at[b].Done()
		}
	}}
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, timeout
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(counting), cfg.Metrics,
			newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted"), token("burst", 100, time.Hour, 100)))
	})
	var looks atomic.Int64
	s.queue(size, func() bool { // the queue asks again and again while a batch waits
		looks.Add(1)
		return false
	})
	s.batch(t, clientChecks("first", size)...)
	asking.Store(true)
	leave[0]()
	coming.Add(batches - 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := strconv.Atoi(r.Header.Get("Caller"))
		must(err)
		context.AfterFunc(r.Context(), gone[b])
		coming.Done()
		s.handler.ServeHTTP(w, r)
	}))
	defer front.Close()
	var all sync.WaitGroup
	var cut atomic.Int64
	for b := range batches {
		all.Go(func() {
			body := fmt.Sprintf(`{"all":%t,"checks":[%s]}`, b%2 == 0, strings.Join(clientChecks(fmt.Sprintf("b%d", b), size), ","))
			r, err := http.NewRequestWithContext(callers[b], http.MethodPost, front.URL+"/v1/check/batch", strings.NewReader(body))
			assert.NoError(t, err)
			r.Header.Set("Caller", strconv.Itoa(b))
			answer, err := front.Client().Do(r)
			if err != nil {
				cut.Add(1)
				return
			}
			defer answer.Body.Close()
			if _, err = io.Copy(io.Discard, answer.Body); err != nil {
				cut.Add(1)
			}
		})
	}
	all.Wait()
	assert.Positive(t, cut.Load())
	front.Close()
	s.Await() // until all have ended, also those whose callers have left
	s.underWay.Unlock()
	counted, before := 0, looks.Load()
	s.batch(t, clientChecks("last", size)...)
	assert.LessOrEqual(t, looks.Load()-before, int64(1), "nobody is inside, so it doesn't wait; one look may have been due")
	for b := range batches {
		of := int64(0) // the batch
		checks, left := clientChecks(fmt.Sprintf("b%d", b), size), int64(99)
		now := s.batch(t, checks...).Results
		for ; slices.ContainsFunc(now, func(one result) bool { return one.Degraded }); left-- {
			now = s.batch(t, checks...).Results // the store was silent for a moment; what was admitted without it counts
		}
		for i, one := range now {
			require.True(t, one.Allowed)
			used := left - one.Limits[0].Remaining
			require.Contains(t, []int64{0, 1}, used, "client %d of batch %d", i, b)
			require.Equal(t, used, left-one.Limits[1].Remaining)
			of += used
		}
		if b%2 == 0 {
			require.Contains(t, []int64{0, size}, of)
		}
		counted += int(of)
	}
	assert.Positive(t, counted)
	assert.Less(t, counted, batches*size)
}
