package simulate

import (
	"context"
	"slices"
	"testing/synctest"
	"time"

	"weir/counters"
)

// In a plot with a late answer one operation is given up by its caller, who
// decides alone then, and what became of it is told at any later moment of the
// course. Threads are goroutines there: what acts on the answer, and what a
// process repays beside its checks, may wait for them.

// A letter is a late answer.
type letter struct {
	process int
	outcome error
	listens func(err error) // nil if nobody does
	told    bool
}

// lags takes, and may give up.
func lags(process int) thread {
	t := takes(process, 1)
	t.late = true
	return t
}

// refused takes, and may be refused as it gives up.
func refused(process int) thread {
	t := lags(process)
	t.refuses = true
	return t
}

// hasLate reports whether an answer may be late.
func (p *plot) hasLate() bool {
	return slices.ContainsFunc(p.rounds, func(r round) bool {
		return slices.ContainsFunc(r.threads, func(t thread) bool { return t.late })
	})
}

// A threadContext bounds a call by its deadline, and names its thread.
type threadContext struct {
	context.Context
	strand int
}

func (c threadContext) Value(key any) any {
	if key == (callKey{}) {
		return c.strand
	}
	return c.Context.Value(key)
}

// park implements connection.perform where threads are goroutines.
func (r *run) park(o *operation) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		o.err = counters.ErrUnavailable
		return
	}
	o.done = make(chan struct{})
	r.sent = append(r.sent, o)
	r.mu.Unlock()
	<-o.done
}

// gather waits until all goroutines have come to an operation, or wait for one
// that has, or for a time that doesn't come. What no thread does gets a strand of
// its own.
func (r *run) gather() {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.sent, (*operation).before)
	for _, o := range r.sent {
		if o.call != noCall && r.strands[o.call].open == nil {
			r.strands[o.call].open, r.strands[o.call].step = o, 0
			continue
		}
		s := &strand{thread: thread{process: o.process}, open: o}
		if o.call == noCall {
			s.act = &act{process: o.process, round: r.round, kind: flush, counted: noDeed}
		} else {
			s.act = r.strands[o.call].act
		}
		r.strands = append(r.strands, s)
	}
	r.sent = nil
}

// giver returns the strand whose operation may be given up, or nil: it is what
// counts its check.
func (r *run) giver() *strand {
	if r.letter != nil {
		return nil
	}
	i := slices.IndexFunc(r.strands, func(s *strand) bool { return s.late && s.open != nil })
	if i < 0 || r.strands[i].open.verb != swap && (r.strands[i].open.verb != add || !isCounter(r.strands[i].open.key)) {
		return nil
	}
	return r.strands[i]
}

// giveUp has the operation of s fail at its deadline. What isn't done of it by
// then never is.
func (r *run) giveUp(s *strand) {
	o := s.open
	l := &letter{process: s.process}
	switch done := s.step > 0 && !o.lost && (o.verb != swap || o.swapped); {
	case done && !r.saysUndone || r.saysDone:
	case o.lost:
		l.outcome = counters.ErrLost
	default:
		l.outcome = counters.ErrNotSent
	}
	r.log("%v: its caller gives up", o)
	r.letter = l
	r.deed.act = s.act
	r.remembers(s)
	o.err = &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(err error)) { l.listens = f }}
	r.resume(s)
	r.record()
}

// deliver tells the late answer.
func (r *run) deliver() {
	l := r.letter
	l.told = true
	if l.outcome == nil {
		r.log("p%d     is told late that it was done", l.process)
	} else {
		r.log("p%d     is told late: %v", l.process, l.outcome)
	}
	r.deed.changes |= r.memory(l.process)
	if l.listens != nil && !r.tellsNobody {
		go l.listens(l.outcome)
		r.gather()
	}
	r.record()
}

// close ends what goes on after the run: a process tries for ever to repay what it
// owes.
func (r *run) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	for _, s := range r.strands {
		if s.open != nil {
			s.open.err = counters.ErrUnavailable
			close(s.open.done)
			s.open = nil
		}
	}
	synctest.Wait()
}

// answerAll lets all that is under way come to its end.
func (r *run) answerAll() {
	for !r.endless() {
		i := slices.IndexFunc(r.strands, func(s *strand) bool { return s.open != nil })
		if i < 0 {
			return
		}
		r.advance(r.strands[i])
	}
}

// judgeLate judges the course of a plot with a late answer, which was told before
// everybody was asked in the end. All is in one slot, nothing is lost, and nobody
// refunds.
//
//   - bound: no more than the limit is admitted, with the store and without, as
//     whoever has admitted alone is asked first in the end, if there was room for
//     all until then.
//   - reason: the limit is free, but for what was admitted: what was counted of a
//     check that its process has denied alone is given back.
//   - debts: the counters of a window are what was admitted.
func (r *run) judgeLate() {
	var admitted, inRounds int64
	for _, a := range r.acts {
		if a.admitted() {
			admitted++
		}
		if a.round < len(r.rounds) {
			inRounds++
		}
	}
	most := r.limit
	if inRounds > r.limit && slices.ContainsFunc(r.acts, func(a *act) bool { return a.alone && a.admitted() }) {
		most++
	}
	if admitted > most {
		r.violate("bound", "%d are admitted, at most %d may be", admitted, most)
	}
	if admitted < r.limit {
		r.violate("reason", "%d are admitted, the limit is %d", admitted, r.limit)
	}
	if !r.window() {
		return
	}
	var count int64
	for _, key := range r.present() {
		if isCounter(key) {
			count += r.items[key].count
		}
	}
	if count != admitted {
		r.violate("debts", "the counters are %d, but %d are admitted", count, admitted)
	}
}

// context returns the context of a call by a thread.
func (r *run) context(s *strand, now time.Time) context.Context {
	deadline := &counters.Deadline{At: now.Add(counters.DefaultTimeout)}
	if !r.lates {
		return deadline
	}
	return threadContext{deadline, slices.Index(r.strands, s)}
}
