package cas

import (
	"context"
	"time"

	"weir/counters"
)

// Usage returns the state that decides r, as the store has it, and consumes nothing. What
// this process has still to tell the store is not in it. The error is counters.ErrRequest
// or one of a store's.
func (l *limiterOf[S]) Usage(ctx context.Context, r counters.Request) (counters.Usage, error) {
	if err := r.Check(); err != nil {
		return counters.Usage{}, err
	}
	state, err := l.family.store.Load(ctx, l.family.keys.StateKey(r.Client))
	if err != nil {
		return counters.Usage{}, err
	}
	s, _, _ := l.family.decoded(state)
	return l.family.usage(s, r), nil
}

func (b bucket) usage(s bucketState, r counters.Request) counters.Usage {
	b.advance(&s, r.Now.UnixNano(), r.Limit)
	return counters.Usage{Bucket: &counters.BucketUsage{
		Level:           float64(s.whole) + float64(s.part)/float64(b.window),
		Capacity:        float64(b.capacity(r.Limit)),
		DrainsPerSecond: float64(r.Limit) / b.window.Seconds(),
	}}
}

func (l log) usage(s logState, r counters.Request) (u counters.Usage) {
	live, _ := l.live(s, r)
	for e := range l.all(live) {
		last := time.Unix(0, e.last)
		u.Entries = append(u.Entries, counters.EntryUsage{
			First: time.Unix(0, e.first), Last: last, Until: last.Add(l.window), Cost: l.inUse(e, live.time),
		})
	}
	return u
}
