package subwindow

import (
	"context"
	"slices"
	"time"

	"weir/counters"
)

// A sight is what the store has of a client.
type sight struct {
	generation int64
	slots      []int64 // newest first
	marks      []int64 // of resets, newest first
}

// restore puts back what the store has lost of what a remembers, and leaves a
// with what the store has then, but for the sum that a has counted in the
// current slot. If the client may have been reset, a forgets instead.
func (s *slots) restore(ctx context.Context, a *attempt, sum int64) error {
	seen, err := s.look(ctx, a, false)
	for err == nil {
		s.judge(a, seen)
		losses := s.losses(a, seen, sum)
		if len(losses) == 0 && (seen.generation != counters.Absent || lastReset(a.generation) == 0) {
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
func (s *slots) look(ctx context.Context, a *attempt, tell bool) (sight, error) {
	keys := []string{a.generationKey}
	for i := range a.counts {
		keys = append(keys, counters.CounterKey(a.prefix, a.bucket+int64(a.ahead-i)))
	}
	now := time.Unix(0, a.now)
	keys = append(keys, s.marks(a.prefix, now, now)...)
	counts := make([]int64, len(keys))
	var err error
	if tell {
		addition := s.generationAfter(a.prefix, 1)
		addition.Read, addition.Counts = keys[1:], counts[1:]
		counts[0], err = s.store.Add(ctx, addition)
	} else {
		err = s.store.Read(ctx, keys, counts)
	}
	marks := 1 + len(a.counts)
	return sight{counts[0], counts[1:marks], counts[marks:]}, err
}

// judge has a forget if the client may have been reset since what a remembers
// was verified. A generation that isn't there tells nothing.
func (s *slots) judge(a *attempt, seen sight) {
	if s.resetUntil(time.Unix(0, a.now), seen.marks) >= a.verified/int64(time.Millisecond) {
		a.forget()
	}
	if seen.generation != counters.Absent {
		a.turn(seen.generation)
	}
}

// A loss is what a slot is to be again, and how much it lacks.
type loss struct {
	counters.Floor
	missing int64
}

// losses returns what a remembers and the store has lost, of the current slot
// with the sum that a has counted there.
func (s *slots) losses(a *attempt, seen sight, sum int64) (losses []loss) {
	for i, n := range seen.slots {
		want, least := a.counts[i], int64(0)
		if i == a.ownAt {
			least = a.own
		}
		if i == a.ahead {
			want, least = want+sum, least+sum
		}
		ttl := s.ttl(a.elapsed + time.Duration(i-a.ahead)*s.window.Width)
		if want > 0 && ttl > 0 && (n == counters.Absent || n < least) {
			key := counters.CounterKey(a.prefix, a.bucket+int64(a.ahead-i))
			losses = append(losses, loss{counters.Floor{Key: key, Count: want, TTL: ttl}, want - max(0, n)})
		}
	}
	return losses
}

// putBack puts back the losses, and the generation if the store has none, and
// returns what the store has then. It takes the losses back, and has a forget,
// if a reset has come in between.
func (s *slots) putBack(ctx context.Context, a *attempt, seen sight, losses []loss) (sight, error) {
	var floors []counters.Floor
	for _, l := range losses {
		floors = append(floors, l.Floor)
	}
	if seen.generation == counters.Absent && lastReset(a.generation) > 0 {
		floors = append(floors, counters.Floor{Key: a.generationKey, Count: a.generation, TTL: s.ttl(0)})
	}
	if err := s.store.Raise(ctx, floors); err != nil {
		return seen, err
	}
	now, err := s.look(ctx, a, true)
	if err != nil {
		return seen, err
	}
	if lastReset(now.generation) == lastReset(a.generation) && slices.Equal(now.marks, seen.marks) {
		s.options.Reseeded(len(losses))
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
