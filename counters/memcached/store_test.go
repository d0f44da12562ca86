package memcached_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/storetest"
	"weir/subwindow"
)

// open returns a store whose servers may be as slow as a busy machine: unless cfg says
// how long to wait for them, it takes none for down before they have been silent for
// five seconds.
func open(t testing.TB, cfg memcached.Config) *memcached.Store {
	t.Helper()
	cfg.Timeout = cmp.Or(cfg.Timeout, counters.MaxTimeout)
	m, err := memcached.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// start returns a server, and a store on it alone.
func start(t testing.TB) (*memcachedtest.Server, *memcached.Store) {
	t.Helper()
	server := memcachedtest.Start(t)
	return server, open(t, memcached.Config{Servers: []string{server.Addr}})
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestMemcachedOverTCP(t *testing.T) {
	t.Parallel()
	_, m := start(t)
	storetest.Run(t, m)
	storetest.RunStates(t, m)
}

func TestMemcachedOverAUnixSocket(t *testing.T) {
	t.Parallel()
	server := memcachedtest.StartSocket(t)
	m := open(t, memcached.Config{Servers: []string{server.Addr}})
	storetest.Run(t, m)
	storetest.RunStates(t, m)
}

func TestMemcachedOnTwoServers(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.StartSocket(t)
	m := open(t, memcached.Config{Servers: []string{a.Addr, b.Addr}})
	storetest.Run(t, m)
	storetest.RunStates(t, m)
	t.Cleanup(func() {
		assert.NotZero(t, a.Stat("cmd_set"), "both servers hold counters")
		assert.NotZero(t, b.Stat("cmd_set"))
	})
}

// A fixed-window check is one incr once the counter is there.
func TestMemcachedAddIsOneCommandInTheSteadyState(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	ctx := within(t, time.Minute)
	_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
	require.NoError(t, err)
	commands := func() (n int64) {
		for _, name := range []string{"cmd_get", "cmd_set", "incr_hits", "incr_misses", "decr_hits", "decr_misses"} {
			n += server.Stat(name)
		}
		return n
	}
	before := commands()
	for range 10 {
		_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
		require.NoError(t, err)
	}
	assert.Equal(t, int64(10), commands()-before)
}

func TestMemcachedTTLs(t *testing.T) {
	server, m := start(t)
	const day = 24 * time.Hour
	for _, ttl := range []time.Duration{
		1500 * time.Millisecond, time.Minute, 29 * day, 30 * day, 30*day + time.Second, 31 * day, 366 * day,
	} {
		t.Run(ttl.String(), func(t *testing.T) {
			key := "ttl" + ttl.String()
			_, err := m.Add(within(t, time.Minute), counters.Addition{Key: key, Delta: 1, TTL: ttl})
			require.NoError(t, err)
			want := int64((ttl + time.Second - 1) / time.Second)
			left := server.TTL(key)
			late := time.Now().Unix() - server.Stat("time") // its clock ticks once a second, on a busy machine later
			assert.LessOrEqual(t, left, want+1+late, "an absolute time is rounded up to a second too")
			assert.GreaterOrEqual(t, left, want-2)
		})
	}
}

func TestMemcachedForeignValues(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	ctx := within(t, time.Minute)
	server.Do("set text 0 0 3\r\nabc", "STORED")
	server.Do("set huge 0 0 20\r\n18446744073709551615", "STORED")
	server.Do("set over 0 0 19\r\n9223372036854775808", "STORED")
	for _, key := range []string{"text", "huge", "over"} {
		var counts [1]int64
		err := m.Read(ctx, []string{key}, counts[:])
		assert.ErrorIs(t, err, counters.ErrForeignValue, key)
		assert.ErrorContains(t, err, key)
	}
	_, err := m.Add(ctx, counters.Addition{Key: "text", Delta: 1, TTL: time.Minute})
	assert.ErrorIs(t, err, counters.ErrForeignValue)
	_, err = m.Add(ctx, counters.Addition{Key: "over", Delta: 1, TTL: time.Minute})
	assert.ErrorIs(t, err, counters.ErrForeignValue, "a count that doesn't fit is no count")
	assert.ErrorIs(t, m.Subtract(ctx, "text", 1), counters.ErrForeignValue)

	n, err := m.Add(ctx, counters.Addition{Key: "good", Delta: 1, TTL: time.Minute})
	require.NoError(t, err, "the store goes on")
	assert.Equal(t, int64(1), n)
}

// A swap is one round trip, and so is the loss of one.
func TestMemcachedSwapIsTwoCommandsInOneRoundTrip(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	ctx := within(t, time.Minute)
	old, swapped, err := m.Swap(ctx, "a", counters.State{}, []byte("1"), time.Minute)
	require.NoError(t, err)
	require.True(t, swapped)
	gets, sets := server.Stat("cmd_get"), server.Stat("cmd_set")
	_, swapped, err = m.Swap(ctx, "a", old, []byte("2"), time.Minute)
	require.NoError(t, err)
	require.True(t, swapped)
	_, swapped, err = m.Swap(ctx, "a", old, []byte("3"), time.Minute)
	require.NoError(t, err)
	require.False(t, swapped)
	assert.Equal(t, gets+2, server.Stat("cmd_get"))
	assert.Equal(t, sets+2, server.Stat("cmd_set"))
}

func TestMemcachedStatesThatCannotBeStored(t *testing.T) {
	ctx := within(t, time.Minute)
	t.Run("too large", func(t *testing.T) {
		m := open(t, memcached.Config{Servers: []string{memcachedtest.Start(t).Addr}})
		_, swapped, err := m.Swap(ctx, "a", counters.State{}, make([]byte, 2<<20), time.Minute)
		require.ErrorIs(t, err, counters.ErrUnavailable)
		require.ErrorContains(t, err, "object too large for cache")
		require.False(t, swapped)
		_, swapped, err = m.Swap(ctx, "a", counters.State{}, []byte("small"), time.Minute)
		require.NoError(t, err, "the connection is in step")
		require.True(t, swapped)
	})
	t.Run("a server without compare-and-swap", func(t *testing.T) {
		m := open(t, memcached.Config{Servers: []string{memcachedtest.Start(t, "-C").Addr}})
		_, _, err := m.Swap(ctx, "a", counters.State{}, []byte("1"), time.Minute)
		require.ErrorIs(t, err, counters.ErrUnavailable)
		require.ErrorContains(t, err, "the server runs without compare-and-swap (its option -C)")
	})
	t.Run("a server that is gone", func(t *testing.T) {
		server, m := start(t)
		server.Kill()
		_, _, err := m.Swap(ctx, "a", counters.State{}, []byte("1"), time.Minute)
		require.ErrorIs(t, err, counters.ErrUnavailable)
	})
}

func TestMemcachedStalled(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	_, err := m.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
	require.NoError(t, err)
	old, _, err := m.Swap(within(t, time.Minute), "state", counters.State{}, []byte("1"), time.Minute)
	require.NoError(t, err)

	server.Pause()
	const timeout = 500 * time.Millisecond
	var operations sync.WaitGroup
	for name, operation := range map[string]func(context.Context) error{
		"Add on a connection": func(ctx context.Context) error {
			_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute, Read: []string{"b"}, Counts: make([]int64, 1)})
			return err
		},
		"Read":     func(ctx context.Context) error { return m.Read(ctx, []string{"a", "b"}, make([]int64, 2)) },
		"Subtract": func(ctx context.Context) error { return m.Subtract(ctx, "a", 1) },
		"Delete":   func(ctx context.Context) error { return m.Delete(ctx, []string{"a", "b"}) },
		"Swap": func(ctx context.Context) error {
			_, _, err := m.Swap(ctx, "state", old, []byte("2"), time.Minute)
			return err
		},
		"Load": func(ctx context.Context) error { _, err := m.Load(ctx, "state"); return err },
		"Raise": func(ctx context.Context) error {
			return m.Raise(ctx, []counters.Floor{{Key: "a", Count: 9, TTL: time.Minute}})
		},
	} {
		operations.Go(func() {
			assert.ErrorIs(t, operation(within(t, timeout)), counters.ErrTimeout, name)
		})
	}
	operations.Wait()
	var counts [2]int64
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	assert.ErrorIs(t, m.Read(ctx, []string{"a", "b"}, counts[:]), counters.ErrTimeout, "no time is left")

	server.Resume()
	require.NoError(t, m.Read(within(t, time.Minute), []string{"a", "b"}, counts[:]))
	states := m.Ping()
	require.Len(t, states, 1)
	assert.NoError(t, states[0].Err)

	// An operation of one command, and one of several, leave nothing behind for
	// the other when they have failed.
	add := func(timeout time.Duration) error {
		_, err := m.Add(within(t, timeout), counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
		return err
	}
	const short = 20 * time.Millisecond
	read := func(timeout time.Duration) error { return m.Read(within(t, timeout), []string{"a", "b"}, counts[:2]) }
	for range 2 {
		require.NoError(t, add(time.Minute))
		require.NoError(t, read(time.Minute))
		server.Pause()
		assert.ErrorIs(t, read(short), counters.ErrTimeout)
		server.Resume()
		require.NoError(t, add(time.Minute))
		require.NoError(t, read(time.Minute))
		server.Pause()
		assert.ErrorIs(t, add(short), counters.ErrTimeout)
		server.Resume()
		require.NoError(t, read(time.Minute))
	}
}

func TestMemcachedDownAndBack(t *testing.T) {
	t.Parallel()
	server, other := memcachedtest.Start(t), memcachedtest.Start(t)
	m := open(t, memcached.Config{Servers: []string{server.Addr, other.Addr}})
	server.Kill()
	states := m.Ping()
	require.Len(t, states, 2)
	assert.Equal(t, server.Addr, states[0].Server)
	assert.ErrorIs(t, states[0].Err, counters.ErrUnavailable)
	require.Eventually(t, func() bool { return m.Ping()[1] == counters.ServerStatus{Server: other.Addr} }, time.Minute, time.Millisecond)

	alone := open(t, memcached.Config{Servers: []string{server.Addr}})
	add := func() (int64, error) {
		return alone.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
	}
	_, err := add()
	assert.ErrorIs(t, err, counters.ErrUnavailable)
	server.Restart()
	var n int64
	require.Eventually(t, func() bool {
		n, err = add()
		return err == nil
	}, time.Minute, time.Millisecond)
	assert.Equal(t, int64(1), n)
}

func TestMemcachedCloseLeavesNoConnection(t *testing.T) {
	server, m := start(t)
	before := server.Stat("curr_connections")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			_, err := m.Add(within(t, time.Minute), counters.Addition{Key: fmt.Sprint(i), Delta: 1, TTL: time.Minute})
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	require.NoError(t, m.Close())
	_, err := m.Add(within(t, time.Minute), counters.Addition{Key: "after", Delta: 1, TTL: time.Minute})
	assert.ErrorIs(t, err, counters.ErrUnavailable)
	assert.Eventually(t, func() bool {
		return server.Stat("curr_connections") <= before
	}, time.Minute, 10*time.Millisecond)
}

func TestMemcachedAuthentication(t *testing.T) {
	t.Parallel()
	users := filepath.Join(memcachedtest.PublicDir(t), "users")
	require.NoError(t, os.WriteFile(users, []byte("weir:secret\n"), 0o644))
	server := memcachedtest.Start(t, "-Y", users)
	for _, test := range []struct {
		user, password string
		want           string
	}{
		{"weir", "secret", ""},
		{"weir", "wrong", "the server refused the credentials"},
		{"", "", "unauthenticated"},
	} {
		m := open(t, memcached.Config{Servers: []string{server.Addr}, User: test.user, Password: test.password})
		err := m.Read(within(t, time.Minute), []string{"a"}, make([]int64, 1))
		if test.want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, counters.ErrUnavailable)
		assert.ErrorContains(t, err, test.want)
	}
}

// Why a server is down may change before it is up: one that didn't listen comes back with
// another password.
func TestThePresentReasonIsTold(t *testing.T) {
	t.Parallel()
	users := filepath.Join(memcachedtest.PublicDir(t), "users")
	require.NoError(t, os.WriteFile(users, []byte("weir:secret\n"), 0o644))
	server := memcachedtest.Start(t, "-Y", users)
	m := open(t, memcached.Config{Servers: []string{server.Addr}, User: "weir", Password: "secret"})
	server.Kill()
	require.Eventually(t, func() bool { return m.Ping()[0].Err != nil }, time.Minute, 10*time.Millisecond)
	require.NoError(t, os.WriteFile(users, []byte("weir:another\n"), 0o644))
	server.Restart()
	assert.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorContains(c, m.Ping()[0].Err, "the server refused the credentials")
	}, time.Minute, 10*time.Millisecond)
}

func TestMemcachedTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := memcachedtest.NewCertificate(t)
	server := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert+",ssl_key="+key)
	m := open(t, memcached.Config{Servers: []string{server.Addr}, TLS: &tls.Config{RootCAs: pool}})
	n, err := m.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 4, TTL: time.Minute})
	require.NoError(t, err)
	assert.Equal(t, int64(4), n)

	stranger := open(t, memcached.Config{Servers: []string{server.Addr}, TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
	_, err = stranger.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 4, TTL: time.Minute})
	assert.ErrorIs(t, err, counters.ErrUnavailable)
	assert.ErrorContains(t, err, "certificate")
}

func TestMemcachedServersAreChecked(t *testing.T) {
	t.Parallel()
	_, err := memcached.New(memcached.Config{Servers: []string{"nowhere"}})
	assert.ErrorContains(t, err, "give host:port")
}

func TestMemcachedTimeoutsAreChecked(t *testing.T) {
	t.Parallel()
	for _, wrong := range []time.Duration{-1, counters.MaxTimeout + 1, math.MaxInt64} {
		_, err := memcached.New(memcached.Config{Servers: []string{"a:1"}, Timeout: wrong})
		assert.ErrorContains(t, err, "must be from 0 to 5s")
	}
}

func BenchmarkAdd(b *testing.B) {
	server := memcachedtest.Start(b)
	stores := map[string]counters.Store{
		"memory":    memory.New(nil),
		"memcached": open(b, memcached.Config{Servers: []string{server.Addr}}),
	}
	for _, name := range []string{"memory", "memcached"} {
		store := stores[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := within(b, time.Minute)
			for b.Loop() {
				if _, err := store.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/read60", func(b *testing.B) {
			b.ReportAllocs()
			ctx := within(b, time.Minute)
			read, counts := strings.Fields(strings.Repeat("slot ", 60)), make([]int64, 60)
			for i := range read {
				read[i] += fmt.Sprint(i)
				if _, err := store.Add(ctx, counters.Addition{Key: read[i], Delta: 1, TTL: time.Minute}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := store.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute, Read: read, Counts: counts}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What has surely not been done may be tried again.
func TestErrorsTellWhatWasNotSent(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	_, err := m.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 9, TTL: time.Minute})
	require.NoError(t, err)
	over, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for _, a := range []counters.Addition{{Key: "a", Delta: 1}, {Key: "a", Delta: 1, Read: []string{"b"}, Counts: make([]int64, 1)}} {
		_, err := m.Add(over, a)
		assert.ErrorIs(t, err, counters.ErrTimeout)
		assert.ErrorIs(t, err, counters.ErrNotSent, "its time was over before")
	}
	assert.ErrorIs(t, m.Subtract(over, "a", 1), counters.ErrNotSent)

	server.Pause()
	// A busy machine may let the time pass before anything is sent.
	for timeout := 20 * time.Millisecond; timeout < 4*time.Second; timeout *= 2 {
		err = m.Subtract(within(t, timeout), "a", 1)
		require.ErrorIs(t, err, counters.ErrTimeout)
		if !errors.Is(err, counters.ErrNotSent) {
			break
		}
	}
	assert.NotErrorIs(t, err, counters.ErrNotSent, "it may be done later")
	server.Kill()
	assert.Eventually(t, func() bool {
		return errors.Is(m.Subtract(within(t, time.Second), "a", 1), counters.ErrNotSent)
	}, time.Minute, time.Millisecond, "nobody listens")
}

// Whatever the key prefix, all slots of a client live on one server.
func TestLimitHoldsOnTwoServersWithAnyKeyPrefix(t *testing.T) {
	t.Parallel()
	servers := []string{memcachedtest.Start(t).Addr, memcachedtest.Start(t).Addr}
	window, err := subwindow.NewWindow(time.Hour, 4, true)
	require.NoError(t, err)
	for _, prefix := range []string{"weir", "shop", "team:shop", "/east/main/shop"} {
		admitted := make(map[string]int)
		for slot := range time.Duration(4) {
			// A process that remembers nothing.
			store, err := memcached.New(memcached.Config{Servers: servers})
			require.NoError(t, err)
			defer store.Close()
			limiter, err := subwindow.New(store, window, counters.Options{
				KeyPrefix: prefix, Policy: "p", Limit: "l", StoreTimeout: counters.MaxTimeout,
			})
			require.NoError(t, err)
			now := time.Unix(0, 0).Add(slot * window.Width)
			for i := range 10 {
				client := fmt.Sprint("client-", i)
				d, err := limiter.Take(t.Context(), counters.Request{Client: client, Cost: 5, Limit: 5, Now: now})
				require.NoError(t, err)
				if d.Allowed {
					admitted[client] += 5
				}
			}
		}
		for client, n := range admitted {
			assert.Equal(t, 5, n, "%s, keys that begin with %s", client, prefix)
		}
	}
}

// Nearly all checks are one incr.
func TestALoneAddAllocatesNothing(t *testing.T) {
	store := open(t, memcached.Config{Servers: []string{memcachedtest.Start(t).Addr}})
	ctx := &counters.Deadline{At: time.Now().Add(time.Minute)}
	add := func() {
		_, err := store.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
		require.NoError(t, err)
	}
	add()
	assert.Zero(t, testing.AllocsPerRun(1000, add))
}

// A server that is full refuses what it has no memory for, and one whose items are
// small what is too large. Nothing of that was done.
func TestWhatTheServerRefusesWasNotDone(t *testing.T) {
	t.Parallel()
	full := memcachedtest.Start(t, "-M", "-m", "4")
	m := open(t, memcached.Config{Servers: []string{full.Addr}})
	ctx := within(t, time.Minute) // 60,000 sets are sent meanwhile
	n, err := m.Add(ctx, counters.Addition{Key: "there", Delta: 1, TTL: time.Minute, New: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	var small strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&small, "set k%d 0 0 1 noreply\r\nv\r\n", i)
	}
	full.Do(small.String()+"set k 0 0 1\r\nv", "SERVER_ERROR")
	refused := func(err error, what string) {
		t.Helper()
		require.ErrorIs(t, err, counters.ErrUnavailable, what)
		require.ErrorIs(t, err, counters.ErrRefused, what)
		require.ErrorContains(t, err, "SERVER_ERROR", what)
	}
	_, err = m.Add(ctx, counters.Addition{Key: "new", Delta: 1, TTL: time.Minute, New: true})
	refused(err, "add")
	_, err = m.Add(ctx, counters.Addition{Key: "new", Delta: 1, TTL: time.Minute})
	refused(err, "add after an incr")
	_, _, err = m.Swap(ctx, "state", counters.State{}, []byte("value"), time.Minute)
	refused(err, "swap")
	counts := make([]int64, 2)
	require.NoError(t, m.Read(ctx, []string{"there", "new"}, counts))
	assert.Equal(t, []int64{1, counters.Absent}, counts)

	strict := memcachedtest.Start(t, "-I", "1k", "-o", "slab_chunk_max=512")
	m = open(t, memcached.Config{Servers: []string{strict.Addr}})
	state, swapped, err := m.Swap(ctx, "state", counters.State{}, []byte("value"), time.Minute)
	require.NoError(t, err)
	require.True(t, swapped)
	_, _, err = m.Swap(ctx, "state", state, make([]byte, 2000), time.Minute)
	refused(err, "too large")
	now, err := m.Load(ctx, "state")
	require.NoError(t, err)
	assert.Equal(t, state, now)
}

// A window of many slots is read in several gets, of which the whole is one round
// trip. Each counter is found, beside an addition too.
func TestManyCountersAreRead(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	ctx := within(t, time.Minute)
	keys, want := make([]string, 3600), make([]int64, 3600)
	for i := range keys {
		keys[i], want[i] = fmt.Sprintf("weir:policy/limit:1000:%s_%d", strings.Repeat("c", 100), i), counters.Absent
		if i%100 == 7 {
			want[i] = int64(i)
			server.Do(fmt.Sprintf("set %s 0 0 %d\r\n%d", keys[i], len(fmt.Sprint(i)), i), "STORED")
		}
	}
	counts := make([]int64, len(keys))
	require.NoError(t, m.Read(ctx, keys, counts))
	assert.Equal(t, want, counts)
	clear(counts)
	n, err := m.Add(ctx, counters.Addition{Key: "new", Delta: 3, TTL: time.Minute, New: true, Read: keys, Counts: counts})
	require.NoError(t, err)
	assert.EqualValues(t, 3, n)
	assert.Equal(t, want, counts)
	together := make([]int64, len(keys))
	clear(counts)
	m.AddMany(ctx, []string{"new", "other"}, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		if i == 0 {
			to = append(to, counters.Addition{Key: "new", Delta: 1, TTL: time.Minute, Have: true, Read: keys, Counts: counts})
			return append(to, counters.Addition{Read: keys, Counts: together}), counters.Now
		}
		return append(to, counters.Addition{Key: "other", Delta: 2, TTL: time.Minute, New: true}), counters.Now
	}, func(i int, added []counters.Added, err error) bool {
		assert.NoError(t, err)
		for _, one := range added {
			assert.NoError(t, one.Err)
		}
		assert.EqualValues(t, []int64{4, 2}[i], added[0].Count)
		return false
	})
	assert.Equal(t, want, counts)
	assert.Equal(t, want, together)
	floors := make([]counters.Floor, len(keys))
	for i, key := range keys {
		floors[i] = counters.Floor{Key: key, Count: 50, TTL: time.Minute}
		want[i] = max(want[i], 50)
	}
	require.NoError(t, m.Raise(ctx, floors))
	require.NoError(t, m.Read(ctx, keys, counts))
	assert.Equal(t, want, counts)
}
