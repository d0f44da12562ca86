package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// newHistogram returns a histogram of latencies in nanoseconds, up to a minute,
// right to 1%.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(time.Minute), 2)
}

// A tally is what a load measured.
type tally struct {
	admitted, denied int64
	elapsed          time.Duration
	latency          *hdrhistogram.Histogram
}

func newTally() tally { return tally{latency: newHistogram()} }

func (t *tally) checks() int64 { return t.admitted + t.denied }

// add counts what o measured, at another time.
func (t *tally) add(o tally) {
	t.merge(o)
	t.elapsed += o.elapsed
}

// merge counts what o measured at the same time.
func (t *tally) merge(o tally) {
	t.admitted += o.admitted
	t.denied += o.denied
	t.latency.Merge(o.latency)
}

// rate returns operations per second.
func (t *tally) rate() float64 { return float64(t.checks()) / t.elapsed.Seconds() }

// A turn hands out the numbers of clients in turn, so that all come equally
// often. It is safe for concurrent use.
type turn struct {
	clients int64
	last    int64 // numbers to hand out in all; 0 means without end
	taken   atomic.Int64
}

func (t *turn) next() (n int64, ok bool) {
	taken := t.taken.Add(1) - 1
	if t.last > 0 && taken >= t.last {
		return 0, false
	}
	return taken % t.clients, true
}

// drive lets every connection check as fast as it is answered, until the turn
// or the duration (0 means without end) is over. Any answer but 200 and 429 is
// an error and ends it.
func drive(ctx context.Context, clients []*client, turn *turn, duration time.Duration) (tally, error) {
	operations := make([]operation, len(clients))
	for i, c := range clients {
		operations[i] = func(n int64) (bool, error) {
			status, body, err := c.check(n)
			switch {
			case err != nil:
				return false, err
			case status != http.StatusOK && status != http.StatusTooManyRequests:
				return false, fmt.Errorf("a check was answered with status %d: %s", status, body)
			}
			return status == http.StatusOK, nil
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range clients {
			c.expire()
		}
	})
	defer stop()
	return repeat(ctx, operations, turn, duration)
}

// An operation acts for the client with number n and returns whether it was
// admitted.
type operation func(n int64) (admitted bool, err error)

// repeat calls each operation again and again, all at once, until the turn or
// the duration (0 means without end) is over, or ctx ends, which is an error.
func repeat(ctx context.Context, operations []operation, turn *turn, duration time.Duration) (tally, error) {
	tallies := make([]tally, len(operations))
	for i := range tallies {
		tallies[i] = newTally()
	}
	errs := make([]error, len(operations))
	var failed atomic.Bool
	var callers sync.WaitGroup
	start := time.Now()
	for i, op := range operations {
		callers.Go(func() {
			t := &tallies[i]
			for before := time.Now(); duration == 0 || before.Sub(start) < duration; {
				n, ok := turn.next()
				if !ok || failed.Load() {
					return
				}
				admitted, err := op(n)
				if err != nil {
					errs[i] = err
					failed.Store(true)
					return
				}
				now := time.Now()
				if admitted {
					t.admitted++
				} else {
					t.denied++
				}
				// Beyond a minute it counts as one.
				_ = t.latency.RecordValue(int64(min(now.Sub(before), time.Minute)))
				before = now
			}
		})
	}
	callers.Wait()
	total := newTally()
	total.elapsed = time.Since(start)
	if err := ctx.Err(); err != nil {
		return total, err
	}
	for i := range tallies {
		total.merge(tallies[i])
	}
	return total, errors.Join(errs...)
}
