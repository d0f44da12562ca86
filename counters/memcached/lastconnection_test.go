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
			var others []net.Conn
			for answered := true; answered; { // until the server has no place left
				conn, err := net.Dial("tcp", server.Addr)
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				others = append(others, conn)
				require.NoError(t, conn.SetDeadline(time.Now().Add(300*time.Millisecond)))
				_, _ = conn.Write([]byte("version\r\n"))
				line, _ := bufio.NewReader(conn).ReadString('\n')
				answered = strings.HasPrefix(line, "VERSION")
			}
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
