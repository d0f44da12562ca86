package plain

import (
	"context"
	"sync"
	"time"
)

// A caller is the context of the requests of a connection. It ends when the client
// closes the connection while a request is being answered. That is found out only if
// somebody asks.
type caller struct {
	body *body

	mu      sync.Mutex
	gone    chan struct{} // closed when the client has left; nil until somebody asks
	err     error
	reading chan struct{} // closed when what waits for the client to leave has ended; nil if nothing does
	ended   bool          // the request has been answered
}

func (*caller) Deadline() (time.Time, bool) { return time.Time{}, false }

func (*caller) Value(any) any { return nil }

func (x *caller) Done() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watch()
	return x.gone
}

func (x *caller) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watch()
	return x.err
}

// watch begins to read behind the body of the request, once for each: only a read shows
// that the client has left. The first byte that comes ends the watch, as in net/http.
// x.mu is held.
func (x *caller) watch() {
	if x.gone != nil {
		return
	}
	x.gone = make(chan struct{})
	in := x.body.input
	if in.start == in.end { // else a request that has filled the buffer would leave no room
		in.start, in.end = 0, 0
	}
	switch {
	case x.body.left > 0 || in.end == len(in.buf):
		return
	case in.err != nil:
		x.cancel()
		return
	}
	reading := make(chan struct{})
	x.reading = reading
	_ = in.conn.SetReadDeadline(time.Time{})
	go func() {
		defer close(reading)
		n, err := in.conn.Read(in.buf[in.end:])
		x.mu.Lock()
		defer x.mu.Unlock()
		in.end += n
		if err != nil && !x.ended {
			in.err = err
			x.cancel()
		}
	}()
}

// cancel ends the context, as the client has left. x.mu is held.
func (x *caller) cancel() {
	x.err = context.Canceled
	close(x.gone)
}

// end ends a request, and reports whether it has changed the read deadline.
func (x *caller) end() bool {
	x.mu.Lock()
	x.ended = true
	reading := x.reading
	x.mu.Unlock()
	if reading != nil {
		_ = x.body.conn.SetReadDeadline(time.Unix(1, 0))
		<-reading
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gone, x.err, x.reading, x.ended = nil, nil, nil, false
	return reading != nil
}
