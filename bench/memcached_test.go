package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func TestParseStats(t *testing.T) {
	s, err := parseStats([]string{
		"STAT pid 1", "STAT version 1.6.18",
		"STAT cmd_get 1000", "STAT cmd_set 1", "STAT cmd_touch 1000", "STAT get_hits 100", "STAT get_misses 200",
		"STAT delete_misses 2", "STAT delete_hits 4", "STAT incr_misses 8", "STAT incr_hits 16", "STAT decr_misses 32", "STAT decr_hits 64",
		"STAT cas_misses 1000", "STAT cas_hits 1000", "STAT cas_badval 1000", "STAT evictions 5", "END",
	})
	require.NoError(t, err)
	assert.Equal(t, storeStats{writes: 127, keysRead: 300, evictions: 5}, s)

	_, err = parseStats([]string{"STAT cmd_set many", "END"})
	assert.Error(t, err)
}

func TestStatsArithmetic(t *testing.T) {
	assert.Equal(t, storeStats{9, 18, 27}, storeStats{10, 20, 30}.minus(storeStats{1, 2, 3}))
}

func TestMemcachedCountsEachWrite(t *testing.T) {
	m := startedMemcached(t)
	before, err := m.stats()
	require.NoError(t, err)
	for _, command := range []struct{ line, answer string }{
		{"add a 0 0 1\r\n1", "STORED"},
		{"add a 0 0 1\r\n1", "NOT_STORED"},
		{"cas a 0 0 1 999\r\n1", "EXISTS"},
		{"cas b 0 0 1 999\r\n1", "NOT_FOUND"},
		{"incr a 1", "2"},
		{"incr b 1", "NOT_FOUND"},
		{"decr a 1", "1"},
		{"decr b 1", "NOT_FOUND"},
		{"delete a", "DELETED"},
		{"delete a", "NOT_FOUND"},
	} {
		_, err := m.do(command.line, command.answer)
		require.NoError(t, err)
	}
	_, err = m.do("gets a b c", "END")
	require.NoError(t, err)
	after, err := m.stats()
	require.NoError(t, err)
	assert.Equal(t, storeStats{writes: 10, keysRead: 3}, after.minus(before))
}

func TestKeysPerGet(t *testing.T) {
	m := startedMemcached(t)
	for _, tt := range []struct {
		commands []string
		want     float64
	}{
		{[]string{"incr a 1"}, 0},
		{[]string{"set a 0 0 1\r\n1", "gets a b c d", "get a", "incr a 1"}, 2.5},
		{[]string{"get a"}, 1},
	} {
		got, err := m.keysPerGet(func() error {
			for _, command := range tt.commands {
				if _, err := m.do(command, ""); err != nil {
					return err
				}
			}
			_, err := m.do("version", "VERSION")
			return err
		})
		require.NoError(t, err)
		assert.InDelta(t, tt.want, got, 1e-9, tt.commands)
	}
}

func TestCommandLog(t *testing.T) {
	l := &commandLog{silenced: make(chan struct{}, 1)}
	for _, part := range []string{"<24 get", "s a b\n>24 sending key a<25 get a\n\n<26 gets c\n", ">26 END\n<24 incr a 1\n<24 add get 0 0 1\n", "failed to listen\n<2"} {
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		assert.Equal(t, len(part), n)
	}
	assert.Equal(t, int64(3), l.reset())
	assert.Equal(t, int64(0), l.reset())
	assert.Equal(t, "failed to listen", l.String())
	assert.Empty(t, l.silenced)
	_, err := l.Write([]byte("4 verbosity 0\n"))
	require.NoError(t, err)
	assert.Len(t, l.silenced, 1)
}

func TestFill(t *testing.T) {
	m := startedMemcached(t)
	now := time.Now()
	w := workload{algorithm{name: "sliding N=4", subWindows: 4}, traffic{clients: 3, limit: never}}
	require.NoError(t, m.fill(w, now))

	var want []string
	for n := range w.clients {
		for slot := int64(1); slot <= 4; slot++ {
			client := counters.CounterNamespace("weir", "sliding-n4-1000000000", "limit", 15*time.Second).Client(clientName(n))
			want = append(want, counters.CounterKey(client, counters.Calendar(now, 15*time.Second).Number-slot))
		}
	}
	assert.ElementsMatch(t, want, m.keys(t))

	require.NoError(t, m.fill(workload{fixedWindow, distinct}, now))
	assert.Len(t, m.keys(t), 12, "a fixed window has no closed slots")
}

func startedMemcached(t *testing.T) *memcached {
	t.Helper()
	m, err := startMemcached(t.Context(), 64)
	require.NoError(t, err)
	t.Cleanup(m.stop)
	return m
}
