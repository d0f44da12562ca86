package counters

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	// socketsPerServer is one because more were slower, with Memcached on the
	// same two cores.
	socketsPerServer = 1

	// maxIdleLanes is how many lanes to a server are kept for the next
	// operations: enough for many concurrent callers, and cheap, as lanes share
	// sockets.
	maxIdleLanes = 1024

	// addAttempts bounds the loop incr, add, incr: each further round means that
	// the counter was created and lost again in between.
	addAttempts = 4

	// maxRelativeTTL is the longest TTL that Memcached takes as relative; a
	// larger number is a Unix time.
	maxRelativeTTL = 30 * 24 * time.Hour
)

// MemcachedConfig configures a Memcached store.
type MemcachedConfig struct {
	// Servers are host:port or absolute paths of unix sockets. Their order
	// doesn't matter.
	Servers []string
	// KeyPrefix is the prefix that all keys are made with.
	KeyPrefix string
	// TLS is used to connect when it isn't nil.
	TLS *tls.Config
	// User and Password are sent to servers that ask for authentication (the
	// option -Y of Memcached) when User isn't empty.
	User, Password string
}

// Memcached is a Store and a StateStore on one or several Memcached servers; a client's keys
// all live on one of them. The keys of one call must be those of one client. It
// is safe for concurrent use.
type Memcached struct {
	ring    *ring
	sockets *sockets
	dial    dialFunc
	lanes   []lanes // of the ring's servers
}

// NewMemcached returns a store on the given servers. It doesn't connect: that
// is for the first operation, or Ping. The error says which server's name is
// wrong.
func NewMemcached(cfg MemcachedConfig) (*Memcached, error) {
	ring, err := newRing(cfg.Servers, cfg.KeyPrefix)
	if err != nil {
		return nil, err
	}
	m := &Memcached{ring: ring, dial: dialer(cfg.TLS, cfg.User, cfg.Password), lanes: make([]lanes, len(ring.servers))}
	m.sockets = newSockets(m.dial, socketsPerServer)
	for i, s := range ring.servers {
		m.lanes[i].server, m.lanes[i].dial = s, m.sockets.DialContext
	}
	return m, nil
}

// Add implements Store with incr; when the counter doesn't exist, add and incr.
// The commands that are known to be needed go out together.
func (m *Memcached) Add(ctx context.Context, a Addition) (int64, error) {
	l := m.lane(ctx, a.Key)
	defer l.release()
	for range addAttempts {
		n, err := l.add(a)
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return n, translate(err)
		}
		a.New = true
	}
	return 0, fmt.Errorf("%w: it loses the counter %q as soon as it is made", ErrUnavailable, a.Key)
}

// Read implements Store.
func (m *Memcached) Read(ctx context.Context, keys []string, counts []int64) error {
	if len(keys) == 0 {
		return nil
	}
	l := m.lane(ctx, keys[0])
	defer l.release()
	return translate(l.read(keys, counts))
}

// Subtract implements Store.
func (m *Memcached) Subtract(ctx context.Context, key string, delta int64) error {
	l := m.lane(ctx, key)
	defer l.release()
	if _, err := l.client.Decrement(key, uint64(delta)); !errors.Is(err, memcache.ErrCacheMiss) {
		return translate(err)
	}
	return nil
}

// Load implements StateStore with gets.
func (m *Memcached) Load(ctx context.Context, key string) (State, error) {
	l := m.lane(ctx, key)
	defer l.release()
	s, err := l.load(key)
	return s, translate(err)
}

// Swap implements StateStore with cas, or add when there is nothing to replace.
// The answer to those doesn't tell the version, so a gets goes out with them.
func (m *Memcached) Swap(ctx context.Context, key string, old State, value []byte, ttl time.Duration) (State, bool, error) {
	l := m.lane(ctx, key)
	defer l.release()
	s, swapped, err := l.swap(key, old, value, ttl)
	return s, swapped, translate(err)
}

// Delete implements Store and StateStore. All commands go out together.
func (m *Memcached) Delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	l := m.lane(ctx, keys[0])
	defer l.release()
	return translate(l.delete(keys))
}

// A ServerStatus is what Ping found out about a server; Err is nil when it
// answered.
type ServerStatus struct {
	Server string
	Err    error
}

// Ping asks every server at once, on a connection of its own, whether it
// answers, and returns their states in the order they were configured in.
func (m *Memcached) Ping(ctx context.Context) []ServerStatus {
	states := make([]ServerStatus, len(m.ring.servers))
	var wg sync.WaitGroup
	for i, s := range m.ring.servers {
		wg.Go(func() {
			l := newLane(&lanes{server: s, dial: m.dial})
			l.deadline = deadline(ctx)
			err := l.client.Ping()
			l.close()
			states[i] = ServerStatus{Server: s.address, Err: translate(err)}
		})
	}
	wg.Wait()
	return states
}

// Close closes all connections. Operations under way and later ones fail. The
// error is always nil.
func (m *Memcached) Close() error { return m.sockets.Close() }

// lane takes an idle lane to the server of key, or makes one, for an operation
// that ends with ctx.
func (m *Memcached) lane(ctx context.Context, key string) *lane {
	l := m.lanes[m.ring.pick(key)].get()
	l.deadline = deadline(ctx)
	return l
}

// deadline returns when an operation that starts now has to end.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(DefaultTimeout)
}

// lanes are the idle lanes to a server.
type lanes struct {
	server *server
	dial   dialFunc

	mu   sync.Mutex
	idle []*lane
}

func (ls *lanes) get() *lane {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	last := len(ls.idle) - 1
	if last < 0 {
		return newLane(ls)
	}
	l := ls.idle[last]
	ls.idle = ls.idle[:last]
	return l
}

// A lane is a gomemcache client of one server for one operation at a time.
// gomemcache has no contexts, and its Timeout starts anew at each step (dial,
// write, each item read); a client per operation under way lets one deadline
// bound them all. gomemcache has no pipelines either: where several commands
// have to share a round trip, the lane sends them itself.
type lane struct {
	home     *lanes
	client   *memcache.Client
	handle   *handle // nil until it is needed, and for Ping
	requests []byte  // of a pipeline
	deadline time.Time
}

func newLane(home *lanes) *lane {
	l := &lane{home: home, client: memcache.NewFromSelector(&ring{servers: []*server{home.server}})}
	l.client.DialContext = l.dialContext
	// gomemcache sets no deadline that laneConn would keep, but bounds the dial.
	l.client.Timeout = time.Hour
	// One operation at a time needs one connection.
	l.client.MaxIdleConns = 1
	return l
}

func (l *lane) release() {
	ls := l.home
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if len(ls.idle) < maxIdleLanes {
		ls.idle = append(ls.idle, l)
	}
}

func (l *lane) close() {
	// gomemcache only reports what closing sockets reported.
	_ = l.client.Close()
}

func (l *lane) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if l.handle != nil {
		return &laneConn{Conn: l.handle, lane: l}, nil
	}
	ctx, cancel := context.WithDeadline(ctx, l.deadline)
	defer cancel()
	c, err := l.home.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.handle, _ = c.(*handle)
	return &laneConn{Conn: c, lane: l}, nil
}

// laneConn keeps to its lane's deadline whatever gomemcache asks for.
type laneConn struct {
	net.Conn
	lane *lane
}

func (c *laneConn) SetDeadline(time.Time) error { return c.Conn.SetDeadline(c.lane.deadline) }

func (c *laneConn) Close() error {
	c.lane.handle = nil
	return c.Conn.Close()
}

// exchange sends requests in one piece and waits for all their replies, which
// the handle has then.
func (l *lane) exchange(requests []byte) error {
	l.requests = reuse(requests)
	if l.handle == nil {
		c, err := l.home.dial(context.Background(), l.home.server.network, l.home.server.address)
		if err != nil {
			return err
		}
		l.handle = c.(*handle)
	}
	if err := l.handle.SetDeadline(l.deadline); err != nil {
		return err
	}
	err := l.handle.Exchange(requests)
	if err != nil {
		// After a timeout the handle is of no further use, nor is gomemcache's
		// connection, which is the same.
		h := l.handle
		l.close()
		_ = h.Close()
		l.handle = nil
	}
	return err
}

// add counts a.Delta and reads a.Read in one round trip. The error is
// memcache.ErrCacheMiss when the counter doesn't exist, and wasn't made.
func (l *lane) add(a Addition) (int64, error) {
	if !a.New && len(a.Read) == 0 {
		n, err := l.client.Increment(a.Key, uint64(a.Delta))
		if err != nil {
			return 0, err
		}
		return counterValue(a.Key, n)
	}
	b, incr := l.requests[:0], 0
	if a.New {
		// Whether it is stored makes no difference: somebody else's counter does
		// as well.
		b = appendStore(b, a.Key, expiration(a.TTL, time.Now()), 0, zero)
		incr = 1
	}
	b = appendIncr(b, a.Key, a.Delta)
	if len(a.Read) > 0 {
		b = appendGet(b, "get", a.Read...)
	}
	if err := l.exchange(b); err != nil {
		return 0, err
	}
	n, found, err := parseIncr(a.Key, l.handle.Reply(incr))
	switch {
	case err != nil:
		return 0, err
	case !found:
		return 0, memcache.ErrCacheMiss
	case len(a.Read) > 0:
		err = parseCounts(l.handle.Reply(incr+1), a.Read, a.Counts)
	}
	return n, err
}

var zero = []byte("0")

// read reads the counters at keys in one round trip.
func (l *lane) read(keys []string, counts []int64) error {
	if err := l.exchange(appendGet(l.requests[:0], "get", keys...)); err != nil {
		return err
	}
	return parseCounts(l.handle.Reply(0), keys, counts)
}

func (l *lane) delete(keys []string) error {
	b := l.requests[:0]
	for _, key := range keys {
		b = appendDelete(b, key)
	}
	if err := l.exchange(b); err != nil {
		return err
	}
	for i := range keys {
		switch reply := l.handle.Reply(i); string(reply) {
		case "DELETED\r\n", "NOT_FOUND\r\n":
		default:
			return replyError(reply)
		}
	}
	return nil
}

func (l *lane) load(key string) (State, error) {
	item, err := l.client.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return State{}, nil
	case err != nil:
		return State{}, err
	case item.CasID == 0:
		return State{}, errNoCAS
	}
	return State{Value: item.Value, version: item.CasID}, nil
}

// swap stores value and loads what is there after that, in one round trip.
func (l *lane) swap(key string, old State, value []byte, ttl time.Duration) (State, bool, error) {
	b := appendStore(l.requests[:0], key, expiration(ttl, time.Now()), old.version, value)
	if err := l.exchange(appendGet(b, "gets", key)); err != nil {
		return State{}, false, err
	}
	now, err := parseState(l.handle.Reply(1))
	if err != nil {
		return State{}, false, err
	}
	switch reply := l.handle.Reply(0); string(reply) {
	case "STORED\r\n":
		return now, true, nil
	case "EXISTS\r\n", "NOT_FOUND\r\n", "NOT_STORED\r\n": // changed, gone, there already
		return now, false, nil
	default:
		return State{}, false, replyError(reply)
	}
}

var errNoCAS = errors.New("the server runs without compare-and-swap (its option -C)")

func counterValue(key string, n uint64) (int64, error) {
	if n > math.MaxInt64 {
		return 0, foreignValue(key)
	}
	return int64(n), nil
}

func foreignValue(key string) error {
	return fmt.Errorf("%w: %q", ErrForeignValue, key)
}

// expiration returns ttl as Memcached wants it: in whole seconds, rounded up,
// and as a Unix time when it is longer than 30 days.
func expiration(ttl time.Duration, now time.Time) int32 {
	if ttl <= maxRelativeTTL {
		return int32((ttl + time.Second - 1) / time.Second)
	}
	return int32(min(now.Add(ttl+time.Second-1).Unix(), math.MaxInt32))
}

// translate turns any error of gomemcache or a connection into one of a
// store's. gomemcache has no exported error for a value that isn't a number,
// only the server's words.
func translate(err error) error {
	var timeout net.Error
	switch {
	case err == nil, errors.Is(err, ErrForeignValue), errors.Is(err, memcache.ErrCacheMiss):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout(), isConnectTimeout(err):
		return fmt.Errorf("%w: %v", ErrTimeout, err)
	case strings.Contains(err.Error(), "non-numeric"):
		return fmt.Errorf("%w: %v", ErrForeignValue, err)
	default:
		return fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
}

func isConnectTimeout(err error) bool {
	var timeout *memcache.ConnectTimeoutError
	return errors.As(err, &timeout)
}
