package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// What weir takes in one batch.
const (
	maxBatch      = 1000
	maxBatchBytes = 8<<20 - 64 // the rest is for what stands around the checks
)

// A batcher puts concurrent checks together into batches. The first caller's
// check leaves at once. Those that come while it is under way leave together
// when it is back, or as soon as they fill a batch.
//
// counters/combiner answers calls of one key, in its leader's goroutine and
// time. Here all checks go together, and no caller is bound to a batch: one
// that has enough leaves, whoever was first.
type batcher struct {
	send func(context.Context, [][]byte) ([]reply, error)

	mu       sync.Mutex
	waiting  []*call // in the order of their arrival
	bytes    int     // of those
	underway int     // batches
}

// A call is a check on its way.
type call struct {
	check []byte
	batch *batch        // nil while the call waits; under the batcher's lock
	done  chan struct{} // closed when reply or err is there
	reply reply
	err   error
}

type batch struct {
	calls   []*call
	callers int // that wait for it; under the batcher's lock
	cancel  context.CancelFunc
}

// do returns what weir answers to an encoded check, or the error of its batch.
// It returns the context's error as soon as ctx is done; the check may have
// been counted then, unless ctx was done before.
func (b *batcher) do(ctx context.Context, check []byte) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, fmt.Errorf("client: weir was not asked: %w", err)
	}
	c := &call{check: check, done: make(chan struct{})}
	b.mu.Lock()
	if b.bytes+len(check)+1 > maxBatchBytes {
		b.depart()
	}
	b.waiting = append(b.waiting, c)
	b.bytes += len(check) + 1
	if b.underway == 0 || len(b.waiting) == maxBatch {
		b.depart()
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		b.leave(c)
		return reply{}, fmt.Errorf("client: weir has not answered: %w", ctx.Err())
	}
}

// depart sends those who wait. The batcher is locked.
func (b *batcher) depart() {
	ctx, cancel := context.WithCancel(context.Background())
	sent := &batch{calls: b.waiting, callers: len(b.waiting), cancel: cancel}
	for _, c := range sent.calls {
		c.batch = sent
	}
	b.waiting, b.bytes = nil, 0
	b.underway++
	go b.fly(ctx, sent)
}

// fly asks weir about a batch. It needs no deadline: it ends when all callers
// have left.
func (b *batcher) fly(ctx context.Context, sent *batch) {
	defer sent.cancel()
	checks := make([][]byte, len(sent.calls))
	for i, c := range sent.calls {
		checks[i] = c.check
	}
	replies, err := b.send(ctx, checks)

	b.mu.Lock()
	b.underway--
	if b.underway == 0 && len(b.waiting) > 0 {
		b.depart()
	}
	b.mu.Unlock()
	for i, c := range sent.calls {
		if c.err = err; err == nil {
			c.reply = replies[i]
		}
		close(c.done)
	}
}

// leave takes c out of those who wait, or gives up its batch when all callers
// have left that.
func (b *batcher) leave(c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.batch != nil {
		if c.batch.callers--; c.batch.callers == 0 {
			c.batch.cancel()
		}
		return
	}
	i := slices.Index(b.waiting, c)
	b.waiting = slices.Delete(b.waiting, i, i+1)
	b.bytes -= len(c.check) + 1
}
