package accuracy

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"weir/bench/internal/algorithms"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

const (
	// Window is the window of all limits.
	Window = algorithms.Window
	// DocumentLimit is the limit of the documents that weir follows.
	DocumentLimit = 100

	oneClient = "client"
)

// An algorithm is one that is measured.
type algorithm struct{ algorithms.Algorithm }

// all returns all algorithms.
func all() []algorithm {
	var all []algorithm
	for _, a := range algorithms.All {
		all = append(all, algorithm{a})
	}
	return all
}

// counters reports whether it is a window made of counters.
func (a algorithm) counters() bool { return a.Kind == algorithms.Counters }

// bucket reports whether its estimate is what a bucket holds, which is no count
// of a window.
func (a algorithm) bucket() bool { return a.Kind == algorithms.Bucket }

// judgesByLimit reports whether its estimate depends on the limit, so that there
// is none of requests that no limit is put on.
func (a algorithm) judgesByLimit() bool {
	return a.Capped || a.Kind == algorithms.Times && a.Name != algorithms.Log
}

// exact reports whether it promises never to admit more than the limit in any
// window.
func (a algorithm) exact() bool { return a.Strict || a.Kind == algorithms.Times }

// limiter returns a new limiter. The only clock has no skew.
func (a algorithm) limiter(s algorithms.Store, limit int64, clients int, countDenied bool) (algorithms.Limiter, error) {
	options := algorithms.OneClock("bench", cmp.Or(clients, -1))
	options.CountDenied = countDenied
	return a.New(s, algorithms.Config{Options: options, Window: Window, Limit: limit})
}

// A subject is a limiter on a store of its own, in virtual time.
type subject struct {
	algorithm algorithm
	store     algorithms.Store
	limiter   algorithms.Limiter
	limit     int64 // that decisions are judged by
	feedback  bool
	now       int64 // Unix nanoseconds
	request   counters.Request
}

// epoch is when virtual time begins: on a boundary of every slot.
const epoch = 1_000_000_020 * int64(time.Second) / int64(Window) * int64(Window)

// subject returns a new limiter for a number of clients. With feedback it is
// the limiter as it is: only what it admits counts. Without, it admits all, so
// that each request counts; but a bucket can't hold more than its capacity, so
// it denies, and a denied request fills it, as with count_denied. One that
// judges by its limit has feedback always.
func (a algorithm) subject(limit int64, clients int, feedback bool) (*subject, error) {
	s := &subject{algorithm: a, limit: limit, feedback: feedback, now: epoch, request: counters.Request{Cost: 1, Limit: limit}}
	if !feedback && !a.bucket() {
		s.request.Limit = counters.MaxLimit
		if a.Name == algorithms.Log {
			s.request.Limit = cas.MaxLogLimit
		}
	}
	var err error
	s.store = memory.New(func() time.Time { return time.Unix(0, s.now) })
	s.limiter, err = a.limiter(s.store, s.request.Limit, clients, !feedback && a.bucket())
	return s, err
}

// An answer is a decision and what it was based on.
type answer struct {
	// estimate is how much of the limit the limiter took to be in use, the
	// request not included.
	estimate int64
	allowed  bool
	wait     time.Duration
}

// ask decides a request. Times must not go back.
//
// The estimate is exact, although Remaining is never negative: an estimate
// grows by what is admitted only, and costs are 1, so that it is never above
// the limit.
func (s *subject) ask(ctx context.Context, client string, at time.Duration) (answer, error) {
	s.now = epoch + int64(at)
	s.request.Client, s.request.Now = client, time.Unix(0, s.now)
	d, err := s.limiter.Take(ctx, s.request)
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", s.algorithm.Name, err)
	}
	a := answer{estimate: s.request.Limit - d.Remaining, allowed: d.Allowed, wait: d.Wait}
	if d.Allowed {
		a.estimate--
	}
	if s.request.Limit != s.limit {
		if !d.Allowed {
			return answer{}, fmt.Errorf("%s: more than %d requests in a window", s.algorithm.Name, s.request.Limit)
		}
		a.allowed = a.estimate < s.limit
	}
	return a, nil
}

// peek returns the estimate at a time and counts nothing.
func (s *subject) peek(ctx context.Context, client string, at time.Duration) (int64, error) {
	s.now = epoch + int64(at)
	s.request.Client, s.request.Now = client, time.Unix(0, s.now)
	d, err := s.limiter.Peek(ctx, s.request)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.algorithm.Name, err)
	}
	return s.request.Limit - d.Remaining, nil
}

// keysOfColdCheck returns how many keys a check names to the store that is the
// first of its process for a client that has been busy for longer than the
// window: what it counts in or replaces, and what it reads.
func (a algorithm) keysOfColdCheck(ctx context.Context) (int, error) {
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
	counting := &countingStore{Store: s.store, keys: make(map[string]bool)}
	s.limiter, err = a.limiter(counting, DocumentLimit, 1, false)
	if err != nil {
		return 0, err
	}
	_, err = s.ask(ctx, oneClient, at)
	return len(counting.keys), err
}

// countingStore notes the keys that are asked for. It is for one goroutine.
type countingStore struct {
	algorithms.Store
	keys map[string]bool
}

func (c *countingStore) note(keys ...string) {
	for _, key := range keys {
		c.keys[key] = true
	}
}

// Add implements counters.Store.
func (c *countingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	c.note(a.Key)
	c.note(a.Read...)
	return c.Store.Add(ctx, a)
}

// Read implements counters.Store.
func (c *countingStore) Read(ctx context.Context, keys []string, counts []int64) error {
	c.note(keys...)
	return c.Store.Read(ctx, keys, counts)
}

// Load implements counters.StateStore.
func (c *countingStore) Load(ctx context.Context, key string) (counters.State, error) {
	c.note(key)
	return c.Store.Load(ctx, key)
}

// Swap implements counters.StateStore.
func (c *countingStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	c.note(key)
	return c.Store.Swap(ctx, key, old, value, ttl)
}
