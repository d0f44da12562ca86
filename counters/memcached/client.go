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

// maxIdleClients is how many clients of a server are kept for the next
// operations: enough for many concurrent callers, and cheap, as they share a
// socket.
const maxIdleClients = 1024

// clients are the clients of a server, and its connections.
type clients struct {
	server  *server
	number  uint64        // unique in the store
	budget  budget        // of AddMany and SwapMany
	timeout time.Duration // of an operation
	breaker breaker

	undecided atomic.Int64          // checks of its clients that the store couldn't decide, ever
	cause     atomic.Pointer[error] // why it couldn't decide the last of them

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

func newClients(s *server, number uint64, dial pipeline.DialFunc, timeout time.Duration, run func(func())) *clients {
	cs := &clients{server: s, number: number, timeout: timeout, unused: make(chan struct{}), run: run}
	cs.budget.timeout = timeout
	cs.single.pool = pipeline.New(dial)
	cs.bulk.pool = cs.single.pool.Beside(pipeline.Checked(dial))
	cs.member, cs.leave = context.WithCancel(context.Background())
	cs.breaker.silence, cs.breaker.run = silence(timeout), cs.single.pool.Go
	cs.breaker.probe = func() { // the breaker is told of an answer
		if err := cs.ask(probeTimeout, "version\r\n", checkVersion); err != nil {
			cs.breaker.stays(err)
		}
	}
	return cs
}

// retire refuses operations that haven't started. When no other is under way
// any more, unused is closed.
func (cs *clients) retire() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.leave()
	cs.checkUnused()
}

// hold keeps the connection open until drop, unless that is too late.
func (cs *clients) hold() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	select {
	case <-cs.unused:
		return false
	default:
		cs.inUse++
		return true
	}
}

func (cs *clients) drop() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.inUse--
	cs.checkUnused()
}

// checkUnused is called with mu held.
func (cs *clients) checkUnused() {
	if cs.member.Err() != nil && cs.inUse == 0 {
		close(cs.unused)
	}
}

// awaitBreaker returns when operations may be sent, to this server or, as it
// has left, to others.
func (cs *clients) awaitBreaker(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(cs.member, cancel)()
	cs.breaker.await(ctx)
}

// ask asks the server something within timeout, whether the breaker is open or
// not, and has the reply read.
func (cs *clients) ask(timeout time.Duration, command string, read func(reply []byte) error) error {
	start := time.Now()
	c := cs.get(&cs.single, start.Add(timeout))
	if c == nil {
		return errLeft
	}
	defer c.release()
	err := c.exchange(0, append(c.requests[:0], command...))
	if err == nil {
		err = read(c.conn.Reply(0))
	}
	// An operation wouldn't have got an answer that took longer.
	c.answered = err == nil && time.Since(start) <= cs.timeout
	return err
}

// patience returns how long to wait for what ask asks: as long as failing
// operations take to open the breaker, at most a second.
func (cs *clients) patience() time.Duration { return min(cs.timeout+cs.breaker.silence, time.Second) }

// ping returns the server's state, which is as old as pingInterval at most. The
// first caller asks for it, and the others wait, unless the breaker is open. A
// server that doesn't answer in time has its breaker opened.
func (cs *clients) ping() counters.ServerStatus {
	cs.pinging.Lock()
	defer cs.pinging.Unlock()
	if cs.breaker.refuse() == nil && time.Since(cs.pinged) >= pingInterval {
		if err := cs.ask(cs.patience(), "version\r\n", checkVersion); err != nil {
			cs.breaker.note(down, err)
		} else {
			cs.pinged = time.Now()
		}
	}
	err := cs.breaker.refuse()
	return counters.ServerStatus{Server: cs.server.name, Err: err, BreakerOpen: err != nil}
}

const pingInterval = time.Second

// close closes the connections.
func (cs *clients) close() {
	_ = cs.single.pool.Close() // it is always nil
	_ = cs.bulk.pool.Close()
}

// A lane is the idle clients of a connection. Those that were put back last are
// used first, so the first of them give their buffers up when all have many bytes.
type lane struct {
	pool     *pipeline.Pool
	idle     []*client
	buffered int // bytes in the buffers of idle
	without  int // so many of idle, from the first, have none
}

// maxIdleBytes is how many bytes the idle clients of a lane have in buffers at most.
const maxIdleBytes = 4 << 20

// put adds a client.
func (l *lane) put(c *client) {
	l.idle = append(l.idle, c)
	c.kept = c.buffered()
	for l.buffered += c.kept; l.buffered > maxIdleBytes; l.without++ {
		first := l.idle[l.without]
		l.buffered -= first.kept
		first.shrink()
	}
}

// pop returns the client that was put back last, or nil.
func (l *lane) pop() *client {
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
func (cs *clients) laneOfMany() *lane {
	if cs.bulk.pool.Ready(cs.server.network, cs.server.address) {
		return &cs.bulk
	}
	return &cs.single
}

// get returns a client of l for an operation that ends by the deadline, or nil when
// the server has left. The client must be released.
func (cs *clients) get(l *lane, deadline time.Time) *client {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.member.Err() != nil {
		return nil
	}
	cs.inUse++
	c := l.pop()
	if c == nil {
		c = newClient(cs, l)
	}
	c.deadline, c.answered = deadline, false
	return c
}

// maxKeptRequests is the largest buffer kept for the next pipeline, in bytes.
const maxKeptRequests = 64 << 10

// A client is a gomemcache client of one server for one operation at a time.
// gomemcache has no contexts, and its Timeout starts anew at each step (dial,
// write, each item read); a client per operation under way lets one deadline
// bound them all. gomemcache has no pipelines either: where several commands
// have to share a round trip, the client sends them itself. It does so with a
// lone incr or decr too, which is what nearly all operations are: among many callers
// that takes half of gomemcache's time, and no allocations (BenchmarkIncrement).
type client struct {
	*memcache.Client
	home     *clients
	lane     *lane
	conn     *pipeline.Conn // nil until it is needed
	newest   uint64         // the newest socket when the last exchange began
	requests []byte         // a buffer for those of a pipeline
	kept     int            // bytes in buffers, while it is idle
	deadline time.Time
	answered bool           // the server has, in this operation
	broken   *pipeline.Conn // of the request that failed last
}

func newClient(home *clients, l *lane) *client {
	c := &client{home: home, lane: l, Client: memcache.NewFromSelector(home.server)}
	c.DialContext = c.dialContext
	c.Timeout = time.Hour // boundConn keeps to the deadline
	c.MaxIdleConns = 1    // of one operation at a time
	return c
}

// buffered returns how many bytes are kept in buffers.
func (c *client) buffered() int {
	if c.conn == nil {
		return cap(c.requests)
	}
	return cap(c.requests) + c.conn.Buffered()
}

// shrink gives the buffers up.
func (c *client) shrink() {
	c.requests, c.kept = nil, 0
	if c.conn != nil {
		c.conn.Shrink()
	}
}

// release ends the operation.
func (c *client) release() {
	cs := c.home
	c.broken = nil
	if c.answered {
		cs.breaker.answered()
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if l := c.lane; len(l.idle) < maxIdleClients {
		l.put(c)
	}
	cs.inUse--
	cs.checkUnused()
}

// dialContext is gomemcache's.
func (c *client) dialContext(context.Context, string, string) (net.Conn, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	return &boundConn{Conn: c.conn, client: c}, nil
}

// boundConn keeps to its client's deadline whatever gomemcache asks for, and
// tells the client whether the server has answered.
type boundConn struct {
	net.Conn
	client *client
}

func (c *boundConn) SetDeadline(time.Time) error { return c.Conn.SetDeadline(c.client.deadline) }

// Read returns the whole reply to a command of a line.
func (c *boundConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.client.answered = err == nil
	return n, err
}

func (c *boundConn) Close() error {
	c.client.broken, c.client.conn = c.client.conn, nil
	return c.Conn.Close()
}

// connect sees to it that there is a conn, which has or will have a socket.
func (c *client) connect() error {
	if c.conn != nil {
		return nil
	}
	conn, err := c.lane.pool.DialContext(context.Background(), c.home.server.network, c.home.server.address)
	if err == nil {
		c.conn = conn.(*pipeline.Conn)
	}
	return err
}

// open returns the number of the socket that is open, or 0.
func (c *client) open() uint64 {
	if c.connect() != nil {
		return 0
	}
	return c.conn.Open()
}

// exchange sends requests in one piece and waits for all their replies, which
// conn has then. If newest isn't 0, they go out on a socket that was open when
// that was the newest, or not at all.
func (c *client) exchange(newest uint64, requests []byte) error {
	c.requests = requests
	if cap(requests) > maxKeptRequests {
		c.requests = nil
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.conn.SetDeadline(c.deadline); err != nil {
		return err
	}
	c.newest = c.lane.pool.Newest()
	err := c.conn.Exchange(newest, requests)
	c.answered = err == nil
	if err != nil && !errors.Is(err, pipeline.ErrOtherSocket) {
		// After a timeout the connection is of no further use, nor is
		// gomemcache's, which is the same. Closing reports nothing new.
		conn := c.conn
		_ = c.Close()
		_ = conn.Close()
		c.broken, c.conn = conn, nil
	}
	return err
}

// late has f called when it is known what became of the request that conn has
// given up: with nil if it was answered after all.
func (cs *clients) late(conn *pipeline.Conn, f func(ctx context.Context, err error)) {
	if !cs.hold() {
		cs.run(func() { f(context.Background(), errLeft) })
		return
	}
	conn.Late(func(ctx context.Context, err error) {
		defer cs.drop()
		switch {
		case errors.Is(err, pipeline.ErrNotSent):
			err = counters.ErrNotSent
		case err != nil:
			err = translate(err)
		}
		f(ctx, err)
	})
}

// translate turns err, the outcome of the operation, into a store's error, and
// tells the breaker when the server has not answered.
func (c *client) translate(err error) error {
	if err == nil {
		return nil
	}
	translated := translate(err)
	if errors.Is(err, pipeline.ErrDown) {
		c.home.breaker.note(down, err)
	} else if errors.Is(translated, counters.ErrTimeout) {
		c.home.breaker.note(unanswered, err)
	}
	return translated
}
