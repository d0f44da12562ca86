// Package api is weir's HTTP service: policies that check several limits as
// one, and the endpoints, headers, problem details and metrics around them. It
// knows limiters only through the interface Limiter.
package api

import (
	"context"
	"time"

	"weir/counters"
)

// A Limiter decides whether a client may spend a cost now. Its errors are those
// of a counters.Store: nothing could be decided. It is safe for concurrent use.
type Limiter interface {
	// Take decides r and consumes its cost if it is admitted.
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	// Peek decides r and consumes nothing.
	Peek(ctx context.Context, r counters.Request) (counters.Decision, error)
	// Known decides r by what the process knows without asking the store, which
	// is at most a second old, and reports whether it knows anything. It consumes
	// nothing.
	Known(r counters.Request) (counters.Decision, bool)
	// GiveBack undoes a Take that was admitted, given the same r.
	GiveBack(ctx context.Context, r counters.Request) error
	// Reset forgets what the client has consumed.
	Reset(ctx context.Context, client string, now time.Time) error
}
