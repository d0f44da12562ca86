package memcached_test

import (
	"bufio"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// Where a server has place for one connection only, many go out on that of single
// operations, and on their own when there is place again.
func TestManyWithoutAConnectionOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, fast := range []string{"maxconns_fast", "no_maxconns_fast"} { // refused, or left waiting
		t.Run(fast, func(t *testing.T) {
			t.Parallel()
			server := memcachedtest.Start(t, "-c", "64", "-t", "1", "-o", fast)
			m := open(t, memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
			ctx := within(t, time.Minute)
			_, err := m.Load(ctx, "state")
			require.NoError(t, err)
			others := takePlaces(t, server, 300*time.Millisecond)
			require.Less(t, len(others), 64)

			keys := make([]string, 300)
			for i := range keys {
				keys[i] = clientKey(i)
			}
			add := func() {
				var answered atomic.Int64
				m.AddMany(within(t, time.Minute), keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
					return append(to, counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute, New: true}), counters.Now
				}, func(_ int, _ []counters.Added, err error) bool {
					assert.NoError(t, err)
					answered.Add(1)
					return false
				})
				assert.EqualValues(t, len(keys), answered.Load())
			}
			for range 3 {
				add()
			}
			for _, conn := range others {
				require.NoError(t, conn.Close())
			}
			require.Eventually(t, func() bool {
				add()
				return server.Stat("curr_connections") >= 3 // with the one that asks
			}, time.Minute, 50*time.Millisecond)
		})
	}
}

// A server that has no place for another connection says so and has done nothing: it is down
// to whom it tells that, until it has.
func TestAServerWithoutAPlaceIsDown(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, "-c", "64", "-t", "1", "-o", "maxconns_fast")
	others := takePlaces(t, server, time.Minute)
	m := open(t, memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
	add := func() error {
		_, err := m.Add(within(t, time.Minute), counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
		return err
	}
	for range 2 { // for the second the breaker is open
		err := add()
		require.ErrorIs(t, err, counters.ErrNotSent)
		require.ErrorIs(t, err, counters.ErrUnavailable)
		require.ErrorContains(t, err, "Too many open connections")
		assert.True(t, m.Ping()[0].BreakerOpen)
	}
	for _, conn := range others {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return add() == nil }, time.Minute, 50*time.Millisecond)
}

// takePlaces connects to a server until one connection gets no answer within that time, as
// there is no place left.
func takePlaces(t *testing.T, server *memcachedtest.Server, within time.Duration) (others []net.Conn) {
	t.Helper()
	for answered := true; answered; {
		conn, err := net.Dial("tcp", server.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		others = append(others, conn)
		require.NoError(t, conn.SetDeadline(time.Now().Add(within)))
		_, _ = conn.Write([]byte("version\r\n"))
		line, _ := bufio.NewReader(conn).ReadString('\n')
		answered = strings.HasPrefix(line, "VERSION")
	}
	return others
}
