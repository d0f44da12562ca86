package counters

import (
	"container/heap"
	"context"
	"math"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

const memoryShards = 64

// expiredPerAdd is how many expired counters an Add may have to remove. Two
// for each that is created keeps the store no larger than what is alive.
const expiredPerAdd = 2

// Memory is a Store inside the process: for a single instance, for trials and
// for simulations. It holds what has not expired and little more, runs no
// goroutine, and never fails. Use NewMemory; it is safe for concurrent use.
type Memory struct {
	now    func() time.Time
	shards [memoryShards]memoryShard
}

type memoryShard struct {
	mu       sync.Mutex
	counters map[string]memoryCounter
	expiries expiryHeap
}

type memoryCounter struct {
	value   int64
	expires int64 // Unix nanoseconds
}

// NewMemory returns an empty store whose counters expire by the clock now; nil
// means time.Now.
func NewMemory(now func() time.Time) *Memory {
	if now == nil {
		now = time.Now
	}
	m := &Memory{now: now}
	for i := range m.shards {
		m.shards[i].counters = make(map[string]memoryCounter)
	}
	return m
}

// Add implements Store.
func (m *Memory) Add(_ context.Context, a Addition) (int64, error) {
	now := m.now().UnixNano()
	s := m.shard(a.Key)
	s.mu.Lock()
	c, ok := s.live(a.Key, now)
	if ok {
		c.value += a.Delta
	} else {
		c = memoryCounter{value: a.Delta, expires: now + int64(a.TTL)}
		heap.Push(&s.expiries, expiry{at: c.expires, key: a.Key})
	}
	s.counters[a.Key] = c
	s.expire(now)
	s.mu.Unlock()
	m.read(now, a.Read, a.Counts)
	return c.value, nil
}

// Read implements Store.
func (m *Memory) Read(_ context.Context, keys []string, counts []int64) error {
	m.read(m.now().UnixNano(), keys, counts)
	return nil
}

func (m *Memory) read(now int64, keys []string, counts []int64) {
	for i, key := range keys {
		s := m.shard(key)
		s.mu.Lock()
		c, _ := s.live(key, now)
		s.mu.Unlock()
		counts[i] = c.value
	}
}

// Subtract implements Store.
func (m *Memory) Subtract(_ context.Context, key string, delta int64) error {
	now := m.now().UnixNano()
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.live(key, now); ok {
		c.value = max(0, c.value-delta)
		s.counters[key] = c
	}
	return nil
}

// Delete implements Store.
func (m *Memory) Delete(_ context.Context, keys []string) error {
	for _, key := range keys {
		s := m.shard(key)
		s.mu.Lock()
		delete(s.counters, key)
		s.mu.Unlock()
	}
	return nil
}

// Len returns the number of counters held, expired ones that are still to be
// removed included.
func (m *Memory) Len() int {
	n := 0
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		n += len(s.counters)
		s.mu.Unlock()
	}
	return n
}

func (m *Memory) shard(key string) *memoryShard {
	return &m.shards[xxhash.Sum64String(key)%memoryShards]
}

// live returns the counter at key unless it has expired. The caller holds mu.
func (s *memoryShard) live(key string, now int64) (memoryCounter, bool) {
	c, ok := s.counters[key]
	if !ok || c.expires <= now {
		return memoryCounter{}, false
	}
	return c, true
}

// expire removes a few counters whose time has come. The caller holds mu.
func (s *memoryShard) expire(now int64) {
	for range expiredPerAdd {
		if s.expiries.next() > now {
			return
		}
		e := heap.Pop(&s.expiries).(expiry)
		// The key may have been deleted and created anew since.
		if c, ok := s.counters[e.key]; ok && c.expires == e.at {
			delete(s.counters, e.key)
		}
	}
}

type expiry struct {
	at  int64
	key string
}

// expiryHeap has the earliest expiry first.
type expiryHeap []expiry

// next returns the earliest expiry, or the end of time.
func (h expiryHeap) next() int64 {
	if len(h) == 0 {
		return math.MaxInt64
	}
	return h[0].at
}

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
