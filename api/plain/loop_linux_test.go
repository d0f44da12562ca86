package plain

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sets counts what a site was asked together.
type sets struct {
	mu    sync.Mutex
	sizes []int
}

// newSets returns a site by the loop, and what it was asked. Sets that begin with a request
// for /plain/hold wait until hold is closed.
func newSets(t *testing.T, hold chan struct{}) (*site, *sets) {
	all := new(sets)
	s := newSite(t, nil, func(s *Server) {
		together := s.Together
		s.Together = func(set []*Exchange) {
			all.mu.Lock()
			all.sizes = append(all.sizes, len(set))
			all.mu.Unlock()
			if set[0].Request.URL.Path == "/plain/hold" {
				<-hold
			}
			together(set)
		}
		s.TakesTogether = func(r *http.Request) bool { return r.URL.Path != "/plain/alone" }
	})
	return s, all
}

func (all *sets) asked() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	n := 0
	for _, size := range all.sizes {
		n += size
	}
	return n
}

// What is anything but one whole request is left to a goroutine, until the loop takes what
// follows.
func TestTheLoopTakesOnlyWholeRequests(t *testing.T) {
	t.Parallel()
	other := strings.Replace(get, "/plain", "/plain/alone", 1)
	long := strings.Replace(get, "\r\n\r\n", "\r\nX: "+strings.Repeat("y", firstBuffer)+"\r\n\r\n", 1)
	for _, test := range []struct {
		sent string
		want int // of its requests come together
	}{
		{get, 1}, {get + get, 0}, {other, 0},
		{"POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi", 1},
		{"POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi\r\n", 0},
	} {
		s, all := newSets(t, nil)
		c := s.dial(t)
		for round := range 3 {
			c.send(t, test.sent)
			for range strings.Count(test.sent, " HTTP/1.1") {
				body, _ := c.answer(t)
				assert.Contains(t, body, "plain ")
			}
			assert.Equal(t, (round+1)*test.want, all.asked(), "%.100q", test.sent)
		}
	}
	// Once there is room for a long one, it comes whole.
	for _, parts := range [][]string{{long, long}, {get[:10], get[10:], get}} {
		s, all := newSets(t, nil)
		c := s.dial(t)
		s.reaches(t, c, waiting)
		for _, part := range parts {
			c.send(t, part)
			if strings.HasSuffix(part, "\r\n\r\n") {
				c.answer(t)
			} else {
				s.reaches(t, c, detached)
			}
		}
		assert.Equal(t, 1, all.asked(), "%.10q", parts)
	}
}

// reaches waits until c is at such a place, and returns its connection.
func (s *site) reaches(t *testing.T, c client, at int32) (there *conn) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for one := range s.conns {
			if one.RemoteAddr().String() == c.LocalAddr().String() {
				there = one
			}
		}
		return there != nil && there.at.Load() == at
	}, time.Minute, time.Millisecond)
	return there
}

// Bytes that come just as a connection begins to wait are read: by the goroutine that reads the
// loop, or by the one that has answered the request before.
func TestNothingThatComesAtOnceIsMissed(t *testing.T) {
	t.Parallel()
	var p place
	var round atomic.Int32 // what has come so far
	const rounds = 100_000
	read := make(chan int32, 1)
	go func() {
		for n := int32(1); n <= rounds; n++ {
			for i := 0; round.Load() < n; i++ {
				if i%1000 == 999 {
					runtime.Gosched()
				}
			}
			if p.arrive() {
				read <- n
			}
		}
	}()
	for n := int32(1); n <= rounds; n++ {
		p.at.Store(answering)
		round.Store(n) // what waits for the answer sends more as it has it
		if p.wait() {
			require.True(t, p.arrive(), "it is told again")
			continue
		}
		select {
		case <-read:
		case <-time.After(time.Minute):
			require.Fail(t, "missed", "round %d: %d", n, p.at.Load())
		}
	}
}

// A goroutine that has the epoll tell again finds the handle as it was, although the connection
// has left the loop and returned meanwhile.
func TestTellAgainOfAConnectionThatHasReturned(t *testing.T) {
	t.Parallel()
	s, _ := newSets(t, nil)
	c := s.dial(t)
	c.send(t, get)
	c.answer(t)
	x := s.reaches(t, c, waiting)
	h := x.handle
	c.send(t, get+get) // for a goroutine
	for range 2 {
		c.answer(t)
	}
	s.reaches(t, c, waiting)
	h.tellAgain()
	c.send(t, get)
	c.answer(t)
}

// A client that sends a request and closes its side is answered, and its connection is closed,
// even if both come at once.
func TestTheLoopSeesTheEnd(t *testing.T) {
	t.Parallel()
	s, _ := newSets(t, nil)
	const each = 30
	for i := range 2 * each {
		c := s.dial(t)
		if i%2 == 0 {
			c.send(t, get)
		}
		require.NoError(t, c.CloseWrite())
		if i%2 == 0 {
			c.answer(t)
		}
		c.requireClosed(t)
	}
	require.Eventually(t, func() bool { return s.told(http.StateClosed) == 2*each }, time.Minute, time.Millisecond)
}

// A set that takes long, as a server of the store is silent, holds up no other, however
// many there are.
func TestALoopGoesOnBesideASlowSet(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s, all := newSets(t, hold)
	var held []client
	for i := range 20 {
		c := s.dial(t)
		c.send(t, strings.Replace(get, "/plain", "/plain/hold", 1))
		held = append(held, c)
		require.Eventually(t, func() bool { return all.asked() == 2*i+1 }, time.Minute, time.Millisecond)
		other := s.dial(t)
		other.send(t, get)
		other.answer(t)
	}
	held[0].send(t, get) // before the answer to the first
	require.NoError(t, held[1].Close())
	close(hold)
	for i, c := range held {
		if i != 1 {
			c.answer(t)
		}
	}
	held[0].answer(t)
	require.Eventually(t, func() bool { return s.told(http.StateClosed) >= 1 }, time.Minute, time.Millisecond)
}

// Connections that wait too long are closed: sooner before their first request.
func TestTheLoopClosesLateConnections(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, func(s *Server) { s.http.ReadTimeout, s.http.IdleTimeout = time.Hour, 2*time.Hour })
	silent, idle := s.dial(t), s.dial(t)
	idle.send(t, get)
	idle.answer(t)
	require.Eventually(t, func() bool { return s.told(http.StateNew) == 2 && s.told(http.StateIdle) == 1 }, time.Minute, time.Millisecond)
	now := time.Now()
	later := now
	*(*uint64)(unsafe.Pointer(&later)) += 3 * 3600 << 30 // as somebody has set the system's clock
	require.Equal(t, now.Unix()+3*3600, later.Unix())
	s.closeWaiting(later)
	s.closeWaiting(now.Add(time.Hour - time.Minute))
	assert.Zero(t, s.told(http.StateClosed))
	s.closeWaiting(now.Add(time.Hour + time.Minute))
	silent.requireClosed(t)
	assert.EqualValues(t, 1, s.told(http.StateClosed))
	s.closeWaiting(now.Add(2*time.Hour + time.Minute))
	idle.requireClosed(t)
	assert.EqualValues(t, 2, s.told(http.StateClosed))
}

// Who reads slowly gets all, and is served on.
func TestTheLoopWaitsForNoReader(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	big := newSite(t, func(w http.ResponseWriter, r *http.Request) {
		assert.NotEqual(t, "/plain/body", r.URL.Path, "nobody has read the body, so it is asked")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(make([]byte, size))
	}, func(s *Server) {
		s.http.ConnState = func(c net.Conn, state http.ConnState) {
			if state == http.StateNew { // the system takes little of an answer that nobody reads
				assert.NoError(t, c.(*conn).Conn.(*net.TCPConn).SetWriteBuffer(64<<10))
			}
		}
	})
	c := big.dial(t)
	body := strings.Replace(get, "/plain", "/plain/body", 1)
	for range 2 {
		c.send(t, fmt.Sprintf("POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		r, err := http.ReadResponse(c.answers, nil)
		require.NoError(t, err)
		other := big.dial(t)
		other.send(t, get) // is answered meanwhile
		_, err = other.answers.ReadByte()
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, r.Body)
		require.NoError(t, err)
		assert.EqualValues(t, size, n)
	}
}

// A request that Together leaves is answered by the Handler, and so is what follows.
func TestTogetherMayLeave(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, func(s *Server) {
		s.Together = func(set []*Exchange) {
			for _, x := range set {
				_, _ = io.Copy(io.Discard, x.Request.Body)
				x.Leave()
			}
		}
	})
	c := s.dial(t)
	for range 3 {
		c.send(t, "POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
		body, _ := c.answer(t)
		assert.Equal(t, `plain POST /plain "hi" <nil>`, body)
	}
}

// Requests that come at the same moment are answered together.
func TestTogether(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	s, all := newSets(t, hold)
	var clients []client
	for range 50 {
		c := s.dial(t)
		c.send(t, get)
		c.answer(t)
		clients = append(clients, c)
	}
	for round := 0; ; round++ { // until the scheduler lets some come at once
		for _, c := range clients {
			c.send(t, get)
		}
		for _, c := range clients {
			c.answer(t)
		}
		all.mu.Lock()
		sets := len(all.sizes)
		all.mu.Unlock()
		if assert.Less(t, round, 100); sets < 50*(round+2) {
			return
		}
	}
}

// Close closes what comes meanwhile, too.
func TestCloseWhileConnectionsCome(t *testing.T) {
	t.Parallel()
	for range 30 {
		s := newSite(t, nil)
		s.dial(t)
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for {
					c, err := net.Dial("tcp", s.address)
					if err != nil {
						return
					}
					_ = c.SetDeadline(time.Now().Add(10 * time.Second))
					_, err = c.Read(make([]byte, 1))
					assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
					_ = c.Close()
				}
			})
		}
		require.Eventually(t, func() bool { return s.told(http.StateNew) >= 8 }, time.Minute, time.Millisecond)
		require.NoError(t, s.Close())
		clients.Wait()
	}
}
