package pipeline

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/racetest"
)

func TestParseRequest(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 3000)
	for _, test := range []struct {
		in  string
		n   int // -1 for an error
		cmd kind
	}{
		{"", 0, 0},
		{"incr k 1\r", 0, 0},
		{"incr k 1\r\n", 10, lineCommand},
		{"incr k 1\n", 9, lineCommand},
		{"version\r\nget", 9, versionCommand},
		{"get " + long + "\r\n", 3006, readCommand},
		{"gat 1 " + long + "\r\n", -1, 0},
		{"incr " + long + " 1\r\n", -1, 0},
		{"incr k noreply\r\n", -1, 0},
		{"delete k noreply\r\n", -1, 0},
		{"set k 0 0 3\r\nab", 0, 0},
		{"set k 0 0 3\r\nabc\r", 0, 0},
		{"set k 0 0 3\r\nabc\r\n", 18, storageCommand},
		{"set k 0 0 3\r\nabcd\r\n", -1, 0},
		{"set k 0 0 0\r\n\r\n", 15, storageCommand},
		{"cas k 0 0 1 7\r\na\r\n", 18, storageCommand},
		{"cas k 0 0 1\r\na\r\n", -1, 0},
		{"set k 0 0 1 noreply\r\na\r\n", -1, 0},
		{"set  0 0 1\r\na\r\n", -1, 0},
		{"set k 0 0 -1\r\na\r\n", -1, 0},
		{"set k 0 0 99999999999\r\n", -1, 0},
		{"set " + strings.Repeat("k", 251) + " 0 0 1\r\na\r\n", -1, 0},
		{"set " + strings.Repeat("k", 250) + " 0 0 1\r\na\r\n", 265, storageCommand},
		{"stats\r\n", 7, statsCommand},
		{"stats reset\r\n", -1, 0},
		{"stats items\r\n", -1, 0},
		{"quit\r\n", -1, 0},
		{"\r\n", -1, 0},
	} {
		n, cmd, err := parseCommand([]byte(test.in))
		require.Equal(t, test.n < 0, err != nil, "%.40q: %v", test.in, err)
		if err == nil {
			require.Equal(t, test.n, n, "%.40q", test.in)
			require.Equal(t, test.cmd, cmd, "%.40q", test.in)
		}
	}
}

// Replies are told apart wherever the stream is cut into pieces, whether they
// are wanted or not.
func TestRepliesInPieces(t *testing.T) {
	t.Parallel()
	type exchange struct {
		command kind
		reply   string
	}
	value := rapid.SampledFrom([]string{"", "1", "END\r\n", "\r\n", "VALUE x 0 3\r\n", "ERROR\r\n", strings.Repeat("\n", 100)})
	exchanges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) exchange {
		switch rapid.IntRange(0, 4).Draw(t, "kind") {
		case 0:
			return exchange{lineCommand, rapid.SampledFrom([]string{"7\r\n", "ERROR\r\n", "CLIENT_ERROR x\r\n"}).Draw(t, "reply")}
		case 1:
			return exchange{storageCommand, rapid.SampledFrom([]string{"STORED\r\n", "SERVER_ERROR x\r\n"}).Draw(t, "reply")}
		case 2:
			lines := rapid.SliceOfN(rapid.SampledFrom([]string{"STAT pid 1\r\n", "STAT END END\r\n", "STAT empty \r\n"}), 0, 4).Draw(t, "stats")
			return exchange{statsCommand, strings.Join(lines, "") + rapid.SampledFrom([]string{"END\r\n", "ERROR\r\n"}).Draw(t, "end")}
		}
		var b strings.Builder
		for _, v := range rapid.SliceOfN(value, 0, 4).Draw(t, "values") {
			fmt.Fprintf(&b, "VALUE k 0 %d 12\r\n%s\r\n", len(v), v)
		}
		b.WriteString(rapid.SampledFrom([]string{"END\r\n", "SERVER_ERROR x\r\n", "ERROR\r\n", "CLIENT_ERROR x\r\n"}).Draw(t, "end"))
		return exchange{readCommand, b.String()}
	}), 1, 5)
	rapid.Check(t, func(t *rapid.T) {
		var r reply
		var stream, after string
		for _, e := range exchanges.Draw(t, "exchanges") {
			r.kinds = append(r.kinds, e.command)
			stream += e.reply
		}
		wanted := rapid.Bool().Draw(t, "wanted")
		after = rapid.SampledFrom([]string{"", "1\r\n"}).Draw(t, "after")
		cuts := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 5).Draw(t, "cuts")
		left, complete := stream+after, false
		for i := 0; !complete; i++ {
			n := min(cuts[i%len(cuts)], len(left))
			require.NotZero(t, n, "not complete at the end")
			rest, c, err := r.read([]byte(left[:n]), wanted)
			require.NoError(t, err)
			complete = c
			left = string(rest) + left[n:]
			if !complete {
				require.Empty(t, rest)
			}
		}
		require.Equal(t, after, left)
		if wanted {
			require.Equal(t, stream, string(r.data))
		}
	})
}

func TestRepliesOutOfStep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		cmd    kind
		stream string
	}{
		{storageCommand, "ERROR\r\n"},
		{storageCommand, "CLIENT_ERROR bad data chunk\r\n"},
		{readCommand, "7\r\n"},
		{readCommand, "VALUE k 0\r\n"},
		{readCommand, "VALUE k 0 x\r\n"},
		{readCommand, "VALUES k 0 1\r\n1\r\nEND\r\n"},
		{statsCommand, "STATS\r\n"},
		{statsCommand, "VALUE k 0 1\r\n1\r\nEND\r\n"},
		{lineCommand, strings.Repeat("x", maxLine+1)},
	} {
		r := reply{kinds: []kind{test.cmd}}
		_, _, err := r.read([]byte(test.stream), true)
		require.ErrorIs(t, err, errOutOfStep, "%.40q", test.stream)
	}
}

// No stream makes the reader panic or take bytes twice, and it reads the same
// wherever the stream is cut into pieces.
func FuzzReply(f *testing.F) {
	racetest.Sequential(f)
	f.Fuzz(func(t *testing.T, stream, commands, cuts []byte, wanted bool) {
		newReply := func() *reply {
			r := &reply{kinds: []kind{lineCommand}}
			for _, c := range commands {
				r.kinds = append(r.kinds, kind(c%4))
			}
			return r
		}
		whole, pieces := newReply(), newReply()
		rest, complete, err := whole.read(stream, wanted)
		require.LessOrEqual(t, len(rest), len(stream))
		require.False(t, complete && err != nil)

		left, i := stream, 0
		var tookAll bool
		var pieceErr error
		for len(left) > 0 && !tookAll && pieceErr == nil {
			n := len(left)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[i%len(cuts)]))
			}
			i++
			var behind []byte
			behind, tookAll, pieceErr = pieces.read(left[:n], wanted)
			left = left[n-len(behind):]
		}
		require.Equal(t, complete, tookAll)
		require.Equal(t, err != nil, pieceErr != nil, "%v, %v", err, pieceErr)
		if err == nil {
			require.Equal(t, string(rest), string(left))
			require.Equal(t, whole.ends, pieces.ends)
			require.Equal(t, string(whole.data), string(pieces.data))
		}
	})
}
