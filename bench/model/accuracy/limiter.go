package accuracy

import (
	"context"
	"fmt"
	"time"

	"weir/api/policyfile"
	"weir/bench/internal/algorithms"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

const (
	// window is the window of all limits.
	window = algorithms.Window
	// documentLimit is the limit of the documents that weir follows.
	documentLimit = 100
)

// A subject is a limiter on a store of its own, in virtual time.
type subject struct {
	algorithm algorithms.Algorithm
	limiter   policyfile.Limiter
	limit     int64            // that decisions are judged by
	request   counters.Request // its Now is the virtual time
}

// epoch is when virtual time begins: on a boundary of every slot.
const epoch = 1_000_000_020 * int64(time.Second) / int64(window) * int64(window)

// newSubject returns a new limiter, whose only clock has no skew. With feedback it
// is the limiter as it is: only what it admits counts. Without, one that counts
// admits all, so that each request counts.
func newSubject(a algorithms.Algorithm, limit int64, feedback bool) (*subject, error) {
	s := &subject{algorithm: a, limit: limit, request: counters.Request{Client: "client", Cost: 1, Limit: limit, Now: time.Unix(0, epoch)}}
	if !feedback {
		s.request.Limit = counters.MaxLimit
		if a.Name == algorithms.Log {
			s.request.Limit = cas.MaxLogLimit
		}
	}
	var err error
	store := memory.New(func() time.Time { return s.request.Now })
	s.limiter, err = a.New(store, algorithms.Config{
		Options: algorithms.OneClock("bench", 1), Window: window, Limit: s.request.Limit,
	})
	return s, err
}

// requestAt returns the request of a time, which it is now.
func (s *subject) requestAt(at time.Duration) counters.Request {
	s.request.Now = time.Unix(0, epoch+int64(at))
	return s.request
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
func (s *subject) ask(ctx context.Context, at time.Duration) (answer, error) {
	d, err := s.limiter.Take(ctx, s.requestAt(at))
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
func (s *subject) peek(ctx context.Context, at time.Duration) (int64, error) {
	d, err := s.limiter.Peek(ctx, s.requestAt(at))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.algorithm.Name, err)
	}
	return s.request.Limit - d.Remaining, nil
}
