package counters

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
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
	last := len(keys) - 1
	for _, key := range keys[:last] {
		if err := l.hold("DELETED\r\n"); err != nil {
			return translate(err)
		}
		if err := l.client.Delete(key); err != nil {
			return translate(err)
		}
	}
	if err := l.client.Delete(keys[last]); !errors.Is(err, memcache.ErrCacheMiss) {
		return translate(err)
	}
	return nil
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
// bound them all, and lets us keep commands back to send several together.
type lane struct {
	home     *lanes
	client   *memcache.Client
	handle   *handle // nil until it is needed, and for Ping
	held     int     // commands kept back in this operation
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
	if l.held > 0 && l.handle != nil {
		l.handle.Drop() // what an error has left held
	}
	l.held = 0
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

// hold keeps the next command back until one that isn't held, to go out with
// it. gomemcache is told that the answer is standIn.
func (l *lane) hold(standIn string) error {
	if l.handle == nil {
		c, err := l.home.dial(context.Background(), l.home.server.network, l.home.server.address)
		if err != nil {
			return err
		}
		l.handle = c.(*handle)
	}
	l.handle.Hold(standIn)
	l.held++
	return nil
}

// add counts a.Delta and reads a.Read in one round trip. The error is
// memcache.ErrCacheMiss when the counter doesn't exist, and wasn't made.
func (l *lane) add(a Addition) (int64, error) {
	l.held = 0
	if a.New {
		// Whether it is stored makes no difference: somebody else's counter does
		// as well.
		if err := l.hold("STORED\r\n"); err != nil {
			return 0, err
		}
		item := memcache.Item{Key: a.Key, Value: zero, Expiration: expiration(a.TTL, time.Now())}
		if err := l.client.Add(&item); err != nil {
			return 0, err
		}
	}
	if len(a.Read) == 0 {
		n, err := l.client.Increment(a.Key, uint64(a.Delta))
		if err != nil {
			return 0, err
		}
		return counterValue(a.Key, n)
	}
	count := l.held
	if err := l.hold("0\r\n"); err != nil {
		return 0, err
	}
	if _, err := l.client.Increment(a.Key, uint64(a.Delta)); err != nil {
		return 0, err
	}
	if err := l.read(a.Read, a.Counts); err != nil {
		return 0, err
	}
	return heldCount(a.Key, l.handle.Held(count))
}

var zero = []byte("0")

// heldCount returns the number that incr answered, as gomemcache reads it from
// a command that isn't held.
func heldCount(key string, reply []byte) (int64, error) {
	line := strings.TrimSuffix(string(reply), "\r\n")
	if line == "NOT_FOUND" {
		return 0, memcache.ErrCacheMiss
	}
	n, err := strconv.ParseUint(line, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memcache: %s", line)
	}
	return counterValue(key, n)
}

// fewKeys is up to how many keys single gets, sent together, cost less than
// gomemcache's GetMulti, which starts a goroutine and makes two maps.
const fewKeys = 4

// read reads the counters at keys in one round trip, behind what is held.
func (l *lane) read(keys []string, counts []int64) error {
	if len(keys) > fewKeys {
		items, err := l.client.GetMulti(keys)
		if err != nil {
			return err
		}
		for i, key := range keys {
			counts[i] = 0
			if item, ok := items[key]; ok {
				if counts[i], err = parseCount(key, item.Value); err != nil {
					return err
				}
			}
		}
		return nil
	}
	first, last := l.held, len(keys)-1
	for _, key := range keys[:last] {
		if err := l.hold("END\r\n"); err != nil {
			return err
		}
		if _, err := l.client.Get(key); !errors.Is(err, memcache.ErrCacheMiss) {
			return err
		}
	}
	item, err := l.client.Get(keys[last])
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		counts[last] = 0
	case err != nil:
		return err
	default:
		if counts[last], err = parseCount(keys[last], item.Value); err != nil {
			return err
		}
	}
	for i, key := range keys[:last] {
		value, err := heldValue(l.handle.Held(first + i))
		if err != nil {
			return err
		}
		counts[i] = 0
		if value != nil {
			if counts[i], err = parseCount(key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// heldValue returns the value in the reply to a get of one key, or nil, as
// gomemcache reads it from a command that isn't held.
func heldValue(reply []byte) ([]byte, error) {
	if string(reply) == "END\r\n" {
		return nil, nil
	}
	line, rest, ok := bytes.Cut(reply, crlf)
	value, end, more := bytes.Cut(rest, crlf)
	if !ok || !more || !bytes.HasPrefix(line, []byte("VALUE ")) || string(end) != "END\r\n" {
		return nil, fmt.Errorf("memcache: unexpected reply to a get: %.100q", reply)
	}
	return value, nil
}

var crlf = []byte("\r\n")

func parseCount(key string, value []byte) (int64, error) {
	// decr leaves trailing spaces when a number gets shorter.
	n, err := strconv.ParseUint(string(bytes.TrimRight(value, " ")), 10, 64)
	if err != nil {
		return 0, foreignValue(key)
	}
	return counterValue(key, n)
}

func (l *lane) load(key string) (State, error) {
	item, err := l.client.Get(key)
	switch {
	case errors.Is(err, memcache.ErrCacheMiss):
		return State{}, nil
	case err != nil:
		return State{}, err
	case item.CasID == 0:
		return State{}, errors.New("the server runs without compare-and-swap (its option -C)")
	}
	return State{Value: item.Value, version: item.CasID}, nil
}

// swap stores value and loads what is there after that, in one round trip.
func (l *lane) swap(key string, old State, value []byte, ttl time.Duration) (State, bool, error) {
	if err := l.hold("STORED\r\n"); err != nil {
		return State{}, false, err
	}
	store := l.client.CompareAndSwap
	if !old.Exists() {
		store = l.client.Add
	}
	item := memcache.Item{Key: key, Value: value, Expiration: expiration(ttl, time.Now()), CasID: old.version}
	if err := store(&item); err != nil {
		return State{}, false, err
	}
	now, err := l.load(key)
	if err != nil {
		return State{}, false, err
	}
	switch reply := strings.TrimSuffix(string(l.handle.Held(0)), "\r\n"); reply {
	case "STORED":
		return now, true, nil
	case "EXISTS", "NOT_FOUND", "NOT_STORED": // changed, gone, there already
		return now, false, nil
	default:
		return State{}, false, fmt.Errorf("memcache: %s", reply)
	}
}

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
