package pipeline

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/memcachedtest"
)

func setRequest(key string, size int) string {
	return fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, size, strings.Repeat("x", size))
}

// Everything that is sent is answered at once, although the server reads a
// value, or what its buffer has room for, and forgets the rest of the record.
func TestNothingIsLeftInTheServersTLSBuffer(t *testing.T) {
	cert, key, trusted := memcachedtest.NewCertificate(t)
	m := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert, "-o", "ssl_key="+key)
	long := strings.Repeat("k", 91)
	for _, test := range []struct {
		name     string
		before   int // bytes that were sent before: crypto/tls begins with small records
		requests string
	}{
		{"a value in small records, and a command", 0, setRequest("k", 10000) + "incr n 1\r\n"},
		{"a value in full records, and a command", 200000, setRequest("k", 20000) + "incr n 1\r\n"},
		{"a large value, and a command", 0, setRequest("k", 500000) + "incr n 1\r\n"},
		{"a value too large for the server, and a command", 0, setRequest("k", 2<<20) + "incr n 1\r\n"},
		{"values and commands", 0, strings.Repeat(setRequest("k", 300)+"incr n 1\r\n"+setRequest("k", 20), 200)},
		{"a value that begins at the end of a record", 200000, strings.Repeat("incr n 1\r\n", 1637) + setRequest("k", 0) + "incr n 1\r\n"},
		{"two records that end within a command", 200000, strings.Repeat("incr "+long+" 1\r\n", 327)},
		{"a line in many records, and a command", 200000, "get" + strings.Repeat(" "+long, 700) + "\r\nincr n 1\r\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := New(Dialer(&tls.Config{RootCAs: trusted}, "", ""))
			defer s.Close()
			h := newConn(t, s, m.Network(), m.Addr)
			require.NoError(t, h.Exchange([]byte(setRequest("before", test.before))))
			require.NoError(t, h.Exchange([]byte(test.requests)))
		})
	}
}

func TestRecordsHoldWholeCommandsOrAPartOfOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 500), rapid.IntRange(maxRecord-100, maxRecord+100), rapid.Just(100000)), 1, 50).Draw(t, "sizes")
		var want, got []string
		for _, size := range sizes {
			request := setRequest("k", size)
			last := len(want) - 1
			if last >= 0 && len(want[last])+len(request) <= maxRecord {
				want[last] += request
			} else {
				want = append(want, request)
			}
		}
		for rest := strings.Join(want, ""); rest != ""; {
			n := recordLength([]byte(rest))
			got = append(got, rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, want, got)
	})
}
