// Package cache is a bounded map from clients to what a process knows of them.
// When it is full, a client that nobody has asked about for a while makes room
// (SIEVE, NSDI 2024), so the busy ones stay. Start with New and Get.
package cache

import (
	"hash/maphash"
	"math"
	"sync"
)

// shardCount is a power of two.
const shardCount = 32

// A Cache holds a value of type V for each of a bounded number of keys. Make
// one with New: the zero Cache isn't usable. It is safe for concurrent use, but
// the values need locks of their own.
type Cache[V any] struct {
	seed   maphash.Seed
	shards [shardCount]shard[V]
}

type shard[V any] struct {
	mu      sync.Mutex
	most    int
	entries map[uint64]*entry[V] // by the hashes of their keys, which takes less room
	end     entry[V]             // holds no key: the oldest entry is newer, the newest older
	hand    *entry[V]            // where the search for room goes on

	_ [64]byte // keeps the locks of neighbours off one cache line
}

type entry[V any] struct {
	key          string
	asked        bool // since the hand was here
	newer, older *entry[V]
	value        V
}

// New returns an empty cache for most keys, rounded up to a multiple of 32, or
// for none if most is 0 or less. Any most will do: it takes memory only for the
// keys it holds. Keys are spread by their hashes over 32 parts of the room, so one
// may have to make room a little before the cache is full, and of two whose hashes
// are equal only one is held.
func New[V any](most int) *Cache[V] {
	c := &Cache[V]{seed: maphash.MakeSeed()}
	for i := range c.shards {
		s := &c.shards[i]
		s.most = (min(most, math.MaxInt-shardCount) + shardCount - 1) / shardCount
		s.entries = make(map[uint64]*entry[V])
		s.end.newer, s.end.older, s.hand = &s.end, &s.end, &s.end
	}
	return c
}

// Get returns the value of the key: the one there is, or a new one, which is
// the zero V. It is never nil. A value that makes room for another is lost, and
// what is put into it after that.
func (c *Cache[V]) Get(key string) *V {
	s, hash := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(hash, key); e != nil {
		return &e.value
	}
	e := &entry[V]{key: key}
	if s.most <= 0 {
		return &e.value
	}
	if same := s.entries[hash]; same != nil {
		c.remove(s, same)
	} else if len(s.entries) >= s.most {
		c.evict(s)
	}
	s.entries[hash] = e
	e.newer, e.older = &s.end, s.end.older
	e.newer.older, e.older.newer = e, e
	return &e.value
}

// Find returns the value of the key, or nil if there is none. It asks about the
// key as Get does.
func (c *Cache[V]) Find(key string) *V {
	s, hash := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(hash, key); e != nil {
		return &e.value
	}
	return nil
}

// Forget drops the value of the key.
func (c *Cache[V]) Forget(key string) {
	s, hash := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.find(hash, key); e != nil {
		c.remove(s, e)
	}
}

// Cap returns how many keys can be held.
func (c *Cache[V]) Cap() int { return shardCount * max(0, c.shards[0].most) }

// Len returns the number of keys held.
func (c *Cache[V]) Len() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.entries)
		s.mu.Unlock()
	}
	return n
}

func (c *Cache[V]) shard(key string) (s *shard[V], hash uint64) {
	hash = maphash.String(c.seed, key)
	return &c.shards[hash%shardCount], hash
}

// find returns the entry of the key, or nil. The caller holds mu.
func (s *shard[V]) find(hash uint64, key string) *entry[V] {
	e := s.entries[hash]
	if e == nil || e.key != key {
		return nil
	}
	e.asked = true
	return e
}

// evict removes the next entry from the hand on that has not been asked about
// since the hand passed it. The caller holds the lock of s.
func (c *Cache[V]) evict(s *shard[V]) {
	for s.hand == &s.end || s.hand.asked {
		s.hand.asked = false
		s.hand = s.hand.newer
	}
	c.remove(s, s.hand)
}

// remove takes e out of s. The caller holds its lock.
func (c *Cache[V]) remove(s *shard[V], e *entry[V]) {
	delete(s.entries, maphash.String(c.seed, e.key))
	if s.hand == e {
		s.hand = e.newer
	}
	e.newer.older, e.older.newer = e.older, e.newer
	e.newer, e.older = nil, nil // a value still in use keeps no others alive
}
