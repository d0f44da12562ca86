package cas

import "time"

// A tokenBucket fills with limit tokens per window and holds burst, or limit
// when burst is 0. A request takes its cost in tokens or is denied. A new client
// finds it full.
//
// It is a meter whose level is the tokens that are missing, so that the absent
// state is the full bucket at any limit. Remaining is whole tokens, ResetAfter
// the time until it is full. Admitted are at most burst + limit*t/window in any
// time t.
type tokenBucket struct{ meter }

// newTokenBucket returns a token bucket; see newMeter.
func newTokenBucket(window time.Duration, burst int64, countDenied bool) (tokenBucket, error) {
	m, err := newMeter(formatTokenBucket, window, burst, countDenied)
	return tokenBucket{m}, err
}
