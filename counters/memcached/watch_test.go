package memcached

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

func TestDifferenceOfClocks(t *testing.T) {
	t.Parallel()
	server := time.Unix(1000, 0)
	for now, want := range map[time.Duration]time.Duration{
		// As far as those of one machine have been seen apart.
		-173 * time.Millisecond: 0, 0: 0, 2686 * time.Millisecond: 0,

		-time.Second: 0, 3 * time.Second: 0, -1100 * time.Millisecond: -100 * time.Millisecond, 3100 * time.Millisecond: 100 * time.Millisecond,
		-time.Hour: -time.Hour + time.Second, time.Minute: 57 * time.Second,
	} {
		assert.Equal(t, want, ahead(server.Add(now), server), now)
	}
	stats, err := parseStats([]byte("STAT pid 1\r\nSTAT time 1000\r\nSTAT curr_items 7\r\nEND\r\n"), server.Add(time.Minute))
	require.NoError(t, err)
	assert.Equal(t, counters.ServerStats{Items: 7, Ahead: 57 * time.Second}, stats)
}

func TestNewsOfAServer(t *testing.T) {
	t.Parallel()
	type event struct {
		at   float64 // seconds since the start
		now  record
		all  int64 // checks that were ever decided without the server
		tell string
	}
	const s = time.Second
	for _, test := range []struct {
		what   string
		events []event
	}{
		{"up all the time", []event{{0, record{}, 0, ""}, {100, record{}, 0, ""}}},
		{"down at the start", []event{
			{0, record{true, 1, 0}, 2, "down, 2"}, {11, record{true, 1, 11 * s}, 5, ""}, {12, record{false, 1, 12 * s}, 9, "up after 12s, 7"},
			{100, record{false, 1, 12 * s}, 9, ""},
		}},
		{"what comes too soon is told later", []event{
			{50, record{true, 1, 0}, 0, "down, 0"}, {52, record{false, 1, 2 * s}, 7, ""}, {59.9, record{false, 1, 2 * s}, 7, ""},
			{60, record{false, 1, 2 * s}, 7, "up after 2s, 7"}, {61, record{true, 2, 2 * s}, 8, ""}, {70, record{true, 2, 11 * s}, 10, "down, 3"},
			{80, record{false, 2, 12 * s}, 20, "up after 10s, 10"},
		}},
		{"an outage that is over before it can be told", []event{
			{0, record{true, 1, 0}, 0, "down, 0"}, {10, record{false, 1, 1 * s}, 3, "up after 1s, 3"}, {12, record{true, 2, 1 * s}, 3, ""},
			{13, record{false, 2, 2 * s}, 8, ""}, {20, record{false, 2, 2 * s}, 8, "undecided after 1s, 5"}, {30, record{false, 2, 2 * s}, 8, ""},
		}},
		{"one that concerned no check", []event{{0, record{}, 0, ""}, {1, record{false, 1, s / 2}, 0, "up after 500ms, 0"}}},
		{"up for a moment", []event{
			{0, record{true, 1, 0}, 0, "down, 0"}, {3, record{false, 1, 3 * s}, 3, ""}, {4, record{true, 2, 3 * s}, 3, ""},
			{15, record{true, 2, 14 * s}, 8, ""}, {16, record{false, 2, 15 * s}, 9, "up after 15s, 9"},
		}},
		{"short outages between two looks", []event{
			{0, record{}, 0, ""}, {1, record{false, 1, s / 2}, 4, "undecided after 500ms, 4"}, {2, record{false, 2, s}, 8, ""},
			{10, record{false, 3, 3 * s / 2}, 12, ""}, {11, record{false, 3, 3 * s / 2}, 12, "undecided after 1s, 8"},
		}},
		{"checks that a server which is up didn't decide", []event{
			{0, record{}, 0, ""}, {50, record{}, 3, "undecided after 0s, 3"}, {51, record{}, 4, ""}, {59, record{}, 90, ""}, {60, record{}, 91, "undecided after 0s, 88"},
			{62, record{}, 93, ""}, {63, record{true, 1, 0}, 95, "down, 4"}, {90, record{false, 1, 27 * s}, 99, "up after 27s, 4"},
			{91, record{false, 1, 27 * s}, 100, ""}, {100, record{false, 1, 27 * s}, 100, "undecided after 0s, 1"},
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			var v voice
			for _, e := range test.events {
				got := ""
				switch n := v.news(time.Unix(1000, int64(e.at*1e9)), e.now, e.all); n.what {
				case wentDown:
					got = fmt.Sprintf("down, %d", n.undecided)
				case cameBack:
					got = fmt.Sprintf("up after %v, %d", n.down, n.undecided)
				case leftUndecided:
					got = fmt.Sprintf("undecided after %v, %d", n.down, n.undecided)
				}
				require.Equal(t, e.tell, got, "at %v s", e.at)
			}
		})
	}
}

// A check is its client's server's, whatever the client's name.
func TestUndecidedChecksAreTheirServers(t *testing.T) {
	t.Parallel()
	s := openStore(t, "a:1", "b:1", "c:1")
	m := s.members.Load()
	want := make([]int64, len(m.backends))
	for i := range 30 {
		for _, client := range []string{"c", "a:b/", "~", "\u00e9", strings.Repeat("x", 300)} {
			client += fmt.Sprint(i)
			states, slots := counters.StateNamespace("weir", "p", "l", "log"), counters.CounterNamespace("weir", "p", "l", time.Second)
			keeps := m.ring.pick(counters.CounterKey(slots.Client(client), 7))
			require.Equal(t, keeps, m.ring.pick(states.StateKey(client)))
			s.Undecided(client, counters.ErrTimeout)
			want[keeps]++
		}
	}
	for i, backend := range m.backends {
		assert.Equal(t, want[i], backend.undecided.Load(), "%s", backend.server.name)
		assert.NotZero(t, want[i])
	}
	none, err := New(Config{Servers: []string{"dns+nowhere.invalid:1"}})
	require.NoError(t, err)
	none.Undecided("c", counters.ErrTimeout)
	require.NoError(t, none.Close())
}

func TestEvictionsAreToldOnceAMinute(t *testing.T) {
	t.Parallel()
	var v voice
	for _, e := range []struct {
		at     int // seconds
		seen   int64
		warned int64
	}{
		{0, 500, 0}, // before weir looked
		{10, 500, 0}, {20, 503, 3}, {30, 510, 0}, {70, 520, 0}, {80, 521, 18}, {90, 521, 0}, {200, 521, 0},
		{210, 4, 4}, // restarted
	} {
		require.Equal(t, e.warned, v.evicted(time.Unix(int64(1000+e.at), 0), &counters.ServerStats{Evictions: e.seen}), "at %d s", e.at)
		require.Zero(t, v.evicted(time.Unix(int64(1000+e.at), 0), nil), "when it doesn't answer")
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestBreakerRecords(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	b := &w.members.Load().backends[0].breaker
	require.Equal(t, record{}, b.record(time.Now()))
	w.servers[0].Kill()
	w.awaitOpen(t)
	now := time.Now()
	r := b.record(now)
	b.mu.Lock()
	opened := b.circuit.opened
	b.mu.Unlock()
	assert.Equal(t, record{true, 1, now.Sub(opened)}, r)
	w.servers[0].Restart()
	require.Eventually(t, func() bool { return b.refuse() == nil }, patience, time.Millisecond)
	later := b.record(time.Now())
	assert.Equal(t, record{false, 1, later.down}, later)
	assert.Greater(t, later.down, r.down)
	assert.Equal(t, later.down, b.record(time.Now().Add(time.Hour)).down)
}

func TestWatchTellsOfOutagesAndEvictions(t *testing.T) {
	t.Parallel()
	small, gone := memcachedtest.Start(t, "-m", "2"), memcachedtest.Start(t)
	gone.Kill()
	s := openStore(t, small.Addr, gone.Addr)
	var log lines
	logger := slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { s.Watch(ctx, logger) })
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "connection refused") }, patience, time.Millisecond)
	cancel()
	watching.Wait()
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN msg=\"a Memcached server is down\" server="+gone.Addr))
	assert.NotContains(t, log.String(), small.Addr)
	states := s.Ping()
	require.NotNil(t, states[0].Stats)
	assert.Equal(t, counters.ServerStats{Items: 0, Bytes: 0, Evictions: 0}, *states[0].Stats)
	assert.Nil(t, states[1].Stats)

	var v voice
	v.speak(time.Now(), s.members.Load().backends[0], logger)
	value := strings.Repeat("v", 10_000)
	for i := range 1000 {
		small.Do(fmt.Sprintf("set k%d 0 0 %d\r\n%s", i, len(value), value), "STORED", "SERVER_ERROR")
	}
	s.readStats()
	stats := s.Ping()[0].Stats
	require.NotNil(t, stats)
	assert.Equal(t, counters.ServerStats{
		Items: small.Stat("curr_items"), Bytes: small.Stat("bytes"), Evictions: small.Stat("evictions"),
	}, *stats)
	require.NotZero(t, stats.Evictions)
	v.speak(time.Now(), s.members.Load().backends[0], logger)
	assert.Contains(t, log.String(), fmt.Sprintf("evictions=%d\n", stats.Evictions))
}

func (l *lines) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}
