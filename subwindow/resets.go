package subwindow

import (
	"context"
	"math"
	"time"

	"weir/counters"
)

// refundLife returns how long after its request a refund may still come: a
// check and then two tries, on a clock that may be wrong.
func (s *slots) refundLife() time.Duration { return 4*s.options.StoreTimeout + s.options.ClockSkew }

// markLife returns how long the mark of a reset is kept.
func (s *slots) markLife() time.Duration {
	return counters.TTL(s.refundLife(), s.window.Horizon)
}

// The parts of a mark, above a sum of milliseconds: how many resets have begun,
// and how many are done.
const (
	resetBegun = 1 << 24
	resetDone  = 1 << 44
)

// mark adds to the mark of a reset at now, which is kept for each second: first
// resetBegun and the millisecond of that second, counted from 1, and in the end
// resetDone and how many milliseconds it took. So it says when the reset was
// over.
func (s *slots) mark(ctx context.Context, prefix string, now time.Time, delta int64) error {
	_, err := s.store.Add(ctx, counters.Addition{
		Key: counters.ResetKey(prefix, now.Unix()), Delta: delta, TTL: s.markLife(), New: delta < resetDone,
	})
	return err
}

// marks returns the keys of the marks of resets that may have come since
// requests from first to last, newest first.
func (s *slots) marks(prefix string, first, last time.Time) []string {
	from, to := first.Add(-s.window.Horizon).Unix(), last.Add(s.refundLife()).Unix()
	keys := make([]string, 0, to-from+1)
	for second := to; second >= from; second-- {
		keys = append(keys, counters.ResetKey(prefix, second))
	}
	return keys
}

// resetUntil returns until when requests may have been counted before the last
// reset, in milliseconds since 1970, by the counts of marks up to last;
// -1<<63 if there was none. Two resets in a second are taken for one that took
// longer.
func (s *slots) resetUntil(last time.Time, counts []int64) int64 {
	to := last.Add(s.refundLife()).Unix()
	for i, n := range counts {
		if n > 0 {
			after := s.options.ClockSkew
			if n/resetDone < n%resetDone/resetBegun {
				after = s.window.Horizon // one is under way, or has failed
			}
			return (to-int64(i))*1000 + n%resetBegun + after.Milliseconds()
		}
	}
	return math.MinInt64
}

// lastDone returns when the last reset was over, in milliseconds since 1970, by
// the counts of marks up to last; -1<<63 if there was none, or nobody can tell.
func (s *slots) lastDone(last time.Time, counts []int64) int64 {
	to := last.Add(s.refundLife()).Unix()
	for i, n := range counts {
		if n/resetDone == 1 && n%resetDone/resetBegun == 1 {
			return (to-int64(i))*1000 + n%resetBegun
		}
	}
	return math.MinInt64
}
