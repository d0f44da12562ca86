// Package memcached is the Store and the StateStore on Memcached servers.
//
// All keys of a client live on one server, which a hash of the client chooses:
// the order of the servers doesn't matter, and a new server moves only the
// clients that it takes over. Each operation ends by its deadline, dialing
// included. Commands that belong together share a round trip. A server that
// doesn't answer costs time only until its breaker opens; from then on its
// operations fail at once, until a probe is answered. Nothing is moved to
// another server meanwhile: two processes that disagree about who is down would
// each count a client from 0.
//
// What Memcached loses (by eviction, a restart or flush_all) is lost to the
// store; limiters put back what they remember. Start with New.
package memcached

import (
	"cmp"
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
	// Timeout is how long the contexts of operations leave them at most; 0 means
	// counters.DefaultTimeout. A server that takes longer is as good as down.
	Timeout time.Duration
	// User and Password are sent to servers that ask for authentication (the
	// option -Y of Memcached) when User isn't empty.
	User, Password string
}

// A Store is a counters.Store and a counters.StateStore on Memcached. Make
// one with New: the zero Store isn't usable. It is safe for concurrent use.
type Store struct {
	ring    *ring
	pool    *pipeline.Pool
	clients []clients // of the ring's servers
}

// New returns a store on the servers of cfg. It doesn't connect: the first
// operation does. The error says what is wrong with the servers' names.
func New(cfg Config) (*Store, error) {
	ring, err := newRing(cfg.Servers)
	if err != nil {
		return nil, err
	}
	return newStore(ring, pipeline.Dialer(cfg.TLS, cfg.User, cfg.Password), cmp.Or(cfg.Timeout, counters.DefaultTimeout)), nil
}

func newStore(r *ring, dial pipeline.DialFunc, timeout time.Duration) *Store {
	s := &Store{ring: r, pool: pipeline.New(dial), clients: make([]clients, len(r.servers))}
	for i, server := range r.servers {
		cs := &s.clients[i]
		cs.server, cs.dial, cs.timeout = server, s.pool.DialContext, timeout
		cs.breaker.silence, cs.breaker.run = silence(timeout), s.pool.Go
		cs.breaker.probe = func() { _ = cs.ask(probeTimeout, "version\r\n", checkVersion) } // the breaker is told
	}
	return s
}

// Add implements counters.Store with incr; when the counter doesn't exist, add
// and incr. The commands that are known to be needed go out together.
func (s *Store) Add(ctx context.Context, a counters.Addition) (int64, error) {
	c, err := s.client(ctx, a.Key)
	if err != nil {
		return 0, err
	}
	defer c.release()
	for range addAttempts {
		var n int64
		var found bool
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
	c, err := s.client(ctx, keys[0])
	if err != nil {
		return err
	}
	defer c.release()
	return c.translate(keys[0], c.read(keys, counts))
}

// Subtract implements counters.Store with decr.
func (s *Store) Subtract(ctx context.Context, key string, delta int64) error {
	c, err := s.client(ctx, key)
	if err != nil {
		return err
	}
	defer c.release()
	if _, err := c.Decrement(key, uint64(delta)); !errors.Is(err, memcache.ErrCacheMiss) {
		return c.translate(key, err)
	}
	return nil
}

// Load implements counters.StateStore with gets.
func (s *Store) Load(ctx context.Context, key string) (counters.State, error) {
	c, err := s.client(ctx, key)
	if err != nil {
		return counters.State{}, err
	}
	defer c.release()
	state, err := c.load(key)
	return state, c.translate(key, err)
}

// Swap implements counters.StateStore with cas, or add when there is nothing to
// replace. The answer to those doesn't tell the version, so a gets goes out
// with them.
func (s *Store) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	c, err := s.client(ctx, key)
	if err != nil {
		return counters.State{}, false, err
	}
	defer c.release()
	state, swapped, err := c.swap(key, old, value, ttl)
	return state, swapped, c.translate(key, err)
}

// Put implements counters.StateStore with set.
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	c, err := s.client(ctx, key)
	if err != nil {
		return err
	}
	defer c.release()
	return c.translate(key, c.Set(&memcache.Item{Key: key, Value: value, Expiration: expiration(ttl, time.Now())}))
}

// Delete implements counters.Store. All commands go out together.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	c, err := s.client(ctx, keys[0])
	if err != nil {
		return err
	}
	defer c.release()
	return c.translate(keys[0], c.delete(keys))
}

// Ping returns the states of all servers, in the order of Config.Servers, which
// are a second old at most. It asks those whose breakers are closed, all at the
// same time, and gives each as long as failing operations take to open its
// breaker, at most a second. One that doesn't answer by then is down.
func (s *Store) Ping() []counters.ServerStatus {
	states := make([]counters.ServerStatus, len(s.clients))
	var wg sync.WaitGroup
	for i := range s.clients {
		wg.Go(func() {
			states[i] = s.clients[i].ping()
			states[i].Stats = s.clients[i].stats.Load()
		})
	}
	wg.Wait()
	return states
}

// Close closes all connections. Operations under way and later ones fail. The
// error is always nil.
func (s *Store) Close() error { return s.pool.Close() }

// client takes an idle client of the server of key, or makes one, for an
// operation that ends with ctx. The error says why nothing is sent: the breaker
// is open, or the time is over. Only after a failure is that worth a look at the
// clock: it ends what a batch still has to ask when its time is over.
func (s *Store) client(ctx context.Context, key string) (*client, error) {
	cs, deadline := &s.clients[s.ring.pick(key)], deadline(ctx)
	if cs.breaker.suspect.Load() {
		if err := cs.breaker.refuse(); err != nil {
			cs.breaker.refused.Add(1)
			return nil, err
		}
		if !time.Now().Before(deadline) {
			return nil, errOverdue
		}
	}
	return cs.get(deadline), nil
}

// deadline returns when an operation that starts now has to end.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(counters.DefaultTimeout)
}
