package architecture

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"weir/bench/traffic"
	"weir/counters"
	"weir/subwindow"
)

// Weir is the real thing: limiters of the counters and subwindow packages, one
// for each instance, on one store that counts before it answers.
//
// The way to the store takes the same time for all, so that counts get there in
// the order of the requests: a slow store makes an answer late, and doesn't
// change it. Only what a limiter gives back after its answer comes later.
type Weir struct {
	limit    Limit
	turn     turn
	limiters []*counters.SlotLimiter
	store    *sharedStore
}

// begin is the time of day of an arrival at 0: two thirds of a minute, so that
// runs don't begin with a calendar window.
var begin = time.Unix(40, 0)

// clockSkew is weir's default.
const clockSkew = 50 * time.Millisecond

// NewFixed returns so many instances with a fixed window, to which requests are
// sent in turn, and which are away from the store by lag.
func NewFixed(limit Limit, instances int, lag time.Duration) (*Weir, error) {
	return newWeir(limit, instances, lag, limit.Window, func(store counters.Store, cfg counters.SlotConfig) (*counters.SlotLimiter, error) {
		return counters.NewFixedWindow(store, limit.Window, cfg)
	})
}

// NewStrict is NewFixed for the strict sliding window of 60 slots.
func NewStrict(limit Limit, instances int, lag time.Duration) (*Weir, error) {
	window, err := subwindow.NewWindow(limit.Window, 60, true)
	if err != nil {
		return nil, err
	}
	return newWeir(limit, instances, lag, window.Width, func(store counters.Store, cfg counters.SlotConfig) (*counters.SlotLimiter, error) {
		return subwindow.New(store, window, cfg), nil
	})
}

func newWeir(limit Limit, instances int, lag, slot time.Duration, limiter func(counters.Store, counters.SlotConfig) (*counters.SlotLimiter, error)) (*Weir, error) {
	store := &sharedStore{lag: lag}
	store.Memory = counters.NewMemory(func() time.Time { return store.now })
	w := &Weir{limit: limit, turn: turn{instances: instances}, store: store}
	for range instances {
		l, err := limiter(store, counters.SlotConfig{
			Keys: counters.CounterNamespace("weir", "architectures", "limit", slot), ClockSkew: clockSkew, Clients: 1000,
		})
		if err != nil {
			return nil, err
		}
		w.limiters = append(w.limiters, l)
	}
	return w, nil
}

// Take implements Architecture.
func (w *Weir) Take(a traffic.Arrival) (Outcome, error) {
	before := w.store.operations
	now := begin.Add(a.At)
	w.store.advance(now)
	d, err := w.limiters[w.turn.next()].Take(context.Background(), counters.Request{
		Client: strconv.Itoa(a.Client), Cost: 1, Limit: int64(w.limit.Requests), Now: now,
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("weir: %w", err)
	}
	return Outcome{d.Allowed, w.store.operations - before}, nil
}

// Bounds implements Architecture: exactly the limit. For the fixed window, that
// is in calendar windows.
func (w *Weir) Bounds(float64) (least, most float64) {
	return float64(w.limit.Requests), float64(w.limit.Requests)
}

// sharedStore counts operations, and gives back after a lag.
type sharedStore struct {
	*counters.Memory
	now        time.Time
	lag        time.Duration
	refunds    []refund
	operations int
}

type refund struct {
	due   time.Time
	key   string
	delta int64
}

// advance gives back what is due.
func (s *sharedStore) advance(now time.Time) {
	for len(s.refunds) > 0 && !s.refunds[0].due.After(now) {
		r := s.refunds[0]
		s.refunds = s.refunds[1:]
		s.now = r.due
		_ = s.Memory.Subtract(context.Background(), r.key, r.delta) // never fails
	}
	s.now = now
}

// Add implements counters.Store.
func (s *sharedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.operations++
	return s.Memory.Add(ctx, a)
}

// Read implements counters.Store.
func (s *sharedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.operations++
	return s.Memory.Read(ctx, keys, counts)
}

// Subtract implements counters.Store.
func (s *sharedStore) Subtract(_ context.Context, key string, delta int64) error {
	s.operations++
	s.refunds = append(s.refunds, refund{s.now.Add(s.lag), key, delta})
	return nil
}
