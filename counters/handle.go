package counters

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errGivenUp     = errors.New("counters: given up")
	errOutstanding = errors.New("counters: a reply is outstanding")
	errNothingSent = errors.New("counters: read without a request")
	errTwoRequests = errors.New("counters: more than one request in a write")
	errIncomplete  = errors.New("counters: an incomplete request")
)

// A handle's states. Only one transition leaves pending, and whoever makes it puts a token into wake.
const (
	idle     uint32 = iota // no request yet
	pending                // a request is on its way, or its reply
	answered               // reply is complete
	failed                 // the connection was lost, the next request uses another
	expired                // the deadline passed: a late reply is dropped, and the handle is of no further use
	closed
)

// handle is one caller's net.Conn on a shared socket: it takes one text-protocol request at a time and reads as that
// request's reply. With Exchange it takes several at once, which gomemcache can't send. It belongs to a server, not to a connection, so it outlives a lost one. After a timeout it can only be
// closed.
//
// Supported are the commands get gets gat gats incr decr add set replace append prepend cas delete touch version flush_all,
// without noreply.
//
// One goroutine at a time may use it; Close and the deadlines may be called concurrently.
type handle struct {
	slot  *connSlot
	state atomic.Uint32
	wake  chan struct{} // of capacity 1

	// The request is the socket's while pending, the reply is the socket's reader's.
	request []byte
	reply   reply
	err     error // why the state is failed

	socket *socket                // where the request was sent
	reader atomic.Pointer[socket] // set while the caller itself reads that socket

	unread int  // where in reply.data Read goes on
	owed   bool // wake has, or will have, a token for the request

	mu            sync.Mutex
	readDeadline  time.Time
	writeDeadline time.Time
	reading       bool // readDeadline is the one that counts
	timer         *time.Timer
	armed         time.Time // when timer fires, zero when it won't
}

func (h *handle) pending() bool { return h.state.Load() == pending }

// Write takes the next part of a request. With the last part it sends the whole request, for which it may wait until the
// write deadline, and only then. A request that could disturb other callers is refused with an error.
func (h *handle) Write(p []byte) (int, error) {
	if err := h.ready(); err != nil {
		return 0, err
	}
	h.request = append(h.request, p...)
	n, c, err := parseRequest(h.request)
	switch {
	case err != nil:
	case n == 0:
		return len(p), nil
	case n < len(h.request):
		err = errTwoRequests
	default:
		h.reply.commands = append(h.reply.commands, c)
		err = h.send()
	}
	if err != nil {
		h.reset()
		return 0, err
	}
	return len(p), nil
}

// Exchange sends requests, one or more, in one piece, and waits for all their replies. It has the errors of Write and Read.
func (h *handle) Exchange(requests []byte) error {
	if err := h.ready(); err != nil {
		return err
	}
	h.reset()
	for rest := requests; len(rest) > 0; {
		n, c, err := parseRequest(rest)
		if err == nil && n == 0 {
			err = errIncomplete
		}
		if err != nil {
			h.reset()
			return err
		}
		h.reply.commands = append(h.reply.commands, c)
		rest = rest[n:]
	}
	h.request = append(h.request, requests...)
	if err := h.send(); err != nil {
		h.reset()
		return err
	}
	return h.settle()
}

// Reply returns the server's reply to the i-th request of the last Exchange, counted from 0, if that was successful. It is valid
// until the next Write or Exchange.
func (h *handle) Reply(i int) []byte {
	start := 0
	if i > 0 {
		start = h.reply.ends[i-1]
	}
	return h.reply.data[start:h.reply.ends[i]]
}

// ready returns why the handle can't take a request, if so.
func (h *handle) ready() error {
	if h.owed {
		return errOutstanding
	}
	switch h.state.Load() {
	case idle:
		return nil
	case answered, failed:
		h.reset()
		return nil
	}
	return h.dead()
}

// reset makes the handle ready for a request, unless a socket may still use it.
func (h *handle) reset() {
	state := h.state.Load()
	if state == expired || state == closed || !h.state.CompareAndSwap(state, idle) {
		return
	}
	h.request = reuse(h.request)
	h.reply.reset()
	h.unread = 0
}

// send brings the request onto a socket.
func (h *handle) send() error {
	if !h.state.CompareAndSwap(idle, pending) {
		return h.dead()
	}
	h.mu.Lock()
	h.reading = false
	h.arm()
	h.mu.Unlock()
	h.owed = true
	for h.pending() {
		s, err := h.slot.socket(h)
		ok := false
		if err == nil {
			h.socket = s
			ok, err = s.send(h)
		}
		switch {
		case ok:
			h.mu.Lock()
			h.reading = true
			h.arm()
			h.mu.Unlock()
			return nil
		case err == errGivenUp:
			h.owed = false
			return h.dead()
		case err != nil && h.state.CompareAndSwap(pending, idle):
			h.owed = false
			return err
		}
	}
	<-h.wake
	h.owed = false
	return h.dead()
}

// dead returns why the handle is of no further use.
func (h *handle) dead() error {
	if h.state.Load() == expired {
		return os.ErrDeadlineExceeded
	}
	return net.ErrClosed
}

// Read waits for the reply until the read deadline, and returns what p has room for. The error is os.ErrDeadlineExceeded after
// the deadline, net.ErrClosed after Close, and one that is not a timeout when the connection was lost.
func (h *handle) Read(p []byte) (int, error) {
	if err := h.settle(); err != nil {
		return 0, err
	}
	if h.unread == len(h.reply.data) {
		return 0, errNothingSent
	}
	n := copy(p, h.reply.data[h.unread:])
	h.unread += n
	return n, nil
}

// settle waits for what is owed, and returns why there is no reply, if so.
func (h *handle) settle() error {
	if h.owed {
		h.socket.await(h)
		h.owed = false
	}
	switch h.state.Load() {
	case answered:
		return nil
	case failed:
		return h.err
	case idle:
		return errNothingSent
	default:
		return h.dead()
	}
}

// Close gives up the request under way, if any, and never waits. The error is always nil.
func (h *handle) Close() error {
	if h.state.Swap(closed) == pending {
		h.interrupt()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	return nil
}

// LocalAddr returns the server's address: a handle has none of its own.
func (h *handle) LocalAddr() net.Addr { return h.slot.endpoint }

// RemoteAddr returns the server's address.
func (h *handle) RemoteAddr() net.Addr { return h.slot.endpoint }

// SetDeadline sets the deadlines for sending a request and for its reply. The zero time means none.
func (h *handle) SetDeadline(t time.Time) error { return h.setDeadlines(&t, &t) }

// SetReadDeadline sets the deadline for the reply, also of the request under way.
func (h *handle) SetReadDeadline(t time.Time) error { return h.setDeadlines(&t, nil) }

// SetWriteDeadline sets the deadline for sending a request, also the one under way.
func (h *handle) SetWriteDeadline(t time.Time) error { return h.setDeadlines(nil, &t) }

func (h *handle) setDeadlines(read, write *time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if read != nil {
		h.readDeadline = *read
	}
	if write != nil {
		h.writeDeadline = *write
	}
	if h.pending() {
		h.arm()
	}
	return nil
}

// arm sees to it that the timer fires at the deadline or before. It lets an earlier time stand, because a timer that finds
// itself early costs less than one that is set anew for each request. h.mu is held.
func (h *handle) arm() {
	deadline := h.writeDeadline
	if h.reading {
		deadline = h.readDeadline
	}
	if deadline.IsZero() || !h.armed.IsZero() && !deadline.Before(h.armed) {
		return
	}
	left := time.Until(deadline)
	switch {
	case left <= 0:
		h.finish(expired, nil)
		return
	case h.timer == nil:
		h.timer = time.AfterFunc(left, h.fire)
	default:
		h.timer.Reset(left)
	}
	h.armed = deadline
}

func (h *handle) fire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.armed = time.Time{}
	if h.pending() {
		h.arm()
	}
}

// finish ends the request with the given state, unless it has ended already, and wakes the caller. err goes with failed.
func (h *handle) finish(state uint32, err error) {
	if state == failed {
		h.err = err
	}
	if h.state.CompareAndSwap(pending, state) {
		h.interrupt()
	}
}

// interrupt wakes the caller after the state has left pending.
func (h *handle) interrupt() {
	h.wake <- struct{}{}
	if s := h.reader.Load(); s != nil && h.state.Load() != answered {
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	}
}
