package subwindow

import (
	"context"
	"slices"
	"time"

	"weir/counters"
)

// A reading is what the store has of a client.
type reading struct {
	generation int64
	slots      []int64 // newest first
	marks      []int64 // of resets, newest first
	putBack    []int64 // more than 0 for slots whose counts were put back
}

// restore puts back what the store has lost of what a remembers, and leaves a
// with what the store has then, but for the sum that a has counted in the
// current slot. If the client may have been reset, a forgets instead.
func (s *slots) restore(ctx context.Context, a *attempt, sum int64) error {
	seen, err := s.look(ctx, a, false)
	others := lastPutBack(seen.generation) != lastPutBack(a.generation)
	for ; err == nil; others = false {
		s.judge(a, seen)
		losses := s.losses(a, seen, sum, others)
		if len(losses) == 0 && !a.unmarked(seen.generation) {
			a.take(seen.generation, seen.slots, sum)
			return nil
		}
		seen, err = s.putBack(ctx, a, seen, losses)
	}
	return err
}

// suppose leaves a with what the store would have if what it has lost were put
// back. Only who leads may do that: others may just be taking something back.
func (s *slots) suppose(ctx context.Context, a *attempt) error {
	seen, err := s.look(ctx, a, false)
	if err != nil {
		return err
	}
	s.judge(a, seen)
	for i, n := range a.counts {
		seen.slots[i] = max(n, seen.slots[i])
	}
	a.take(seen.generation, seen.slots, 0)
	return nil
}

// look reads all of a's slots, and what tells of resets: the generation before
// them, and the marks after them. If others are to read them too, it raises the
// generation first.
func (s *slots) look(ctx context.Context, a *attempt, tell bool) (reading, error) {
	keys := []string{a.generationKey}
	for i := range a.counts {
		keys = append(keys, counters.CounterKey(a.prefix, a.bucket+int64(a.ahead-i)))
	}
	now := time.Unix(0, a.now)
	keys = append(keys, s.marks(a.prefix, now, now)...)
	for i := range a.counts {
		keys = append(keys, counters.PutBackKey(a.prefix, a.bucket+int64(a.ahead-i)))
	}
	counts := make([]int64, len(keys))
	var err error
	if tell {
		addition := s.generationAfter(a.prefix, now, a.generation, putBackUnit, mostPutBack)
		addition.Read, addition.Counts = keys[1:], counts[1:]
		counts[0], err = s.store.Add(ctx, addition)
	} else {
		err = s.store.Read(ctx, keys, counts)
	}
	marks, putBack := 1+len(a.counts), len(counts)-len(a.counts)
	return reading{counts[0], counts[1:marks], counts[marks:putBack], counts[putBack:]}, err
}

// judge has a forget if the client may have been reset since what a remembers
// was verified. A generation that isn't there, or has begun anew, tells nothing.
func (s *slots) judge(a *attempt, seen reading) {
	if s.resetUntil(time.Unix(0, a.now), seen.marks) >= a.verified/int64(time.Millisecond) {
		a.forget()
	}
	if seen.generation != counters.Absent && !a.unmarked(seen.generation) {
		a.turn(seen.generation)
	}
}

// A loss is what a slot is to be again, and how much it lacks.
type loss struct {
	counters.Floor
	missing, bucket int64
	remembered      bool // not just counted
}

// losses returns what a remembers and the store has lost, of the current slot
// with the sum that a has counted there. If others have put back less since a
// was verified, the rest is lost too.
func (s *slots) losses(a *attempt, seen reading, sum int64, others bool) (losses []loss) {
	for i, n := range seen.slots {
		want, least := a.counts[i], int64(0)
		if i == a.ownAt {
			least = a.own
		}
		if others && seen.putBack[i] > 0 && n != counters.Absent {
			if i == a.ownAt { // others may deny and take back the rest
				want = max(a.own, a.most)
			}
			least = want
		}
		if i == a.ahead {
			want, least = want+sum, least+sum
		}
		ttl := s.ttl(a.elapsed + time.Duration(i-a.ahead)*s.window.Width)
		if want > 0 && ttl > 0 && i < len(a.counts)-a.gone && (n == counters.Absent || n < least) {
			bucket := a.bucket + int64(a.ahead-i)
			floor := counters.Floor{Key: counters.CounterKey(a.prefix, bucket), Count: want, TTL: ttl}
			losses = append(losses, loss{floor, want - max(0, n), bucket, a.counts[i] > 0})
		}
	}
	return losses
}

// putBack puts back the losses, and the generation if the store has none, and
// returns what the store has then. It takes the losses back, and has a forget,
// if a reset has come in between.
func (s *slots) putBack(ctx context.Context, a *attempt, seen reading, losses []loss) (reading, error) {
	var floors []counters.Floor
	for _, l := range losses {
		mark := counters.Floor{Key: counters.PutBackKey(a.prefix, l.bucket), Count: 1, TTL: l.TTL}
		floors = append(floors, l.Floor, mark)
	}
	if a.unmarked(seen.generation) {
		floors = append(floors, counters.Floor{Key: a.generationKey, Count: a.generation, TTL: s.ttl(0)})
	}
	if err := s.store.Raise(ctx, floors); err != nil {
		return seen, err
	}
	now, err := s.look(ctx, a, true)
	if err != nil {
		return seen, err
	}
	if (lastReset(now.generation) == lastReset(a.generation) || a.unmarked(now.generation)) && slices.Equal(now.marks, seen.marks) {
		if n := len(slices.DeleteFunc(losses, func(l loss) bool { return !l.remembered })); n > 0 {
			s.options.Reseeded(n)
		}
		return now, nil
	}
	a.forget()
	for _, l := range losses {
		if err := s.store.Subtract(ctx, l.Key, l.missing); err != nil {
			return seen, err
		}
	}
	return s.look(ctx, a, false)
}
