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
	// maxIdleLanes is how many lanes are kept for the next operations: enough
	// for hundreds of concurrent callers, and below Memcached's default of 1024
	// connections even with two instances.
	maxIdleLanes = 400

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

// Memcached is a Store on one or several Memcached servers; a client's counters
// all live on one of them. It is safe for concurrent use.
type Memcached struct {
	ring *ring
	dial dialFunc

	mu     sync.Mutex
	idle   []*lane
	closed bool
}

// NewMemcached returns a store on the given servers. It doesn't connect: that
// is for the first operation, or Ping. The error says which server's name is
// wrong.
func NewMemcached(cfg MemcachedConfig) (*Memcached, error) {
	ring, err := newRing(cfg.Servers, cfg.KeyPrefix)
	if err != nil {
		return nil, err
	}
	return &Memcached{ring: ring, dial: newDialer(cfg.TLS, cfg.User, cfg.Password)}, nil
}

// Add implements Store with incr; when the counter doesn't exist, add, and when
// another process was faster, incr again.
func (m *Memcached) Add(ctx context.Context, a Addition) (int64, error) {
	l := m.lane(ctx)
	defer m.release(l)
	n, err := l.add(a.Key, a.Delta, a.TTL)
	if err != nil {
		return 0, err
	}
	return n, l.read(a.Read, a.Counts)
}

// Read implements Store.
func (m *Memcached) Read(ctx context.Context, keys []string, counts []int64) error {
	l := m.lane(ctx)
	defer m.release(l)
	return l.read(keys, counts)
}

// Subtract implements Store.
func (m *Memcached) Subtract(ctx context.Context, key string, delta int64) error {
	l := m.lane(ctx)
	defer m.release(l)
	if _, err := l.client.Decrement(key, uint64(delta)); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return translate(err)
	}
	return nil
}

// Delete implements Store.
func (m *Memcached) Delete(ctx context.Context, keys []string) error {
	l := m.lane(ctx)
	defer m.release(l)
	for _, key := range keys {
		if err := l.client.Delete(key); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return translate(err)
		}
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
			l := newLane(&ring{servers: []*server{s}}, m.dial)
			l.deadline = deadline(ctx)
			err := l.client.Ping()
			l.close()
			if err != nil {
				err = translate(err)
			}
			states[i] = ServerStatus{Server: s.address, Err: err}
		})
	}
	wg.Wait()
	return states
}

// Close closes all idle connections; those in use are closed when their
// operation ends.
func (m *Memcached) Close() error {
	m.mu.Lock()
	idle := m.idle
	m.idle, m.closed = nil, true
	m.mu.Unlock()
	for _, l := range idle {
		l.close()
	}
	return nil
}

// lane takes an idle lane, or makes one, for an operation that ends with ctx.
func (m *Memcached) lane(ctx context.Context) *lane {
	var l *lane
	m.mu.Lock()
	if last := len(m.idle) - 1; last >= 0 {
		l = m.idle[last]
		m.idle = m.idle[:last]
	}
	m.mu.Unlock()
	if l == nil {
		l = newLane(m.ring, m.dial)
	}
	l.deadline = deadline(ctx)
	return l
}

func (m *Memcached) release(l *lane) {
	m.mu.Lock()
	keep := !m.closed && len(m.idle) < maxIdleLanes
	if keep {
		m.idle = append(m.idle, l)
	}
	m.mu.Unlock()
	if !keep {
		l.close()
	}
}

// deadline returns when an operation that starts now has to end.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(DefaultTimeout)
}

// A lane is a gomemcache client for one operation at a time. gomemcache has no
// contexts, and its Timeout starts anew at each step (dial, write, each item
// read); a client per operation under way lets one deadline bound them all.
type lane struct {
	client   *memcache.Client
	dial     dialFunc
	deadline time.Time
}

func newLane(ring *ring, dial dialFunc) *lane {
	l := &lane{client: memcache.NewFromSelector(ring), dial: dial}
	l.client.DialContext = l.dialContext
	// gomemcache asks for no deadline that laneConn would keep, but it bounds
	// the dial.
	l.client.Timeout = time.Hour
	// One operation at a time needs one connection per server.
	l.client.MaxIdleConns = 1
	return l
}

func (l *lane) close() {
	// gomemcache only reports what closing sockets reported.
	_ = l.client.Close()
}

func (l *lane) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, l.deadline)
	defer cancel()
	c, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &laneConn{Conn: c, lane: l}, nil
}

// laneConn keeps to its lane's deadline whatever gomemcache asks for.
type laneConn struct {
	net.Conn
	lane *lane
}

func (c *laneConn) SetDeadline(time.Time) error { return c.Conn.SetDeadline(c.lane.deadline) }

func (l *lane) add(key string, delta int64, ttl time.Duration) (int64, error) {
	for range addAttempts {
		n, err := l.client.Increment(key, uint64(delta))
		if err == nil {
			return counterValue(key, n)
		}
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return 0, translate(err)
		}
		err = l.client.Add(&memcache.Item{
			Key:        key,
			Value:      strconv.AppendInt(nil, delta, 10),
			Expiration: expiration(ttl, time.Now()),
		})
		if err == nil {
			return delta, nil
		}
		if !errors.Is(err, memcache.ErrNotStored) {
			return 0, translate(err)
		}
	}
	return 0, fmt.Errorf("%w: it loses the counter %q as soon as it is made", ErrUnavailable, key)
}

func (l *lane) read(keys []string, counts []int64) error {
	if len(keys) == 0 {
		return nil
	}
	items, err := l.client.GetMulti(keys)
	if err != nil {
		return translate(err)
	}
	for i, key := range keys {
		counts[i] = 0
		if item, ok := items[key]; ok {
			// decr leaves trailing spaces when a number gets shorter.
			n, err := strconv.ParseUint(string(bytes.TrimRight(item.Value, " ")), 10, 64)
			if err != nil {
				return foreignValue(key)
			}
			if counts[i], err = counterValue(key, n); err != nil {
				return err
			}
		}
	}
	return nil
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
