package counters

import "time"

// expiryMargin is added to every TTL: Memcached's clock ticks once a second,
// so a TTL of n seconds may end n-1 seconds from now, and a count must not
// vanish while it matters.
const expiryMargin = 2 * time.Second

// TTL returns how long to keep a counter that matters for the duration left by this instance's
// clock, and for up to the horizon longer by the clocks of others.
func TTL(left, horizon time.Duration) time.Duration {
	return left + horizon + expiryMargin
}
