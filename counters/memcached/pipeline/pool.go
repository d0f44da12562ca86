// Package pipeline shares one socket to each Memcached server among any number
// of callers. Every caller has a Conn of its own, a net.Conn that takes one
// command at a time, or several with Exchange: that is its request. Requests of
// all callers go out together, and replies are dealt out in order.
//
// A caller that gives up disturbs nobody: its late reply is read, and can be
// asked for with Late. A request that could put the stream out of step is
// refused before it is sent. A server that is silent for 1.5 seconds, and for longer
// than requests wait, is cut off. The package knows the text protocol, and nothing of
// weir. Start with Pool.
package pipeline

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// dialTimeout is the shortest bound of a dial. It serves many callers, so it ends
	// with the deadline of none.
	dialTimeout = time.Second
	// dialInterval is the time between two dials that nobody waits for.
	dialInterval = time.Second
)

// A Pool shares one socket per server among any number of callers, who each hold
// a Conn. Make one with New: the zero Pool isn't usable. It is safe for
// concurrent use.
type Pool struct {
	dial    DialFunc
	timeout time.Duration   // of requests
	ctx     context.Context // ended by Close
	cancel  context.CancelFunc
	running sync.WaitGroup // every goroutine; counted up under mu, or by one that is counted
	sockets *atomic.Uint64 // that have been opened, of all pools beside this one too
	first   *Pool          // that this one is beside, or nil

	mu    sync.Mutex
	links map[endpoint]*link
}

// New returns a Pool that connects with dial, for requests that wait for as long as
// timeout. The context given to dial ends with Close, or after a second, or timeout
// if that is longer.
func New(dial DialFunc, timeout time.Duration) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	return &Pool{dial: dial, timeout: timeout, ctx: ctx, cancel: cancel, sockets: new(atomic.Uint64), links: make(map[endpoint]*link)}
}

// Beside returns another Pool that connects with dial, with sockets of its own,
// which are numbered together with p's.
func (p *Pool) Beside(dial DialFunc) *Pool {
	beside := New(dial, p.timeout)
	beside.sockets, beside.first = p.sockets, p
	return beside
}

// Ready reports whether a socket to the server is open. If none is, it has one opened,
// at most once a second, and doesn't wait for it. A pool beside another has none opened
// before the other's is open, so that the other gets the last one that the server takes.
func (p *Pool) Ready(network, address string) bool {
	l, err := p.link(network, address)
	if err != nil {
		return false
	}
	if l.isOpen() {
		return true
	}
	if p.first == nil || p.first.isOpen(network, address) {
		l.dialAgain()
	}
	return false
}

func (p *Pool) isOpen(network, address string) bool {
	l, err := p.link(network, address)
	return err == nil && l.isOpen()
}

// Newest returns the number of the socket that has been opened last, in this
// pool or one beside it; 0 if none has.
func (p *Pool) Newest() uint64 { return p.sockets.Load() }

// link returns the link to a server. The error is
// net.ErrClosed after Close.
func (p *Pool) link(network, address string) (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	e := endpoint{network, address}
	l := p.links[e]
	if l == nil {
		l = &link{pool: p, endpoint: e}
		p.links[e] = l
	}
	return l, nil
}

// Close closes every socket and returns when all goroutines have ended.
// Requests in flight and later ones fail. The error is always nil.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// Go runs f in a goroutine that Close waits for, with a context that Close
// ends. It returns false, and f doesn't run, after Close.
func (p *Pool) Go(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.running.Go(func() { f(p.ctx) })
	return true
}

// A link is a pool's one way to a server: its socket is open, being dialed, or neither.
type link struct {
	pool     *Pool
	endpoint endpoint
	open     atomic.Pointer[socket]

	mu      sync.Mutex
	dialing *dialing  // nil when no dial is under way
	dialed  time.Time // when dialAgain began one last
}

// dialing is a dial under way. socket and err may be read when done is closed.
type dialing struct {
	done   chan struct{}
	socket *socket
	err    error
}

func (l *link) isOpen() bool {
	s := l.open.Load()
	return s != nil && s.isOpen()
}

// socket returns the open socket. Without one, all callers wait for the same
// dial, each until its own request is interrupted.
func (l *link) socket(r *request) (*socket, error) {
	if s := l.open.Load(); s != nil {
		return s, nil
	}
	l.mu.Lock()
	if s := l.open.Load(); s != nil {
		l.mu.Unlock()
		return s, nil
	}
	d := l.dial()
	l.mu.Unlock()
	if d == nil {
		return nil, net.ErrClosed
	}
	select {
	case <-d.done:
		return d.socket, d.err
	case <-r.wake:
		return nil, errGivenUp
	}
}

// dial returns the dial that is under way, or begins one; nil after Close. mu is held.
func (l *link) dial() *dialing {
	if l.dialing == nil {
		d := &dialing{done: make(chan struct{})}
		if !l.pool.Go(func(ctx context.Context) { l.run(ctx, d) }) {
			return nil
		}
		l.dialing = d
	}
	return l.dialing
}

// dialAgain begins a dial, unless one has begun a moment ago, or has ended well by now.
func (l *link) dialAgain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.open.Load() == nil && now.Sub(l.dialed) >= dialInterval {
		l.dialed = now
		l.dial()
	}
}

// run dials, and then reads the socket until it is lost.
func (l *link) run(ctx context.Context, d *dialing) {
	dial, cancel := context.WithTimeout(ctx, max(dialTimeout, l.pool.timeout))
	conn, err := l.pool.dial(dial, l.endpoint.network, l.endpoint.address)
	cancel()
	var s *socket
	if err != nil {
		err = downError{err}
	} else {
		s = newSocket(conn, l.endpoint, l.pool.timeout, &l.pool.running)
		s.number = l.pool.sockets.Add(1)
		s.lost = func() { l.open.CompareAndSwap(s, nil) }
	}
	d.socket, d.err = s, err
	l.mu.Lock()
	l.open.Store(s)
	l.dialing = nil
	l.mu.Unlock()
	close(d.done)
	if s != nil {
		failed := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			s.fail(net.ErrClosed)
			_ = conn.Close() // one that lingers, too
			close(failed)
		})
		s.read()
		if !stop() {
			<-failed
		}
	}
}
