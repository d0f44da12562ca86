package counters

import (
	"context"
	"time"
)

// A Limiter decides whether a client may spend a cost now. Its errors are ErrRequest, a
// Store's, the context's, or those of a leader that has panicked, or was held up by other
// instances. After one of Take or Peek nothing was decided. It is safe for concurrent use.
type Limiter interface {
	// Take decides r and consumes its cost if it is admitted.
	Take(ctx context.Context, r Request) (Decision, error)
	// Peek decides r and consumes nothing.
	Peek(ctx context.Context, r Request) (Decision, error)
	// PeekLocal decides r by what the process has read within MaxStaleness, if nothing of
	// the client is due, and reports whether it could. It asks no store and consumes nothing.
	PeekLocal(r Request) (Decision, bool)
	// TakeLocal decides r after a Take that failed with err, by what the process
	// remembers, and counts it there until the store answers again. The error
	// is ErrRequest.
	TakeLocal(r Request, err error) (Decision, error)
	// Usage returns what of a limit is in use by the store, and consumes nothing.
	Usage(ctx context.Context, r Request) (Usage, error)
	// Recall decides r by what the process remembers, however old that is, and
	// reports whether it remembers anything. It consumes nothing.
	Recall(r Request) (Decision, bool)
	// Refund undoes a Take or a TakeLocal that was admitted with the decision taken. r is its
	// request, or one of the present if taken.Receipt.At says when that was. It may go on after
	// ctx has ended.
	Refund(ctx context.Context, r Request, taken Decision) error
	// RefundSoon is Refund, but the store may be told a moment later, with other refunds. If
	// told isn't nil, the store is told at once, and then told is called, with what that
	// panicked with, or nil.
	RefundSoon(ctx context.Context, r Request, taken Decision, told func(panicked any)) error
	// Charge consumes the cost of r, be there room or not; if it fails, as soon as
	// the store answers.
	Charge(ctx context.Context, r Request) error
	// Reset forgets what the client has consumed.
	Reset(ctx context.Context, client string, now time.Time) error
	// Forget drops what the process remembers of the client, and what of it the
	// store hasn't been told yet.
	Forget(client string)
}
