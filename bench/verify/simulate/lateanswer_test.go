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

// context returns the context of a call by a thread.
func (r *run) context(s *strand, now time.Time) context.Context {
	deadline := &counters.Deadline{At: now.Add(counters.DefaultTimeout)}
	if !r.lates {
		return deadline
	}
	return threadContext{deadline, slices.Index(r.strands, s)}
}
