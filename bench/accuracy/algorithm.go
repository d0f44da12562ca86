// Package accuracy runs weir's own limiters on the embedded store in virtual
// time, beside an exact log of the same requests, and measures how far what
// they believe is from what is true.
package accuracy

import (
	"context"
	"fmt"
	"time"

	"weir/cas"
	"weir/counters"
	"weir/subwindow"
)

// Window is the window of all limits.
const Window = time.Minute

// A Limiter is one of weir's.
type Limiter interface {
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	Peek(ctx context.Context, r counters.Request) (counters.Decision, error)
}

// An Algorithm is one that is measured.
type Algorithm struct {
	Name string
	// Slots is the number of sub-windows; 0 for a fixed window and for all that
	// isn't counters.
	Slots  int
	Strict bool
	// Counters says that it is a window made of counters.
	Counters bool
	// Bucket says that its estimate is what a bucket holds, which is no count of
	// a window.
	Bucket bool

	limiter func(s store, limit int64, clients int, countDenied bool) (Limiter, error)
}

// Names of algorithms.
const (
	Fixed     = "fixed"
	Sliding1  = "N=1"
	Sliding4  = "N=4"
	Sliding60 = "N=60"
	Strict60  = "strict N=60"
	Leaky     = "leaky"
	Log       = "log"
)

// store is what all limiters together need.
type store interface {
	counters.Store
	counters.StateStore
}

// Algorithms returns all algorithms.
func Algorithms() []Algorithm {
	return []Algorithm{
		{Name: Fixed, Counters: true, limiter: func(s store, _ int64, clients int, countDenied bool) (Limiter, error) {
			return counters.NewFixedWindow(s, Window, slotConfig(Window, clients, countDenied))
		}},
		sliding(Sliding1, 1, false),
		sliding(Sliding4, 4, false),
		sliding("N=5", 5, false),
		sliding("N=10", 10, false),
		sliding(Sliding60, 60, false),
		sliding(Strict60, 60, true),
		{Name: "token", Bucket: true, limiter: func(s store, _ int64, clients int, countDenied bool) (Limiter, error) {
			return cas.NewTokenBucket(s, Window, 0, stateConfig("token_bucket", clients, countDenied))
		}},
		{Name: Leaky, Bucket: true, limiter: func(s store, _ int64, clients int, countDenied bool) (Limiter, error) {
			return cas.NewLeakyBucket(s, Window, 0, stateConfig("leaky_bucket", clients, countDenied))
		}},
		{Name: Log, limiter: func(s store, limit int64, clients int, countDenied bool) (Limiter, error) {
			return cas.NewSlidingLog(s, Window, limit, stateConfig("sliding_log", clients, countDenied))
		}},
	}
}

func sliding(name string, slots int, strict bool) Algorithm {
	return Algorithm{Name: name, Slots: slots, Strict: strict, Counters: true, limiter: func(s store, _ int64, clients int, countDenied bool) (Limiter, error) {
		w, err := subwindow.NewWindow(Window, slots, strict)
		if err != nil {
			return nil, err
		}
		return subwindow.New(s, w, slotConfig(w.Width, clients, countDenied)), nil
	}}
}

// The only clock has no skew.
func slotConfig(width time.Duration, clients int, countDenied bool) counters.SlotConfig {
	return counters.SlotConfig{Keys: counters.CounterNamespace("weir", "bench", "limit", width), Clients: clients, CountDenied: countDenied}
}

func stateConfig(algorithm string, clients int, countDenied bool) cas.Config {
	return cas.Config{Keys: counters.StateNamespace("weir", "bench", "limit", algorithm), Clients: clients, CountDenied: countDenied}
}

// slot returns the width of the slots that it counts in, or the window.
func (a Algorithm) slot() time.Duration { return Window / time.Duration(max(1, a.Slots)) }

// A subject is a limiter on a store of its own, in virtual time.
type subject struct {
	algorithm Algorithm
	store     store
	limiter   Limiter
	limit     int64 // that decisions are judged by
	feedback  bool
	now       int64 // Unix nanoseconds
	request   counters.Request
}

// epoch is when virtual time begins: on a boundary of every slot.
const epoch = 1_000_000_020 * int64(time.Second) / int64(Window) * int64(Window)

// subject returns a new limiter for a number of clients. With feedback it is the
// limiter as it is: only what it admits counts. Without, it admits all, so that
// each request counts; but a bucket can't hold more than its capacity, so it
// denies, and a denied request fills it, as with count_denied.
func (a Algorithm) subject(limit int64, clients int, feedback bool) (*subject, error) {
	s := &subject{algorithm: a, limit: limit, feedback: feedback, now: epoch, request: counters.Request{Cost: 1, Limit: limit}}
	if !feedback && !a.Bucket {
		s.request.Limit = counters.MaxLimit
		if a.Name == Log {
			s.request.Limit = cas.MaxLogLimit
		}
	}
	var err error
	s.store = counters.NewMemory(func() time.Time { return time.Unix(0, s.now) })
	s.limiter, err = a.limiter(s.store, s.request.Limit, clients, !feedback && a.Bucket)
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
// The estimate is exact, although Remaining is never negative: an estimate grows
// by what is admitted only, and costs are 1, so that it is never above the limit.
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
