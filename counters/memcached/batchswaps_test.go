package memcached_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/storetest"
)

// swapOfMany loads and swaps with SwapMany.
type swapOfMany struct{ *memcached.Store }

func (s swapOfMany) Load(ctx context.Context, key string) (counters.State, error) {
	now, _, err := s.replace(ctx, counters.Replacement{Key: key})
	return now, err
}

func (s swapOfMany) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	return s.replace(ctx, counters.Replacement{Key: key, Old: old, Value: append([]byte{}, value...), TTL: ttl})
}

func (s swapOfMany) replace(ctx context.Context, r counters.Replacement) (now counters.State, swapped bool, err error) {
	s.SwapMany(ctx, []string{r.Key}, func(int) (counters.Replacement, counters.Turn) { return r, counters.Now },
		func(_ int, state counters.State, did bool, failure error) bool {
			now, swapped, err = state, did, failure
			return false
		})
	return now, swapped, err
}

// connectBoth returns when single operations and many have a socket each to all servers. A
// State tells of the newest socket.
func connectBoth(t *testing.T, m *memcached.Store) {
	t.Helper()
	ctx := within(t, time.Minute)
	require.Eventually(t, func() bool {
		for i := range 50 {
			_, err := m.Load(ctx, clientKey(i))
			require.NoError(t, err)
			_, err = swapOfMany{m}.Load(ctx, clientKey(i))
			require.NoError(t, err)
		}
		return m.BothOpen()
	}, time.Minute, 10*time.Millisecond)
}

func TestSwapManySwapsAsSwap(t *testing.T) {
	t.Parallel()
	_, m := start(t)
	connectBoth(t, m)
	storetest.RunStates(t, swapOfMany{m})
}

// What was read by a single operation is replaced by one of many, and the other
// way round, though they go out on different sockets.
func TestVersionsHoldOnBothSockets(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	many, ctx := swapOfMany{m}, within(t, time.Minute)
	connectBoth(t, m)
	state, swapped, err := m.Swap(ctx, "state", counters.State{}, []byte("0"), time.Minute)
	for i := range 6 {
		require.NoError(t, err)
		require.True(t, swapped, "swap %d", i)
		var swaps counters.StateStore = m
		if i%2 == 0 {
			swaps = many
		}
		state, swapped, err = swaps.Swap(ctx, "state", state, []byte(fmt.Sprint(i+1)), time.Minute)
	}
	require.True(t, swapped)
	assert.Eventually(t, func() bool { return server.Stat("curr_connections")-1 == 2 }, // both, all the time, beside the one that asks
		time.Minute, 10*time.Millisecond)
}

// A restarted server numbers its values from 1 again. A value that was read
// before is not replaced by what was made of it, even if its version has come
// back.
func TestVersionsDoNotSurviveARestart(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]struct{ readMany, swapMany bool }{
		"one by one":               {false, false},
		"read alone, swapped many": {false, true},
		"many":                     {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, m := start(t)
			other := open(t, memcached.Config{Servers: []string{server.Addr}})
			ctx := within(t, time.Minute)
			connectBoth(t, m)
			var reads, swaps counters.StateStore = m, m
			if by.readMany {
				reads = swapOfMany{m}
			}
			if by.swapMany {
				swaps = swapOfMany{m}
			}
			old, swapped, err := reads.Swap(ctx, "state", counters.State{}, []byte("of before"), time.Minute)
			require.NoError(t, err)
			require.True(t, swapped)
			server.Kill()
			server.Restart()
			var now counters.State
			require.Eventually(t, func() bool {
				now, swapped, err = other.Swap(ctx, "state", counters.State{}, []byte("of after"), time.Minute)
				return err == nil && swapped
			}, time.Minute, time.Millisecond)
			require.Equal(t, old.Version, now.Version, "otherwise this shows nothing")
			require.Eventually(t, func() bool { // the first exchange may still find the lost connection
				now, swapped, err = swaps.Swap(ctx, "state", old, []byte("from of before"), time.Minute)
				return err == nil
			}, time.Minute, time.Millisecond)
			assert.False(t, swapped)
			assert.Equal(t, "of after", string(now.Value))
			_, swapped, err = swaps.Swap(ctx, "state", now, []byte("from of after"), time.Minute)
			require.NoError(t, err)
			assert.True(t, swapped)
		})
	}
}

// A version that doesn't hold on the socket that is open isn't replaced, only
// read: whether or not there is an answer, nothing has been written.
func TestWhatIsOnlyReadIsNotSent(t *testing.T) {
	t.Parallel()
	for _, byMany := range []bool{false, true} {
		t.Run(fmt.Sprint("by many=", byMany), func(t *testing.T) {
			t.Parallel()
			server, m := start(t)
			many, ctx := swapOfMany{m}, within(t, time.Minute)
			var reads, swaps counters.StateStore = many, m
			if byMany {
				reads, swaps = m, many
			}
			connectBoth(t, m)
			old, swapped, err := reads.Swap(ctx, "state", counters.State{}, []byte("old"), time.Minute)
			require.NoError(t, err)
			require.True(t, swapped)
			server.Kill()
			server.Restart()
			require.Eventually(t, func() bool { // on a new socket
				_, err = swaps.Load(ctx, "other")
				return err == nil
			}, time.Minute, time.Millisecond)
			server.Pause()
			_, _, err = swaps.Swap(within(t, 300*time.Millisecond), "state", old, []byte("new"), time.Minute)
			assert.ErrorIs(t, err, counters.ErrTimeout)
			assert.ErrorIs(t, err, counters.ErrNotSent)
			server.Resume()
		})
	}
}

// A thousand states come back to those who asked for them, over many pieces and
// several servers, of all sizes: those that are too large for the server, those
// who lose and come back, those who only look, and those who don't.
func TestSwapManyDealsOutTheReplies(t *testing.T) {
	t.Parallel()
	var servers []*memcachedtest.Server
	var addresses []string
	for i := range 3 {
		servers = append(servers, memcachedtest.Start(t))
		addresses = append(addresses, servers[i].Addr)
	}
	m := open(t, memcached.Config{Servers: addresses, Timeout: 5 * time.Second})
	ctx := within(t, time.Minute)
	const clients, tooLarge = 1000, 500
	keys := make([]string, clients)
	values := make([][]byte, clients)
	olds := make([]counters.State, clients)
	for i := range keys {
		keys[i] = clientKey(i)
		values[i] = bytes.Repeat([]byte{byte(i), '\r', '\n'}, 1+(i%7)*(i%700))
		if i == tooLarge {
			values[i] = make([]byte, 2<<20)
		}
		switch i % 4 {
		case 1, 2, 3:
			old, _, err := m.Swap(ctx, keys[i], counters.State{}, []byte("before"), time.Minute)
			require.NoError(t, err)
			if olds[i] = old; i%4 == 1 { // it loses
				_, err := m.Load(ctx, keys[i])
				require.NoError(t, err)
				require.NoError(t, m.Put(ctx, keys[i], []byte("between"), time.Minute))
			}
		}
	}
	connectBoth(t, m)
	var mu sync.Mutex
	answers := make([][]string, clients)
	blind := func(i int) bool { return i%8 == 4 }
	m.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
		mu.Lock()
		defer mu.Unlock()
		r := counters.Replacement{Key: keys[i], Old: olds[i], Value: values[i], TTL: time.Minute, Blind: blind(i)}
		if i%4 == 3 {
			r.Value = nil
		}
		return r, counters.Now
	}, func(i int, now counters.State, swapped bool, err error) (again bool) {
		mu.Lock()
		defer mu.Unlock()
		if i == tooLarge {
			assert.ErrorContains(t, err, "too large")
			return false
		}
		assert.NoError(t, err)
		answer := "swapped"
		switch {
		case !swapped:
			answer = string(now.Value)
		case blind(i):
			assert.Zero(t, now)
		default:
			assert.Equal(t, values[i], now.Value)
		}
		answers[i] = append(answers[i], answer)
		olds[i] = now
		return !swapped && i%4 != 3
	})
	swappedLater := 0
	for i, got := range answers {
		if i == tooLarge {
			continue
		}
		switch i % 4 {
		case 0:
			require.Equal(t, []string{"swapped"}, got, "client %d", i)
		case 1:
			require.Equal(t, []string{"between", "swapped"}, got, "client %d", i)
		case 2: // it was read before the socket was opened
			require.Equal(t, "swapped", got[len(got)-1], "client %d", i)
			if len(got) > 1 {
				swappedLater++
				require.Equal(t, []string{"before", "swapped"}, got)
			}
		case 3:
			require.Equal(t, []string{"before"}, got, "client %d", i)
		}
	}
	assert.Positive(t, swappedLater)
}

// Clients of a server that is silent hold up no others, and what became of their
// swaps is told when it goes on.
func TestSwapManyOnASilentServer(t *testing.T) {
	t.Parallel()
	silent, other := memcachedtest.Start(t), memcachedtest.Start(t)
	m := open(t, memcached.Config{Servers: []string{silent.Addr, other.Addr}})
	ctx := within(t, time.Minute)
	const clients = 200
	keys := make([]string, clients)
	for i := range keys {
		keys[i] = clientKey(i)
	}
	swapAll := func(ctx context.Context, done func(i int, err error)) {
		m.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
			r := counters.Replacement{Key: keys[i], Value: []byte("new"), TTL: time.Minute}
			if i%2 == 0 {
				r.Old = counters.State{Version: 1 << 60, Life: 1 << 40} // there is no such
			}
			return r, counters.Now
		}, func(i int, _ counters.State, _ bool, err error) bool {
			done(i, err)
			return false
		})
	}
	for _, key := range keys[:20] { // the connections are open
		_, err := swapOfMany{m}.Load(ctx, key)
		require.NoError(t, err)
	}

	told := besideSilent(t, silent, clients, func(i int) string { return m.Server(keys[i]) }, swapAll)
	for i, told := range told {
		err := <-told
		var now counters.State
		require.Eventually(t, func() bool {
			var failure error
			now, failure = m.Load(ctx, keys[i])
			return failure == nil
		}, time.Minute, time.Millisecond)
		if i%2 == 0 {
			assert.ErrorIs(t, err, counters.ErrNotSent)
			assert.False(t, now.Exists())
		} else {
			assert.NoError(t, err, "swap %d", i)
			assert.Equal(t, "new", string(now.Value))
		}
	}
}
