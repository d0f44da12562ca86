package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"weir/counters"
)

// run lets things happen until nothing more will, or in a lasting outage until
// all calls have ended.
func (w *world) run() {
	w.stirred = true
	for {
		if w.stirred {
			w.stirred = false
			synctest.Wait()
			w.collect()
		}
		for len(w.queue) > 0 && w.queue.next().stale() {
			w.queue.pop()
		}
		switch {
		case w.unfinished == 0 && (len(w.queue) == 0 || w.outage.lasting):
			return
		case len(w.queue) == 0:
			<-w.awake
			w.align()
			w.stirred = true
			continue
		}
		if wait := w.queue.next().at - time.Now().UnixNano(); wait > 0 {
			w.timer.Reset(time.Duration(wait))
			select {
			case <-w.timer.C:
			case <-w.awake:
				w.align()
			}
			w.stirred = true // others may wake at the same time
			continue
		}
		if e := w.queue.pop(); e.answers != nil {
			w.answer(e.answers, e.err)
		} else {
			e.do()
		}
	}
}

// collect takes over the operations that were sent and the calls that have
// ended, in an order that doesn't depend on which goroutine was first.
func (w *world) collect() {
	w.mu.Lock()
	sent, ended, awaited := w.sent, w.ended, w.awaited
	w.sent, w.ended, w.awaited = nil, nil, nil
	select {
	case <-w.awake:
	default:
	}
	w.mu.Unlock()
	slices.SortFunc(ended, (*call).before)
	for _, c := range ended {
		w.end(c)
	}
	slices.SortFunc(sent, (*operation).before)
	for _, o := range sent {
		w.transmit(o)
	}
	slices.SortStableFunc(awaited, (*operation).before)
	for _, o := range awaited {
		w.listen(o)
	}
}

// transmit decides what becomes of o.
func (w *world) transmit(o *operation) {
	p := w.processes[o.process]
	p.open = append(p.open, o)
	o.sent = time.Now()
	switch o.verb {
	case subtract:
		o.looked = p.looked
	case add, swap:
		w.writes = append(w.writes, o)
	case load:
		w.loads = append(w.loads, o)
	}
	if rest := o.deadline.Sub(w.start) % tick; rest > 0 {
		o.deadline = o.deadline.Add(tick - rest)
	}
	if !time.Now().Before(o.deadline) {
		w.at(time.Now(), event{answers: o, err: fmt.Errorf("%w, %w", counters.ErrTimeout, counters.ErrNotSent)})
		return
	}
	out := w.outage.of(p)
	if out == unsent {
		w.at(minTime(time.Now().Add(w.ticks(2)), o.deadline), event{answers: o, err: fmt.Errorf("%w, %w", counters.ErrUnavailable, counters.ErrNotSent)})
		return
	}
	w.schedule(o, w.drawTransmission(o, out))
}

// A transmission is how an operation gets to the server, and its reply back. The ticks are the
// longest that a step, or the reply, may take.
type transmission struct {
	usual  int
	held   int       // the step, or the reply, that takes longer
	hold   int       // and how many ticks that may take
	last   time.Time // when all steps are done
	steps  int       // that are done
	silent bool      // nobody hears the result
	result error
}

// drawTransmission decides what the faults do to o.
func (w *world) drawTransmission(o *operation, out outageKind) transmission {
	usual, left := min(w.processes[o.process].latency, w.farthest), int(time.Until(o.deadline)/tick)
	t := transmission{usual: usual, held: w.random.IntN(len(o.steps) + 1), hold: usual, last: o.deadline, steps: len(o.steps)}
	if w.faults.slow && !w.calm && w.chance(8) {
		t.hold = max(usual, left)
	}
	if w.faults.stalled && !w.calm && w.chance(8) {
		t.hold, t.last = max(usual, 2*left), t.last.Add(w.timeout)
	}
	if w.faults.late && !w.calm && (o.verb == add || o.verb == swap) && w.lateness.IntN(10) == 0 {
		t.silent = true
		if w.lateness.IntN(4) == 0 {
			t.steps = 0
		}
	}
	if w.faults.lost && !w.calm && w.chance(15) {
		t.steps, t.silent, t.result, o.broken = w.random.IntN(t.steps+1), w.chance(2), counters.ErrUnavailable, true
		if t.steps == 0 {
			t.result = fmt.Errorf("%w, %w", counters.ErrUnavailable, counters.ErrNotSent)
		}
	}
	switch out {
	case stalled:
		t.steps, t.silent, t.hold, t.last = t.steps*w.random.IntN(2), true, max(usual, 2*left), o.deadline.Add(w.timeout)
	case cut:
		t.steps, t.silent, t.result, o.broken = w.random.IntN(t.steps+1), w.chance(2), counters.ErrUnavailable, true
	}
	return t
}

// schedule has the steps of o done, and o answered, when their times have come.
func (w *world) schedule(o *operation, t transmission) {
	delay := func(step int) time.Duration {
		if step == t.held {
			return w.ticks(t.hold)
		}
		return w.ticks(t.usual)
	}
	at := time.Now()
	times := make([]time.Time, len(o.steps))
	for i := range times {
		if at = at.Add(delay(i)); at.After(t.last) {
			at = t.last
		}
		times[i] = at
	}
	if o.planned = t.steps; t.steps > 0 {
		o.finish = times[t.steps-1]
	}
	var apply func(i int)
	apply = func(i int) {
		for ; i < o.planned; i++ {
			if times[i].After(time.Now()) {
				w.at(times[i], event{do: func() { apply(i) }})
				return
			}
			w.apply(o, i)
		}
	}
	w.at(times[0], event{do: func() { apply(0) }})
	if !t.silent {
		w.at(at.Add(tick+delay(len(o.steps))), event{answers: o, err: t.result})
	}
	w.at(o.deadline, event{answers: o, err: counters.ErrTimeout})
}

// apply does a step of o.
func (w *world) apply(o *operation, step int) {
	now := time.Now()
	w.touched = w.touched[:0]
	o.steps[step](&w.server, now)
	if o.applied.IsZero() {
		o.applied = now
	}
	// A subtraction perhaps takes from what others have counted since.
	resets := step == 0 && o.swapped && o.call != noCall && w.calls[o.call].kind == reset
	// What deploy/README.md says of a reset whose mark is lost too soon.
	forgets := step == 0 && o.swapped && o.is.forgets(o.was)
	late := step == 0 && (o.swapped || o.verb == subtract) && now.Before(w.takenBack)
	if resets || forgets || late || o.verb == remove || o.verb == put || o.verb == subtract && (w.takesLost(o, now) || w.takesAfterReset(o, now)) {
		w.lose()
	}
	switch {
	case o.marks && o.verb == add && o.call != noCall && w.calls[o.call].kind == reset && w.calls[o.call].marked.IsZero():
		w.calls[o.call].marked = now
	case step == 0 && o.swapped && w.burst > 0 && o.is.size == emptyBucket:
		w.emptied = append(w.emptied, now)
	}
	for _, key := range o.putBack {
		w.putBack = append(w.putBack, restoration{key, now})
	}
	o.putBack = nil
	if w.trace != nil {
		w.log("%v:%s", o, w.effect(&w.server))
	}
}

// emptyBucket is how many bytes the state of an empty bucket has.
const emptyBucket = 1

// takesLost reports whether o may be to take back what the server has lost: if
// others have counted as much since, it takes that from them.
func (w *world) takesLost(o *operation, now time.Time) bool {
	return slices.ContainsFunc(w.calls, func(c *call) bool {
		return !cmp.Or(c.undoes, c).began.After(w.vanished) && w.maySubtract(o, c, now)
	})
}

// takesAfterReset reports whether o may take from what was counted after a
// reset, and its process couldn't know of that: it had looked for resets before
// this one began.
func (w *world) takesAfterReset(o *operation, now time.Time) bool {
	for _, c := range w.calls {
		if !w.maySubtract(o, c, now) {
			continue
		}
		for _, r := range w.calls {
			if r.marked.IsZero() || r.marked.After(now) || c.request.Now.After(r.request.Now.Add(w.skew+2*w.timeout)) {
				continue
			}
			if o.looked == nil || !r.marked.Before(o.looked.applied) {
				return true
			}
		}
	}
	return false
}

// maySubtract reports whether o may be to take back what c has counted, or what
// c is to take back.
func (w *world) maySubtract(o *operation, c *call, now time.Time) bool {
	if c.process.number != o.process || c.kind != take && c.kind != refund {
		return false
	}
	again := !c.returned.IsZero() && now.Sub(c.returned) < 3*w.timeout && (c.denied() || c.kind == refund && c.err != nil)
	// It may take back what turned out to be counted, be that late.
	again = again || !c.returned.IsZero() && c.kind == take && (c.err != nil || c.failed != nil)
	return (c.returned.IsZero() || again) &&
		slot(o.key) == strconv.FormatInt(w.slotAt(c.request.Now), 10)
}

// answer ends o for its caller.
func (w *world) answer(o *operation, err error) {
	o.answered, o.ended, w.stirred = true, time.Now(), true
	if w.faults.late && err == counters.ErrTimeout && (o.verb == add || o.verb == swap) {
		err = w.postpone(o)
	}
	o.err = err
	p := w.processes[o.process]
	p.open = slices.DeleteFunc(p.open, func(other *operation) bool { return other == o })
	if err == nil {
		o.connection.heard = append(o.connection.heard, time.Now())
		if o.marks && o.verb == read {
			p.looked = o
		}
	}
	if err != nil {
		p.failed = time.Now()
		if !errors.Is(err, counters.ErrNotSent) {
			w.mu.Lock() // the end of a process wakes several at a time
			w.failures++
			if o.late == nil && o.verb != read && o.verb != load {
				w.untold++
			}
			w.mu.Unlock()
		}
		w.log("%v: %v", o, err)
	}
	close(o.done)
}

// endFaults ends the faults. From now on, three operations of a call end in time.
func (w *world) endFaults() {
	w.calm, w.farthest = true, max(1, int(w.timeout/tick/12))
	w.restore()
}

// restore ends the outage, if there is one.
func (w *world) restore() {
	if w.outage.kind != available {
		w.log("the outage is over")
	}
	w.outage = outage{}
	w.release()
}

// fail begins an outage.
func (w *world) fail(o outage) {
	w.outage = o
	who := "all"
	if o.process != nil {
		who = o.process.String()
	}
	w.log("an outage begins for %s: %v", who, o.kind)
}
