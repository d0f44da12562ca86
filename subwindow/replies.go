package subwindow

import (
	"errors"
	"slices"

	"weir/counters"
	"weir/counters/ledger"
)

// tally notes that the store has counted the sum, which made the counter n, and what was read with it.
func (w *work) tally(n int64) {
	a := w.a
	a.flight = nil
	w.counted = true
	if s := a.at(w.bucket); !w.verify() {
		if w.see(w.bucket, n-w.sum, true, 0) > 0 { // a loss, or a reset
			a.doubtful = true
		}
		s.count, s.own = s.count+w.sum, s.own+w.sum
	}
	w.fillSlots()
}

// see takes over what the store has in a slot, notes that own of what is new there is this
// process's, and returns how much is missing.
func (w *work) see(bucket, value int64, lasting bool, own int64) (missing int64) {
	others, missing := w.a.see(bucket, value, lasting, w.resetting())
	if w.a.visited && w.a.hasRead(bucket) {
		w.book.Note(&w.a.share, own, own+others)
	}
	return missing
}

// verifies reports whether the generation was read.
func (w *work) verifies() bool { return len(w.read) > len(w.buckets) }

// verify takes over the generation that was read, if it was, and reports whether that told of a
// reset, so that what was known is forgotten. After any other change all is read.
func (w *work) verify() (reset bool) {
	a := w.a
	if !w.verifies() {
		return false
	}
	a.staleGeneration = false
	generation := max(0, w.read[0])
	switch was, is := resetAt(a.generation), resetAt(generation); {
	case is < was && w.now-was < int64(w.window.ttl(0)): // the store has lost the generation, which can't have expired
		w.repairs = true
		return false
	case is > was && w.window.fixed() && !a.doubtful && a.verified > is+int64(w.options.ClockSkew):
		// The only counter was read after the reset, so it is known. But what was this process's
		// in it may be gone, and be others' now.
		a.dropBefore(generation, w.options.ClockSkew)
		for i := range a.slots {
			a.slots[i].own = 0
		}
	case is > was:
		a.become(generation, w.options.ClockSkew)
		a.doubtful = true
		if s := a.at(w.bucket); w.counted {
			s.count, s.own = w.sum, w.sum
		}
		reset = true
	case generation != a.generation:
		a.doubtful = true
	}
	a.generation = generation
	return reset
}

// fillSlots takes over what was read of the slots.
func (w *work) fillSlots() {
	a, read := w.a, w.read[len(w.read)-len(w.buckets):]
	if w.all { // nothing is in doubt, but for what was learned since
		a.doubtful = slices.ContainsFunc(a.flights(), func(f *flight) bool { return f.outcome == ledger.Done })
	}
	for i, bucket := range w.buckets {
		if !w.all && bucket < w.bucket && a.isFinal(bucket) && read[i] != counters.Absent {
			continue // it was read as it might be lost
		}
		missing := w.see(bucket, read[i], bucket >= w.lasting, 0)
		if w.all && a.noteRead(bucket, read[i]) {
			a.pastChanged = a.pastChanged || w.mayBeFinal(bucket) // the flight may have counted late
		}
		switch {
		case missing == 0:
		case w.all:
			w.lost, w.repairs = append(w.lost, loss{bucket, missing, a.at(bucket).count}), true
		default: // a loss, or a reset
			a.doubtful = true
		}
	}
	if a.doubtful {
		return
	}
	if w.verifies() || w.step == stepRepair || w.window.fixed() {
		a.verified = w.now
	}
	final := (w.now-int64(w.window.Horizon))/int64(w.window.Width) - 1
	if a.finalFrom > a.ageOf(w.oldest-1) {
		a.readTo = 0
	}
	a.readTo, a.finalFrom = max(a.readTo, a.ageOf(w.oldest)), a.ageOf(final)
	w.upToDate = true
	w.book.Answered()
}

// repaired notes that losses were put back, and that the generation is now as told.
func (w *work) repaired(generation int64) {
	a := w.a
	lost := w.lost
	w.lost, w.repairs = nil, false
	if resetAt(generation) > resetAt(a.generation) { // what was put back is from before a reset
		a.become(generation, w.options.ClockSkew)
		for _, l := range lost {
			// If there is more, others have counted since, and nothing may have been put back.
			if i := slices.Index(w.buckets, l.bucket); i >= 0 && w.read[i] <= l.known {
				a.owe(l.bucket, -l.missing, a.forgottenTo(w.options.ClockSkew)+int64(w.window.Horizon)) // so late that this reset doesn't drop it
			}
		}
		a.doubtful = true
		return
	}
	own := func(l loss) bool { return w.counted && l.bucket == w.bucket && l.known == w.sum } // what was lost is what this work has just counted
	if lost = slices.DeleteFunc(lost, own); len(lost) > 0 {
		w.options.Reseeded(len(lost))
	}
	a.generation, a.pastChanged = generation, false
	w.fillSlots()
}

// duesTold notes what has become of what was due.
func (w *work) duesTold() (err error) {
	a := w.a
	for i, d := range w.dues {
		s, added := a.at(d.bucket), w.added[i]
		if s == nil {
			s = new(slot) // nobody looks at it any more
		}
		a.finalFrom = max(a.finalFrom, a.ageOf(d.bucket-1)) // the slot may go on to change
		switch o := ledger.OutcomeOf(added.Err); {
		case o == ledger.Done:
			a.owe(d.bucket, -d.cost, d.at)
			s.count, s.own = max(0, s.count+d.cost), s.own+d.cost
			if d.cost < 0 {
				continue
			}
			if w.see(d.bucket, added.Count, true, d.cost) > 0 {
				a.doubtful = true
			}
			a.visited = true
		case errors.Is(added.Err, counters.ErrLost):
			if d.bucket < w.oldest { // it is in no window any more
				*s = slot{}
			} else {
				a.doubtful = true
			}
		case o == ledger.NotDone:
			err = added.Err
		case d.cost > 0:
			f := &flight{bucket: d.bucket, sum: d.cost, alone: d.cost, before: a.mayHave(d.bucket, s.count), at: max(d.at, a.forgottenTo(w.options.ClockSkew)+1)}
			w.await(a.unanswered(f, w.options.ClockSkew), added.Err)
			err = added.Err
		default: // it is taken for done: nothing is subtracted twice, as that would admit too much
			a.owe(d.bucket, -d.cost, 0)
			s.count, s.own, a.doubtful = max(0, s.count+d.cost), s.own+d.cost, true
			w.options.RefundFailed()
			err = added.Err
		}
	}
	n := len(w.dues)
	if n == len(w.additions) || err != nil {
		return err
	}
	told := w.added[n]
	if told.Err != nil {
		w.untellable = true
		return nil
	}
	a.pastChanged = false
	if told.Count-w.additions[n].Delta == a.generation {
		a.generation = told.Count // nobody else has changed anything
	}
	return nil
}
