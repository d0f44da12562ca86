package testbed

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Parallel calls f with 0 to n-1, on so many goroutines, and returns all errors.
// After the first it starts no more.
func Parallel(n, atATime int, f func(i int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, min(n, atATime))
	for worker := range errs {
		wait.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				if errs[worker] = f(i); errs[worker] != nil {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

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

// Every calls f again and again, with the time at which that was due. The function
// that it returns has f called once more, and returns after that.
func Every(interval time.Duration, f func(due time.Time)) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	due := time.Now().Add(interval)
	go func() {
		defer close(ended)
		for over := false; !over; due = time.Now().Add(interval) {
			select {
			case <-end:
				over = true
			case <-time.After(time.Until(due)):
			}
			f(due)
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
