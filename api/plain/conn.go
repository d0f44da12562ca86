package plain

import (
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// fewest is how many bytes of a request come before its timeout begins, as in net/http. For the
// first request of a connection it begins with the first byte.
const fewest = 4

// A conn is a connection whose requests have been plain so far.
type conn struct {
	net.Conn
	*shared
	handle
	place
	due        atomic.Int64 // when it has waited for too long in a loop: a time.Duration since shared.began
	busy       atomic.Bool  // a goroutine has a request to answer, or to hand over; in a loop, at says so
	in         input
	head       head
	body       body
	caller     caller    // the context of requests
	writeSince time.Time // from when the write deadline counts
}

// A place says who has a connection.
type place struct{ at atomic.Int32 }

// The values of a place.
const (
	detached  int32 = iota // a goroutine of its own, or nobody any more
	waiting                // a loop, until a request comes
	answering              // a loop, whose request is being answered
	pending                // the same, and more has come
)

// detach takes a connection that waits in a loop out of it, and reports whether it did.
func (p *place) detach() bool { return p.at.CompareAndSwap(waiting, detached) }

// arrive notes that something has come. It reports whether the connection was waiting; then its
// place is answering from now on.
func (p *place) arrive() bool {
	for {
		switch at := p.at.Load(); {
		case at == waiting && p.at.CompareAndSwap(waiting, answering):
			return true
		case at == answering && p.at.CompareAndSwap(answering, pending), at == pending, at == detached:
			return false
		}
	}
}

// wait has the connection wait, and reports whether more has come.
func (p *place) wait() (more bool) { return p.at.Swap(waiting) == pending }

// shared is what connections share.
type shared struct {
	http    *http.Server
	began   time.Time // what due counts from: nobody is late because the system's clock is set
	closing atomic.Bool
	date    atomic.Pointer[date]
}

// logPanic logs what serving c has panicked with, unless it is to go unnoticed.
func (s *shared) logPanic(c *conn, v any) {
	if v != http.ErrAbortHandler {
		s.http.ErrorLog.Printf("plain: panic serving %s: %v\n%s", c.RemoteAddr(), v, debug.Stack())
	}
}

// A date is the value of Date in a second.
type date struct {
	second int64
	text   string
}

func newConn(accepted net.Conn, s *shared, takes func(method, path string) bool) *conn {
	c := &conn{Conn: accepted, shared: s, head: head{takes: takes}}
	c.in = input{conn: accepted, timeout: s.http.ReadTimeout, idle: s.http.IdleTimeout}
	c.body.input, c.caller.body = &c.in, &c.body
	r := &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header)}
	if peer := accepted.RemoteAddr(); peer != nil {
		r.RemoteAddr = peer.String()
	}
	c.head.request = r.WithContext(&c.caller)
	c.in.hurry()
	return c
}

// next reads the head of the next request, and reports whether it is plain, or for
// net/http. If it is neither, nobody waits for an answer.
func (c *conn) next() (plain, other bool) {
	in := &c.in
	for {
		if n := in.end - in.start; !in.begun && (n >= fewest || n > 0 && in.answered.IsZero()) {
			in.begun = true
			c.skipLineEnds()
		}
		came := in.buf[in.start:in.end]
		if in.begun && len(came) > 0 {
			length, ok := c.head.read(came)
			if !ok || length == 0 && (len(came) >= maxHead || in.err != nil) {
				return false, true
			}
			if length > 0 {
				in.start += length
				return true, false
			}
		}
		if in.err != nil {
			return false, false
		}
		c.busy.Store(false)
		in.fill()
	}
}

// skipLineEnds skips what old clients send behind the body of a POST, as net/http does.
func (c *conn) skipLineEnds() {
	if c.in.answered.IsZero() || c.head.request.Method != http.MethodPost {
		return
	}
	for range fewest {
		if b := c.in.buf[c.in.start]; b != '\r' && b != '\n' {
			return
		}
		c.in.start++
	}
}

// answer answers the request that next has read, and reports whether another may follow.
func (c *conn) answer() (another bool) {
	r, w := c.head.request, responses.Get().(*response)
	c.busy.Store(true)
	c.tell(http.StateActive)
	now := time.Now()
	if now.Sub(c.writeSince) >= slack {
		c.writeSince = now
		_ = c.SetWriteDeadline(now.Add(c.http.WriteTimeout))
	}
	c.giveBody()
	c.http.Handler.ServeHTTP(w, r)
	// As by net/http, an answer that is known to be the last is given before the rest of its request
	// has come, which is read all the same, or the client would be reset.
	ending := w.endsConnection() || c.closing.Load()
	broken := !ending && !c.body.discard()
	now = time.Now()
	answer, last := w.render(c.dateAt(now), broken, c.closing.Load())
	_, err := c.Write(answer)
	w.release()
	if ending && err == nil {
		c.body.discard()
	}
	c.in.finish(now, c.caller.end())
	c.busy.Store(false)
	c.tell(http.StateIdle)
	return err == nil && !last
}

// giveBody gives the request that was read the body that its head announces.
func (c *conn) giveBody() {
	r := c.head.request
	c.body.left = r.ContentLength
	if r.Body = &c.body; r.ContentLength == 0 {
		r.Body = http.NoBody
	}
}

func (s *shared) dateAt(now time.Time) string {
	d := s.date.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{now.Unix(), now.UTC().Format(http.TimeFormat)}
		s.date.Store(d)
	}
	return d.text
}

func (c *conn) tell(state http.ConnState) {
	if hook := c.http.ConnState; hook != nil {
		hook(c, state)
	}
}
