package simulate

import (
	"errors"
	"slices"
	"time"

	"weir/counters"
)

// lag returns up to most ticks.
func (w *world) lag(most int) time.Duration { return time.Duration(w.lateness.IntN(most+1)) * tick }

// An outcome says whether the store has counted what a process has admitted
// without it.
type outcome int

const (
	owed    outcome = iota // it hasn't
	unknown                // it may have
	counted
)

// postpone returns what the caller of o gets, which has waited in vain: the
// outcome is told later. It is told at once, or up to three timeouts later; in the
// order in which operations were sent, or in any. What hasn't been applied yet is
// perhaps dropped.
func (w *world) postpone(o *operation) error {
	l, r := new(lateAnswer), w.lateness
	l.Err, o.late = counters.ErrTimeout, l
	if o.applied.IsZero() && r.IntN(3) == 0 {
		o.planned = 0
	}
	o.broken = o.broken || r.IntN(8) == 0
	at := time.Now()
	if o.planned > 0 && o.applied.IsZero() {
		at = maxTime(at, o.finish).Add(tick)
	}
	timeout := int(w.timeout / tick)
	at = at.Add(pick(r, 0, w.lag(timeout), w.lag(3*timeout)))
	if r.IntN(2) == 0 {
		at = maxTime(at, o.connection.told)
	}
	o.connection.told = maxTime(at, o.connection.told)
	if known := w.becomes(o); !at.After(time.Now()) && r.IntN(2) == 0 && !w.mustWait(o, known) && !w.broken.tellsNobody {
		w.tells(o, known)
		l.Await = func(f func(err error)) { f(known) }
		l.WhenKnown(func(error) {}) // who asks next finds it known
		return &l.Unanswered
	}
	l.Await = func(f func(err error)) {
		n := o.connection.network
		n.mu.Lock()
		l.listens = f
		n.awaited = append(n.awaited, o)
		n.mu.Unlock()
		n.wake()
	}
	w.at(at, event{do: func() { w.tell(o) }})
	return &l.Unanswered
}

// becomes returns the late answer to o, whose planned steps have been applied by then.
func (w *world) becomes(o *operation) error {
	done := o.planned > 0 && !o.lost && (o.verb != swap || o.swapped)
	switch {
	case o.broken:
		return counters.ErrUnavailable
	case w.broken.saysDone && !o.lost:
		return nil
	case done && !w.broken.saysUndone:
		return nil
	case o.lost:
		return counters.ErrLost
	default:
		return counters.ErrNotSent
	}
}

// mustWait reports whether the outcome of o isn't told yet: that it was done is
// told as soon as the store takes operations again.
func (w *world) mustWait(o *operation, outcome error) bool {
	return outcome == nil && w.outage.of(w.processes[o.process]) != available
}

// tell has the caller of o told what became of it, unless that was told.
func (w *world) tell(o *operation) {
	if !o.late.told.IsZero() {
		return
	}
	outcome := w.becomes(o)
	if w.mustWait(o, outcome) {
		w.held = append(w.held, o)
		return
	}
	w.tells(o, outcome)
	w.pass(o)
}

// tells notes that the outcome of o is known from now on.
func (w *world) tells(o *operation, outcome error) {
	o.late.told, o.late.outcome = time.Now(), outcome
	switch known := o.known(); {
	case known == unknown:
		w.mu.Lock()
		w.untold++
		w.mu.Unlock()
	case known == counted && slices.ContainsFunc(w.lost, func(at time.Time) bool { return !at.Before(o.sent) }):
		// Whoever refused it takes it back, and doesn't know that it was lost.
		w.takenBack = time.Now().Add(4 * w.timeout)
	}
	w.log("%v: it is told late that %v", o, [...]string{owed: "it wasn't done", unknown: "nobody knows", counted: "it was done"}[o.known()])
}

// pass has a goroutine of its own act on the outcome of o, if anybody awaits it.
func (w *world) pass(o *operation) {
	f := o.late.listens
	if o.late.listens = nil; f == nil || w.broken.tellsNobody {
		return
	}
	outcome := o.late.outcome
	w.stirred = true
	w.telling.Add(1)
	go func() {
		defer w.telling.Add(-1)
		f(outcome)
	}()
}

// listen notes that somebody awaits the outcome of o, be it known or not.
func (w *world) listen(o *operation) {
	if !o.late.told.IsZero() {
		w.after(0, func() { w.pass(o) })
	}
}

// breakOff fails the late answers that operations of c still wait for, one after the other: nobody
// will know their outcome.
func (w *world) breakOff(c *connection) {
	for _, o := range w.writes {
		if o.connection == c && o.late != nil && o.late.told.IsZero() {
			o.broken = true
			w.after(0, func() { w.tell(o) })
		}
	}
}

// release has those late answers told that waited for the end of an outage.
func (w *world) release() {
	for _, o := range w.held {
		w.after(w.lag(farthest), func() { w.tell(o) })
	}
	w.held = nil
}

// known returns what the process of o knows of it: whether it was done.
func (o *operation) known() outcome {
	err := o.err
	if o.late != nil && !o.late.told.IsZero() {
		err = o.late.outcome
	}
	switch {
	case !o.answered:
		return unknown
	case errors.Is(err, counters.ErrNotSent) || errors.Is(err, counters.ErrLost) || err == nil && o.verb == swap && !o.swapped && o.late == nil:
		return owed
	case err != nil:
		return unknown
	default:
		return counted
	}
}

// told reports whether the process of c, which has failed, knew by then what
// became of all that may have counted c.
func (w *world) told(c *call, by time.Time) bool {
	return w.faults.late && !slices.ContainsFunc(w.writes, func(o *operation) bool {
		return w.mayCount(o, c) && (o.known() == unknown || o.late != nil && o.late.told.After(by))
	})
}

// done reports whether any of that was done. A swap that was answered in time while c
// went on waiting is none of its.
func (w *world) done(c *call) bool {
	return slices.ContainsFunc(w.writes, func(o *operation) bool {
		others := o.verb == swap && o.late == nil && o.ended.Before(c.returned)
		return w.mayCount(o, c) && o.known() == counted && !others
	})
}

// mayCount reports whether o may have counted c before that returned.
func (w *world) mayCount(o *operation, c *call) bool {
	return o.connection == c.life && !o.sent.After(c.returned) && !(o.answered && o.ended.Before(c.began)) && (w.width() == 0 || o.key == w.counter(c))
}

// givenBack reports whether what the store may have counted of c, which it
// didn't answer in time, has surely been given back, as c was refused.
func (w *world) givenBack(c *call) bool {
	refused := c.kind == take && !c.crashed && (c.err != nil || c.failed != nil && c.denied() && !w.countDenied)
	return refused && w.unclear() == 0 && w.told(c, time.Now())
}

// unclear returns of how many operations, and refunds, nobody will know whether
// they were done. Without late answers that may be any that failed.
func (w *world) unclear() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faults.late {
		return w.untold
	}
	return w.failures
}
