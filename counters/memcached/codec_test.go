package memcached

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

func TestRequestsOfAPipeline(t *testing.T) {
	t.Parallel()
	whole := errors.New("the request is whole and would be sent")
	pool := pipeline.New(func(context.Context, string, string) (net.Conn, error) { return nil, whole }, time.Second)
	defer pool.Close()
	for want, got := range map[string][]byte{
		"add k 0 60 1\r\n0\r\n":                                  appendStore(nil, "k", 60, 0, []byte("0")),
		"cas k 0 1700000000 3 18446744073709551615\r\n\r\n \r\n": appendStore(nil, "k", 1_700_000_000, 1<<64-1, []byte("\r\n ")),
		"incr k 1000000\r\n":                                     appendCount(nil, "incr", "k", 1_000_000),
		"get a b c\r\n":                                          appendGet(nil, "get", "a", "b", "c"),
		"gets a\r\n":                                             appendGet(nil, "gets", "a"),
		"delete a\r\n":                                           appendDelete(nil, "a"),
	} {
		assert.Equal(t, want, string(got))
		conn, err := pool.Conn("tcp", "nowhere")
		require.NoError(t, err)
		_, err = conn.Write(got)
		assert.ErrorIs(t, err, whole, "a shared socket takes %q for one request", want)
	}
}

func TestParseIncr(t *testing.T) {
	t.Parallel()
	n, found, err := parseCount("k", []byte("9223372036854775807\r\n"))
	require.NoError(t, err)
	assert.True(t, found)
	assert.EqualValues(t, 1<<63-1, n)
	_, found, err = parseCount("k", []byte("NOT_FOUND\r\n"))
	require.NoError(t, err)
	assert.False(t, found)
	for reply, want := range map[string]string{
		"9223372036854775808\r\n": "not a counter",
		"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n": "not a counter",
		"SERVER_ERROR out of memory in incr\r\n":                           "out of memory",
		"STORED\r\n":                                                       "STORED",
		"":                                                                 "memcache",
	} {
		_, _, err := parseCount("k", []byte(reply))
		assert.ErrorContains(t, err, want, "%q", reply)
	}
}

func TestParseCounts(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "c", "b"}
	for reply, want := range map[string][]int64{
		"END\r\n":                     {-1, -1, -1, -1},
		"VALUE b 0 1\r\n7\r\nEND\r\n": {-1, 7, -1, -1},
		"VALUE a 0 3\r\n99 \r\nVALUE c 0 1\r\n8\r\nEND\r\n":                      {99, -1, 8, -1},
		"VALUE b 0 1\r\n7\r\nVALUE b 0 1\r\n7\r\nEND\r\n":                        {-1, 7, -1, 7},
		"VALUE a 0 1\r\n1\r\nVALUE b 0 1 55\r\n2\r\nVALUE c 5 1\r\n3\r\nEND\r\n": {1, 2, 3, -1},
	} {
		counts := []int64{5, 5, 5, 5}
		require.NoError(t, parseItems([]byte(reply), keys, 0, intoCounts(counts, nil)), "%q", reply)
		require.NoError(t, checkCounts(keys, counts), "%q", reply)
		assert.Equal(t, want, counts, "%q", reply)
	}
	for reply, want := range map[string]string{
		"":                               "memcache",
		"ERROR\r\n":                      "ERROR",
		"SERVER_ERROR out of memory\r\n": "out of memory",
		"VALUE a 0 1\r\n7\r\n":           "memcache",
		"VALUE a 0 2\r\n7\r\nEND\r\n":    "VALUE a 0 2",
		"VALUE a 0 x\r\n7\r\nEND\r\n":    "VALUE a 0 x",
		"VALUE d 0 1\r\n7\r\nEND\r\n":    "out of turn",
		"VALUE b 0 1\r\n7\r\nVALUE a 0 1\r\n7\r\nEND\r\n": "out of turn",
	} {
		assert.ErrorContains(t, parseItems([]byte(reply), keys, 0, intoCounts(make([]int64, 4), nil)), want, "%q", reply)
	}
	for _, value := range []string{"1\r\nx", "19\r\n9223372036854775808", "20\r\n18446744073709551616"} {
		counts := make([]int64, 4)
		require.NoError(t, parseItems([]byte("VALUE b 0 "+value+"\r\nVALUE c 0 1\r\n8\r\nEND\r\n"), keys, 0, intoCounts(counts, nil)))
		assert.EqualValues(t, 8, counts[2], "others don't suffer from %q", value)
		assert.ErrorIs(t, checkCounts(keys, counts), counters.ErrForeignValue, "%q", value)
		assert.NoError(t, checkCounts(keys[2:], counts[2:]))
	}
}

func TestParseStates(t *testing.T) {
	t.Parallel()
	parse := func(reply []byte) (counters.State, error) {
		states := []counters.State{{Value: []byte("old"), Version: 3}}
		err := parseItems(reply, []string{"k"}, 0, intoStates(states))
		return states[0], err
	}
	reply := []byte("VALUE k 0 5 18446744073709551615\r\nEND\r\n\r\nEND\r\n")
	s, err := parse(reply)
	require.NoError(t, err)
	clear(reply)
	assert.Equal(t, counters.State{Value: []byte("END\r\n"), Version: 1<<64 - 1}, s, "it keeps no reference to the reply")
	s, err = parse([]byte("END\r\n"))
	require.NoError(t, err)
	assert.False(t, s.Exists())
	for reply, want := range map[string]string{
		"VALUE k 0 1\r\n7\r\nEND\r\n":                         "-C",
		"VALUE k 0 1 0\r\n7\r\nEND\r\n":                       "-C",
		"VALUE k 0 1 x\r\n7\r\nEND\r\n":                       "VALUE k 0 1 x",
		"VALUE k 0 1 5\r\n7\r\nVALUE j 0 1 6\r\n8\r\nEND\r\n": "j",
		"SERVER_ERROR out of memory\r\n":                      "out of memory",
	} {
		_, err := parse([]byte(reply))
		assert.ErrorContains(t, err, want, "%q", reply)
	}
}

// Whatever a server answers, nothing panics, and no count is less than one that
// is absent.
func FuzzParseReplies(f *testing.F) {
	f.Fuzz(func(t *testing.T, reply []byte) {
		keys, counts := []string{"a", "b", "c"}, make([]int64, 3)
		if parseItems(reply, keys, 0, intoCounts(counts, nil)) == nil && checkCounts(keys, counts) == nil {
			for _, n := range counts {
				assert.GreaterOrEqual(t, n, int64(counters.Absent))
			}
		}
		states := make([]counters.State, len(keys))
		if parseItems(reply, keys, 0, intoStates(states)) == nil {
			for _, s := range states {
				assert.LessOrEqual(t, len(s.Value), len(reply))
			}
		}
		if n, found, err := parseCount("a", reply); err == nil && found {
			assert.GreaterOrEqual(t, n, int64(0))
		}
	})
}

// However many keys are asked for, no command is longer than what servers and proxies
// take, and each key is asked for once, in order.
func TestGetsAreShort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.StringMatching("[a-z]{1,250}"), 1, 3600).Draw(t, "keys")
		var asked []string
		lines := bytes.SplitAfter(appendGets(nil, "gets", keys), crlf)
		require.Empty(t, lines[len(lines)-1])
		for _, line := range lines[:len(lines)-1] {
			require.LessOrEqual(t, len(line), maxGet)
			words := strings.Fields(string(line))
			require.Equal(t, "gets", words[0])
			require.Len(t, words[1:], oneGet(keys[len(asked):]))
			asked = append(asked, words[1:]...)
		}
		require.Equal(t, keys, asked)
	})
}
