package main

import (
	"context"
	"time"
)

// every calls f after each interval, until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	for ticks := time.Tick(interval); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			f()
		}
	}
}
