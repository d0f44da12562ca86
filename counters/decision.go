package counters

import (
	"errors"
	"fmt"
	"time"
)

// ErrRequest: no limiter can decide the request. Match it with errors.Is.
var ErrRequest = errors.New("counters: the request is wrong")

// Bounds of a Request. They keep every sum of counts far below 2^63, the
// largest counter that all Memcached versions treat as a number.
const (
	MaxCost        = 1_000_000_000
	MaxLimit       = 1_000_000_000_000
	MaxClientBytes = 1024
)

// A Request asks whether a client may spend Cost now.
type Request struct {
	// Client is any 1 to MaxClientBytes bytes.
	Client string
	// Cost is what an admission consumes, 0 to MaxCost. A request of cost 0
	// consumes nothing and is denied only when more than Limit is in use.
	Cost int64
	// Limit is the most that is admitted per window, 1 to MaxLimit. It is part
	// of the request because a client may have a limit of its own on counters
	// that are otherwise the same.
	Limit int64
	// Now is when the request was made, within 290 years of 1970. It decides
	// the slot that is counted in; of a refund, Receipt.At does unless it is 0.
	Now time.Time
	// Reserved says that the cost is an estimate: any instance may give part of it back.
	Reserved bool
	// Renews is the start, in Unix nanoseconds, of the lease that the request renews; 0 asks
	// for a new one. Only limits of what is under way at once have leases.
	Renews int64
}

// CheckClient returns an ErrRequest that says so if client isn't 1 to
// MaxClientBytes bytes.
func CheckClient(client string) error {
	if client == "" || len(client) > MaxClientBytes {
		return fmt.Errorf("%w: Client has %d bytes; it must have 1 to %d", ErrRequest, len(client), MaxClientBytes)
	}
	return nil
}

// maxUnix is how many seconds now may be from 1970: 290 years. Unix nanoseconds
// would overflow two years after that, which leaves room for any window.
const maxUnix = 290 * 365 * 24 * 60 * 60

// CheckNow returns an ErrRequest that says so if now is zero, or more than 290
// years from 1970.
func CheckNow(now time.Time) error {
	switch seconds := now.Unix(); {
	case now.IsZero():
		return fmt.Errorf("%w: Now is not set", ErrRequest)
	case seconds < -maxUnix || seconds > maxUnix:
		return fmt.Errorf("%w: Now %v must be within 290 years of 1970", ErrRequest, now)
	}
	return nil
}

// Check returns an ErrRequest that says what is wrong with r, if anything is.
func (r *Request) Check() error {
	if err := CheckClient(r.Client); err != nil {
		return err
	}
	switch {
	case r.Cost < 0 || r.Cost > MaxCost:
		return fmt.Errorf("%w: Cost %d must be from 0 to %d", ErrRequest, r.Cost, MaxCost)
	case r.Limit < 1 || r.Limit > MaxLimit:
		return fmt.Errorf("%w: Limit %d must be from 1 to %d", ErrRequest, r.Limit, int64(MaxLimit))
	}
	return CheckNow(r.Now)
}

// Forever, 146 years, is the longest duration of a Decision: longer ones, and
// never, are given as this. A margin can be added to it, and it to the current
// time in nanoseconds, without an overflow.
const Forever time.Duration = 1 << 62

// A Decision is a limiter's answer to a Request. Denied is a decision, not an
// error.
type Decision struct {
	// Allowed reports whether the request was admitted.
	Allowed bool
	// Remaining is the largest cost that would be admitted now, after this
	// decision, or if that is Local, what is left of the limit: of that the process
	// admits its share. It is never negative.
	Remaining int64
	// ResetAfter is the time until Remaining is the whole limit again if nobody
	// asks in between; 0 when it already is.
	ResetAfter time.Duration
	// RetryAfter is, on a denial, the time until a request of the same cost is
	// admitted if nobody else asks in between, Forever if it can never be; else
	// 0.
	RetryAfter time.Duration
	// FitsAfter is, on an admission where denied requests count, the time until
	// a request of the same cost is admitted again if nobody else asks in
	// between; else 0. It matters when another limit denies the request.
	FitsAfter time.Duration
	// Wait is the time until an admitted request may proceed; 0 for all
	// algorithms that do not queue.
	Wait time.Duration
	// Local reports that no store was asked: what the process knew decided.
	Local bool
	// Receipt is what Refund has to know of an admission beside the request.
	Receipt Receipt
	// Contended reports a denial because the client's state could not be
	// replaced in time: others changed it first at each attempt. Nothing was
	// consumed, unless the deadline cut off an attempt that succeeded after
	// all.
	Contended bool
}

// EarliestLeases as a Receipt's Position gives back the leases that end first, whoever holds
// them. It is for callers who know how many have ended, but not which.
const EarliestLeases = -1

// A Receipt is opaque: only the limiter that gave it can read it. The zero value
// is that of a decision which needs none.
type Receipt struct {
	// At is when the cost was admitted, in Unix nanoseconds; 0 means the Now of the request
	// that gives it back.
	At int64
	// Generation is when the state that has consumed the cost began, in Unix
	// nanoseconds, and Position where in that the cost stands: in a bucket the total consumed
	// by then, itself included; in a sliding log, or of a lease, a time; else 0.
	Generation, Position int64
	// Alone isn't nil if the cost was admitted without the store: it is what knows
	// how the store was told, and Client whose account that is in.
	Alone, Client any
}

// Taken is what became of one of many requests that a limiter was given
// together. The zero Taken is of one that it has neither decided nor counted.
type Taken struct {
	Decision
	// Err means that nothing could be decided; it is one of a Store's.
	Err error
	// Done says that the rest is the answer.
	Done bool
	// Panic is what the decision has panicked with, and Stack where, if it has.
	Panic any
	Stack []byte
}
