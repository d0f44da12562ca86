package plain

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever came before, a head says what net/http reads in it.
func TestHeadsThatTakeTurns(t *testing.T) {
	t.Parallel()
	heads := []string{
		"POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: 5\r\n\r\n",
		"POST /v1/settle HTTP/1.1\r\nHost: weir\r\nContent-Length: 12\r\n\r\n",
		"POST /v1/settle HTTP/1.1\r\nHost: other\r\nContent-Length: 12\r\nX-A: 1\r\n\r\n",
		"GET /v1/auth/a?b=c HTTP/1.1\r\nX-A: 2\r\nHost: weir\r\n\r\n",
		"GET /v1/auth/a?b=c HTTP/1.1\r\nHost: weir\r\nPragma: no-cache\r\n\r\n",
		"GET /v1/auth/a HTTP/1.1\r\nHost: weir\r\nPragma: x\r\n\r\n",
		"GET /v1/auth/a HTTP/1.1\r\n\r\n",
		"POST /v1/check HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET /v1/auth/a HTTP/1.1\r\nHost: weir\r\nX-A: 1\r\nX-A: 2\r\n\r\n",
	}
	last := len(heads) - 3 // the others aren't plain
	for range 300 {
		h := head{request: &http.Request{Header: make(http.Header)}, takes: func(_, _ string) bool { return true }}
		for range 20 {
			i := rand.IntN(len(heads))
			length, plain := h.read([]byte(heads[i] + "hello"))
			require.Equal(t, i < last, plain, heads[i])
			if !plain {
				_, plain = h.read([]byte(heads[i] + "hello")) // whoever it is left to reads it again
				require.False(t, plain, heads[i])
				break
			}
			require.Len(t, heads[i], length)
			want, err := http.ReadRequest(bufio.NewReader(strings.NewReader(heads[i])))
			require.NoError(t, err)
			got := h.request
			require.Equal(t, []any{want.Method, want.RequestURI, want.URL, want.Host, want.ContentLength, want.Header},
				[]any{got.Method, got.RequestURI, got.URL, got.Host, got.ContentLength, got.Header}, heads[i])
		}
	}
}

// The lines that are kept for the head after the next are no longer than a head, however long the
// lines before them were.
func TestLongLinesAreNotKept(t *testing.T) {
	t.Parallel()
	h := head{request: &http.Request{Header: make(http.Header)}, takes: func(_, _ string) bool { return true }}
	for long := range 30 {
		b := []byte("GET / HTTP/1.1\r\nHost: weir\r\n")
		for i := range 30 {
			value := "1"
			if i == long {
				value = strings.Repeat("x", maxHead/2)
			}
			b = fmt.Appendf(b, "X-%d: %s\r\n", i, value)
		}
		_, plain := h.read(append(b, "\r\n"...))
		require.True(t, plain)
	}
	kept := 0
	for _, l := range h.lines {
		kept += len(l[1].whole)
	}
	require.LessOrEqual(t, kept, maxHead)
}
