// Package memcached is the Store and the StateStore on Memcached servers.
//
// All keys of a client live on one server, which a hash of the client chooses:
// the order of the servers doesn't matter, and a new server moves only the
// clients that it takes over. Each operation ends by its deadline, dialing
// included. Commands that belong together share a round trip. A server that
// doesn't answer costs time only until its breaker opens; from then on its
// operations fail at once, until a probe is answered. Nothing is moved to
// another server meanwhile: two processes that disagree about who is down would
// each count a client from 0. Only names that are looked up again change the
// servers, for all processes alike.
//
// A counter is made and counted in by add and incr, which go out together. The
// meta command ma does both at once, but older servers and mcrouter don't know
// it. It would spare Memcached 0.4 to 1.1 us per slot that begins, of the 40 us
// and more that a check costs in all (BenchmarkFirstTouch).
//
// What Memcached loses (by eviction, a restart or flush_all) is lost to the
// store; limiters put back what they remember. Start with New.
package memcached

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

// attempts bounds the loops incr, add, incr and gets, cas: each further round
// means that the counter was created and lost again in between, or changed.
const attempts = 4

// Config configures a Store.
type Config struct {
	// Servers are at least one of these, none twice, in any order:
	//
	//	host:port               a server; the text decides which clients it keeps
	//	/path/to.sock           the same at a unix socket
	//	dns+host:port           a server at each address of the host: at each IPv6
	//	                        address if it has no IPv4 address
	//	dnssrv+_name._tcp.host  the servers that the SRV records name
	//	cluster+host:port       the servers that host:port answers to the command
	//	                        "config get cluster"
	Servers []string
	// TLS is used to connect when it isn't nil.
	TLS *tls.Config
	// Timeout is the longest time that contexts give an operation, at most
	// counters.MaxTimeout; 0 means counters.DefaultTimeout. It ends none: it tells
	// when a server that doesn't answer is as good as down.
	Timeout time.Duration
	// User and Password are sent to servers that ask for authentication (the
	// option -Y of Memcached) when User isn't empty.
	User, Password string
}

// A Store is a counters.Store and a counters.StateStore on Memcached. Make
// one with New: the zero Store isn't usable. It is safe for concurrent use.
type Store struct {
	dial       func(*server) pipeline.DialFunc
	timeout    time.Duration
	access     *atomic.Pointer[Config] // how to connect
	membership membership              // only New and Watch use it
	members    atomic.Pointer[members]

	running sync.WaitGroup // what is to be done for servers that have left
	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex // of what changes members, and of Close
	joined  uint64     // servers, ever
}

// members are the servers of a moment. They never change.
type members struct {
	ring     *ring
	backends []*backend              // of the ring's servers, in its order
	missing  []counters.ServerStatus // names that no servers are known of
}

// CheckServers returns what is wrong with the names of servers, as New would, and looks
// none of them up.
func CheckServers(names []string) error {
	_, err := newMembership(names, lookups{})
	return err
}

// New returns a store on the servers of cfg. It looks their names up, for two
// seconds at most, but connects to none: the first operation does. The error
// says what is wrong with cfg; a name that isn't found is no error, as Watch
// looks it up again.
func New(cfg Config) (*Store, error) {
	if cfg.Timeout < 0 || cfg.Timeout > counters.MaxTimeout {
		return nil, fmt.Errorf("timeout %v must be from 0 to %v", cfg.Timeout, counters.MaxTimeout)
	}
	access := new(atomic.Pointer[Config])
	access.Store(&cfg)
	dial := func(to *server) pipeline.DialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			return access.Load().dialer(to)(ctx, network, address)
		}
	}
	s, err := newStore(cfg, dial, net.DefaultResolver)
	if err != nil {
		return nil, err
	}
	s.access = access
	return s, nil
}

// SetAccess replaces TLS, User and Password of the Config for the connections that
// are opened from now on. Those that are open stay.
func (s *Store) SetAccess(config *tls.Config, user, password string) {
	s.access.Store(&Config{TLS: config, User: user, Password: password})
}

// dialer returns how to connect to a server.
func (cfg Config) dialer(s *server) pipeline.DialFunc {
	config := cfg.TLS
	if config != nil && s.host != "" {
		config = config.Clone()
		config.ServerName = cmp.Or(config.ServerName, s.host)
	}
	return pipeline.Dialer(config, cfg.User, cfg.Password)
}

func newStore(cfg Config, dial func(*server) pipeline.DialFunc, r resolver) (*Store, error) {
	m, err := newMembership(cfg.Servers, lookups{r, dial})
	if err != nil {
		return nil, err
	}
	s := &Store{dial: dial, timeout: cmp.Or(cfg.Timeout, counters.DefaultTimeout), membership: m}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.members.Store(new(members))
	ctx, cancel := context.WithTimeout(s.ctx, firstLookUp)
	defer cancel()
	m.lookUp(ctx, time.Now())
	s.adopt()
	return s, nil
}

// adopt makes the servers of the membership the store's. Those that stay keep
// their backends. The connections of those that have left are closed when the
// operations on them have ended.
func (s *Store) adopt() (joined, left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, nil
	}
	old := s.members.Load().backends
	leaving := make(map[server]*backend, len(old))
	for _, b := range old {
		leaving[*b.server] = b
	}
	next := &members{ring: &ring{s.membership.servers()}, missing: s.membership.missing()}
	for _, server := range next.ring.servers {
		b := leaving[*server]
		if b == nil {
			s.joined++
			b = newBackend(server, s.joined, s.dial(server), s.timeout, s.run)
			joined = append(joined, server.name)
		}
		delete(leaving, *server)
		next.backends = append(next.backends, b)
	}
	s.members.Store(next)
	for _, b := range leaving {
		left = append(left, b.server.name)
		b.retire()
		s.running.Go(func() {
			select {
			case <-b.unused:
			case <-s.ctx.Done():
			}
			b.close()
		})
	}
	slices.Sort(left)
	return joined, left
}

// run runs f in a goroutine that Close waits for, unless the store is closed.
func (s *Store) run(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.running.Go(f)
	}
}

// Add implements counters.Store with incr; when the counter doesn't exist, add
// and incr. The commands that are known to be needed go out together.
func (s *Store) Add(ctx context.Context, a counters.Addition) (int64, error) {
	c, err := s.session(ctx, a.Key)
	if err != nil {
		return 0, err
	}
	defer c.release()
	for range attempts {
		var n int64
		found, incr := false, incrNumber(a)
		if err = c.exchange(0, appendGets(appendAddition(c.text[:0], a), "get", a.Read)); err == nil {
			n, found, err = c.parseAddition(a, incr)
		}
		if found && err == nil {
			err = c.parseCounts(incr+1, a.Read, a.Counts, nil)
		}
		if found || err != nil {
			return n, c.unanswered(err, incr, outcomeOf)
		}
		if a.Have {
			return 0, counters.ErrLost
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
	return s.with(ctx, keys[0], func(c *session) error {
		if err := c.exchange(0, appendGets(c.text[:0], "get", keys)); err != nil {
			return err
		}
		return c.parseCounts(0, keys, counts, nil)
	})
}

// Subtract implements counters.Store with decr.
func (s *Store) Subtract(ctx context.Context, key string, delta int64) error {
	return s.with(ctx, key, func(c *session) error {
		err := c.exchange(0, appendCount(c.text[:0], "decr", key, delta))
		if err == nil {
			_, _, err = parseCount(key, c.conn.Reply(0))
		}
		return err
	})
}

// Raise implements counters.Store with gets, and add or cas.
func (s *Store) Raise(ctx context.Context, floors []counters.Floor) error {
	if len(floors) == 0 {
		return nil
	}
	return s.with(ctx, floors[0].Key, func(c *session) (err error) {
		for range attempts {
			if floors, err = c.raise(floors); len(floors) == 0 || err != nil {
				return err
			}
		}
		return fmt.Errorf("the counter %q changes all the time", floors[0].Key)
	})
}

// Load implements counters.StateStore with gets.
func (s *Store) Load(ctx context.Context, key string) (state counters.State, err error) {
	err = s.with(ctx, key, func(c *session) error {
		state, err = c.load(key)
		return err
	})
	return state, err
}

// Swap implements counters.StateStore with cas, or add when there is nothing to
// replace. The answer to those doesn't tell the version, so a gets goes out
// with them.
func (s *Store) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	c, err := s.session(ctx, key)
	if err != nil {
		return counters.State{}, false, err
	}
	defer c.release()
	state, swapped, err := c.swap(key, old, value, ttl)
	return state, swapped, c.unanswered(err, 0, outcomeOf)
}

// Put implements counters.StateStore with set.
func (s *Store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return s.with(ctx, key, func(c *session) error {
		return c.Set(&memcache.Item{Key: key, Value: value, Expiration: expiration(ttl)})
	})
}

// Delete implements counters.Store. All commands go out together.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	return s.with(ctx, keys[0], func(c *session) error { return c.delete(keys) })
}

// Ping returns the states of all servers, in the order of Config.Servers, which
// are a second old at most, and then of the names that no server is known of.
// It asks the servers whose breakers are closed, all at the same time, and
// gives each as long as failing operations take to open its breaker, at most a
// second. One that doesn't answer by then is down.
func (s *Store) Ping() []counters.ServerStatus {
	m := s.members.Load()
	states := make([]counters.ServerStatus, len(m.backends))
	var wg sync.WaitGroup
	for i, b := range m.backends {
		wg.Go(func() {
			states[i] = b.ping()
			states[i].Stats = b.stats.Load()
		})
	}
	wg.Wait()
	return append(states, m.missing...)
}

// Close closes all connections. Operations under way and later ones fail. The
// error is always nil.
func (s *Store) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	for _, b := range s.members.Load().backends {
		b.close()
	}
	s.running.Wait()
	return nil
}

// Undecided counts a check of client that was decided without its server, because
// of err, for Watch to tell.
func (s *Store) Undecided(client string, err error) {
	if m := s.members.Load(); len(m.backends) > 0 {
		b := m.backends[m.ring.pick(anyLimit.StateKey(client))]
		b.cause.Store(&err) // first: who sees the count has a cause
		b.undecided.Add(1)
	}
}

// Server returns the name of the server that keeps key, as Ping does. While no
// server is known, it is the first name that none is known of.
func (s *Store) Server(key string) string {
	m := s.members.Load()
	if len(m.backends) == 0 {
		if len(m.missing) == 0 {
			return ""
		}
		return m.missing[0].Server
	}
	return m.ring.servers[m.ring.pick(key)].name
}

// anyLimit stands for each: all keys of a client are on the same server.
var anyLimit = counters.StateNamespace("", "", "", "")

// session gets an idle session on the server of key, or makes one, for an operation
// that ends with ctx. The error says why nothing is sent.
func (s *Store) session(ctx context.Context, key string) (*session, error) {
	for end := deadline(ctx); ; {
		m := s.members.Load()
		if len(m.backends) == 0 {
			return nil, errNoServers
		}
		b := m.backends[m.ring.pick(key)]
		if err := b.refuse(end); err != nil {
			return nil, err
		}
		if c := b.get(&b.single, end); c != nil {
			return c, nil
		}
		// It has left since members were loaded, so there are others by now.
	}
}

// with calls f with a session on the server of key, and returns a store's error.
func (s *Store) with(ctx context.Context, key string, f func(*session) error) error {
	c, err := s.session(ctx, key)
	if err != nil {
		return err
	}
	defer c.release()
	return c.translate(f(c))
}

// refuse returns why nothing is sent to the server for an operation that ends by
// the deadline, if so: the breaker is open, or the time is over. It looks at the
// clock only after a failure, for what a batch still has to ask.
func (b *backend) refuse(deadline time.Time) error {
	if !b.breaker.suspect.Load() {
		return nil
	}
	err := b.breaker.refuse()
	if err == nil && !time.Now().Before(deadline) {
		err = errOverdue
	}
	return err
}

// deadline returns when an operation that starts now has to end.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(counters.DefaultTimeout)
}
