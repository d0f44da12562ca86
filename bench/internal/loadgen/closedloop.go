package loadgen

import (
	"cmp"
	"context"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Tally is what a closed loop measured.
type Tally struct {
	Admitted, Denied int64
	Elapsed          time.Duration
	Latency          *hdrhistogram.Histogram
}

// NewTally returns one of nothing.
func NewTally() Tally { return Tally{Latency: NewHistogram()} }

// Checks returns how many were answered.
func (t *Tally) Checks() int64 { return t.Admitted + t.Denied }

// Add counts what o measured, at another time.
func (t *Tally) Add(o Tally) {
	t.merge(o)
	t.Elapsed += o.Elapsed
}

// merge counts what o measured at the same time.
func (t *Tally) merge(o Tally) {
	t.Admitted += o.Admitted
	t.Denied += o.Denied
	t.Latency.Merge(o.Latency)
}

// Rate returns operations per second.
func (t *Tally) Rate() float64 { return float64(t.Checks()) / t.Elapsed.Seconds() }

// A Turn hands out the numbers of clients in turn, so that all come equally
// often. It is safe for concurrent use.
type Turn struct {
	First   int64 // number of a client
	Clients int64 // so many have numbers from it on
	Last    int64 // numbers to hand out in all; 0 means without end
	Taken   atomic.Int64
}

// next returns the next number. ok is whether it isn't beyond the last.
func (t *Turn) next() (n int64, ok bool) {
	taken := t.Taken.Add(1) - 1
	return t.First + taken%t.Clients, t.Last == 0 || taken < t.Last
}

// Client is next of a turn without end.
func (t *Turn) Client() int64 {
	n, _ := t.next()
	return n
}

// Operations are the checks of each connection. An unexpected answer is an error.
func (all Connections) Operations() []Operation {
	operations := make([]Operation, len(all))
	for i, c := range all {
		if c, ok := c.(*caller); ok {
			operations[i] = func(n int64) (bool, error) { return c.op(c.context(), n) }
			continue
		}
		operations[i] = func(n int64) (bool, error) {
			status, body, err := ask(c, n)
			return status == http.StatusOK, cmp.Or(err, wrong(c, status, body))
		}
	}
	return operations
}

// Drive repeats the checks of all connections. The first error ends it.
func (all Connections) Drive(ctx context.Context, turn *Turn, duration time.Duration) (Tally, error) {
	defer context.AfterFunc(ctx, all.Expire)()
	return Repeat(ctx, all.Operations(), turn, duration)
}

// Repeat calls each operation again and again, all at once, until the turn or
// the duration (0 means without end) is over, or one fails, or ctx ends, which is
// an error.
func Repeat(ctx context.Context, operations []Operation, turn *Turn, duration time.Duration) (Tally, error) {
	tallies := make([]sharedTally, min(len(operations), maxTallies))
	for i := range tallies {
		tallies[i].Tally = NewTally()
	}
	errs := make([]error, len(operations))
	var failed atomic.Bool
	var callers sync.WaitGroup
	start := time.Now()
	for i, op := range operations {
		callers.Go(func() {
			t := &tallies[i%len(tallies)]
			for before := start; duration == 0 || before.Sub(start) < duration; {
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
				t.count(admitted, now.Sub(before))
				before = now
			}
		})
	}
	callers.Wait()
	total := NewTally()
	total.Elapsed = time.Since(start)
	if err := ctx.Err(); err != nil {
		return total, err
	}
	for i := range tallies {
		total.merge(tallies[i].Tally)
	}
	return total, cmp.Or(errs...) // of many, one says what happened
}

// maxTallies is how many tallies there are at most. One for each of thousands of
// callers would never be in the processor's cache.
const maxTallies = 64

// A sharedTally is of several callers.
type sharedTally struct {
	mu sync.Mutex
	Tally
}

func (t *sharedTally) count(admitted bool, latency time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if admitted {
		t.Admitted++
	} else {
		t.Denied++
	}
	Record(t.Latency, latency)
}

// TakeTurns yields each of so many sides a few times, in turn, so that what else the
// machine does hits all alike; and for how long it works then, which is d in all.
func TakeTurns(sides int, d time.Duration) iter.Seq2[int, time.Duration] {
	const times = 3
	return func(yield func(int, time.Duration) bool) {
		for n := range times * sides {
			if !yield(n%sides, d/times) {
				return
			}
		}
	}
}
