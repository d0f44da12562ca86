// Package memory is a Store and a StateStore inside the process: for a single
// instance, for trials, and for simulations, which pass their own clock. It
// never fails and starts no goroutine. Each write removes a few items that have
// expired, so it holds little more than what is alive.
//
// Its counts end with the process, and no other process sees them. Start with
// New.
package memory

import (
	"bytes"
	"container/heap"
	"context"
	"hash/maphash"
	"sync"
	"time"

	"weir/counters"
)

const shardCount = 64

// expiredPerWrite is how many expired items an Add or a Swap removes at most. A
// write creates at most one item, so with two the expired ones don't pile up.
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
	expiries expiryHeap
	version  uint64 // of the newest state
}

// item is a counter or a state.
type item struct {
	count   int64
	state   counters.State
	expires int64 // Unix nanoseconds
	due     int64 // when the heap has it; before expires if that was extended
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
	c := s.live(a.Key, now)
	if c == nil && a.Have {
		s.mu.Unlock()
		return 0, counters.ErrLost
	}
	if c == nil {
		c = s.create(a.Key, now, a.TTL)
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
		if c := s.live(key, now); c != nil {
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
	if c := s.live(key, now); c != nil {
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
	c := s.live(f.Key, now)
	if c == nil {
		c = s.create(f.Key, now, f.TTL)
	}
	if c.count < f.Count {
		c.count, c.expires = f.Count, now+int64(f.TTL)
	}
	s.expire(now)
}

// Load implements counters.StateStore.
func (m *Store) Load(_ context.Context, key string) (counters.State, error) {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if item := s.live(key, m.now().UnixNano()); item != nil {
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
	item := s.live(key, now)
	if item == nil {
		if old.Exists() {
			return counters.State{}, false, nil
		}
		item = s.create(key, now, ttl)
	} else if item.state.Version != old.Version {
		return item.state, false, nil
	}
	s.version++
	item.state = counters.State{Value: bytes.Clone(value), Version: s.version}
	item.expires = now + int64(ttl)
	state := item.state
	s.expire(now)
	return state, true, nil
}

// Put implements counters.StateStore.
func (m *Store) Put(_ context.Context, key string, value []byte, ttl time.Duration) error {
	now := m.now().UnixNano()
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	item := s.live(key, now)
	if item == nil {
		item = s.create(key, now, ttl)
	}
	s.version++
	item.state = counters.State{Value: bytes.Clone(value), Version: s.version}
	item.expires = now + int64(ttl)
	s.expire(now)
	return nil
}

// Delete implements counters.Store.
func (m *Store) Delete(_ context.Context, keys []string) error {
	for _, key := range keys {
		s := m.shard(key)
		s.mu.Lock()
		delete(s.items, key)
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

// live returns the item at key, or nil if there is none or it has expired. It
// is the shard's own: the caller holds mu for as long as it uses it.
func (s *shard) live(key string, now int64) *item {
	item := s.items[key]
	if item == nil || item.expires <= now {
		return nil
	}
	return item
}

// create puts a new item at key and returns it, as live does.
func (s *shard) create(key string, now int64, ttl time.Duration) *item {
	expires := now + int64(ttl)
	item := &item{expires: expires, due: expires}
	s.items[key] = item
	heap.Push(&s.expiries, expiry{at: expires, key: key})
	return item
}

// expire removes a few items whose time has come. The caller holds mu.
func (s *shard) expire(now int64) {
	for range expiredPerWrite {
		if len(s.expiries) == 0 || s.expiries[0].at > now {
			return
		}
		e := heap.Pop(&s.expiries).(expiry)
		item, ok := s.items[e.key]
		switch {
		case !ok || item.due != e.at:
			// It was deleted, and perhaps created anew.
		case item.expires > now:
			item.due = item.expires
			heap.Push(&s.expiries, expiry{at: item.due, key: e.key})
		default:
			delete(s.items, e.key)
		}
	}
}

type expiry struct {
	at  int64
	key string
}

// expiryHeap has the earliest expiry first.
type expiryHeap []expiry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiryHeap) Push(x any)        { *h = append(*h, x.(expiry)) }
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = expiry{}
	*h = (*h)[:last]
	return e
}
