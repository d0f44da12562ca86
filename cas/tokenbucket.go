package cas

import (
	"time"

	"weir/counters"
)

// A TokenBucket is a Limiter: a bucket that fills with limit tokens per window
// and holds burst. A request takes its cost in tokens or is denied. A new
// client finds it full.
//
// Remaining is whole tokens, ResetAfter the time until it is full. Admitted are
// at most burst + limit*t/window in any time t; with clocks d apart, as much as
// in t+d, and in d and a store timeout more for each refund that has emptied
// it. Make one with NewTokenBucket; its methods are those of Limiter.
type TokenBucket struct{ limiter }

// NewTokenBucket returns a limiter by token bucket, which holds burst, or the
// limit when burst is 0. The error says what is wrong with the window (see
// counters.CheckWindow), the burst or cfg.
func NewTokenBucket(store counters.StateStore, window time.Duration, burst int64, cfg Config) (*TokenBucket, error) {
	b, err := newBucket(formatTokenBucket, window, burst, cfg.CountDenied) // its level is the tokens that are missing
	l, err := newLimiter(store, b, err, "token_bucket", 0, cfg)
	return made(&TokenBucket{l}, err)
}
