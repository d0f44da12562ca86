// Package memcached is the Store and the StateStore on Memcached servers.
//
// All keys of a client live on one server, which a hash of the client chooses:
// the order of the servers doesn't matter, and a new server moves only the
// clients that it takes over. Each operation ends by its deadline, dialing
// included. Commands that belong together share a round trip.
//
// What Memcached loses (by eviction, a restart or flush_all) is lost. Start
// with New.
package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// addAttempts bounds the loop incr, add, incr: each further round means that
// the counter was created and lost again in between.
const addAttempts = 4

// Config configures a Store.
type Config struct {
	// Servers are host:port or absolute paths of unix sockets; at least one,
	// none twice. Their order doesn't matter.
	Servers []string
	// TLS is used to connect when it isn't nil.
	TLS *tls.Config
	// User and Password are sent to servers that ask for authentication (the
	// option -Y of Memcached) when User isn't empty.
	User, Password string
}

// A Store is a counters.Store and a counters.StateStore on Memcached. Make
// one with New: the zero Store isn't usable. It is safe for concurrent use.
type Store struct {
	ring    *ring
	pool    *pipeline.Pool
	dial    pipeline.DialFunc
	clients []clients // of the ring's servers
}

// New returns a store on the servers of cfg. It doesn't connect: the first
// operation does. The error says what is wrong with the servers' names.
func New(cfg Config) (*Store, error) {
	ring, err := newRing(cfg.Servers)
	if err != nil {
		return nil, err
	}
	return newStore(ring, pipeline.Dialer(cfg.TLS, cfg.User, cfg.Password)), nil
}

func newStore(r *ring, dial pipeline.DialFunc) *Store {
	s := &Store{ring: r, pool: pipeline.New(dial), dial: dial, clients: make([]clients, len(r.servers))}
	for i, server := range r.servers {
		s.clients[i].server, s.clients[i].dial = server, s.pool.DialContext
	}
	return s
}

// Add implements counters.Store with incr; when the counter doesn't exist, add
// and incr. The commands that are known to be needed go out together.
func (s *Store) Add(ctx context.Context, a counters.Addition) (int64, error) {
	c := s.client(ctx, a.Key)
	defer c.release()
	for range addAttempts {
		var n int64
		var found bool
		var err error
		if a.New || len(a.Read) > 0 {
			n, found, err = c.pipelineAdd(a)
		} else {
			var u uint64
			u, err = c.Increment(a.Key, uint64(a.Delta))
			if found = !errors.Is(err, memcache.ErrCacheMiss); !found {
				err = nil
			} else if err == nil {
				n, err = counterValue(a.Key, u)
			}
		}
		if found || err != nil {
			return n, c.translate(a.Key, err)
		}
		a.New = true
	}
	return 0, fmt.Errorf("%w: it loses the counter %q as soon as it is made", counters.ErrUnavailable, a.Key)
}

// Read implements counters.Store with one get.
func (s *Store) Read(ctx context.Context, keys []string, counts []int64) error {
	if len(keys) == 0 {
		return nil
	}
	c := s.client(ctx, keys[0])
	defer c.release()
	return c.translate(keys[0], c.read(keys, counts))
}

// Subtract implements counters.Store with decr.
func (s *Store) Subtract(ctx context.Context, key string, delta int64) error {
	c := s.client(ctx, key)
	defer c.release()
	if _, err := c.Decrement(key, uint64(delta)); !errors.Is(err, memcache.ErrCacheMiss) {
		return c.translate(key, err)
	}
	return nil
}

// Load implements counters.StateStore with gets.
func (s *Store) Load(ctx context.Context, key string) (counters.State, error) {
	c := s.client(ctx, key)
	defer c.release()
	state, err := c.load(key)
	return state, c.translate(key, err)
}

// Swap implements counters.StateStore with cas, or add when there is nothing to
// replace. The answer to those doesn't tell the version, so a gets goes out
// with them.
func (s *Store) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	c := s.client(ctx, key)
	defer c.release()
	state, swapped, err := c.swap(key, old, value, ttl)
	return state, swapped, c.translate(key, err)
}

// Delete implements counters.Store and counters.StateStore. All commands go out
// together.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	c := s.client(ctx, keys[0])
	defer c.release()
	return c.translate(keys[0], c.delete(keys))
}

// Ping asks all servers at the same time, each on a new connection, whether
// they answer, and returns their states in the order of Config.Servers. It
// returns by the deadline of ctx, or after counters.DefaultTimeout if that has
// none.
func (s *Store) Ping(ctx context.Context) []counters.ServerStatus {
	states := make([]counters.ServerStatus, len(s.ring.servers))
	var wg sync.WaitGroup
	for i, server := range s.ring.servers {
		wg.Go(func() {
			c := newClient(&clients{server: server, dial: s.dial})
			c.deadline = deadline(ctx)
			err := c.Ping()
			_ = c.Close() // reports nothing that Ping hasn't
			states[i] = counters.ServerStatus{Server: server.address, Err: c.translate("", err)}
		})
	}
	wg.Wait()
	return states
}

// Close closes all connections. Operations under way and later ones fail. The
// error is always nil.
func (s *Store) Close() error { return s.pool.Close() }

// client takes an idle client of the server of key, or makes one, for an
// operation that ends with ctx.
func (s *Store) client(ctx context.Context, key string) *client {
	c := s.clients[s.ring.pick(key)].get()
	c.deadline = deadline(ctx)
	return c
}

// deadline returns when an operation that starts now has to end.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(counters.DefaultTimeout)
}
