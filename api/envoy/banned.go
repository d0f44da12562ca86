package envoy

import (
	"context"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// Bind makes limiter decide for the rule, unless its limit is 0: then all is
// denied, and nothing counted.
func (r *Rule) Bind(limiter policy.Limiter) {
	r.Limit.Limiter = limiter
	if r.Limit.Limit == 0 {
		r.Limit.Limiter = banned{r.Limit.Window}
	}
}

// banned denies every request, also one that only checks.
type banned struct{ window time.Duration }

func (b banned) decide(r counters.Request) counters.Decision {
	rest := b.window - time.Duration(r.Now.UnixNano())%b.window
	return counters.Decision{Local: true, ResetAfter: rest, RetryAfter: rest}
}

func (b banned) Take(_ context.Context, r counters.Request) (counters.Decision, error) {
	return b.decide(r), nil
}

func (b banned) Peek(_ context.Context, r counters.Request) (counters.Decision, error) {
	return b.decide(r), nil
}

func (b banned) PeekLocal(r counters.Request) (counters.Decision, bool) { return b.decide(r), true }

func (b banned) TakeLocal(r counters.Request, _ error) (counters.Decision, error) {
	return b.decide(r), nil
}

func (banned) Usage(context.Context, counters.Request) (counters.Usage, error) {
	return counters.Usage{}, nil
}

func (b banned) Recall(r counters.Request) (counters.Decision, bool) { return b.decide(r), true }

func (banned) Refund(context.Context, counters.Request, counters.Decision) error { return nil }

func (banned) Charge(context.Context, counters.Request) error { return nil }

func (banned) Reset(context.Context, string, time.Time) error { return nil }

func (banned) Forget(string) {}
