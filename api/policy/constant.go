package policy

import (
	"context"
	"time"

	"weir/counters"
)

// A Constant is a Limiter that decides all requests alike, those that only look too, and
// counts nothing.
type Constant struct {
	Allowed bool
	// What it denies can be tried again at Until or, if that is zero, at the next multiple
	// of Window since 1970.
	Until  time.Time
	Window time.Duration
}

func (c Constant) decide(r counters.Request) counters.Decision {
	if c.Allowed {
		return counters.Decision{Allowed: true, Remaining: r.Limit}
	}
	rest := max(time.Millisecond, c.Until.Sub(r.Now)) // the timer that ends the exception may be late
	if c.Until.IsZero() {
		rest = c.Window - time.Duration(r.Now.UnixNano())%c.Window
	}
	return counters.Decision{Local: true, ResetAfter: rest, RetryAfter: rest}
}

// Take implements Limiter, as the other methods do.
func (c Constant) Take(_ context.Context, r counters.Request) (counters.Decision, error) {
	return c.decide(r), nil
}

func (c Constant) Peek(_ context.Context, r counters.Request) (counters.Decision, error) {
	return c.decide(r), nil
}

func (c Constant) PeekLocal(r counters.Request) (counters.Decision, bool) { return c.decide(r), true }

func (c Constant) TakeLocal(r counters.Request, _ error) (counters.Decision, error) {
	return c.decide(r), nil
}

func (Constant) Usage(context.Context, counters.Request) (counters.Usage, error) {
	return counters.Usage{}, nil
}

func (c Constant) Recall(r counters.Request) (counters.Decision, bool) { return c.decide(r), true }

func (Constant) Refund(context.Context, counters.Request, counters.Decision) error { return nil }

func (Constant) RefundSoon(_ context.Context, _ counters.Request, _ counters.Decision, told func(panicked any)) error {
	if told != nil {
		told(nil)
	}
	return nil
}

func (Constant) Charge(context.Context, counters.Request) error { return nil }

func (Constant) Reset(context.Context, string, time.Time) error { return nil }

func (Constant) Forget(string) {}
