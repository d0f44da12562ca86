package subwindow

import (
	"context"
	"math/rand/v2"
	"time"

	"weir/counters"
)

// slots are the counters of a limit in the store.
type slots struct {
	store   counters.Store
	many    counters.ManyStore // the same, or nil
	window  Window
	options counters.Options
	keys    counters.Namespace
}

// maySettle reports whether an instance may have settled a slot by the deadline
// of ctx, so that it has to be told that the slot's count has changed. What
// nobody remembers needn't be told.
func (s *slots) maySettle(ctx context.Context, bucket int64) bool {
	deadline, ok := ctx.Deadline()
	end := time.Unix(0, (bucket+1)*int64(s.window.Width))
	return ok && !s.window.fixed() && deadline.Add(s.options.ClockSkew-s.options.StoreTimeout).After(end)
}

// What is added to a generation: a number of putBackUnit when counts are put
// back, of changedUnit when others have to read everything anew, and of
// resetUnit when the client is reset. It is any number up to the unit's most, so
// that a generation which was lost, or has expired, and has begun anew isn't
// mistaken for the old one.
const (
	putBackUnit, mostPutBack = 1, changedUnit - 1
	changedUnit, mostChanged = 1 << 20, 1 << 10
	resetUnit, mostReset     = 1 << 38, 1 << 10
)

// lastGeneration is where a generation is begun anew, as a counter may have to
// hold more resets than fit.
const lastGeneration = 1 << 62

// lastReset returns the part of a generation that resets change.
func lastReset(generation int64) int64 { return max(0, generation) / resetUnit }

// lastPutBack returns the part that changes when counts are put back.
func lastPutBack(generation int64) int64 { return max(0, generation) % changedUnit }

// generationAfter raises a generation by any number up to most of a unit. The
// number follows from the moment and the generation that is known, so that what
// is simulated can be replayed.
func (s *slots) generationAfter(prefix string, now time.Time, known, unit, most int64) counters.Addition {
	random := rand.New(rand.NewPCG(uint64(now.UnixNano()), uint64(known)))
	return counters.Addition{
		Key: counters.GenerationKey(prefix), Delta: unit * (1 + random.Int64N(most)), TTL: s.ttl(0), New: true,
	}
}

// ttl is the window's.
func (s *slots) ttl(elapsed time.Duration) time.Duration { return s.window.ttl(elapsed) }
