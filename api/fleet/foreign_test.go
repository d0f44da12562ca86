package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcached"
	"weir/counters/memcachedtest"
)

// What stands in Memcached in the place of the directory may be anything: it makes neither
// commands of it nor instances that are gone into missing ones.
func TestAForeignDirectory(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	on, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, on.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := newFleet(on), newFleet(on)
	require.NoError(t, a.Leave(ctx, Report{}))
	require.NoError(t, b.Leave(ctx, denied("x", 7)))
	require.NoError(t, on.Put(ctx, "weir:victim", []byte("1"), time.Minute))
	later := time.Now().Add(time.Minute).UnixMilli()
	for _, id := range []string{"x 0\r\nmd weir:victim q\r\nmn\r\n", "x q\r\ndelete weir:victim", strings.Repeat("y", 300), "", "\x00", "a b"} {
		data, _ := json.Marshal(directoryJSON{map[string]int64{a.id: later, b.id: later, id: later}})
		require.NoError(t, on.Put(ctx, "weir:instances", data, time.Minute))
		a.known = reading{}
		reports, _, err := a.Others()
		assert.NoError(t, err)
		assert.Len(t, reports, 1, "%q", id)
		state, err := on.Load(ctx, "weir:victim")
		require.NoError(t, err)
		assert.True(t, state.Exists(), "%q", id)
		require.NoError(t, on.Put(ctx, "weir:victim", []byte("1"), time.Minute))
	}
	many := map[string]int64{b.id: later}
	for i := range 2000 {
		many[fmt.Sprint("id-", i)] = later
	}
	data, _ := json.Marshal(directoryJSON{many})
	require.NoError(t, on.Put(ctx, "weir:instances", data, time.Minute))
	a.known = reading{}
	reports, missing, err := a.Others()
	require.NoError(t, err)
	assert.Len(t, reports, 1)
	assert.Zero(t, missing, "none of them is an instance")
}
