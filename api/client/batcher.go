package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// What weir takes in one batch.
const (
	maxBatch      = 1000
	maxBatchBytes = 8<<20 - 64 // the rest is for what stands around the checks
)

// A check leaves at once while fewer than eagerBatches are under way: one batch is
// being written, decided or read, and leaves other processors idle meanwhile, and
// more than two cost more than they gain. While fewer than smallBatches are, a batch
// leaves with smallBatch calls, which hardly cost more each than in a larger one, and
// several are worked on at once. Else it leaves when weir takes no more.
const (
	eagerBatches = 2
	smallBatch   = 128
	smallBatches = 16
)

// A batcher puts concurrent checks, or settlements, together into batches. Those of the
// first callers leave at once. Those that come while two batches are under way leave
// together when fewer are, or as soon as they fill a batch.
//
// counters/combiner answers calls of one key, in its leader's goroutine and
// time. Here all checks go together, and no caller is bound to a batch: one
// that has enough leaves, whoever was first.
type batcher struct {
	send    func(context.Context, []*call) error // and put in the replies
	timeout time.Duration                        // of a call
	unread  func(*reply)                         // what to do with one whose caller has left

	calls sync.Pool

	mu       sync.Mutex
	boarding *batch // the next; nil if nobody has come for it
	underway int    // batches
}

func newBatcher(send func(context.Context, []*call) error, timeout time.Duration) *batcher {
	return &batcher{
		send: send, timeout: timeout,
		calls: sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }},
	}
}

// A call is a check, or a settlement, on its way, and its reply.
type call struct {
	check   []byte        // encoded
	settles bool          // so it may be admitted with places, which have to be given back
	due     time.Time     // when its time is over
	batch   *batch        // nil when its caller doesn't wait; under the batcher's lock
	done    chan struct{} // gets a value when reply or err is there
	reply   reply
	err     error
}

// begin returns a call with room for its check.
func (b *batcher) begin() *call { return b.calls.Get().(*call) }

// end makes a call available to another check. It has been answered without an error, or
// never made: a batch may still use one that its caller has left.
func (b *batcher) end(c *call) {
	*c = call{check: c.check[:0], done: c.done}
	b.calls.Put(c)
}

// A batch is calls that go together. It is under the batcher's lock.
type batch struct {
	calls   []*call // in the order of their arrival, which is that of their ends
	bytes   int     // of those
	callers int     // that wait; of those under way, some may have left
	holds   bool    // one of the calls may be admitted with places
	lingers bool    // all callers have left, but what weir admits has to be given back
	timer   *time.Timer
	cancel  context.CancelFunc
}

var errOverdue = fmt.Errorf("client: weir has not answered: %w", context.DeadlineExceeded)

// ask returns what weir answers to an encoded check, or the error of do.
func (b *batcher) ask(ctx context.Context, check []byte) (reply, error) {
	c := b.begin()
	c.check = check
	if err := b.do(ctx, c); err != nil {
		return reply{}, err
	}
	r := c.reply
	c.check = nil
	b.end(c)
	return r, nil
}

// do gets the reply to c, or returns the error of its batch.
// It returns the context's error as soon as ctx is done, or that of a context
// whose deadline has passed when the timeout is over; the check may have been
// counted then, unless ctx was done before.
func (b *batcher) do(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("client: weir was not asked: %w", err)
	}
	c.due = time.Now().Add(b.timeout)
	b.mu.Lock()
	b.board(c)
	b.mu.Unlock()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if b.leave(c) {
			return fmt.Errorf("client: weir has not answered: %w", ctx.Err())
		}
		<-c.done // at the same moment
		return c.err
	}
}

// board puts c into a batch. The batcher is locked.
func (b *batcher) board(c *call) {
	if b.boarding != nil && b.boarding.bytes+len(c.check)+1 > maxBatchBytes {
		b.depart()
	}
	next := b.boarding
	if next == nil {
		next = new(batch)
		// One timer for all of them: theirs would end in this order too.
		next.timer = time.AfterFunc(b.timeout, func() { b.expire(next) })
		b.boarding = next
	}
	c.batch = next
	next.calls = append(next.calls, c)
	next.bytes += len(c.check) + 1
	next.callers++
	next.holds = next.holds || c.settles
	b.departFull()
}

// departFull sends the checks gathered so far if they needn't wait for more: as few may
// be full. The batcher is locked.
func (b *batcher) departFull() {
	full := maxBatch
	switch {
	case b.underway < eagerBatches:
		full = 1
	case b.underway < smallBatches:
		full = smallBatch
	}
	if b.boarding != nil && len(b.boarding.calls) >= full {
		b.depart()
	}
}

// depart sends the checks gathered so far. The batcher is locked.
func (b *batcher) depart() {
	sent := b.boarding
	b.boarding = nil
	var ctx context.Context
	ctx, sent.cancel = context.WithCancel(context.Background())
	b.underway++
	go b.fly(ctx, sent, sent.calls)
}

// fly asks weir about a batch. It needs no deadline: it ends when all callers
// have left.
func (b *batcher) fly(ctx context.Context, sent *batch, calls []*call) {
	defer sent.cancel()
	err := b.send(ctx, calls)

	b.mu.Lock()
	if !sent.lingers {
		b.underway--
		b.departFull()
	}
	aboard := sent.calls
	sent.calls = nil
	var left []*call
	for _, c := range calls {
		if c.batch == nil && c.settles && err == nil {
			left = append(left, c)
		}
		c.batch = nil
	}
	b.mu.Unlock()
	for _, c := range left {
		b.unread(&c.reply)
	}
	sent.timer.Stop()
	for _, c := range aboard {
		c.err = err
		c.done <- struct{}{}
	}
}

// leave takes c out of the next batch, or gives up the one that it is in when
// all callers have left that. It reports whether c was still waiting.
func (b *batcher) leave(c *call) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.batch == nil {
		return false
	}
	if c.batch == b.boarding {
		i := slices.Index(c.batch.calls, c)
		c.batch.calls = slices.Delete(c.batch.calls, i, i+1)
		c.batch.bytes -= len(c.check) + 1
	}
	b.quit(c)
	return true
}

// expire ends the calls of a batch whose time is over.
func (b *batcher) expire(late *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for len(late.calls) > 0 {
		c := late.calls[0]
		if left := c.due.Sub(now); left > 0 {
			late.timer.Reset(left)
			return
		}
		late.calls = late.calls[1:]
		late.bytes -= len(c.check) + 1
		b.quit(c)
		c.err = errOverdue
		c.done <- struct{}{}
	}
}

// quit notes that the caller of c doesn't wait any more. The batcher is locked.
func (b *batcher) quit(c *call) {
	waited := c.batch
	if waited == nil {
		return
	}
	c.batch = nil
	if waited.callers--; waited.callers > 0 {
		return
	}
	switch {
	case waited == b.boarding:
		waited.timer.Stop()
		b.boarding = nil
	case waited.holds: // for one more timeout, and nobody else waits for it
		waited.lingers = true
		b.underway--
		b.departFull()
		time.AfterFunc(b.timeout, waited.cancel)
	default:
		waited.cancel()
	}
}
