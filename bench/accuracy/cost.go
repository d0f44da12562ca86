package accuracy

import (
	"context"
	"time"

	"weir/counters"
)

// KeysOfColdCheck returns how many keys a check names to the store that is the
// first of its process for a client that has been busy for longer than the
// window: what it counts in or replaces, and what it reads.
func (a Algorithm) KeysOfColdCheck(ctx context.Context) (int, error) {
	s, err := a.subject(DocumentLimit, 1, true)
	if err != nil {
		return 0, err
	}
	const gap = 700 * time.Millisecond
	at := time.Duration(0)
	for ; at < 2*Window; at += gap {
		if _, err := s.ask(ctx, oneClient, at); err != nil {
			return 0, err
		}
	}
	counting := &countingStore{store: s.store}
	s.limiter, err = a.limiter(counting, DocumentLimit, 1, false)
	if err != nil {
		return 0, err
	}
	_, err = s.ask(ctx, oneClient, at)
	return len(counting.keys), err
}

// countingStore notes the keys that are asked for. It is for one goroutine.
type countingStore struct {
	store
	keys map[string]bool
}

func (c *countingStore) note(keys ...string) {
	if c.keys == nil {
		c.keys = make(map[string]bool)
	}
	for _, key := range keys {
		c.keys[key] = true
	}
}

// Add implements counters.Store.
func (c *countingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	c.note(a.Key)
	c.note(a.Read...)
	return c.store.Add(ctx, a)
}

// Read implements counters.Store.
func (c *countingStore) Read(ctx context.Context, keys []string, counts []int64) error {
	c.note(keys...)
	return c.store.Read(ctx, keys, counts)
}

// Load implements counters.StateStore.
func (c *countingStore) Load(ctx context.Context, key string) (counters.State, error) {
	c.note(key)
	return c.store.Load(ctx, key)
}

// Swap implements counters.StateStore.
func (c *countingStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	c.note(key)
	return c.store.Swap(ctx, key, old, value, ttl)
}
