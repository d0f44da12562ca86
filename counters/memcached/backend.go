package memcached

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// maxIdleSessions is how many sessions of a lane are kept for the next
// operations: enough for many concurrent callers, and cheap, as they share a
// socket.
const maxIdleSessions = 1024

// A backend is a server with its connections, its breaker, and what is known of it.
type backend struct {
	server  *server
	number  uint64        // from 1, unique in the store
	budget  budget        // of AddMany and SwapMany
	timeout time.Duration // of an operation
	breaker breaker

	undecided atomic.Int64          // checks that were decided without the server, ever
	cause     atomic.Pointer[error] // why the last of them was

	pinging sync.Mutex
	pinged  time.Time // when a ping was last answered
	stats   atomic.Pointer[counters.ServerStats]

	mu     sync.Mutex
	single lane            // of single operations
	bulk   lane            // of AddMany and SwapMany: the others don't queue behind them
	inUse  int             // by operations under way, and by those who wait for outcomes
	member context.Context // when it has ended, no operation may start
	leave  context.CancelFunc
	unused chan struct{} // closed when it has left and isn't in use
	run    func(func())  // in a goroutine that Close waits for
}

func newBackend(s *server, number uint64, dial pipeline.DialFunc, timeout time.Duration, run func(func())) *backend {
	b := &backend{server: s, number: number, timeout: timeout, unused: make(chan struct{}), run: run}
	b.budget.timeout = timeout
	b.single.pool = pipeline.New(dial, timeout)
	b.bulk.pool = b.single.pool.Beside(pipeline.Checked(dial))
	b.member, b.leave = context.WithCancel(context.Background())
	b.breaker.silence, b.breaker.run = silence(timeout), b.single.pool.Go
	b.breaker.probe = func() { // release tells the breaker of an answer
		if err := b.ask(probeTimeout, "version\r\n", checkVersion); err != nil {
			b.breaker.explain(err)
		}
	}
	return b
}

// retire refuses operations that haven't started. When no other is under way
// any more, unused is closed.
func (b *backend) retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave()
	b.checkUnused()
}

// hold keeps the connections open until drop. It returns false if that is too late.
func (b *backend) hold() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.unused:
		return false
	default:
		b.inUse++
		return true
	}
}

func (b *backend) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inUse--
	b.checkUnused()
}

// checkUnused is called with mu held.
func (b *backend) checkUnused() {
	if b.member.Err() != nil && b.inUse == 0 {
		close(b.unused)
	}
}

// awaitBreaker returns when operations may be sent, to this server or, as it
// has left, to others.
func (b *backend) awaitBreaker(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.member, cancel)()
	b.breaker.await(ctx)
}

// ask asks the server something within timeout, whether the breaker is open or
// not, and has the reply read.
func (b *backend) ask(timeout time.Duration, command string, read func(reply []byte) error) error {
	c := b.get(&b.single, time.Now().Add(timeout))
	if c == nil {
		return errLeft
	}
	defer c.release()
	err := c.exchange(0, append(c.text[:0], command...))
	if err == nil {
		err = read(c.conn.Reply(0))
	}
	c.answered = err == nil
	return err
}

// askTimeout returns how long to wait for what ask asks: as long as failing
// operations take to open the breaker, at most a second.
func (b *backend) askTimeout() time.Duration { return min(b.timeout+b.breaker.silence, time.Second) }

// ping returns the server's state, which is as old as pingInterval at most. The
// first caller asks for it, and the others wait, unless the breaker is open. A
// server that doesn't answer in time has its breaker opened.
func (b *backend) ping() counters.ServerStatus {
	b.pinging.Lock()
	defer b.pinging.Unlock()
	if b.breaker.refuse() == nil && time.Since(b.pinged) >= pingInterval {
		if err := b.ask(b.askTimeout(), "version\r\n", checkVersion); err != nil {
			b.breaker.note(down, err)
		} else {
			b.pinged = time.Now()
		}
	}
	err := b.breaker.refuse()
	return counters.ServerStatus{Server: b.server.name, Err: err, BreakerOpen: err != nil}
}

const pingInterval = time.Second

func (b *backend) close() {
	_ = b.single.pool.Close() // it is always nil
	_ = b.bulk.pool.Close()
}

// A lane is a connection and its idle sessions. Those that were put back last are
// used first, so the first of them give their buffers up when all have many bytes.
type lane struct {
	pool     *pipeline.Pool
	idle     []*session
	buffered int // bytes in the buffers of idle
	without  int // so many of idle, from the first, have none
}

// maxIdleBytes is how many bytes the idle sessions of a lane have in buffers at most.
const maxIdleBytes = 4 << 20

// put adds a session.
func (l *lane) put(c *session) {
	l.idle = append(l.idle, c)
	c.kept = c.buffered()
	for l.buffered += c.kept; l.buffered > maxIdleBytes; l.without++ {
		first := l.idle[l.without]
		l.buffered -= first.kept
		first.shrink()
	}
}

// pop returns the session that was put back last, or nil.
func (l *lane) pop() *session {
	last := len(l.idle) - 1
	if last < 0 {
		return nil
	}
	c := l.idle[last]
	l.idle, l.without = l.idle[:last], min(l.without, last)
	l.buffered -= c.kept
	return c
}

// laneOfMany returns the lane of AddMany and SwapMany: while a second connection can't be
// had, that of single operations.
func (b *backend) laneOfMany() *lane {
	if b.bulk.pool.Ready(b.server.network, b.server.address) {
		return &b.bulk
	}
	return &b.single
}

// get returns a session of l for an operation that ends by the deadline, or nil when
// the server has left. The session must be released.
func (b *backend) get(l *lane, deadline time.Time) *session {
	var begun time.Time
	if b.breaker.suspect.Load() {
		begun = time.Now()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.member.Err() != nil {
		return nil
	}
	b.inUse++
	c := l.pop()
	if c == nil {
		c = newSession(b, l)
	}
	c.begun, c.deadline, c.answered = begun, deadline, false
	return c
}

// late has f called when it is known what became of the request that conn has
// given up: with nil if it was answered after all.
func (b *backend) late(conn *pipeline.Conn, f func(ctx context.Context, err error)) {
	if !b.hold() {
		b.run(func() { f(context.Background(), errLeft) })
		return
	}
	conn.Late(func(ctx context.Context, err error) {
		defer b.drop()
		switch {
		case errors.Is(err, pipeline.ErrNotSent):
			err = counters.ErrNotSent
		case err != nil:
			err = translate(err)
		}
		f(ctx, err)
	})
}

// maxKeptText is the largest buffer kept for the next exchange, in bytes.
const maxKeptText = 64 << 10

// A session is one operation at a time on a server. It sends commands itself, several
// in a round trip: gomemcache can't, and takes twice the time for a lone incr among
// many callers, and allocations (BenchmarkIncrement). Only Put goes by its gomemcache
// client, whose Timeout starts anew at each step (dial, write, each item read): as each
// operation has a session of its own, boundConn can keep all of them to one deadline.
type session struct {
	*memcache.Client
	backend  *backend
	lane     *lane
	conn     *pipeline.Conn // gomemcache's too; nil until it is needed
	newest   uint64         // the newest socket when the last exchange began
	text     []byte         // a buffer for the commands of an exchange
	kept     int            // bytes in buffers, while it is idle
	begun    time.Time      // the operation; zero if nothing had failed by then
	deadline time.Time
	answered bool           // the server has, in this operation
	broken   *pipeline.Conn // of the request that failed last
}

func newSession(b *backend, l *lane) *session {
	c := &session{backend: b, lane: l, Client: memcache.NewFromSelector(b.server)}
	c.DialContext = c.dialContext
	c.Timeout = time.Hour // boundConn keeps to the deadline
	c.MaxIdleConns = 1    // of one operation at a time
	return c
}

// buffered returns how many bytes are kept in buffers.
func (c *session) buffered() int {
	if c.conn == nil {
		return cap(c.text)
	}
	return cap(c.text) + c.conn.Kept()
}

// shrink gives the buffers up.
func (c *session) shrink() {
	c.text, c.kept = nil, 0
	if c.conn != nil {
		c.conn.Shrink()
	}
}

// release ends the operation.
func (c *session) release() {
	b := c.backend
	c.broken = nil
	// What began before a failure, or took longer than a check waits, doesn't make up for it.
	if c.answered && !c.begun.IsZero() && time.Since(c.begun) <= b.timeout {
		b.breaker.note(answered, nil)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := c.lane; len(l.idle) < maxIdleSessions {
		l.put(c)
	}
	b.inUse--
	b.checkUnused()
}

// dialContext is the DialContext of gomemcache, whose arguments are always the same.
func (c *session) dialContext(context.Context, string, string) (net.Conn, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	return &boundConn{Conn: c.conn, session: c}, nil
}

// boundConn keeps to its session's deadline whatever gomemcache asks for, and
// tells the session whether the server has answered.
type boundConn struct {
	net.Conn
	session *session
}

func (c *boundConn) SetDeadline(time.Time) error { return c.Conn.SetDeadline(c.session.deadline) }

// Read notes whether the server has answered. One Read is all: the reply to a set is a line.
func (c *boundConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.session.answered = err == nil
	return n, err
}

func (c *boundConn) Close() error {
	c.session.broken, c.session.conn = c.session.conn, nil
	return c.Conn.Close()
}

// connect sees to it that there is a conn, which has or will have a socket.
func (c *session) connect() (err error) {
	if c.conn == nil {
		c.conn, err = c.lane.pool.Conn(c.backend.server.network, c.backend.server.address)
	}
	return err
}

// open returns the number of the socket that is open, or 0.
func (c *session) open() uint64 {
	if c.connect() != nil {
		return 0
	}
	return c.conn.Open()
}

// exchange sends commands in one piece and waits for all their replies, which
// conn has then. If newest isn't 0, they go out on a socket that was open when
// that was the newest, or not at all.
func (c *session) exchange(newest uint64, commands []byte) error {
	c.text = commands
	if cap(commands) > maxKeptText {
		c.text = nil
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.conn.SetDeadline(c.deadline); err != nil {
		return err
	}
	c.newest = c.lane.pool.Newest()
	err := c.conn.Exchange(newest, commands)
	c.answered = err == nil
	if err != nil && !errors.Is(err, pipeline.ErrOtherSocket) {
		// After a timeout the connection is of no further use, to gomemcache
		// neither. Closing reports nothing new.
		conn := c.conn
		_ = c.Close()
		_ = conn.Close()
		c.broken, c.conn = conn, nil
	}
	return err
}

// translate turns err, the outcome of the operation, into a store's error, and
// tells the breaker when the server has not answered.
func (c *session) translate(err error) error {
	if err == nil {
		return nil
	}
	translated := translate(err)
	if errors.Is(err, pipeline.ErrDown) {
		c.backend.breaker.note(down, err)
	} else if errors.Is(translated, counters.ErrTimeout) {
		c.backend.breaker.note(unanswered, err)
	}
	return translated
}
