package cas

import (
	"fmt"
	"time"

	"weir/counters"
)

// NewTokenBucket returns a limiter by a bucket that fills with limit tokens per window and
// holds burst, or the limit when burst is 0. A request takes its cost in tokens or is denied.
// A new client finds it full.
//
// Remaining is whole tokens, ResetAfter the time until it is full. Admitted are
// at most burst + limit*t/window in any time t; with clocks d apart, as much as
// in t+d, and in d and a store timeout more for each refund that has emptied
// it. The error says what is wrong with the window (see counters.CheckWindow), the burst or cfg.
func NewTokenBucket(store counters.StateStore, window time.Duration, burst int64, cfg Config) (*Limiter, error) {
	b, err := newBucket(formatTokenBucket, window, burst, cfg.CountDenied) // its level is the tokens that are missing
	return newLimiter(store, b, err, "token_bucket", 0, cfg)
}

// NewLeakyBucket returns a limiter by a bucket that drains limit per window and holds burst,
// or the limit when burst is 0. A request that would overfill it is denied; another one is
// admitted, with the time that it has to wait for its turn.
//
// A request of cost c has c consecutive turns, each of which takes
// window/limit. Wait is the time until its first: until all that was in the
// bucket before has drained, whatever its own cost. So the first request into
// an empty bucket waits 0, and the one after it waits c turns less the time
// since. Wait counts from the state's time when that is ahead of the request's.
// With clocks d apart, turns may come d closer. The error says what is wrong with the window
// (see counters.CheckWindow), the burst or cfg.
func NewLeakyBucket(store counters.StateStore, window time.Duration, burst int64, cfg Config) (*Limiter, error) {
	b, err := newBucket(formatLeakyBucket, window, burst, cfg.CountDenied)
	return newLimiter(store, b, err, "leaky_bucket", 0, cfg)
}

// newBucket returns a bucket, or an error that says what is wrong with the
// window (see counters.CheckWindow) or the burst.
func newBucket(format byte, window time.Duration, burst int64, countDenied bool) (bucket, error) {
	err := counters.CheckWindow(window)
	if err == nil && (burst < 0 || burst > counters.MaxLimit) {
		err = fmt.Errorf("burst %d must be from 0 (the limit) to %d", burst, int64(counters.MaxLimit))
	}
	return bucket{format: format, window: window, burst: burst, countDenied: countDenied}, err
}
