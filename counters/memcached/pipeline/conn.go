package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

var (
	errOutstanding = errors.New("pipeline: a reply is outstanding")
	errNothingSent = errors.New("pipeline: read without a request")
	errTwoCommands = errors.New("pipeline: more than one command in a write")
	errIncomplete  = errors.New("pipeline: an incomplete command")
)

// A Conn is one caller's net.Conn to a server: it takes one text-protocol
// command at a time and reads as that command's reply. With Exchange it takes
// several at once. It belongs to the server, not to a socket, so it
// outlives a lost one. After a timeout, or once a silent socket was given up, it can only be
// closed.
//
// It takes the commands get gets gat gats incr decr add set replace append
// prepend cas delete touch version flush_all, without noreply, and stats
// without arguments.
//
// One goroutine at a time may use it; Close and the deadlines may be called
// concurrently. Get one from Pool.Conn: the zero Conn isn't usable.
type Conn struct {
	request
	link   *link
	socket *socket // where the request was sent

	unread int  // where in reply.data Read goes on
	owed   bool // wake has, or will have, a token for the request

	mu            sync.Mutex
	readDeadline  time.Time
	writeDeadline time.Time
	reading       bool // readDeadline is the one that counts
	timer         *time.Timer
	armed         time.Time // when timer fires, zero when it won't
}

// Conn returns a new Conn to the server. It doesn't wait: the first request
// dials if no socket is open. The error is net.ErrClosed after Close.
func (p *Pool) Conn(network, address string) (*Conn, error) {
	l, err := p.link(network, address)
	if err != nil {
		return nil, err
	}
	return &Conn{request: request{wake: make(chan struct{}, 1)}, link: l}, nil
}

// Write takes the next part of a command. With the last part it sends the whole
// command, for which it may wait until the write deadline, and only then. A
// command that could disturb other callers is refused with an error. Each error
// is an ErrNotSent.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.ready(); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.text = append(c.text, p...)
	n, kind, err := parseCommand(c.text)
	switch {
	case err != nil:
	case n == 0:
		return len(p), nil
	case n < len(c.text):
		err = errTwoCommands
	default:
		c.reply.kinds = append(c.reply.kinds, kind)
		err = c.send(0)
	}
	if err != nil {
		c.reset()
		return 0, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return len(p), nil
}

// Exchange sends commands, one or more, in one piece, and waits for all their
// replies. It has the errors of Write and Read, wrapped in ErrNotSent if
// nothing was sent.
//
// They go out on a socket of the number newest or a lower one: one that was
// open when Socket or Pool.Newest returned it. 0 is any. Then the server that
// answers is the one that was answering at that moment, on whichever socket, as
// long as one server at a time listens at an address. The error is
// ErrOtherSocket, and nothing has been sent, if the socket is a newer one.
func (c *Conn) Exchange(newest uint64, commands []byte) error {
	if err := c.ready(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.reset()
	err := c.prepare(commands)
	if err == nil {
		err = c.send(newest)
	}
	if err != nil {
		c.reset()
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	return c.awaitReply()
}

// Socket returns the number of the socket that the last request was sent on. No
// other socket of the pool has it, or of a pool beside it.
func (c *Conn) Socket() uint64 { return c.socket.number }

// Open returns the number of the socket that is open, or 0.
func (c *Conn) Open() uint64 {
	if s := c.link.open.Load(); s != nil {
		return s.number
	}
	return 0
}

// prepare makes commands the request of c.
func (c *Conn) prepare(commands []byte) error {
	for rest := commands; len(rest) > 0; {
		n, kind, err := parseCommand(rest)
		if err == nil && n == 0 {
			err = errIncomplete
		}
		if err != nil {
			return err
		}
		c.reply.kinds = append(c.reply.kinds, kind)
		rest = rest[n:]
	}
	c.text = append(c.text, commands...)
	return nil
}

// Late has f called, once, when it is known what became of the request that was
// given up last, by the deadline, by Close, or with its silent socket. The error is nil
// if the server has answered after all: Reply is valid then, but for the values
// that a get has read. It is ErrNotSent if the request was never sent. Any
// other means that nobody will ever know. f has a goroutine of its own, which
// Pool.Close awaits, and whose context it ends.
func (c *Conn) Late(f func(ctx context.Context, err error)) {
	pool := c.link.pool
	late := func(err error) { f(pool.ctx, err) }
	c.request.late.Store(&late)
	if report := c.request.report(); report != nil {
		pool.Go(func(context.Context) { report() })
	}
}

// Reply returns the server's reply to the i-th command of the last Exchange,
// counted from 0, if that was successful. It is valid until the next Write or
// Exchange.
func (c *Conn) Reply(i int) []byte {
	start := 0
	if i > 0 {
		start = c.reply.ends[i-1]
	}
	return c.reply.data[start:c.reply.ends[i]]
}

// ready returns why c can't take a request, if so.
func (c *Conn) ready() error {
	if c.owed {
		return errOutstanding
	}
	switch c.state.Load() {
	case idle:
		return nil
	case answered, failed:
		c.reset()
		return nil
	}
	return c.dead()
}

// reset makes c ready for a request, unless a socket may still use it.
func (c *Conn) reset() {
	state := c.state.Load()
	if state > failed || !c.state.CompareAndSwap(state, idle) {
		return
	}
	c.text = reuse(c.text)
	c.reply.reset()
	c.unread = 0
}

// send brings the request onto a socket of the number newest or a lower one; 0 is any.
func (c *Conn) send(newest uint64) error {
	if !c.state.CompareAndSwap(idle, pending) {
		return c.dead()
	}
	c.mu.Lock()
	c.reading = false
	c.arm()
	c.mu.Unlock()
	c.owed = true
	began := c.link.pool.Newest()
	for c.pending() {
		s, err := c.link.socket(&c.request)
		ok := false
		if err == nil && newest != 0 && s.number > newest {
			err = ErrOtherSocket
		}
		if err == nil {
			c.socket = s
			ok, err = s.send(&c.request)
		}
		if !ok && err == nil && s.number > began { // another new one would be lost as soon
			err = downError{s.why()}
		}
		switch {
		case ok:
			c.mu.Lock()
			c.reading = true
			c.arm()
			c.mu.Unlock()
			return nil
		case err == errGivenUp:
			c.owed = false
			return c.dead()
		case err != nil && c.state.CompareAndSwap(pending, idle):
			c.owed = false
			return err
		}
	}
	<-c.wake
	c.owed = false
	return c.dead()
}

// dead returns why c is of no further use.
func (c *Conn) dead() error {
	switch c.state.Load() {
	case expired:
		return os.ErrDeadlineExceeded
	case cutOff:
		return c.socket.why()
	}
	return net.ErrClosed
}

// Read waits for the reply until the read deadline, and returns what p has room
// for. The error is os.ErrDeadlineExceeded after the deadline, net.ErrClosed
// after Close, and one that is not a timeout when the socket was lost.
func (c *Conn) Read(p []byte) (int, error) {
	if err := c.awaitReply(); err != nil {
		return 0, err
	}
	if c.unread == len(c.reply.data) {
		return 0, errNothingSent
	}
	n := copy(p, c.reply.data[c.unread:])
	c.unread += n
	return n, nil
}

// awaitReply waits for the reply that is owed, if one is. The error says why there is none.
func (c *Conn) awaitReply() error {
	if c.owed {
		c.socket.await(&c.request)
		c.owed = false
	}
	switch c.state.Load() {
	case answered:
		return nil
	case failed:
		return c.err
	case idle:
		return errNothingSent
	default:
		return c.dead()
	}
}

// Close gives up the request under way, if any, and never waits. The error is
// always nil.
func (c *Conn) Close() error {
	if c.state.Swap(closed) == pending {
		c.interrupt()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	return nil
}

// Kept returns the size in bytes of the buffers that are kept for the next request.
func (c *Conn) Kept() int { return cap(c.text) + cap(c.reply.data) }

// Shrink gives these buffers up. No request may be under way.
func (c *Conn) Shrink() {
	if c.ready() == nil {
		c.text, c.reply.data = nil, nil
	}
}

// LocalAddr returns the server's address: a Conn has none of its own.
func (c *Conn) LocalAddr() net.Addr { return c.link.endpoint }

// RemoteAddr returns the server's address.
func (c *Conn) RemoteAddr() net.Addr { return c.link.endpoint }

// SetDeadline sets the deadlines for sending a request and for its reply. The
// zero time means none.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(&t, &t) }

// SetReadDeadline sets the deadline for the reply, also of the request under
// way.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(&t, nil) }

// SetWriteDeadline sets the deadline for sending a request, also the one under
// way.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(nil, &t) }

func (c *Conn) setDeadlines(read, write *time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if read != nil {
		c.readDeadline = *read
	}
	if write != nil {
		c.writeDeadline = *write
	}
	if c.pending() {
		c.arm()
	}
	return nil
}

// arm sees to it that the timer fires at the deadline or before. It lets an
// earlier time stand, because a timer that finds itself early costs less than
// one that is set anew for each request. c.mu is held.
func (c *Conn) arm() {
	deadline := c.writeDeadline
	if c.reading {
		deadline = c.readDeadline
	}
	if deadline.IsZero() || !c.armed.IsZero() && !deadline.Before(c.armed) {
		return
	}
	left := time.Until(deadline)
	switch {
	case left <= 0:
		c.finish(expired, nil)
		return
	case c.timer == nil:
		c.timer = time.AfterFunc(left, c.fire)
	default:
		c.timer.Reset(left)
	}
	c.armed = deadline
}

func (c *Conn) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = time.Time{}
	if c.pending() {
		c.arm()
	}
}
