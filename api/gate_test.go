package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

func never() bool { return false }

// gateTimeline has batches of so many checks come, a millisecond apart, each of
// which takes as many milliseconds once it has begun. It returns when each began,
// in milliseconds since the first came.
func gateTimeline(g *gate, took int, decides bool, batches ...int) []int {
	began := make([]int, len(batches))
	start := time.Now()
	var all sync.WaitGroup
	for i, checks := range batches {
		all.Go(func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			_, leave := g.enter(context.Background(), checks)
			defer leave()
			began[i] = int(time.Since(start).Milliseconds())
			for range took {
				time.Sleep(time.Millisecond)
				if decides {
					g.decided.Add(1)
				}
			}
		})
	}
	all.Wait()
	return began
}

// Batches begin as others end, and small ones wait less, but none waits forever.
func TestGateHasBatchesWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Minute, never)
		g.most, g.now, g.late = 2000, 2000, time.Minute
		assert.Equal(t, []int{0, 1, 30, 31, 60, 61}, gateTimeline(g, 30, true, 1000, 1000, 1000, 1000, 1000, 1000))
		assert.Equal(t, []int{0, 1, 30, 3, 4}, gateTimeline(g, 30, true, 1000, 1000, 1000, 10, 900), "there is room for small ones")
		assert.Equal(t, []int{0, 1, 2, 31, 32, 30}, gateTimeline(g, 30, true, 1000, 1000, 900, 900, 900, 800), "but not without end")
		g.most, g.now = 1, 1
		assert.Equal(t, []int{0, 90, 60, 30, 120}, gateTimeline(g, 30, true, 1000, 1000, 400, 10, 990))
		assert.Zero(t, g.inside)
		assert.Empty(t, g.waiting)
	})
}

// As long as batches are late, fewer begin at once, down to a large one.
func TestGateNarrowsWhenBatchesAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(50*time.Millisecond, never)
		g.most, g.now = 2000, 2000
		for range 50 {
			gateTimeline(g, 26, true, 1000)
		}
		assert.Equal(t, []int{0, 26, 52}, gateTimeline(g, 26, true, 1000, 1000, 1000))
		for range 150 {
			gateTimeline(g, 24, true, 1000)
		}
		assert.Equal(t, []int{0, 1, 24}, gateTimeline(g, 24, true, 1000, 1000, 1000))
		assert.Equal(t, g.most, g.now)
	})
}

// While a server is silent nobody waits for those that wait for it. One that
// answers something is busy.
func TestGateOpensWhenNothingIsDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := true
		g := newGate(50*time.Millisecond, func() bool { return silent })
		g.most, g.now = 2000, 2000
		assert.Equal(t, []int{0, 1, 12, 12, 12, 12}, gateTimeline(g, 50, false, 1000, 1000, 1000, 1000, 1000, 1000))
		g.now = 2000
		assert.Equal(t, []int{0, 1, 50, 51}, gateTimeline(g, 50, true, 1000, 1000, 1000, 1000))
		silent = false
		g.now = 2000
		assert.Equal(t, []int{0, 1, 50, 51}, gateTimeline(g, 50, false, 1000, 1000, 1000, 1000))
	})
}

// No batch waits for longer than two store timeouts, however many there are, or
// for so long that its connection is closed before it ends.
func TestGateHasABatchWaitOnlySoLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(50*time.Millisecond, never)
		g.most, g.now, g.late = 1, 1, time.Minute
		assert.Equal(t, []int{0, 70, 102, 103}, gateTimeline(g, 70, true, 1000, 1000, 1000, 1000))
		g = newGate(5*time.Second, never)
		g.most, g.now, g.late = 1, 1, time.Minute
		assert.Equal(t, []int{0, 4001}, gateTimeline(g, 5000, true, 1000, 1000))
		assert.Zero(t, g.inside)
		assert.Empty(t, g.waiting)
	})
}

// What a batch waits for a silent server is part of its time.
func TestGateTellsHowLongABatchWasHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent := true
		g := newGate(50*time.Millisecond, func() bool { return silent })
		g.most, g.now = 1, 1
		none, leave := g.enter(t.Context(), 1000)
		held, leaveHeld := g.enter(t.Context(), 1000)
		assert.Zero(t, none)
		assert.Equal(t, 10*time.Millisecond, held)
		leaveHeld()
		silent = false
		time.AfterFunc(30*time.Millisecond, leave)
		held, leave = g.enter(t.Context(), 1000)
		assert.Zero(t, held, "it waited for others")
		leave()
	})
}

// What a batch waited for others, before a server was silent, is no part of its
// time: it would have none left for the servers that answer.
func TestGateTellsOnlyOfTheSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(50*time.Millisecond, func() bool { return true })
		g.most, g.now = 1, 1
		_, leave := g.enter(t.Context(), 1000)
		go func() {
			for range 100 {
				time.Sleep(time.Millisecond)
				g.decided.Add(1)
			}
		}()
		begin := time.Now()
		held, leaveHeld := g.enter(t.Context(), 1000)
		assert.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
		assert.LessOrEqual(t, held, 10*time.Millisecond)
		leaveHeld()
		leave()
	})
}

// Those who waited behind a caller who leaves begin if there is room for them.
func TestGateWhenTheFirstToWaitLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Minute, never)
		g.most, g.now = 1000, 1000
		_, leave := g.enter(t.Context(), 1000)
		start := time.Now()
		time.AfterFunc(time.Second, leave)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		go g.enter(ctx, 1000)
		time.Sleep(100 * time.Millisecond)
		_, leaveSmall := g.enter(t.Context(), 10)
		assert.Equal(t, 200*time.Millisecond, time.Since(start))
		leaveSmall()
	})
}

// A server is silent that has answered nothing since it was listened to.
func TestListener(t *testing.T) {
	t.Parallel()
	var counts operationCounts
	l := listener{counts: &counts}
	answer := func(server string, ended outcome) { counts.of(server)[opRead][ended].Add(1) }
	assert.True(t, l.silent(), "nobody has been asked")
	answer("a", endedOK)
	assert.False(t, l.silent())
	assert.True(t, l.silent())
	answer("a", endedOK)
	answer("b", endedOK)
	assert.False(t, l.silent())
	answer("a", endedOK)
	answer("b", endedTimeout)
	assert.True(t, l.silent())
	answer("a", endedOK)
	counts.keep([]string{"a"})
	assert.False(t, l.silent())
}

// A caller who leaves takes nobody's place.
func TestGateWhenACallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Minute, never)
		g.most, g.now = 1, 1
		_, leave := g.enter(t.Context(), 1000)
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, leaveLater := g.enter(ctx, 1000)
		leaveLater()
		assert.Equal(t, 1000, g.inside)
		leave()
		assert.Zero(t, g.inside)
		assert.Empty(t, g.waiting)
	})
}

// Far more batches than can be decided within the store timeout at once are all
// decided by the store, whose time is theirs from when they begin. So are those
// that are admitted as a whole.
func TestBatchesWaitForThoseThatHaveBegun(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all=", all), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testBatchesWait(t, all) })
		})
	}
}

func testBatchesWait(t *testing.T, all bool) {
	s := newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted")))
	s.batches.most, s.batches.now = 100, 100
	s.batches.silent = func() bool { return true } // as a server that has been down for long
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

// Batches end with their store timeout while a server is silent, however many
// there are.
func TestBatchesDontWaitForASilentServer(t *testing.T) {
	t.Parallel()
	const timeout = 700 * time.Millisecond
	other, silent := memcachedtest.Start(t), memcachedtest.Start(t)
	store, err := memcached.New(memcached.Config{Servers: []string{other.Addr, silent.Addr}, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, timeout
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics, newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted")))
	})
	s.batches.most, s.batches.now = 1, 1
	s.batch(t, clientChecks("first", 100)...)
	silent.Pause()
	begin := time.Now()
	var all sync.WaitGroup
	for b := range 4 {
		all.Go(func() {
			degraded := 0
			for _, one := range s.batch(t, clientChecks(fmt.Sprintf("b%d", b), 40)...).Results {
				if one.Degraded {
					degraded++
				}
			}
			assert.Less(t, time.Since(begin), timeout+400*time.Millisecond)
			assert.Greater(t, degraded, 5)
			assert.Less(t, degraded, 35)
		})
	}
	all.Wait()
	silent.Resume()
}

// Callers who cut their connections, before the gate or in the middle of a batch,
// leave nothing behind: no check is counted twice, no client is led any more, and
// there is as much room inside as before. Those of a batch that is admitted as a
// whole are all counted or none.
func TestCallersWhoCutTheirConnections(t *testing.T) {
	t.Parallel()
	const timeout, batches, size = 2 * time.Second, 40, 100
	server := memcachedtest.Start(t)
	store, err := memcached.New(memcached.Config{Servers: []string{server.Far(time.Millisecond)}, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	s := newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.StoreTimeout = nil, timeout
		cfg.Policies = bindLimitersFor(100_000, cfg.Metrics.InstrumentStore(store), cfg.Metrics,
			newPolicy("api", sliding("per-minute", 100, time.Minute, 10, "weighted"), token("burst", 100, time.Hour, 100)))
	})
	s.batches.most, s.batches.now = size, size
	s.batch(t, clientChecks("first", size)...)
	front := httptest.NewServer(s.handler)
	defer front.Close()
	var all sync.WaitGroup
	var cut atomic.Int64
	for b := range batches {
		all.Go(func() {
			ctx, leave := context.WithTimeout(t.Context(), time.Duration(b)*3*time.Millisecond)
			defer leave()
			body := fmt.Sprintf(`{"all":%t,"checks":[%s]}`, b%2 == 0, strings.Join(clientChecks(fmt.Sprintf("b%d", b), size), ","))
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, front.URL+"/v1/check/batch", strings.NewReader(body))
			assert.NoError(t, err)
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
	require.Eventually(t, func() bool {
		s.batches.mu.Lock()
		defer s.batches.mu.Unlock()
		return s.batches.inside == 0 && len(s.batches.waiting) == 0
	}, 10*time.Second, time.Millisecond)
	counted := 0
	for b := range batches {
		of := int64(0) // the batch
		for i, one := range s.batch(t, clientChecks(fmt.Sprintf("b%d", b), size)...).Results {
			require.True(t, one.Allowed)
			require.False(t, one.Degraded)
			used := 99 - one.Limits[0].Remaining
			require.Contains(t, []int64{0, 1}, used, "client %d of batch %d", i, b)
			require.Equal(t, used, 99-one.Limits[1].Remaining)
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
