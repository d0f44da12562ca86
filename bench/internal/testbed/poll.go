package testbed

import (
	"context"
	"time"
)

// Poll asks whether something is done, and again every so often, until it is or
// an error comes. The error may also be that of ctx, which ends after within.
func Poll(ctx context.Context, within, every time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := Sleep(ctx, every); err != nil {
			return err
		}
	}
}

// Sleep returns early when ctx ends, with its error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
