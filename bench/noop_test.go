package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNoopAnswersAsWeirDid(t *testing.T) {
	var asked []string
	weir := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		asked = append(asked, string(body))
		if len(asked) < 3 {
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.Header().Set("Ratelimit", `"limit";r=0;t=9`)
		rw.WriteHeader(http.StatusTooManyRequests)
		_, err = io.WriteString(rw, `{"allowed":false}`)
		assert.NoError(t, err)
	}))
	t.Cleanup(weir.Close)
	captured, err := captureReply(t.Context(), weir.Listener.Addr().String(), "the check", 429, 5)
	require.NoError(t, err)
	assert.Equal(t, []string{"the check", "the check", "the check"}, asked)

	noop, err := startNoop(t.Context(), captured)
	require.NoError(t, err)
	t.Cleanup(noop.stop)
	again, err := captureReply(t.Context(), noop.addr, "any check", 429, 1)
	require.NoError(t, err)
	assert.Equal(t, captured, again)
	assert.Equal(t, `{"allowed":false}`, string(again.Body))
	assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "Ratelimit": {`"limit";r=0;t=9`}}, again.Header)
}

func TestCaptureReplyGivesUp(t *testing.T) {
	s := httptest.NewServer(noopHandler(reply{Status: 200, Body: []byte("yes")}, nil))
	t.Cleanup(s.Close)
	_, err := captureReply(t.Context(), s.Listener.Addr().String(), "{}", 429, 3)
	assert.ErrorContains(t, err, "last with 200: yes")
}

func TestMallocs(t *testing.T) {
	s := httptest.NewServer(noopHandler(reply{Status: 200}, nil))
	t.Cleanup(s.Close)
	n, err := mallocs(t.Context(), s.Listener.Addr().String())
	require.NoError(t, err)
	assert.Positive(t, n)

	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, strings.Repeat("x 1\n", 3))
	}))
	t.Cleanup(other.Close)
	_, err = mallocs(t.Context(), other.Listener.Addr().String())
	assert.Error(t, err)
}

func TestParseCPU(t *testing.T) {
	// Of utime 150 and stime 25, in hundredths of a second.
	used, err := parseCPU("42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 9 9 20 0 5 0 1000 0 0")
	require.NoError(t, err)
	assert.Equal(t, 1750*time.Millisecond, used)
	for _, stat := range []string{"", "42 (a) S 1", "42 (a) S 1 42 42 0 -1 4194304 100 0 0 0 x 25 9 9"} {
		_, err := parseCPU(stat)
		assert.Error(t, err, stat)
	}
}

func TestServerThatEndsAtOnce(t *testing.T) {
	_, err := startWeir(t.Context(), "/bin/false", "", "")
	assert.ErrorContains(t, err, "false ended at once")
}

// A ceiling's handler answers as the no-op handler does, after its work.
func TestCeilings(t *testing.T) {
	m, err := startMemcached(t.Context(), 64)
	require.NoError(t, err)
	t.Cleanup(m.stop)
	answer := reply{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte("yes")}
	w := workload{slidingBy60, distinct}
	for _, handler := range ceilings {
		s, err := startNoop(t.Context(), answer, handler, m.addr)
		require.NoError(t, err)
		t.Cleanup(s.stop)
		for _, client := range []int64{7, 7, 8} {
			got, err := captureReply(t.Context(), s.addr, w.body(client), 200, 1)
			require.NoError(t, err)
			assert.Equal(t, answer, got)
		}
	}
	for client, want := range map[int64]string{7: "2", 8: "1"} {
		lines, err := m.do("get "+clientName(client), "END")
		require.NoError(t, err)
		require.Len(t, lines, 3)
		assert.Equal(t, want, lines[1], "client %d, by the handler that counts", client)
	}
	_, _, err = work("sleep", m.addr)
	assert.Error(t, err)
	do, end, err := work(ceilingIncr, m.addr)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, end()) })
	assert.ErrorContains(t, do([]byte(`{"client":"x"}`)), "no client")
}
