package plain

import (
	"bytes"
	"net/http"
	"runtime"
	"time"

	"weir/counters"
)

// patience is how long Together may take until another goroutine goes on with its loop: a
// server of the store may be silent.
const patience = 10 * time.Millisecond

// A loop reads the requests of connections that have no goroutine of their own, and has
// those that have come at the same moment answered together: the processor wakes up less
// often, and the store is asked once for many. One goroutine at a time reads.
type loop struct {
	*shared
	*epoll
	together      func([]*Exchange)
	takesTogether func(*http.Request) bool
	serve         func(*conn, *loop)          // in a goroutine, for as long as this doesn't take its requests
	remove        func(*conn, http.ConnState) // what is closed
}

// An Exchange is a request that Together has to answer. One goroutine at a time may use it.
type Exchange struct {
	Writer  http.ResponseWriter
	Request *http.Request
	conn    *conn
	loop    *loop
}

// newLoops returns loops like l, which end when their epolls are closed.
func newLoops(like loop) (loops []*loop) {
	for range runtime.GOMAXPROCS(0) {
		l := like
		if l.epoll = newEpoll(); l.epoll != nil {
			loops = append(loops, &l)
			go counters.Grown(l.run)()
		}
	}
	return loops
}

// join has c wait in the loop for its next request, and reports whether it can.
func (l *loop) join(c *conn) bool {
	timeout := l.http.IdleTimeout
	if c.in.answered.IsZero() {
		timeout = l.http.ReadTimeout
	}
	c.due.Store(int64(time.Since(l.began) + timeout))
	c.at.Store(waiting)
	return l.add(&c.handle, c.Conn, c) || !c.detach()
}

// returns reports whether c can go back into the loop, now that its goroutine has answered a
// request, and prepares it for that.
func (l *loop) returns(c *conn) bool {
	if c.in.start < c.in.end || c.in.err != nil || !l.takesTogether(c.head.request) {
		return false
	}
	_ = c.SetDeadline(time.Time{})
	c.in.since, c.writeSince = time.Time{}, time.Time{}
	return true
}

// run reads requests and has them answered, until the epoll is closed, or until another
// goroutine does so.
func (l *loop) run() {
	next := time.AfterFunc(time.Hour, counters.Grown(l.run))
	next.Stop()
	var came arrivals
	room, set := make([]Exchange, mostArrivals), make([]*Exchange, 0, mostArrivals)
	a := newAttempt()
	for {
		all, open := l.wait(&came)
		if !open {
			return
		}
		set = set[:0]
		for _, arrival := range all {
			x := &room[len(set)]
			if c := arrival.owner.(*conn); l.receive(a, c, arrival.ending) {
				*x = Exchange{responses.Get().(*response), c.head.request, c, l}
				set = append(set, x)
			}
		}
		if len(set) == 0 {
			continue
		}
		next.Reset(patience)
		l.answer(set)
		if !next.Stop() {
			return
		}
	}
}

// receive reads what has come, and reports whether it is one whole request for Together and
// nothing else. What is anything else is left to a goroutine.
func (l *loop) receive(a *attempt, c *conn, ending bool) bool {
	if !c.place.arrive() || !l.read(a, c) {
		return false
	}
	in, r := &c.in, c.head.request
	length, plain := c.head.read(in.buf[:in.end])
	if !plain || length == 0 || int64(in.end-length) != r.ContentLength || in.end == len(in.buf) || ending || !l.takesTogether(r) {
		l.leave(c)
		return false
	}
	in.start = length
	c.giveBody()
	c.tell(http.StateActive)
	return true
}

// read reads what has come, and reports whether anything has. If not, c waits, or is
// closed.
func (l *loop) read(a *attempt, c *conn) bool {
	in := &c.in
	if in.buf == nil {
		in.buf = make([]byte, firstBuffer)
	}
	n, later := c.readNow(a, in.buf)
	switch {
	case later:
		l.goOn(c)
		return false
	case n <= 0:
		l.end(c)
		return false
	}
	in.start, in.end = 0, n
	return true
}

// goOn has c wait for what comes next, or has come already.
func (l *loop) goOn(c *conn) {
	if h := c.handle; c.wait() { // c may be anybody's once it waits
		h.tellAgain()
	}
}

// leave leaves c, with what has come, to a goroutine.
func (l *loop) leave(c *conn) {
	c.forget()
	c.busy.Store(true)
	c.at.Store(detached)
	go l.serve(c, l)
}

func (l *loop) end(c *conn) {
	c.forget()
	c.at.Store(detached)
	_ = c.Close()
	l.remove(c, http.StateClosed)
}

// answer has Together answer a set of requests. If it panics, those that it hasn't
// answered lose their connections.
func (l *loop) answer(set []*Exchange) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		for _, x := range set {
			if x.Writer != nil {
				x.Writer = nil
				l.logPanic(x.conn, v)
				l.end(x.conn)
			}
		}
	}()
	l.together(set)
}

// Leave leaves the request to the http.Server's Handler.
func (x *Exchange) Leave() {
	x.Writer.(*response).release()
	x.Writer, x.conn.in.start = nil, 0
	x.loop.leave(x.conn)
}

// Answer answers the request with what its Writer was given. Neither may be used
// any more.
func (x *Exchange) Answer() {
	c, w, l := x.conn, x.Writer.(*response), x.loop
	x.Writer = nil
	now := time.Now()
	if !c.in.until.IsZero() {
		_ = c.SetReadDeadline(time.Time{})
	}
	answer, last := w.render(c.dateAt(now), false, c.closing.Load())
	rest, ok := c.writeNow(w.attempt, answer)
	c.in.start = c.in.end // also of a body that nobody has read
	c.in.finish(now, false)
	c.due.Store(int64(now.Sub(l.began) + l.http.IdleTimeout))
	switch {
	case !ok || last && len(rest) == 0:
		l.end(c)
	case len(rest) > 0:
		go l.writeSlowly(c, bytes.Clone(rest), last)
	default:
		c.tell(http.StateIdle)
		l.goOn(c)
	}
	w.release()
}

// writeSlowly writes the rest of an answer to who hasn't read what came before.
func (l *loop) writeSlowly(c *conn, rest []byte, last bool) {
	c.writeSince = c.in.answered
	_ = c.SetWriteDeadline(c.writeSince.Add(l.http.WriteTimeout))
	if _, err := c.Write(rest); err != nil || last {
		l.end(c)
		return
	}
	c.tell(http.StateIdle)
	l.leave(c)
}
