package simulate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
)

// judgeDebts checks that the store has what was admitted without it, and that
// only once, when each process has asked it again.
func (w *world) judgeDebts() {
	if !w.faults.outages {
		return
	}
	checks := make(map[*process]*call)
	for _, p := range w.processes {
		c := w.take(p, 1)
		if c.decision.Local { // it knew a denial ahead
			w.sleep(time.Second)
			c = w.take(p, 1)
		}
		checks[p] = c
	}
	if w.width() > 0 {
		w.judgeCounters(checks)
	} else if !w.faults.refunds && !w.denialsFill() {
		w.judgeState()
	}
}

// judgeCounters compares the counters with what was admitted in their slots.
func (w *world) judgeCounters(checks map[*process]*call) {
	type tally struct {
		least, most int64
		lost        bool
	}
	tallies := make(map[int64]*tally)
	since := w.lastLoss()
	for _, c := range w.calls {
		if c.kind != take {
			continue
		}
		slot := w.slotAt(c.request.Now)
		t := cmp.Or(tallies[slot], new(tally))
		tallies[slot] = t
		t.lost = t.lost || !c.began.After(since) || c.failed != nil && w.beforeReset(c)
		surely, perhaps := w.counts(c, checks[c.process], slot)
		t.least += surely
		t.most += perhaps
	}
	for slot, t := range tallies {
		i, ok := w.server.live(w.counterOf(slot), time.Now())
		gone := slot < w.oldest() // from all windows
		// What is told, or given back, late isn't given back any more.
		if t.lost || gone && (!ok || w.faults.late || w.faults.refunds) {
			continue
		}
		if w.faults.refunds { // of what wasn't counted: they take from others
			t.least = 0
		}
		if i.count < t.least && !gone || i.count > t.most {
			w.violate("debts", "the counter of slot %d is %d, but from %d to %d are admitted", slot, i.count, t.least, t.most)
		}
	}
}

// lastLoss returns when the server last lost counts, or a process forgot the
// client at the end of a reset.
func (w *world) lastLoss() (at time.Time) {
	if n := len(w.lost); n > 0 {
		at = w.lost[n-1]
	}
	for _, c := range w.calls {
		if c.kind == reset {
			at = maxTime(at, c.returned)
		}
	}
	return at
}

// counts returns how much of c is surely counted in its slot, and how much
// perhaps, after the check of its process.
func (w *world) counts(c, check *call, slot int64) (surely, perhaps int64) {
	cost := c.request.Cost
	perhaps = cost
	result := counted
	switch {
	case c.crashed:
		return 0, cost
	case c.failed == nil && c.denied() && c.decision.Local:
		return 0, 0
	case c.failed == nil && c.denied() && !w.countDenied:
		if w.unclear() > 0 || w.faults.resets || check.life != c.life { // it isn't given back
			return 0, cost
		}
		return 0, 0
	case c.failed == nil:
	case c.denied() && !w.countDenied:
		tookBack := w.unclear() == 0 || !w.done(c) // if it was counted, before its process failed to read
		if c.unsent() && tookBack || w.givenBack(c) && !w.faults.resets {
			return 0, 0
		}
		return 0, cost
	default:
		result, _ = w.outcome(c, false)
		alive := check.life == c.life && slot >= w.slotAt(check.request.Now)-int64(w.algorithm.Slots)
		if result == owed && !alive {
			result = unknown
		}
		if result == unknown && w.appliedUnheard() || w.repaidLate(c) || w.unclear() > 0 && errors.Is(c.failed, context.DeadlineExceeded) {
			perhaps += cost // by the leader that it left, too, who couldn't refund it
		}
	}
	if c.refunded || result == unknown {
		return 0, perhaps
	}
	return cost, perhaps
}

// appliedUnheard reports whether operations were applied when their callers had left, who
// were told nothing. What they counted may have been counted again.
func (w *world) appliedUnheard() bool {
	return slices.ContainsFunc(w.writes, func(o *operation) bool { return o.answered && !o.applied.Before(o.ended) && o.known() == unknown })
}

// repaidLate reports whether the store has counted what was owed for c after its
// process had given that up. The process may have compared before that, and had
// it counted again: as deploy/README.md says, an answer that comes later than the
// comparison may make it twice.
func (w *world) repaidLate(c *call) bool {
	return slices.ContainsFunc(w.writes, func(o *operation) bool {
		return o.connection == c.life && !o.sent.Before(c.returned) && o.key == w.counter(c) && o.late != nil && !o.applied.Before(o.ended)
	})
}

// judgeState checks that the bucket or the log has what was admitted. What
// several processes have admitted alone drains beside each other.
func (w *world) judgeState() {
	peeked := w.do(w.newCall(peek, w.processes[0], 1))
	if peeked.err != nil {
		return
	}
	used := w.capacity() - peeked.decision.Remaining
	since := w.lastLoss()
	var sum int64
	for _, c := range slices.Backward(w.calls) {
		if !c.admitted() || !c.began.After(since) || !w.inStore(c) {
			continue
		}
		sum += c.request.Cost
		least := min(sum, w.capacity())
		if w.algorithm.Kind == algorithms.Bucket {
			drained := 1 + w.limit*int64(peeked.returned.Sub(c.began)+w.skew)/int64(w.window)
			least = min(w.capacity()-drained, sum-drained*int64(len(w.processes)+1))
		} else if !c.request.Now.After(peeked.request.Now.Add(w.skew - w.window)) {
			return
		}
		if used < least {
			w.violate("debts", "%d are in use, but at least %d since #%d", used, least, c.number)
			return
		}
	}
}

// beforeReset reports whether c, which its process has decided alone, may be from
// before a reset: if that is no earlier than the skew allows.
func (w *world) beforeReset(c *call) bool {
	return slices.ContainsFunc(w.calls, func(r *call) bool {
		return r.kind == reset && !c.request.Now.After(r.request.Now.Add(r.returned.Sub(r.began)+w.skew))
	})
}

// inStore reports whether the store surely has c.
func (w *world) inStore(c *call) bool {
	if c.failed == nil {
		return true
	}
	if w.beforeReset(c) {
		return false
	}
	result, _ := w.outcome(c, false)
	return result == counted || result == owed && c.life == c.process.connection
}

// judgeOutage lets a lone client ask a process that the store doesn't answer: it can
// only decide by what it knew before, however long ago.
func (w *world) judgeOutage() {
	if !w.faults.outages || w.chance(2) {
		return
	}
	w.sleep(w.lasts() + w.skew + w.timeout + 3*time.Second)
	p := w.processes[w.random.IntN(len(w.processes))]
	w.take(p, 1+w.random.Int64N(w.capacity()))
	time.Sleep(w.ticks(int(w.lasts() / tick / 2)))
	w.fail(outage{kind: pick(w.random, unsent, unsent, stalled, cut), lasting: true})
	for range 2 * w.capacity() {
		time.Sleep(w.ticks(pick(w.random, 0, 0, int(w.window/tick/4))))
		c := w.take(p, 1)
		if d, known := p.limiter.Recall(c.request); c.failed != nil && c.denied() && (!known || d.Allowed) {
			w.violate("reason", "#%d is denied, but its process recalls %+v", c.number, d)
		}
		if !w.judgeReturn(c) {
			break
		}
	}
	if w.chance(3) {
		w.flush(p)
	}
	w.restore()
	w.judgeDebts()
}

func (w *world) flush(p *process) {
	w.do(w.newCall(flush, p, 0))
}

// judgeFlush lets all processes end. No goroutine goes on after that.
func (w *world) judgeFlush() {
	if w.faults.outages || w.faults.late {
		for _, p := range w.processes {
			w.flush(p)
		}
	}
}

// judgeTold checks that all that was told late comes to an end.
func (w *world) judgeTold() {
	for range 100 {
		w.run()
		if w.telling.Load() == 0 {
			return
		}
		w.sleep(w.timeout)
	}
	w.violate("timeout", "what was told late has no end")
}

// judgeCounts checks that each counter is what was admitted in its slot and not
// given back. That is known where nothing was lost and no outcome is unknown.
func (w *world) judgeCounts() {
	if w.width() == 0 || w.unclear() > 0 || len(w.lost) > 0 || w.faults.outages {
		return
	}
	want := make(map[int64]int64)
	for _, c := range w.calls {
		switch {
		case c.kind == refund || c.kind == peek || c.refunded && c.err == nil:
			continue
		case w.givenBack(c):
			want[w.slotAt(c.request.Now)] += 0 // there may be no other
			continue
		case c.crashed || c.err != nil: // a reset that failed may have been begun
			return
		case c.kind == reset:
			continue
		}
		if c.decision.Allowed || w.countDenied {
			want[w.slotAt(c.request.Now)] += c.request.Cost
		}
	}
	if w.faults.late {
		time.Sleep(2 * time.Second)
		w.run()
	}
	w.awaitDebts()
	for slot, n := range want {
		if (w.faults.late || w.faults.refunds) && slot < w.oldest() { // nobody looks at it any more, nor gives back of it
			continue
		}
		if i, ok := w.server.live(w.counterOf(slot), time.Now()); ok && i.count != n {
			w.violate("counts", "the counter of slot %d is %d, but %d are admitted", slot, i.count, n)
		}
	}
}
