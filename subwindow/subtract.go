package subwindow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir/counters"
)

// A subtraction takes the costs of calls from the slot that they have been
// counted in, but for those that may have been counted before a reset: the marks
// of resets are read first. One goroutine at a time uses it.
type subtraction struct {
	*slots
	calls  []*call
	bucket int64
	prefix string
	last   time.Time // of the calls

	keys   []string // of the marks, which are read into counts
	counts []int64

	assessed bool
	sum      int64 // to be taken
	tells    bool  // others have to be told
}

// subtraction returns that of the costs of calls, which are of a client, from
// their slot.
func (s *slots) subtraction(bucket int64, calls []*call) *subtraction {
	prefix := s.keys.Client(calls[0].Request.Client)
	first, last := span(calls)
	keys := s.marks(prefix, first, last)
	return &subtraction{
		slots: s, calls: calls, bucket: bucket, prefix: prefix, last: last,
		keys: keys, counts: make([]int64, len(keys)),
	}
}

// next appends what the store is to do next.
func (s *subtraction) next(to []counters.Addition) []counters.Addition {
	if !s.assessed {
		return append(to, counters.Addition{Read: s.keys, Counts: s.counts})
	}
	if s.sum > 0 {
		to = append(to, counters.Addition{Key: counters.CounterKey(s.prefix, s.bucket), Delta: -s.sum})
	}
	if s.tells {
		to = append(to, s.generationAfter(s.prefix, s.last, 0, changedUnit, mostChanged))
	}
	return to
}

// assess decides by the marks that were read how much is to be taken.
func (s *subtraction) assess(ctx context.Context) {
	reset := s.resetUntil(s.last, s.counts)
	for _, call := range s.calls {
		if call.Request.Now.UnixMilli() > reset {
			s.sum += call.Request.Cost
		}
	}
	s.tells, s.assessed = s.maySettle(ctx, s.bucket), true
}

// took goes on after what next appended has ended, or couldn't begin because of
// err, and reports whether there is more. It returns the sum of what was surely
// taken: after an error, others may not be told. What is surely not taken is
// counters.ErrNotSent.
func (s *subtraction) took(ctx context.Context, added []counters.Added, err error) (more bool, taken int64, _ error) {
	if err == nil && !s.assessed {
		if err = added[0].Err; err == nil {
			s.assess(ctx)
			return s.sum > 0 || s.tells, 0, nil
		}
	}
	if err != nil {
		return false, 0, fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	if s.sum > 0 {
		if err := added[0].Err; err != nil {
			return false, 0, err
		}
	}
	if s.tells {
		err = sent(added[len(added)-1].Err)
	}
	return false, s.sum, err
}

// sent returns err as one of what has begun before, so that nobody begins it
// again.
func sent(err error) error {
	if errors.Is(err, counters.ErrNotSent) {
		return fmt.Errorf("%w: %v", counters.ErrUnavailable, err)
	}
	return err
}

// span returns the times of the first and the last of the calls.
func span(calls []*call) (first, last time.Time) {
	first, last = calls[0].Request.Now, calls[0].Request.Now
	for _, call := range calls {
		if now := call.Request.Now; now.Before(first) {
			first = now
		} else if now.After(last) {
			last = now
		}
	}
	return first, last
}
