package simulate

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"weir/counters"
)

// begin makes a call.
func (w *world) begin(c *call) {
	p := c.process
	c.number, c.life, c.began, c.alone = len(w.calls), p.connection, time.Now(), w.faults.outages
	w.calls = append(w.calls, c)
	w.unfinished++
	w.stirred = true
	w.log("%v #%-3d %v of %d at %v of its clock", p, c.number, c.kind, c.request.Cost, c.request.Now.Sub(w.start))
	if c.undoes != nil { // or renews it
		w.log("%v #%-3d is about #%d", p, c.number, c.undoes.number)
	}
	ctx := context.WithValue(&counters.Deadline{At: cmp.Or(c.deadline, c.began.Add(w.timeout))}, callKey{}, c.number)
	l := p.limiter
	go func() {
		makeRoom()
		c.make(ctx, l)
		w.mu.Lock()
		w.ended = append(w.ended, c)
		w.mu.Unlock()
		w.wake()
	}()
}

// makeRoom has the stack of a new goroutine grow once, while it is empty. Else it would be copied
// several times as calls go deeper, which took a tenth of a world's time.
//
//go:noinline
func makeRoom() {
	var room [12 << 10]byte
	runtime.KeepAlive(&room)
}

// make asks l.
func (c *call) make(ctx context.Context, l limiter) {
	defer func() {
		if r := recover(); r != nil {
			c.err = fmt.Errorf("it panics: %v", r)
		}
	}()
	switch c.kind {
	case take:
		c.decision, c.err = l.Take(ctx, c.request)
		if c.err != nil && c.alone {
			c.failed = c.err
			c.decision, c.err = l.TakeLocal(c.request, c.failed)
		}
	case peek:
		c.decision, c.err = l.Peek(ctx, c.request)
	case refund:
		taken := c.undoes.decision
		if c.receipt {
			taken.Receipt.Alone, taken.Receipt.Client = nil, nil
		}
		r := c.request
		taken.Receipt.At, r.Now = r.Now.UnixNano(), c.process.now()
		c.err = l.Refund(ctx, r, taken)
	case charge:
		c.err = l.Charge(ctx, c.request)
	case reset:
		c.err = l.Reset(ctx, client, c.request.Now)
	case flush:
		l.Flush()
	}
}

// logAnswer writes what c was told.
func (w *world) logAnswer(c *call) {
	if c.failed != nil {
		w.log("%v #%-3d %v; its process decides", c.process, c.number, c.failed)
	}
	switch {
	case c.err != nil:
		w.log("%v #%-3d %v", c.process, c.number, c.err)
	case c.kind != take && c.kind != peek:
		w.log("%v #%-3d is done", c.process, c.number)
	case c.decision.Allowed:
		w.log("%v #%-3d ALLOWED, %d remain", c.process, c.number, c.decision.Remaining)
	default:
		w.log("%v #%-3d denied, retry after %v", c.process, c.number, c.decision.RetryAfter)
	}
}

// end takes note of a call that has returned.
func (w *world) end(c *call) {
	c.returned, c.unsure = time.Now(), !c.process.failed.Before(c.began)
	w.unfinished--
	if c.crashed {
		return
	}
	w.logAnswer(c)
	w.judge(c)
	if c.admitted() && w.faults.refunds && !w.calm && w.chance(2) {
		w.planRefund(c)
	}
	if c.denied() && !w.calm && len(w.calls) < 100 && w.chance(10) {
		w.planReturn(c)
	}
}

// planReturn lets the client come back when it was told to, and ask for all it
// can get.
func (w *world) planReturn(c *call) {
	pause := max(0, c.request.Now.Add(c.decision.RetryAfter).Sub(c.process.now()))
	pause = (pause+tick-1)/tick*tick + w.ticks(2)
	for range 1 + w.random.Int64N(w.capacity()) {
		w.after(pause, func() {
			w.begin(w.newCall(take, c.process, 1))
		})
	}
}

// planRefund has c taken back: soon, late, before its own deadline, or just when
// its slot is settled, and then beside another check.
func (w *world) planRefund(c *call) {
	var deadline time.Time
	p, pause := c.process, w.ticks(pick(w.random, 3, 30, int(w.lasts()/tick)))
	if width := w.width(); width > 0 && w.chance(2) {
		settled := width - counters.Calendar(c.request.Now, width).Elapsed + w.skew + w.timeout
		pause = max(0, c.began.Add(settled).Sub(c.returned)) + w.ticks(5)
		w.after(pause+w.ticks(5), func() { w.begin(w.newCall(take, p, 1)) })
	}
	if w.chance(3) { // another limit has denied it
		deadline = c.began.Add(w.timeout)
		pause = pick(w.random, 0, max(0, deadline.Sub(c.returned)))
	}
	if deadline.IsZero() && len(w.calls) < 60 && w.chance(4) { // between two rushes
		if w.faults.resets && w.chance(2) {
			w.after(pause, func() { w.begin(w.newCall(reset, p, 0)) })
			pause += w.timeout
		}
		w.planRush(pause)
		pause += w.ticks(20)
		w.planRush(pause)
	}
	w.after(pause, func() {
		if c.life == p.connection && c.began.After(w.vanished) {
			c.refunded = true
			w.begin(&call{kind: refund, process: p, request: c.request, undoes: c, deadline: deadline})
		}
	})
}

// planRush lets somebody ask for all that can be had.
func (w *world) planRush(pause time.Duration) {
	for range w.capacity() {
		p := w.processes[w.random.IntN(len(w.processes))]
		w.after(pause+w.ticks(10), func() { w.begin(w.newCall(take, p, 1)) })
	}
}
