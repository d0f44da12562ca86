package api

import (
	"context"
	"time"

	"weir/counters"
)

// A Limiter decides whether a client may spend a cost now. Its errors are those
// of a counters.Store and mean that nothing could be decided. It is safe for
// concurrent use.
type Limiter interface {
	// Take decides r and consumes its cost if it is admitted.
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	// Peek decides r and consumes nothing.
	Peek(ctx context.Context, r counters.Request) (counters.Decision, error)
	// PeekLocal decides r by what the process remembers, which is at most a
	// second old, without asking the store. It reports whether the process
	// remembers anything. It consumes nothing.
	PeekLocal(r counters.Request) (counters.Decision, bool)
	// Refund undoes a Take that was admitted, given the same r.
	Refund(ctx context.Context, r counters.Request) error
	// Reset forgets what the client has consumed.
	Reset(ctx context.Context, client string, now time.Time) error
}
