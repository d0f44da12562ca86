package testbed

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseSlabs(t *testing.T) {
	t.Parallel()
	h := parseSlabs(map[string]float64{
		"1:chunk_size": 96, "1:total_chunks": 10922, "1:used_chunks": 3, "2:chunk_size": 120, "2:used_chunks": 5, "active_slabs": 2,
	})
	assert.Equal(t, holdings{Items: 8, Bytes: 3*96 + 5*120}, h)
}

func TestParseStats(t *testing.T) {
	t.Parallel()
	stats := map[string]float64{
		"pid": 1, "cmd_get": 1000, "cmd_set": 1, "cmd_touch": 1000, "get_hits": 100, "get_misses": 200,
		"delete_misses": 2, "delete_hits": 4, "incr_misses": 8, "incr_hits": 16, "decr_misses": 32, "decr_hits": 64,
		"cas_misses": 1000, "cas_hits": 1000, "cas_badval": 1000, "evictions": 5,
	}
	s, err := parseStats(stats)
	require.NoError(t, err)
	assert.Equal(t, StoreStats{Writes: 127, KeysRead: 300, Evictions: 5}, s)
	delete(stats, "cmd_set")
	_, err = parseStats(stats)
	assert.ErrorContains(t, err, "cmd_set")
}

func TestMemcachedCountsEachWrite(t *testing.T) {
	t.Parallel()
	m := started(t)
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
		_, err := m.Do(command.line, command.answer)
		require.NoError(t, err)
	}
	_, err = m.Do("gets a b c", "END")
	require.NoError(t, err)
	after, err := m.stats()
	require.NoError(t, err)
	assert.Equal(t, StoreStats{Writes: 10, KeysRead: 3}, after.minus(before))
}

func TestKeysPerGet(t *testing.T) {
	t.Parallel()
	m := started(t)
	for _, tt := range []struct {
		commands []string
		want     float64
	}{
		{[]string{"incr a 1"}, 0},
		{[]string{"set a 0 0 1\r\n1", "gets a b c d", "get a", "incr a 1"}, 2.5},
		{[]string{"get a"}, 1},
	} {
		got, err := m.KeysPerGet(t.Context(), func() error {
			for _, command := range tt.commands {
				if _, err := m.Do(command, ""); err != nil {
					return err
				}
			}
			_, err := m.Do("version", "VERSION")
			return err
		})
		require.NoError(t, err)
		assert.InDelta(t, tt.want, got, 1e-9, tt.commands)
	}
}

// A get command may stand anywhere in a line of the log.
func TestGetCommandsInALog(t *testing.T) {
	t.Parallel()
	log := "<24 gets a b\n>24 sending key a<25 get a\n\n<26 mg c\n>26 END\n<24 incr a 1\n<24 add get 0 0 1\nfailed to listen\n<24 verbosity 0\n"
	assert.Len(t, getCommand.FindAllString(log, -1), 3)
}

func started(t *testing.T) *Memcached {
	t.Helper()
	m, err := StartMemcached(t.Context(), 64)
	require.NoError(t, err)
	t.Cleanup(m.Stop)
	return m
}

func TestCPU(t *testing.T) {
	t.Parallel()
	m, err := StartMemcached(t.Context(), 64)
	require.NoError(t, err)
	began, err := m.CPU()
	require.NoError(t, err)
	assert.Positive(t, began)
	// A single command takes it microseconds.
	_, err = m.Do("version", "VERSION")
	require.NoError(t, err)
	used, err := m.CPU()
	require.NoError(t, err)
	assert.Greater(t, used, began)
	assert.Less(t, used-began, time.Second)
	m.Stop()
	state := m.Cmd.ProcessState
	assert.LessOrEqual(t, used, state.UserTime()+state.SystemTime()+10*time.Millisecond, "which are known to the tick")
	_, err = m.CPU()
	assert.ErrorContains(t, err, "memcached")
}

func TestServerThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := (&Build{Binary: "/bin/false"}).Start(t.Context(), "")
	assert.ErrorContains(t, err, "it ended at once")
}

// A server that is to be profiled writes its profile before it ends.
func TestProfiles(t *testing.T) {
	t.Parallel()
	m := started(t)
	dir := filepath.Join(t.TempDir(), "profiles")
	build, err := BuildWeir(t.Context(), "", dir)
	require.NoError(t, err)
	t.Cleanup(build.Remove)
	for range 2 {
		weir, err := build.Start(t.Context(), m.Addr)
		require.NoError(t, err)
		weir.Stop()
		assert.True(t, weir.Cmd.ProcessState.Success(), weir.Log)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pprof"))
	require.NoError(t, err)
	assert.Len(t, files, 2)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, []byte{0x1f, 0x8b}, content[:2], "gzip")
	}
}

func TestMemcachedThatIsStoppedAndKilled(t *testing.T) {
	t.Parallel()
	m := started(t)
	_, err := m.Do("incr a 1", "NOT_FOUND")
	require.NoError(t, err)
	require.NoError(t, m.Signal(syscall.SIGSTOP))
	_, err = io.WriteString(m.Conn, "version\r\n")
	require.NoError(t, err)
	require.NoError(t, m.Conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = m.Conn.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, m.Signal(syscall.SIGCONT))
	_, err = m.Do("set a 0 0 1\r\n1", "STORED") // after the version
	require.NoError(t, err)

	m.Stop()
	require.NoError(t, m.Restart(t.Context()))
	_, err = m.Do("incr a 1", "NOT_FOUND")
	require.NoError(t, err, "it is empty")
}

func TestParallelStopsAtAnError(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	done := make([]bool, 1000)
	err := Parallel(len(done), 4, func(i int) error {
		done[i] = true
		if i == 10 {
			return failed
		}
		return nil
	})
	assert.ErrorIs(t, err, failed)
	assert.NotContains(t, done[:10], false)
	assert.Contains(t, done, false)
	require.NoError(t, Parallel(len(done), 4, func(i int) error {
		done[i] = true
		return nil
	}))
	assert.NotContains(t, done, false)
}
