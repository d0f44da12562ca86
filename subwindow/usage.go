package subwindow

import (
	"context"
	"time"

	"weir/counters"
)

// Usage returns the counters that decide r, as the store has them, and consumes nothing.
// What this process has still to tell the store is not in them. The error is
// counters.ErrRequest or one of a Store's.
func (l *Limiter) Usage(ctx context.Context, r counters.Request) (counters.Usage, error) {
	if err := r.Check(); err != nil {
		return counters.Usage{}, err
	}
	f, w := &l.windows, &l.windows.window
	now := counters.Calendar(r.Now, w.Width)
	ahead := w.ahead(now.Elapsed)
	newest, prefix := now.Number+int64(ahead), f.keys.Client(r.Client)
	keys := make([]string, ahead+1+w.Slots+w.back())
	for i := range keys {
		keys[i] = counters.CounterKey(prefix, newest-int64(i))
	}
	counts := make([]int64, len(keys))
	if err := f.store.Read(ctx, keys, counts); err != nil {
		return counters.Usage{}, err
	}
	slots := make([]counters.SlotUsage, len(keys))
	for i, count := range counts {
		s := counters.SlotUsage{Start: r.Now.Add(-now.Elapsed).Add(w.Width * time.Duration(ahead-i)), Count: max(0, count)}
		if s.Count > 0 {
			s.Weight = 1
			if age := i - ahead; age >= w.Slots {
				s.Weight = float64(w.covered(s.Count, age, now.Elapsed, r.Limit)) / float64(s.Count)
			}
		}
		slots[len(slots)-1-i] = s
	}
	return counters.Usage{Slots: slots}, nil
}
