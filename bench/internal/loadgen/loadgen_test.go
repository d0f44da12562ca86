package loadgen

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
)

func TestReadResponse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		response string
		status   int
		body     string
		last     bool
		fails    bool
	}{
		{name: "admitted", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
		{name: "denied", response: "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}", status: 429, body: "{}"},
		{name: "no reason", response: "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "header in other case, no space", response: "HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabc", status: 200, body: "abc"},
		{name: "chunked", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", status: 200, body: "hello"},
		{name: "chunked, with extensions and trailers", response: "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nExpires: never\r\n\r\n", status: 200, body: "hello"},
		{name: "one long chunk", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + strings.Repeat("a", 5000) + "\r\n0\r\n\r\n", status: 200, body: strings.Repeat("a", 5000)},
		{name: "chunked and a length", response: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200},
		{name: "a chunk without length", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n", fails: true},
		{name: "a chunk that is longer", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", fails: true},
		{name: "ends in a chunk", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", fails: true},
		{name: "ends before the last chunk", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", fails: true},
		{name: "other encoding", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", fails: true},
		{name: "stays open", response: "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
		{name: "closes", response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}", last: true},
		{name: "closes, among others", response: "HTTP/1.1 200 OK\r\nConnection: x-hop, Close\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}", last: true},
		{name: "no length", response: "HTTP/1.1 200 OK\r\n\r\nhello", status: 200, body: "hello", last: true},
		{name: "no content", response: "HTTP/1.1 204 No Content\r\n\r\n", status: 204},
		{name: "1.0 stays open", response: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
		{name: "1.0 closes", response: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}", last: true},
		{name: "1.0 without length", response: "HTTP/1.0 429 No\r\n\r\nhello", status: 429, body: "hello", last: true},
		{name: "informational first", response: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", status: 200, body: "{}"},
		{name: "negative length", response: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", fails: true},
		{name: "length isn't a number", response: "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", fails: true},
		{name: "longer than the buffer", response: "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000), status: 200, body: strings.Repeat("a", 5000)},
		{name: "far too long", response: "HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n", fails: true},
		{name: "status isn't a number", response: "HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n", fails: true},
		{name: "status line too short", response: "HTTP/1.1 20\n", fails: true},
		{name: "ends in the header", response: "HTTP/1.1 200 OK\r\nContent-Le", fails: true},
		{name: "ends in the body", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", fails: true},
		{name: "ends at once", response: "", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.response), iotest.OneByteReader(strings.NewReader(tt.response))} {
				got, err := readResponse(bufio.NewReader(r), new([]byte))
				if tt.fails {
					require.Error(t, err)
					continue
				}
				require.NoError(t, err)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.body, string(got.body))
				assert.Equal(t, tt.last, got.last)
			}
		})
	}
}

func TestReadResponseLeavesTheNext(t *testing.T) {
	t.Parallel()
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none" +
		"HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n" +
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nthree"))
	var spare []byte
	for _, want := range []response{{status: 200, body: []byte("one")}, {status: 429, body: []byte("two")}, {status: 200, body: []byte("three")}} {
		got, err := readResponse(r, &spare)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

// What is measured is the server: reading an answer costs next to nothing.
func TestReadResponseAllocatesNothing(t *testing.T) {
	const text = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRatelimit: \"a\";r=1;t=2\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\none"
	source, r := strings.NewReader(""), bufio.NewReader(nil)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		source.Reset(text)
		r.Reset(source)
		if _, err := readResponse(r, nil); err != nil {
			t.Error(err)
		}
	}))
}

// A server that closes each connection after one answer is asked on a new one,
// however it tells.
func TestClientConnectsAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a length and close": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
		"no length":          "HTTP/1.1 200 OK\r\n\r\n{}",
		"1.0":                "HTTP/1.0 200 OK\r\n\r\n{}",
		"chunks and close":   "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			var accepted atomic.Int64
			served := make(chan struct{})
			go func() {
				defer close(served)
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					accepted.Add(1)
					if request, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
						_, _ = io.Copy(io.Discard, request.Body)
						_, _ = io.WriteString(conn, answer) // what fails is seen by the client
					}
					conn.Close()
				}
			}()
			clients, err := Dial(t.Context(), listener.Addr().String(), Check("p", 0), 1)
			require.NoError(t, err)
			for range 3 {
				status, body, err := ask(clients[0], 7)
				require.NoError(t, err)
				assert.Equal(t, 200, status)
				assert.Equal(t, "{}", string(body))
			}
			clients.Close()
			listener.Close()
			<-served
			assert.GreaterOrEqual(t, accepted.Load(), int64(3))
		})
	}
}

var (
	fixed     = algorithms.Named(algorithms.Fixed)
	workloads = []Workload{{fixed, Distinct}, {fixed, Hot}, {algorithms.Named(algorithms.Strict60), Denied}}
)

func TestRequestNamesTheClient(t *testing.T) {
	t.Parallel()
	for _, w := range workloads {
		c, err := newHTTPConnection(func() (net.Conn, error) { return nil, nil }, "127.0.0.1:1", w.Request())
		require.NoError(t, err)
		for _, n := range []int64{0, 7, 9_999, 99_999_999} {
			require.Len(t, c.names, 1)
			putDigits(c.names[0], n)
			_, body, ok := strings.Cut(string(c.request), "\r\n\r\n")
			require.True(t, ok)
			assert.Equal(t, Check(w.Policy(), n).Body, body)
		}
	}
}

func TestBatchNamesTheClientsInTurn(t *testing.T) {
	t.Parallel()
	c, err := newHTTPConnection(func() (net.Conn, error) { return nil, nil }, "127.0.0.1:1", Batch("p", 3))
	require.NoError(t, err)
	sent, written := net.Pipe()
	c.conn = sent
	t.Cleanup(c.Close)
	got := make(chan string)
	go func() {
		r, err := http.ReadRequest(bufio.NewReader(written))
		assert.NoError(t, err)
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		got <- r.URL.Path + string(body)
	}()
	require.NoError(t, c.Send(2))
	assert.Equal(t, `/v1/check/batch{"checks":[{"policy":"p","client":"client-00000006"},{"policy":"p","client":"client-00000007"},`+
		`{"policy":"p","client":"client-00000008"}]}`, <-got)
}

// A batch counts only if all of it are admitted.
func TestLoopsReadBatches(t *testing.T) {
	t.Parallel()
	for body, admitted := range map[string]bool{
		`{"results":[{"status":200,"allowed":true},{"status":200,"allowed":true}]}`:  true,
		`{"results":[{"status":200,"allowed":true},{"status":429,"allowed":false}]}`: false,
	} {
		addr := served(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(rw, body)
			assert.NoError(t, err)
		}))
		clients, err := Dial(t.Context(), addr, Batch("p", 2), 1)
		require.NoError(t, err)
		t.Cleanup(clients.Close)
		s := clients.OpenLoop(t.Context(), Pace{Rate: 1000, Length: 5 * time.Millisecond}, func() int64 { return 0 })
		result, err := clients.Drive(t.Context(), &Turn{Clients: 1, Last: 5}, 0)
		if !admitted {
			require.ErrorContains(t, err, `"status":429`)
			require.ErrorContains(t, s.Fault(), `"status":429`)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, s.Fault())
		assert.Equal(t, []int64{5, 5}, []int64{result.Checks(), s.Latency.TotalCount()})
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	admittedRow, deniedRow := Workload{fixed, Hot}, Workload{fixed, Denied}
	for _, tt := range []struct {
		w                Workload
		admitted, denied int64
		since            time.Duration
		ok               bool
	}{
		{admittedRow, 1000, 0, time.Second, true},
		{admittedRow, 999, 1, time.Second, false},
		{deniedRow, 0, 1000, time.Second, true},
		{deniedRow, 200, 1000, time.Second, true},
		{deniedRow, 201, 1000, time.Second, false},
		{deniedRow, 201, 1000, time.Minute, true},
		{deniedRow, 100, 99, time.Second, false},
		{deniedRow, 1000, 0, time.Second, false},
	} {
		err := tt.w.Verify(Tally{Admitted: tt.admitted, Denied: tt.denied}, tt.since)
		assert.Equal(t, tt.ok, err == nil, "%+v: %v", tt, err)
	}
}

func TestPolicyFile(t *testing.T) {
	t.Parallel()
	assert.Equal(t, `policies:
  fixed-1000000000:
    limits: [{name: limit, algorithm: fixed_window, limit: 1000000000, window: 1m0s}]
    on_store_error: deny
  strict-n60-100:
    limits: [{name: limit, algorithm: sliding_window, sub_windows: 60, estimate: strict, limit: 100, window: 1m0s}]
    on_store_error: deny
`, PolicyFile(workloads))
}

func TestCaptureReplyGivesUp(t *testing.T) {
	t.Parallel()
	addr := served(t, NoopHandler(Reply{Status: 200, Body: []byte("yes")}))
	_, err := CaptureReply(t.Context(), addr, "{}", 429, 3)
	assert.ErrorContains(t, err, "last with 200: yes")
}

func TestMetric(t *testing.T) {
	t.Parallel()
	addr := served(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "x{of=\"a\"} 1\nx{of=\"b\"} 2.5\nxy 4\nbroken many\n")
	}))
	n, err := Metric(t.Context(), addr, "x")
	require.NoError(t, err)
	assert.InDelta(t, 3.5, n, 1e-9)
	for _, name := range []string{"y", "broken"} {
		_, err = Metric(t.Context(), addr, name)
		assert.Error(t, err, name)
	}
}

func TestRepeatCounts(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	op := func(n int64) (bool, error) {
		calls.Add(1)
		return n != 0, nil
	}
	result, err := Repeat(t.Context(), []Operation{op, op, op}, &Turn{Clients: 4, Last: 100}, 0)
	require.NoError(t, err)
	assert.Equal(t, int64(100), calls.Load())
	assert.Equal(t, int64(75), result.Admitted)
	assert.Equal(t, int64(25), result.Denied)
	assert.Equal(t, int64(100), result.Latency.TotalCount())
	assert.Positive(t, result.Elapsed)
}

func TestRepeatEndsWithTheDuration(t *testing.T) {
	t.Parallel()
	result, err := Repeat(t.Context(), []Operation{func(int64) (bool, error) { return true, nil }}, &Turn{Clients: 1}, time.Millisecond)
	require.NoError(t, err)
	assert.Positive(t, result.Admitted)
	assert.GreaterOrEqual(t, result.Elapsed, time.Millisecond)
}

func TestRepeatEndsWithAFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	fine := func(int64) (bool, error) { return true, nil }
	fails := func(int64) (bool, error) { return false, broken }
	_, err := Repeat(t.Context(), []Operation{fine, fails, fine}, &Turn{Clients: 1}, 0)
	assert.ErrorIs(t, err, broken)
}

func TestTallies(t *testing.T) {
	t.Parallel()
	a := Tally{Admitted: 6, Denied: 2, Elapsed: 2 * time.Second, Latency: NewHistogram()}
	b := Tally{Admitted: 1, Denied: 3, Elapsed: time.Second, Latency: NewHistogram()}
	require.NoError(t, a.Latency.RecordValue(1000))
	require.NoError(t, b.Latency.RecordValue(2000))

	sum := NewTally()
	sum.Add(a)
	sum.Add(b)
	assert.Equal(t, []int64{7, 5}, []int64{sum.Admitted, sum.Denied})
	assert.Equal(t, 3*time.Second, sum.Elapsed)
	assert.Equal(t, int64(2), sum.Latency.TotalCount())
	assert.InDelta(t, 4.0, sum.Rate(), 1e-9)

	a.merge(b)
	assert.Equal(t, int64(12), a.Checks())
	assert.Equal(t, 2*time.Second, a.Elapsed, "at the same time")
}

func TestUnexpectedStatusFails(t *testing.T) {
	t.Parallel()
	_, err := dialedTo(t, NoopHandler(Reply{Status: 503, Body: []byte("no store")})).Drive(t.Context(), &Turn{Clients: 1, Last: 10}, 0)
	assert.ErrorContains(t, err, "503: no store")
}

func TestDriveReadsDecisions(t *testing.T) {
	t.Parallel()
	for status, denied := range map[int]int64{200: 0, 429: 10} {
		clients := dialedTo(t, NoopHandler(Reply{Status: status, Body: []byte("{}")}))
		result, err := clients.Drive(t.Context(), &Turn{Clients: 1, Last: 10}, 0)
		require.NoError(t, err)
		assert.Equal(t, denied, result.Denied)
		assert.Equal(t, 10-denied, result.Admitted)
	}
}

func TestDriveEndsWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// Only after the body is read does the server notice a closed
		// connection.
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		cancel()
		<-r.Context().Done()
	})
	_, err := dialedTo(t, silent).Drive(ctx, &Turn{Clients: 1}, 0)
	assert.ErrorIs(t, err, context.Canceled)
}

// dialedTo returns two connections to a server with the handler.
func dialedTo(t *testing.T, handler http.Handler) Connections {
	t.Helper()
	clients, err := Dial(t.Context(), served(t, handler), Check("p", 0), 2)
	require.NoError(t, err)
	t.Cleanup(clients.Close)
	return clients
}

// served returns the address of a server with the handler.
func served(t *testing.T, handler http.Handler) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestTurnEnds(t *testing.T) {
	t.Parallel()
	turn := &Turn{Clients: 2, Last: 3}
	for _, want := range []int64{0, 1, 0} {
		n, ok := turn.next()
		assert.True(t, ok)
		assert.Equal(t, want, n)
	}
	_, ok := turn.next()
	assert.False(t, ok)
}

func TestPaces(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	assert.Equal(t, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms}, slices.Collect(Pace{Rate: 4, Length: time.Second}.due()))
	random := func(seed uint64) []time.Duration {
		return slices.Collect(Pace{Rate: 1000, Length: 100 * time.Second, Seed: seed}.due())
	}
	assert.InDelta(t, 100_000, len(random(1)), 4*math.Sqrt(100_000))
	assert.Equal(t, random(1), random(1), "the seed tells all")
	assert.NotEqual(t, random(1), random(2))
}
