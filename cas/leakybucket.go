package cas

import (
	"time"

	"weir/counters"
)

// A LeakyBucket is a Limiter: a bucket that drains limit per window and holds
// burst. A request that would overfill it is denied; another one is admitted,
// with the time that it has to wait for its turn.
//
// A request of cost c has c consecutive turns, each of which takes
// window/limit. Wait is the time until its first: until all that was in the
// bucket before has drained, whatever its own cost. So the first request into
// an empty bucket waits 0, and the one after it waits c turns less the time
// since. Wait counts from the state's time when that is ahead of the request's.
// With clocks d apart, turns may come d closer. Make one with NewLeakyBucket;
// its methods are those of Limiter.
type LeakyBucket struct{ limiter }

// NewLeakyBucket returns a limiter by leaky bucket, which holds burst, or the
// limit when burst is 0. The error says what is wrong with the window (see
// counters.CheckWindow), the burst or cfg.
func NewLeakyBucket(store counters.StateStore, window time.Duration, burst int64, cfg Config) (*LeakyBucket, error) {
	b, err := newBucket(formatLeakyBucket, window, burst, cfg.CountDenied)
	l, err := newLimiter(store, b, err, "leaky_bucket", 0, cfg)
	return made(&LeakyBucket{l}, err)
}
