package cas

import (
	"math"
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
type LeakyBucket struct{ Limiter[bucketState] }

// NewLeakyBucket returns a limiter by leaky bucket, which holds burst, or the
// limit when burst is 0. The error says what is wrong with the window (see
// counters.CheckWindow), the burst or cfg.
func NewLeakyBucket(store counters.StateStore, window time.Duration, burst int64, cfg Config) (*LeakyBucket, error) {
	b, err := newLeakyBucket(window, burst, cfg.CountDenied)
	if err != nil {
		return nil, err
	}
	l := new(LeakyBucket)
	if err := l.init(store, b, "leaky_bucket", math.MaxInt, cfg); err != nil {
		return nil, err
	}
	return l, nil
}

// leaky is a bucket whose admitted requests wait.
type leaky struct{ bucket }

// newLeakyBucket returns a leaky bucket; see newBucket.
func newLeakyBucket(window time.Duration, burst int64, countDenied bool) (leaky, error) {
	b, err := newBucket(formatLeakyBucket, window, burst, countDenied)
	return leaky{b}, err
}

func (b leaky) step(s bucketState, r counters.Request) (bucketState, counters.Decision) {
	now, level := r.Now.UnixNano(), s
	b.advance(&level, now, r.Limit)
	d := b.wait(&level, &r)
	if b.consume(&level, &d, now, &r) {
		return level, d
	}
	return s, d
}

func (b leaky) peek(s bucketState, r counters.Request) counters.Decision {
	now := r.Now.UnixNano()
	b.advance(&s, now, r.Limit)
	d := b.wait(&s, &r)
	b.decide(&d, &s, now, &r, b.admits(&s, &r))
	return d
}

// wait begins a decision with how long r waits, if the level admits it.
func (b *leaky) wait(level *bucketState, r *counters.Request) (d counters.Decision) {
	if b.admits(level, r) {
		d.Wait = level.drainTime(r.Limit)
	}
	return d
}
