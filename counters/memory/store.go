// Package memory is a Store and a StateStore inside the process: for a single
// instance, for trials, and for simulations, which pass their own clock. It
// never waits, so it looks at no deadline, and its only error is ErrLost. It starts
// no goroutine. Each write removes a few items that have expired, and what is
// deleted is gone at once, so it holds little more than what is alive.
//
// Its counts end with the process, and no other process sees them. Start with
// New.
package memory

import (
	"bytes"
	"context"
	"hash/maphash"
	"sync"
	"time"

	"weir/counters"
)

const shardCount = 64

// expiredPerWrite is how many expired items a write removes at most. It creates at
// most one, so with two the expired ones don't pile up.
const expiredPerWrite = 2

// A Store is a counters.Store and a counters.StateStore. Make one with New:
// the zero Store isn't usable. It is safe for concurrent use.
type Store struct {
	now    func() time.Time
	seed   maphash.Seed
	shards [shardCount]shard
}

type shard struct {
	mu       sync.Mutex
	items    map[string]*item
	expiries expiries
	version  uint64 // of the newest state
}

// item is a counter or a state.
type item struct {
	key     string
	count   int64
	state   counters.State
	expires int64 // Unix nanoseconds
	place   int   // in the shard's expiries
}

// New returns an empty store whose contents expire by the clock now; nil means
// time.Now.
func New(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	m := &Store{now: now, seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].items = make(map[string]*item)
	}
	return m
}

// Add implements counters.Store.
func (m *Store) Add(_ context.Context, a counters.Addition) (int64, error) {
	now := m.now().UnixNano()
	s := m.shard(a.Key)
	s.mu.Lock()
	c := s.items[a.Key]
	if !c.live(now) {
		if a.Have {
			s.mu.Unlock()
			return 0, counters.ErrLost
		}
		c = s.begin(c, a.Key, now+int64(a.TTL))
	}
	c.count += a.Delta
	n := c.count
	s.expire(now)
	s.mu.Unlock()
	m.read(now, a.Read, a.Counts)
	return n, nil
}

// Read implements counters.Store.
func (m *Store) Read(_ context.Context, keys []string, counts []int64) error {
	m.read(m.now().UnixNano(), keys, counts)
	return nil
}

func (m *Store) read(now int64, keys []string, counts []int64) {
	for i, key := range keys {
		s := m.shard(key)
		s.mu.Lock()
		counts[i] = counters.Absent
		if c := s.items[key]; c.live(now) {
			counts[i] = c.count
		}
		s.mu.Unlock()
	}
}

// Subtract implements counters.Store.
func (m *Store) Subtract(_ context.Context, key string, delta int64) error {
	now := m.now().UnixNano()
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.items[key]; c.live(now) {
		c.count = max(0, c.count-delta)
	}
	return nil
}

// Raise implements counters.Store.
func (m *Store) Raise(_ context.Context, floors []counters.Floor) error {
	now := m.now().UnixNano()
	for _, f := range floors {
		m.raise(f, now)
	}
	return nil
}

func (m *Store) raise(f counters.Floor, now int64) {
	s := m.shard(f.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	expires := now + int64(f.TTL)
	c := s.items[f.Key]
	if !c.live(now) {
		c = s.begin(c, f.Key, expires)
	}
	if c.count < f.Count {
		c.count = f.Count
		s.renew(c, expires)
	}
	s.expire(now)
}

// Load implements counters.StateStore.
func (m *Store) Load(_ context.Context, key string) (counters.State, error) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if item := s.items[key]; item.live(m.now().UnixNano()) {
		return item.state, nil
	}
	return counters.State{}, nil
}

// Swap implements counters.StateStore.
func (m *Store) Swap(_ context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	now := m.now().UnixNano()
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.items[key]
	var present counters.State
	if item.live(now) {
		present = item.state
	}
	if present.Version != old.Version {
		return present, false, nil
	}
	state := s.put(item, key, value, now, ttl)
	s.expire(now)
	return state, true, nil
}

// Put implements counters.StateStore.
func (m *Store) Put(_ context.Context, key string, value []byte, ttl time.Duration) error {
	now := m.now().UnixNano()
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(s.items[key], key, value, now, ttl)
	s.expire(now)
	return nil
}

// Delete implements counters.Store.
func (m *Store) Delete(_ context.Context, keys []string) error {
	for _, key := range keys {
		s := m.shard(key)
		s.mu.Lock()
		if item := s.items[key]; item != nil {
			s.remove(item)
		}
		s.mu.Unlock()
	}
	return nil
}

// Len returns the number of counters and states held, expired ones that are
// still to be removed included.
func (m *Store) Len() int {
	n := 0
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		n += len(s.items)
		s.mu.Unlock()
	}
	return n
}

func (m *Store) shard(key string) *shard {
	return &m.shards[maphash.String(m.seed, key)%shardCount]
}

// live reports whether there is an item and it hasn't expired. The caller holds
// the shard's mu.
func (c *item) live(now int64) bool { return c != nil && c.expires > now }

// begin returns a new item at key: the one that has expired there, or another
// one if that is nil. The caller holds mu.
func (s *shard) begin(expired *item, key string, expires int64) *item {
	if expired != nil {
		expired.count, expired.state = 0, counters.State{}
		s.renew(expired, expires)
		return expired
	}
	c := &item{key: key, expires: expires}
	s.items[key] = c
	s.expiries = append(s.expiries, expiry{})
	s.expiries.up(len(s.expiries)-1, expiry{expires, c})
	return c
}

// put replaces the state of the item at key, which may be nil or have expired,
// and returns the new one. The caller holds mu.
func (s *shard) put(c *item, key string, value []byte, now int64, ttl time.Duration) counters.State {
	expires := now + int64(ttl)
	if !c.live(now) {
		c = s.begin(c, key, expires)
	}
	s.version++
	c.state = counters.State{Value: bytes.Clone(value), Version: s.version}
	s.renew(c, expires)
	return c.state
}

// renew has c expire at another time. A later one is left to expire, as mostly
// c is renewed again before. The caller holds mu.
func (s *shard) renew(c *item, expires int64) {
	sooner := expires < c.expires
	if c.expires = expires; sooner && expires < s.expiries[c.place].at {
		s.expiries.up(c.place, expiry{expires, c})
	}
}

// expire removes a few items whose time has come. The caller holds mu.
func (s *shard) expire(now int64) {
	for range expiredPerWrite {
		if len(s.expiries) == 0 || s.expiries[0].at > now {
			return
		}
		if first := s.expiries[0].item; first.expires > now {
			s.expiries.down(0, expiry{first.expires, first})
		} else {
			s.remove(first)
		}
	}
}

// remove takes an item out. The caller holds mu.
func (s *shard) remove(c *item) {
	delete(s.items, c.key)
	s.expiries.remove(c.place)
}

// expiry is when an item is looked at: when it expires, or before if that was
// extended.
type expiry struct {
	at   int64
	item *item
}

// expiries are a heap, the earliest first, whose items know their places.
type expiries []expiry

// remove takes out the expiry at place i.
func (h *expiries) remove(i int) {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = expiry{}
	*h = (*h)[:last]
	switch {
	case i == last:
	case i > 0 && e.at < (*h)[(i-1)/2].at:
		h.up(i, e)
	default:
		h.down(i, e)
	}
}

// up puts e at the free place i, or at one nearer to the first.
func (h expiries) up(i int, e expiry) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].at <= e.at {
			break
		}
		h.set(i, h[parent])
		i = parent
	}
	h.set(i, e)
}

// down puts e at the free place i, or at one farther from the first.
func (h expiries) down(i int, e expiry) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].at < h[child].at {
			child++
		}
		if e.at <= h[child].at {
			break
		}
		h.set(i, h[child])
		i = child
	}
	h.set(i, e)
}

func (h expiries) set(i int, e expiry) {
	h[i] = e
	e.item.place = i
}
