package counters

import (
	"sync"

	"github.com/cespare/xxhash/v2"
)

// viewShards is a power of two.
const viewShards = 32

// Views is a bounded cache of what a process knows about clients. When it is
// full, a client that has not been asked about since the last look makes room
// (SIEVE, NSDI 2024), so that the busy ones stay. Use NewViews; it is safe for
// concurrent use, but what it holds needs locks of its own.
type Views[V any] struct {
	shards [viewShards]viewsShard[V]
}

type viewsShard[V any] struct {
	mu      sync.Mutex
	most    int
	entries map[string]*viewEntry[V]
	newest  *viewEntry[V]
	oldest  *viewEntry[V]
	hand    *viewEntry[V] // where the search for room goes on; nil means oldest

	_ [64]byte // keeps the locks of neighbours off one cache line
}

type viewEntry[V any] struct {
	client       string
	asked        bool // since the hand was here
	newer, older *viewEntry[V]
	view         V
}

// NewViews returns an empty cache for at least most clients, and at most
// viewShards-1 more; for none at all when most is 0.
func NewViews[V any](most int) *Views[V] {
	v := new(Views[V])
	for i := range v.shards {
		v.shards[i].most = (most + viewShards - 1) / viewShards
		v.shards[i].entries = make(map[string]*viewEntry[V])
	}
	return v
}

// Get returns the view of the client: the one there is, or a new one, which is
// the zero V. What is put into a view that has made room for another is lost.
func (v *Views[V]) Get(client string) *V {
	s := v.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[client]; ok {
		e.asked = true
		return &e.view
	}
	e := &viewEntry[V]{client: client}
	if s.most == 0 {
		return &e.view
	}
	if len(s.entries) >= s.most {
		s.evict()
	}
	s.entries[client] = e
	e.older = s.newest
	if s.newest != nil {
		s.newest.newer = e
	} else {
		s.oldest = e
	}
	s.newest = e
	return &e.view
}

// Find returns the view of the client, or nil.
func (v *Views[V]) Find(client string) *V {
	s := v.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[client]; ok {
		e.asked = true
		return &e.view
	}
	return nil
}

// Forget drops the view of the client.
func (v *Views[V]) Forget(client string) {
	s := v.shard(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.entries[client]; ok {
		s.remove(e)
	}
}

// Len returns the number of views held.
func (v *Views[V]) Len() int {
	n := 0
	for i := range v.shards {
		s := &v.shards[i]
		s.mu.Lock()
		n += len(s.entries)
		s.mu.Unlock()
	}
	return n
}

func (v *Views[V]) shard(client string) *viewsShard[V] {
	return &v.shards[xxhash.Sum64String(client)%viewShards]
}

// evict removes the next entry from the hand on that has not been asked about
// since the hand passed it. The caller holds mu.
func (s *viewsShard[V]) evict() {
	e := s.hand
	if e == nil {
		e = s.oldest
	}
	for e.asked {
		e.asked = false
		if e = e.newer; e == nil {
			e = s.oldest
		}
	}
	s.hand = e.newer
	s.remove(e)
}

// remove takes e out. The caller holds mu.
func (s *viewsShard[V]) remove(e *viewEntry[V]) {
	delete(s.entries, e.client)
	if s.hand == e {
		s.hand = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		s.newest = e.older
	}
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		s.oldest = e.newer
	}
	e.newer, e.older = nil, nil
}
