package api

import (
	"context"
	"time"
)

// A storeContext bounds the store operations of one check. It ignores the
// request's cancellation, which would leave it unknown what was counted; the
// store timeout bounds it. It needs no timer, because limiters and stores read
// the deadline themselves.
type storeContext struct {
	context.Context
	deadline time.Time
}

// newStoreContext returns the context of a check that begins at start.
func newStoreContext(start time.Time, timeout time.Duration) storeContext {
	return storeContext{Context: context.Background(), deadline: start.Add(timeout)}
}

func (c *storeContext) Deadline() (time.Time, bool) { return c.deadline, true }
