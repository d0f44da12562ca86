package subwindow

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// look reads the slots that may have changed; all if that is doubtful or to be peeked at; or, if
// something is due, only the generation and the slots of refunds.
func (w *work) look() ledger.Step {
	a := w.a
	w.step, w.dues = stepLook, append(w.dues, a.dues()...)
	switch all := a.doubtful || slices.ContainsFunc(w.pending, func(c *call) bool { return c.Request.Kind == ledger.Peeks }); {
	case a.owes() && a.staleGeneration && !a.doubtful:
		w.step, w.all, w.buckets = stepVerify, false, w.buckets[:0]
		for _, d := range w.dues {
			if d.cost < 0 {
				w.buckets = append(w.buckets, d.bucket)
			}
		}
		w.nameKeys(true)
	default:
		w.lost, w.repairs = w.lost[:0], w.repairs && !all
		w.reads(all, all || !a.fresh(w.now), true)
	}
	w.additions = append(w.additions, counters.Addition{Read: w.keys, Counts: w.read})
	return ledger.Together
}

// reads names the keys to be read: of all slots or of those that aren't final, with the
// generation or without, and with the current slot or without.
func (w *work) reads(all, generation, current bool) {
	a := w.a
	w.buckets = w.buckets[:0]
	for bucket := w.newest(); bucket >= w.oldest; bucket-- {
		switch {
		case bucket == w.bucket && !current:
		case bucket == w.bucket, all, !a.isFinal(bucket):
			w.buckets = append(w.buckets, bucket)
		case bucket < w.bucket:
			bucket = a.top - int64(a.readTo) // the final ones are skipped
		}
	}
	if last, ok := w.lastCounted(); ok && generation && !all && last < w.bucket && a.isFinal(last) {
		w.buckets = append(w.buckets, last) // if the client is lost, what else is read doesn't tell
	}
	if w.all = all; all {
		more := func(bucket int64) {
			if (bucket < w.oldest || bucket > w.newest()) && !slices.Contains(w.buckets, bucket) {
				w.buckets = append(w.buckets, bucket)
			}
		}
		for _, f := range a.flights() {
			if !f.seen {
				more(f.bucket)
			}
		}
		for _, d := range a.dues() {
			if d.bucket > w.newest() { // of a later request than these
				more(d.bucket)
			}
		}
	}
	w.nameKeys(generation)
}

// lastCounted returns the newest slot that has a count and can't have expired, if there is one.
func (w *work) lastCounted() (bucket int64, ok bool) {
	a := w.a
	for i, s := range a.slots {
		if bucket = a.top - int64(i); bucket < w.lasting {
			break
		}
		if s.count > 0 {
			return bucket, true
		}
	}
	return 0, false
}

// nameKeys makes keys those of the generation, if it is to be verified, and of buckets: in that order,
// so that counts from before a reset are never taken for those after it.
func (w *work) nameKeys(generation bool) {
	prefix := w.a.prefix()
	w.keys, w.text = w.keys[:0], w.text[:0]
	if generation {
		w.text = append(counters.AppendGenerationKey(w.text, prefix), ' ')
	}
	for _, bucket := range w.buckets {
		w.text = append(counters.AppendCounterKey(w.text, prefix, bucket), ' ')
	}
	// The keys are parts of one string, so that many take one allocation.
	for text := string(w.text); text != ""; {
		key, rest, _ := strings.Cut(text, " ")
		w.keys, text = append(w.keys, key), rest
	}
	w.read = slices.Grow(w.read[:0], len(w.keys))[:len(w.keys)]
}

// count adds the chosen costs.
func (w *work) count() ledger.Step {
	a := w.a
	w.step = stepCount
	// A fixed window sees a reset by its only counter, which the reset has deleted.
	w.reads(false, !a.fresh(w.now) && !w.window.fixed(), false)
	a.key = a.keyAt(w.bucket)
	have := a.at(w.bucket).count > 0
	w.additions = append(w.additions, counters.Addition{
		Key: a.key, Delta: w.sum, TTL: w.window.ttl(w.elapsed), New: !have, Have: have, Read: w.keys, Counts: w.read,
	})
	return ledger.Together
}

// tellDues tells the store what is due, and reports whether there is anything to tell.
func (w *work) tellDues() bool {
	a := w.a
	w.step = stepTell
	for _, d := range a.dues() {
		if d.cost = a.toTell(d); d.cost == 0 {
			continue
		}
		w.dues = append(w.dues, d)
		addition := counters.Addition{Key: a.keyAt(d.bucket), Delta: d.cost}
		if d.cost > 0 {
			s := a.at(d.bucket)
			addition.TTL, addition.Have = w.window.ttl(w.open(d.bucket)), s != nil && s.count > 0
			addition.New = !addition.Have
		}
		w.additions = append(w.additions, addition)
		a.pastChanged = a.pastChanged || w.mayBeFinal(d.bucket)
	}
	if a.pastChanged && (len(w.dues) > 0 || !w.untellable) {
		w.additions = append(w.additions, w.change(a, w.now))
	}
	return len(w.additions) > 0
}

// mayBeFinal reports whether another instance may take a slot for final before the deadline, so
// that it must be told of a change there. Others wait for the horizon, which is the store
// timeout and the clock skew; their clocks may be a skew ahead, and a skew is to spare.
func (w *work) mayBeFinal(bucket int64) bool {
	end := time.Unix(0, (bucket+1)*int64(w.window.Width))
	return !w.deadline.IsZero() && !w.window.fixed() && w.deadline.Add(w.options.ClockSkew-w.options.StoreTimeout).After(end)
}

// repair puts back what the store has lost, tells others of that, and reads everything.
func (w *work) repair() ledger.Step {
	a := w.a
	w.step = stepRepair
	for _, l := range w.lost {
		if ttl := w.window.ttl(w.open(l.bucket)); ttl > 0 && l.known > 0 {
			w.floors = append(w.floors, counters.Floor{Key: counters.CounterKey(a.prefix(), l.bucket), Count: l.known, TTL: ttl})
		}
	}
	if a.generation >= resetUnit {
		w.floors = append(w.floors, counters.Floor{Key: counters.GenerationKey(a.prefix()), Count: a.generation, TTL: w.window.ttl(0)})
	}
	w.reads(true, false, true)
	tells := w.change(a, w.now)
	tells.Read, tells.Counts = w.keys, w.read
	w.additions = append(w.additions, tells)
	return ledger.Apart
}

// Exchange implements ledger.Work. What is due is told side by side.
func (w *work) Exchange(ctx context.Context) {
	if len(w.floors) > 0 {
		if err := w.store.Raise(ctx, w.floors); err != nil {
			w.hear(nil, err)
			return
		}
	}
	w.added = slices.Grow(w.added[:0], len(w.additions))[:len(w.additions)]
	told := 0
	if w.step == stepTell && len(w.dues) > 1 {
		told = len(w.dues)
		var beside sync.WaitGroup
		for i := range told {
			beside.Go(func() {
				one := work{family: w.family, additions: w.additions[i : i+1]}
				one.Exchange(ctx)
				w.added[i] = one.added[0]
			})
		}
		beside.Wait()
	}
	for i := told; i < len(w.additions); i++ {
		said := &w.added[i]
		switch a := w.additions[i]; {
		case a.Key == "":
			said.Err = w.store.Read(ctx, a.Read, a.Counts)
		case a.Delta < 0:
			said.Err = w.store.Subtract(ctx, a.Key, -a.Delta)
		default:
			said.Count, said.Err = w.store.Add(ctx, a)
		}
	}
}

// hear takes over what the store has said, or why it hasn't been asked.
func (w *work) hear(added []counters.Added, err error) {
	if w.added = append(w.added[:0], added...); err != nil {
		w.added = slices.Repeat([]counters.Added{{Err: err}}, len(w.additions))
	}
}
