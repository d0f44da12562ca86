package cas

import (
	"time"

	"weir/counters"
)

// A leakyBucket drains limit per window and holds burst, or limit when burst is
// 0: a request that would overfill it is denied, another one is admitted with
// the time that it has to wait for its slot.
//
// A request of cost c has c consecutive slots, each of which takes
// window/limit. Wait is the time until its first: until all that was in the
// bucket before has drained, whatever its own cost. So the first request into an
// empty bucket waits 0, and the one after it waits c slots less the time since.
// Wait counts from the state's time when that is ahead of the request's: slots
// keep their distance on any clock.
type leakyBucket struct{ meter }

// newLeakyBucket returns a leaky bucket; see newMeter.
func newLeakyBucket(window time.Duration, burst int64, countDenied bool) (leakyBucket, error) {
	m, err := newMeter(formatLeakyBucket, window, burst, countDenied)
	return leakyBucket{m}, err
}

func (b leakyBucket) step(s meterState, r counters.Request) (meterState, counters.Decision) {
	next, d := b.meter.step(s, r)
	return next, b.withWait(s, r, d)
}

func (b leakyBucket) peek(s meterState, r counters.Request) counters.Decision {
	return b.withWait(s, r, b.meter.peek(s, r))
}

// withWait adds to d, the decision on r in s, how long r waits.
func (b leakyBucket) withWait(s meterState, r counters.Request, d counters.Decision) counters.Decision {
	if d.Allowed {
		d.Wait = b.level(s, r).drainTime(r.Limit)
	}
	return d
}
