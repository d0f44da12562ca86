package plain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/counters/limitertest"
)

func TestMain(m *testing.M) {
	// net/http closes half a second after it has refused a request.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// A site serves /plain/... by a Server on loopback, which has a loop. Answers name the
// server that read the request: its handler sees a *response, or net/http's.
type site struct {
	*Server
	address string
	states  sync.Map // of http.ConnState, how often each was told
	log     strings.Builder
	served  chan error
}

func TestByGoroutines(t *testing.T) { limitertest.Methods(t, way{alone}) }
func TestByTheLoop(t *testing.T)    { limitertest.Methods(t, way{}) }

// A way is how a site serves its connections. Its methods are the tests that have to hold
// for each.
type way struct{ configure func(*Server) }

func (w way) newSite(t *testing.T, handler http.HandlerFunc) *site {
	if w.configure == nil {
		return newSite(t, handler)
	}
	return newSite(t, handler, w.configure)
}

// alone has each connection of a site served by a goroutine of its own.
func alone(s *Server) { s.Together = nil }

// newSite returns a site that ends with the test.
func newSite(t *testing.T, handler http.HandlerFunc, configure ...func(*Server)) *site {
	t.Helper()
	s := &site{served: make(chan error, 1)}
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "text/plain")
			_, _ = fmt.Fprintf(w, "%s %s %s %q %v", reader(w), r.Method, r.URL, body, err)
		}
	}
	h := &http.Server{
		Handler: handler, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute, ErrorLog: log.New(&s.log, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			n, _ := s.states.LoadOrStore(state, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		},
	}
	s.Server = NewServer(h, func(_, path string) bool { return strings.HasPrefix(path, "/plain") })
	s.TakesTogether = func(*http.Request) bool { return true }
	s.Together = func(set []*Exchange) {
		for _, x := range set {
			handler(x.Writer, x.Request)
			x.Answer()
		}
	}
	for _, c := range configure {
		c(s.Server)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = l.Addr().String()
	go func() { s.served <- s.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.ErrorIs(t, <-s.served, net.ErrClosed)
	})
	return s
}

// reader returns who has read a request that is answered by w.
func reader(w http.ResponseWriter) string {
	if _, ok := w.(*response); ok {
		return "plain"
	}
	return "net"
}

func (s *site) told(state http.ConnState) int64 {
	n, ok := s.states.Load(state)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// A client is a connection to a site.
type client struct {
	*net.TCPConn
	answers *bufio.Reader
}

func (s *site) dial(t *testing.T) client {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return client{c.(*net.TCPConn), bufio.NewReader(c)}
}

func (c client) send(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// answer returns the body of the next answer, and whether it is the last.
func (c client) answer(t *testing.T) (string, bool) {
	t.Helper()
	r, err := http.ReadResponse(c.answers, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return string(body), r.Close
}

func (c client) requireClosed(t *testing.T) {
	t.Helper()
	_, err := c.answers.ReadByte()
	require.Error(t, err)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%v", err)
}

const get = "GET /plain HTTP/1.1\r\nHost: h\r\n\r\n"

// Which requests are plain: a change of these costs those who send them.
func (w way) TestWhichRequestsArePlain(t *testing.T) {
	t.Parallel()
	s := w.newSite(t, nil)
	post := func(line string) string {
		return "POST /plain/x?y=z HTTP/1.1\r\nHost: h:1\r\n" + line + "Content-Length: 2\r\n\r\nhi"
	}
	for _, test := range []struct{ by, request string }{
		{"plain", get}, {"plain", post("")}, {"plain", post("Accept: */*\r\nUser-Agent:x\r\nConnection: Keep-Alive\r\nX-Y_Z: caf\xc3\xa9 \"1\"\r\n")},
		{"plain", strings.Replace(get, "/plain", "/plain/%41%2F?a=%zz", 1)}, {"plain", post("X: " + strings.Repeat("y", maxHead-100) + "\r\n")},
		{"plain", "POST /plain HTTP/1.1\r\nHost: h\r\n\r\n"}, {"plain", post("Pragma: no-cache\r\n")},
		{"net", post("X: " + strings.Repeat("y", maxHead) + "\r\n")}, {"net", strings.Replace(get, "/plain", "/other", 1)}, {"net", strings.Replace(get, "GET", "HEAD", 1)},
		{"net", post("X:  y\r\n")}, {"net", post("X: y \r\n")}, {"net", post("X: 1\r\nX: 2\r\n")}, {"net", post("Connection: close\r\n")}, {"net", strings.ReplaceAll(get, "\r", "")},
		{"net", "POST /plain HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}, {"net", strings.Replace(post(""), "2\r", "02\r", 1)}, {"net", strings.Replace(get, "1.1", "1.0", 1)},
		{"net", "POST /plain HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n"},
	} {
		c := s.dial(t)
		half := len(test.request) / 2
		c.send(t, test.request[:half])
		time.Sleep(time.Millisecond) // so that it comes in two parts, most likely
		c.send(t, test.request[half:])
		if strings.HasPrefix(test.request, "HEAD") {
			r, err := http.ReadResponse(c.answers, &http.Request{Method: http.MethodHead})
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, r.StatusCode)
			continue
		}
		body, _ := c.answer(t)
		assert.True(t, strings.HasPrefix(body, test.by+" "), "%.300q: %s", test.request, body)
	}
}

// A connection is net/http's from its first request on that isn't plain, with all that
// was sent.
func (w way) TestAConnectionIsHandedOverWithWhatHasCome(t *testing.T) {
	t.Parallel()
	s := w.newSite(t, nil)
	c := s.dial(t)
	other := "POST /other HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhe"
	c.send(t, get+get+other)
	for _, want := range []string{"plain GET /plain", "plain GET /plain"} {
		body, last := c.answer(t)
		assert.Contains(t, body, want)
		assert.False(t, last)
	}
	c.send(t, "llo"+get)
	body, _ := c.answer(t)
	assert.Equal(t, `net POST /other "hello" <nil>`, body)
	body, _ = c.answer(t)
	assert.Contains(t, body, "net GET /plain")
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return s.told(http.StateClosed) == 1 }, time.Minute, time.Millisecond)
	assert.EqualValues(t, 2, s.told(http.StateNew))
	require.Eventually(t, func() bool { return s.told(http.StateHijacked) == 1 }, time.Minute, time.Millisecond)
}

// Heads that differ a little from the one before are read anew where they do.
func (w way) TestEachHeadIsItsOwn(t *testing.T) {
	t.Parallel()
	s := w.newSite(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = fmt.Fprint(w, reader(w), " ", r.Method, " ", r.URL, " ", r.Host, " ", r.ContentLength, " ", r.Header)
	})
	c := s.dial(t)
	for _, test := range []struct{ request, want string }{
		{get, "plain GET /plain h 0 map[]"},
		{"POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", "plain POST /plain h 1 map[Content-Length:[1]]"},
		{"POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxy", "plain POST /plain h 2 map[Content-Length:[2]]"},
		{"POST /plain HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n", "plain POST /plain h 0 map[A:[b]]"},
		{"POST /plain HTTP/1.1\r\nHost: h2\r\nA: c\r\nContent-Length: 0\r\n\r\n", "plain POST /plain h2 0 map[A:[c] Content-Length:[0]]"},
		{"POST /plain HTTP/1.1\r\nContent-Length: 3\r\nA: c\r\nHost: h3\r\n\r\nabc", "plain POST /plain h3 3 map[A:[c] Content-Length:[3]]"},
		{"POST /plain/2 HTTP/1.1\r\nPragma: no-cache\r\nHost: h3\r\n\r\n", "plain POST /plain/2 h3 0 map[Cache-Control:[no-cache] Pragma:[no-cache]]"},
		{"POST /plain/2 HTTP/1.1\r\nPragma: x\r\nHost: h3\r\n\r\n", "plain POST /plain/2 h3 0 map[Pragma:[x]]"},
		{get, "plain GET /plain h 0 map[]"},
		{"GET /plain HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400 Bad Request: too many Host headers"},
	} {
		c.send(t, test.request)
		body, _ := c.answer(t)
		if strings.HasPrefix(test.want, "400") {
			assert.Equal(t, "400 Bad Request", body)
			continue
		}
		assert.Equal(t, test.want, body)
	}
}

// net/http closes the connection of a client that goes on sending in two steps, so that its
// answer isn't lost.
func (w way) TestNetHTTPCanSayThatNothingFollows(t *testing.T) {
	t.Parallel()
	c := w.newSite(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }).dial(t)
	c.send(t, "POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat(" ", 20_000))
	_, last := c.answer(t)
	assert.True(t, last)
	_, err := c.answers.ReadByte()
	assert.ErrorIs(t, err, io.EOF)
}

func (w way) TestAPanicEndsItsConnectionOnly(t *testing.T) {
	t.Parallel()
	s := w.newSite(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/plain/abort" {
			panic(http.ErrAbortHandler)
		}
		panic("a bug")
	})
	for _, path := range []string{"/plain", "/plain/abort"} {
		c := s.dial(t)
		c.send(t, strings.Replace(get, "/plain", path, 1))
		c.requireClosed(t)
	}
	require.Eventually(t, func() bool { return s.told(http.StateClosed) == 2 }, time.Minute, time.Millisecond)
	assert.Equal(t, 1, strings.Count(s.log.String(), "panic serving 127.0.0.1:"))
	assert.Contains(t, s.log.String(), "a bug")
}

// A handler that asks learns when its client leaves, and not that it sends more.
func TestTheContextEndsWhenTheClientLeaves(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	s := newSite(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // as long as some is left, nobody looks
		assert.NoError(t, r.Context().Err())
		asked <- struct{}{}
		if r.URL.Path == "/plain/leave" {
			<-r.Context().Done()
			assert.ErrorIs(t, r.Context().Err(), context.Canceled)
			asked <- struct{}{}
		}
		_, _ = io.WriteString(w, "")
	}, alone)
	c := s.dial(t)
	for range 3 {
		c.send(t, get)
		<-asked
		_, last := c.answer(t)
		assert.False(t, last)
	}
	c.send(t, get+get) // the second may come while the first is answered
	<-asked
	c.send(t, get)
	for i := range 3 {
		_, last := c.answer(t)
		assert.False(t, last)
		if i < 2 {
			<-asked
		}
	}
	for _, body := range []int{2, firstBuffer, 100 * firstBuffer} {
		c := s.dial(t)
		c.send(t, fmt.Sprintf("POST /plain/leave HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", body, strings.Repeat("x", body)))
		<-asked
		require.NoError(t, c.Close())
		<-asked
	}
}

// Shutdown closes what is idle, and waits for the rest.
func (w way) TestShutdownWaitsForAnswers(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	s := w.newSite(t, func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-end
	})
	idle, busy, other, posting := s.dial(t), s.dial(t), s.dial(t), s.dial(t)
	busy.send(t, get)
	<-begun
	require.NoError(t, posting.SetDeadline(time.Now().Add(5*time.Second)))
	posting.send(t, "POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
	<-begun
	other.send(t, strings.Replace(get, "/plain", "/other", 1))
	<-begun
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Shutdown(short), context.DeadlineExceeded)
	idle.requireClosed(t)
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(t.Context()) }()
	close(end)
	_, last := busy.answer(t)
	assert.True(t, last)
	_, last = posting.answer(t)
	assert.True(t, last, "before its body")
	posting.send(t, "hello")
	posting.requireClosed(t)
	other.answer(t)
	require.NoError(t, <-done)
}

// Accepting goes on after an error that passes.
func TestServeSurvivesErrorsThatPass(t *testing.T) {
	t.Parallel()
	l := failingListener{make(chan error, 2)}
	l.errors <- temporaryError{}
	l.errors <- net.ErrClosed
	s := NewServer(&http.Server{}, nil)
	require.ErrorIs(t, s.Serve(l), net.ErrClosed)
	require.NoError(t, s.Close())
	require.Empty(t, l.errors)
}

type failingListener struct{ errors chan error }

func (l failingListener) Accept() (net.Conn, error) { return nil, <-l.errors }
func (l failingListener) Close() error              { return nil }
func (l failingListener) Addr() net.Addr            { return &net.TCPAddr{} }

type temporaryError struct{}

func (temporaryError) Error() string   { return "temporary" }
func (temporaryError) Temporary() bool { return true }

// Where the status allows no body, nothing is said of one, as net/http does.
func (w way) TestAnswersThatHaveNoBody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotModified, http.StatusNoContent} {
		s := w.newSite(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		c := s.dial(t)
		for _, path := range []string{"/plain", "/plain", "/net"} { // by either
			c.send(t, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
			r, err := http.ReadResponse(c.answers, nil)
			require.NoError(t, err)
			assert.Equal(t, status, r.StatusCode)
			assert.NotContains(t, r.Header, "Content-Length", path)
		}
	}
}

// A client that is told that nothing follows needn't send what nobody reads to have its answer.
func (w way) TestTheLastAnswerDoesNotWaitForABody(t *testing.T) {
	t.Parallel()
	s := w.newSite(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	for _, path := range []string{"/net", "/plain"} {
		c := s.dial(t)
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		c.send(t, "POST "+path+" HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
		_, last := c.answer(t)
		assert.True(t, last, path)
		c.send(t, "hello")
		c.requireClosed(t)
	}
}
