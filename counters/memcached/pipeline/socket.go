package pipeline

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookInterval is how often a silent socket is looked at. It is closed when
	// replies were due at stallLooks looks in a row with not a byte in between,
	// so within 1.75 seconds, or at so many more as requests may wait for. The count
	// starts anew while a large write goes on, and with a look that comes later than
	// the next was due: this process was held up, and perhaps the server with it. With
	// many short intervals that is noticed wherever it happens.
	lookInterval = 250 * time.Millisecond
	stallLooks   = 7
	// maxInFlight and maxQueued (bytes) bound what one socket holds for a
	// server that doesn't answer.
	maxInFlight = 1024
	maxQueued   = 1 << 20
	// fewCommands is the most that one decision takes. A request of more is of many callers, to
	// each of whom it costs little that others join the write.
	fewCommands = 4
	// lingerTime is how long a silent socket is still read after its last use, for callers
	// that want to learn the outcome of their requests.
	lingerTime = time.Minute
)

// ErrDown: the server can't be dialed, has no place for another connection, or was silent for
// so long that its connection has been cut off. It reads as its cause.
var ErrDown = errors.New("pipeline: the server is down")

type downError struct{ error }

func (downError) Is(target error) bool { return target == ErrDown }
func (e downError) Unwrap() error      { return e.error }

var (
	errConnectionLost = errors.New("connection lost")
	errStalled        = errors.New("the server doesn't answer")
	errGivenUp        = errors.New("pipeline: given up")
)

// endpoint is a server's address as a net.Addr.
type endpoint struct{ network, address string }

func (e endpoint) Network() string { return e.network }
func (e endpoint) String() string  { return e.address }

// socket is one connection. Requests are written in the order of their arrival,
// and replies come in the order of the requests.
//
// Writing and reading are roles. The caller who finds nobody writing writes for
// all who join meanwhile. A goroutine reads while several requests are in
// flight; a caller on its own reads its reply itself, which saves it being
// woken.
type socket struct {
	number   uint64 // from 1, unique in the pool and those beside it
	conn     net.Conn
	endpoint endpoint
	raw      *rawConn        // nil when only conn can be used
	reader   io.Reader       // one of the two
	drain    func()          // the method value, made once
	running  *sync.WaitGroup // counts the goroutine that drains
	lost     func()          // called once, when the connection is lost

	mu      sync.Mutex
	queue   []*request // not written yet
	queued  int        // bytes in queue
	sent    []*request // written, or about to be, and not yet in batch
	inBatch int        // requests in batch, until all of them have their replies
	writing bool       // someone sees to it that the queue gets written
	room    chan struct{}
	err     error // why the connection is lost

	unread atomic.Bool   // nobody reads: the role is free for whoever sets it to false
	resume chan struct{} // hands the role to the goroutine

	// These belong to the writer.
	out     []byte
	written int
	wrote   atomic.Bool // since the last look, a part of something large

	// These belong to the reader.
	in      []byte
	batch   []*request // the next replies are for batch[next:], and then for sent
	next    int
	look    time.Time // the next look for a stall
	silent  int       // looks at which replies were due, since the last byte
	stalled int       // so many such looks close it
}

func newSocket(conn net.Conn, e endpoint, timeout time.Duration, running *sync.WaitGroup) *socket {
	s := &socket{conn: conn, endpoint: e, running: running, raw: newRawConn(conn), resume: make(chan struct{}, 1), in: make([]byte, 64<<10)}
	if s.reader = conn; s.raw != nil {
		s.reader = s.raw
	}
	s.drain = s.writeAll
	s.stalled = max(stallLooks, 2+int(timeout/lookInterval))
	s.look = time.Now().Add(lookInterval)
	_ = conn.SetReadDeadline(s.look)
	return s
}

// inFlight returns the number of requests without a reply. s.mu is held.
func (s *socket) inFlight() int { return len(s.queue) + len(s.sent) + s.inBatch }

// check returns an error when the connection has ended while nobody reads. s.mu is held.
func (s *socket) check() error {
	if s.inFlight() > 0 || !s.unread.Load() {
		return nil
	}
	return s.raw.check()
}

// isOpen reports whether the connection isn't lost.
func (s *socket) isOpen() bool {
	s.mu.Lock()
	err := s.check()
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
	return err == nil
}

// why returns why the connection is lost, or nil.
func (s *socket) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// send queues r and sees to it that it is written. While the socket is full it
// waits until r's deadline. It returns false when the socket was lost before.
func (s *socket) send(r *request) (bool, error) {
	many := len(r.reply.kinds) > fewCommands
	s.mu.Lock()
	for s.err == nil && (s.inFlight() >= maxInFlight || s.queued >= maxQueued) {
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room := s.room
		s.mu.Unlock()
		s.wakeReader()
		select {
		case <-room:
		case <-r.wake:
			return false, errGivenUp
		}
		s.mu.Lock()
	}
	if s.err != nil {
		s.mu.Unlock()
		return false, nil
	}
	alone := s.inFlight() == 0
	if err := s.check(); err != nil {
		s.mu.Unlock()
		s.fail(err)
		return false, nil
	}
	s.queue = append(s.queue, r)
	s.queued += len(r.text)
	mine := !s.writing
	s.writing = true
	s.mu.Unlock()
	if !mine {
		return true, nil
	}
	if !alone || many {
		// Callers that are about to send join this write.
		runtime.Gosched()
	}
	for s.gather() {
		n, err := 0, error(nil)
		if r.pending() {
			n, err = s.raw.tryWrite(s.out)
		}
		if err != nil {
			s.fail(err)
			return true, nil
		}
		if n < len(s.out) {
			// The kernel is full, or r has its reply and shouldn't be kept to
			// write for others.
			s.written = n
			s.leaveWriting()
			return true, nil
		}
	}
	return true, nil
}

// leaveWriting has a goroutine write the rest, unless the connection is lost: the one
// that reads may have ended then, and Pool.Close with it.
func (s *socket) leaveWriting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.running.Add(1)
		go s.drain()
	}
}

// writeAll writes until the queue is empty; unlike a caller it may wait for the
// kernel.
func (s *socket) writeAll() {
	defer s.running.Done()
	for {
		for rest := s.out[s.written:]; len(rest) > 0; {
			n := min(len(rest), maxKept)
			if s.raw == nil {
				n = recordLength(rest)
			}
			if _, err := s.conn.Write(rest[:n]); err != nil {
				s.fail(err)
				return
			}
			rest = rest[n:]
			// Small writes don't count, as the kernel takes many of them for a
			// server that doesn't read.
			if len(rest) > 0 {
				s.wrote.Store(true)
			}
		}
		s.written = 0
		if !s.gather() {
			return
		}
	}
}

// gather moves the queue to out, without the requests whose callers have given
// up. When there is nothing to write it returns false, and the caller is no
// longer the one who writes.
func (s *socket) gather() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(s.out) > maxKept {
		s.out = nil
	}
	s.out = s.out[:0]
	if s.err != nil {
		s.writing = false
		return false
	}
	for _, r := range s.queue {
		if r.pending() {
			s.out = append(s.out, r.text...)
			s.sent = append(s.sent, r)
		} else {
			s.tell(r, ErrNotSent)
		}
	}
	clear(s.queue)
	s.queue = s.queue[:0]
	s.queued = 0
	s.makeRoom()
	s.writing = len(s.out) > 0
	return s.writing
}

// makeRoom wakes the callers that wait for room. s.mu is held.
func (s *socket) makeRoom() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// read is the goroutine that reads until the connection is lost, and then fails
// all that is in flight.
func (s *socket) read() {
	for s.step() == nil {
		if len(s.batch) == 0 && s.raw != nil {
			s.release()
			<-s.resume
			if s.isStalled() {
				break
			}
		}
	}
	s.mu.Lock()
	sent, queue := slices.Concat(s.batch[s.next:], s.sent), s.queue
	s.batch, s.next, s.sent, s.queue = nil, 0, nil, nil
	s.mu.Unlock()
	for _, r := range queue {
		s.conclude(r, failed, fmt.Errorf("%w: %w", ErrNotSent, s.err))
	}
	if s.isStalled() {
		sent = s.linger(sent)
	}
	for _, r := range sent {
		s.conclude(r, failed, s.err)
	}
}

// isStalled reports whether the connection is lost because it was silent, and
// not closed yet.
func (s *socket) isStalled() bool {
	err := s.why()
	return errors.Is(err, ErrDown) && !errors.Is(err, ErrNotSent)
}

// linger ends the requests that have been sent, and goes on to read their
// replies as long as one may say what was changed, but not for longer than
// lingerTime. Then it closes the connection. It returns the requests whose
// replies haven't come.
func (s *socket) linger(sent []*request) []*request {
	for _, r := range sent {
		r.finish(cutOff, nil)
	}
	s.batch = sent
	end := time.Now().Add(lingerTime)
	for err := error(nil); err == nil && slices.ContainsFunc(s.batch[s.next:], (*request).changes); {
		// Callers who gave up while they read may have set another.
		_ = s.conn.SetReadDeadline(end)
		var n int
		n, err = s.conn.Read(s.in)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
			err = nil
		}
		if dealErr := s.deal(s.in[:n]); dealErr != nil {
			err = dealErr
		}
	}
	_ = s.conn.Close()
	return s.batch[s.next:]
}

// await waits until r has its outcome.
func (s *socket) await(r *request) {
	if s.unread.Load() && s.unread.CompareAndSwap(true, false) {
		r.reader.Store(&s.conn)
		for r.pending() && s.step() == nil {
		}
		r.reader.Store(nil)
		s.release()
	}
	<-r.wake
}

// release gives up the reader's role: to the goroutine when there is more to
// read.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight() == 0 && s.err == nil {
		s.unread.Store(true)
	} else {
		s.resume <- struct{}{}
	}
}

// wakeReader has the goroutine read if nobody does.
func (s *socket) wakeReader() {
	if s.unread.CompareAndSwap(true, false) {
		s.resume <- struct{}{}
	}
}

// step waits for bytes from the server and deals them out to the requests they
// are for. The reader may also be woken without any. After an error the
// connection is lost.
func (s *socket) step() error {
	n, err := s.reader.Read(s.in)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = s.checkStall()
	}
	if err == nil {
		err = s.deal(s.in[:n])
	}
	if err != nil {
		return s.fail(err)
	}
	if s.next == len(s.batch) {
		s.nextBatch()
	}
	return nil
}

// deal deals out bytes from the server to the requests they are for.
func (s *socket) deal(b []byte) (err error) {
	for len(b) > 0 && err == nil {
		s.silent = 0
		if s.next == len(s.batch) && s.nextBatch() == 0 {
			return fmt.Errorf("%w: %.100q", errUnasked, b)
		}
		r := s.batch[s.next]
		var complete bool
		if b, complete, err = r.reply.read(b, r.pending()); complete {
			s.conclude(r, answered, nil)
			s.next++
		}
	}
	return err
}

// conclude ends r, which the socket has finished with. If its caller has given r up, it is
// told the outcome.
func (s *socket) conclude(r *request, state uint32, err error) {
	if !r.finish(state, err) {
		s.tell(r, err)
	}
}

// tell notes what became of r, which has been given up. The socket's goroutine
// hasn't ended.
func (s *socket) tell(r *request, err error) {
	if report := r.over(err); report != nil {
		s.running.Go(report)
	}
}

// nextBatch makes the requests sent since the batch, all of which has its replies, the next
// batch. It returns how many there are.
func (s *socket) nextBatch() int {
	clear(s.batch)
	s.next = 0
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batch, s.sent = s.sent, s.batch[:0]
	s.inBatch = len(s.batch)
	s.makeRoom()
	return s.inBatch
}

// checkStall is called when the read deadline has passed.
func (s *socket) checkStall() error {
	if now := time.Now(); !now.Before(s.look) {
		s.mu.Lock()
		due := s.inFlight() > 0
		s.mu.Unlock()
		s.silent++
		late := now.Sub(s.look) > lookInterval
		if wrote := s.wrote.Swap(false); late || wrote || !due {
			s.silent = 0
		}
		if s.silent == s.stalled {
			return errStalled
		}
		s.look = now.Add(lookInterval)
	}
	return s.conn.SetReadDeadline(s.look)
}

// fail closes the connection and makes place for another; one that has been
// silent is closed by the goroutine that reads. It returns the error for the
// requests in flight, which is never a timeout; the first cause counts.
func (s *socket) fail(cause error) error {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = fmt.Errorf("%w (%s): %v", errConnectionLost, s.endpoint, cause)
		switch cause {
		case errStalled:
			s.err = downError{s.err}
		case errRefused:
			s.err = fmt.Errorf("%w: %w", ErrNotSent, downError{s.err})
		}
		s.lost()
		s.makeRoom()
		s.wakeReader()
	}
	err := s.err
	s.mu.Unlock()
	if first && cause != errStalled {
		_ = s.conn.Close()
	}
	return err
}
