package fleet

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/topk"
)

func newFleet(on counters.StateStore) *Fleet {
	return New(Config{Store: on, KeyPrefix: "weir", Now: time.Now})
}

// denied is the report of an instance that has denied a client alone.
func denied(client string, count int64) Report {
	return Report{Policies: map[string]Policy{"api": {Denied: count, MostDenied: List{Clients: []topk.Count{{Client: client, Count: count}}}}}}
}

// A flakyStore can't be asked for what its names say.
type flakyStore struct {
	counters.StateStore
	mu   sync.Mutex
	down map[string]bool
}

func (s *flakyStore) Load(ctx context.Context, key string) (counters.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[key] {
		return counters.State{}, counters.ErrUnavailable
	}
	return s.StateStore.Load(ctx, key)
}

func (s *flakyStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down[key] {
		return counters.ErrUnavailable
	}
	return s.StateStore.Put(ctx, key, value, ttl)
}

// Instances know one another within seconds; one that is gone is forgotten within 15 s, and
// stands in the directory no longer than ten minutes.
func TestInstancesComeAndGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		on := memory.New(nil)
		var fleets []*Fleet
		var stops []func()
		start := func(client string) {
			f := newFleet(on)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				f.Watch(ctx, func() Report { return denied(client, 1) })
				close(done)
			}()
			fleets, stops = append(fleets, f), append(stops, func() { cancel(); <-done })
		}
		clients := func(f *Fleet) (names []string) {
			t.Helper()
			reports, missing, err := f.Others()
			require.NoError(t, err)
			require.Zero(t, missing)
			var lists []List
			for _, r := range reports {
				lists = append(lists, r.Policies["api"].MostDenied)
			}
			for _, c := range Merge(lists) {
				names = append(names, c.Client)
			}
			return names
		}
		start("a")
		start("b")
		start("c")
		synctest.Wait()
		assert.Equal(t, []string{"b", "c"}, clients(fleets[0]))
		start("d")
		time.Sleep(fresh + 1)
		assert.Equal(t, []string{"b", "c", "d"}, clients(fleets[0]))
		assert.Equal(t, []string{"a", "b", "c"}, clients(fleets[3]))

		stops[2]()
		time.Sleep(life - 1)
		assert.Equal(t, []string{"b", "d"}, clients(fleets[0]))
		time.Sleep(listed + renewed)
		state, err := on.Load(t.Context(), "weir:instances")
		require.NoError(t, err)
		assert.Len(t, readDirectory(state.Value), 3)

		// What the store loses comes back.
		require.NoError(t, on.Put(t.Context(), "weir:instances", []byte("nonsense"), listed))
		time.Sleep(lookEvery*Interval + fresh)
		assert.Equal(t, []string{"b", "d"}, clients(fleets[0]))
		for i, stop := range stops {
			if i != 2 {
				stop()
			}
		}
	})
}

// An instance whose report can't be read is counted as missing. Without the directory nobody
// knows which instances there are.
func TestReportsThatCantBeRead(t *testing.T) {
	t.Parallel()
	on := &flakyStore{StateStore: memory.New(nil), down: make(map[string]bool)}
	a, b, c := newFleet(on), newFleet(on), newFleet(on)
	for _, f := range []*Fleet{a, b, c} {
		require.NoError(t, f.Leave(t.Context(), denied("x", 1)))
	}
	on.down[b.reportKey(b.id)] = true
	require.NoError(t, on.Put(t.Context(), c.reportKey(c.id), []byte("nonsense"), time.Minute))
	reports, missing, err := a.Others()
	require.NoError(t, err)
	assert.Empty(t, reports)
	assert.Equal(t, 2, missing)
	on.down["weir:instances"] = true
	_, _, err = b.Others()
	assert.ErrorIs(t, err, counters.ErrUnavailable)
}

// An instance that can leave no report is missing for as long as it is alive.
func TestWhoCanLeaveNoReportIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		on := &flakyStore{StateStore: memory.New(nil), down: make(map[string]bool)}
		a, b := newFleet(on), newFleet(on)
		on.down[b.reportKey(b.id)] = true
		ctx, cancel := context.WithCancel(t.Context())
		var watching sync.WaitGroup
		for _, f := range []*Fleet{a, b} {
			watching.Go(func() { f.Watch(ctx, func() Report { return denied("x", 1) }) })
		}
		for range 10 {
			time.Sleep(listed / 2)
			reports, missing, err := a.Others()
			require.NoError(t, err)
			assert.Empty(t, reports)
			assert.Equal(t, 1, missing)
		}
		cancel()
		watching.Wait()
	})
}

// On Memcached a report lives as long as it should, and one of nothing is small.
func TestReportsExpireOnMemcached(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	on, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, on.Close()) })
	a, b := newFleet(on), newFleet(on)
	began := time.Now()
	require.NoError(t, a.Leave(t.Context(), Report{}))
	require.NoError(t, b.Leave(t.Context(), denied("x", 7)))
	reports, _, err := a.Others()
	require.NoError(t, err)
	require.Len(t, reports, 1)
	assert.Equal(t, denied("x", 7).Policies["api"].MostDenied, reports[0].Policies["api"].MostDenied)
	state, err := on.Load(t.Context(), a.reportKey(a.id))
	require.NoError(t, err)
	assert.Len(t, state.Value, 2)
	left := time.Duration(server.TTL(a.reportKey(a.id))) * time.Second // of a clock that ticks once a second
	assert.LessOrEqual(t, left, life+time.Second)
	assert.GreaterOrEqual(t, left, life-time.Since(began)-2*time.Second)

	b.life = time.Second
	require.NoError(t, b.Leave(t.Context(), denied("x", 7)))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		read, err := a.read(time.Now())
		require.NoError(c, err)
		assert.Empty(c, read.reports)
	}, time.Minute, 20*time.Millisecond)
}

// However many begin at once, all are listed.
func TestManyBeginAtOnce(t *testing.T) {
	t.Parallel()
	on := memory.New(nil)
	var beginning sync.WaitGroup
	for range 64 {
		beginning.Go(func() { assert.NoError(t, newFleet(on).Leave(context.Background(), Report{})) })
	}
	beginning.Wait()
	reports, _, err := newFleet(on).Others()
	require.NoError(t, err)
	assert.Len(t, reports, 64)
}
