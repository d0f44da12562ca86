package memcached

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// After many large states at once, what is used again first has its buffers yet, and
// all together have few.
func TestIdleBuffersAreBounded(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	s, err := New(Config{Servers: []string{server.Addr}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	ctx := &counters.Deadline{At: time.Now().Add(time.Minute)}
	state := bytes.Repeat([]byte("x"), 53_000)
	const callers = 200
	all := make([]*session, callers)
	for range 2 { // the second time on what the first has left
		for i := range all {
			all[i], err = s.session(ctx, "a")
			require.NoError(t, err)
		}
		for i, c := range all {
			require.NoError(t, c.exchange(0, fmt.Appendf(c.text[:0], "set %d 0 0 %d\r\n%s\r\n", i, len(state), state)))
			require.Equal(t, "STORED\r\n", string(c.conn.Reply(0)))
			require.NoError(t, c.exchange(0, fmt.Appendf(c.text[:0], "get %d\r\n", i)))
			require.Equal(t, fmt.Sprintf("VALUE %d 0 %d\r\n%s\r\nEND\r\n", i, len(state), state), string(c.conn.Reply(0)))
		}
		for _, c := range all {
			c.release()
		}
		l := all[0].lane
		require.Len(t, l.idle, callers)
		kept := 0
		for _, c := range l.idle {
			kept += c.buffered()
		}
		assert.Equal(t, kept, l.buffered)
		assert.LessOrEqual(t, kept, maxIdleBytes)
		assert.Zero(t, l.idle[0].buffered())
		assert.Greater(t, l.idle[callers-1].buffered(), 2*len(state))
	}
}
