package subwindow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"weir/counters"
)

// slots are the counters of a limit in the store.
type slots struct {
	store   counters.Store
	window  Window
	options counters.Options
	keys    counters.Namespace
}

// repay counts in the store what was admitted without it, in the slots whose
// counters matter at now, be it to late requests. After an error, one of a
// store's, nothing has been asked of the store for those who wait.
func (s *slots) repay(ctx context.Context, v *view, client string, now time.Time) error {
	if !v.owes() {
		return nil
	}
	oldest := counters.Calendar(now.Add(-s.ttl(0)), s.window.Width).Number + 1
	debts := v.due(oldest)
	if len(debts) == 0 {
		return nil
	}
	// The debts stand until they are repaid, as others decide by them meanwhile.
	prefix := s.keys.Client(client)
	due, err := s.due(ctx, prefix, debts)
	if err == nil {
		err = s.repayAll(ctx, v, prefix, debts, due, now)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	return nil
}

// repayAll counts what is due of each debt.
func (s *slots) repayAll(ctx context.Context, v *view, prefix string, debts []debt, due []int64, now time.Time) error {
	errs := make([]error, len(debts))
	tell := false
	var adding sync.WaitGroup
	for i, d := range debts {
		tell = tell || s.maySettle(ctx, d.bucket)
		if due[i] <= 0 {
			continue
		}
		open := now.Sub(time.Unix(0, d.bucket*int64(s.window.Width)))
		adding.Go(func() {
			_, errs[i] = s.store.Add(ctx, counters.Addition{
				Key: counters.CounterKey(prefix, d.bucket), Delta: due[i], TTL: s.ttl(open), New: !d.have, Have: d.have,
			})
		})
	}
	adding.Wait()
	err := errors.Join(errs...)
	if err == nil && tell {
		_, err = s.raiseGeneration(ctx, prefix, 1)
	}
	for i, d := range debts {
		switch {
		case errs[i] == nil:
			v.repaid(d, due[i], err == nil)
		case !d.sent && !errors.Is(errs[i], counters.ErrNotSent) && !errors.Is(errs[i], counters.ErrLost):
			v.doubt(d)
		}
	}
	return err
}

// due returns how much of each debt the store has surely not counted. What it
// has may be others', so this is rather too little. The error is ErrLost if the
// store has lost the slot of one.
func (s *slots) due(ctx context.Context, prefix string, debts []debt) ([]int64, error) {
	due := make([]int64, len(debts))
	var keys []string
	for i, d := range debts {
		due[i] = d.cost
		if d.sent {
			keys = append(keys, counters.CounterKey(prefix, d.bucket))
		}
	}
	if len(keys) == 0 {
		return due, nil
	}
	counts := make([]int64, len(keys))
	if err := s.store.Read(ctx, keys, counts); err != nil {
		return nil, err
	}
	for i, d := range debts {
		if d.sent {
			if d.have && counts[0] == counters.Absent {
				return nil, counters.ErrLost
			}
			counts[0] = max(0, counts[0])
			if d.before != math.MinInt64 {
				due[i] = min(d.cost, d.before+d.cost-counts[0])
			} else {
				due[i] = 0
			}
			counts = counts[1:]
		}
	}
	return due, nil
}

// maySettle reports whether an instance may have settled a slot by the deadline
// of ctx, so that it has to be told that the slot's count has changed. What
// nobody remembers needn't be told.
func (s *slots) maySettle(ctx context.Context, bucket int64) bool {
	deadline, ok := ctx.Deadline()
	end := time.Unix(0, (bucket+1)*int64(s.window.Width))
	return ok && !s.window.fixed() && deadline.Add(s.options.ClockSkew-s.options.StoreTimeout).After(end)
}

// resetUnit is what resets add to a generation, times a number. Less than that
// is added to have everything read anew: what is remembered is only compared
// with it.
const resetUnit = 1 << 32

// lastReset returns the part of a generation that resets change.
func lastReset(generation int64) int64 { return max(0, generation) / resetUnit }

// raiseGeneration makes every instance read a client's slots anew, within
// counters.MaxStaleness, and forget what it remembers of them if the unit is
// resetUnit and not 1. It returns the new generation. That begins anywhere, so
// that one which has expired and begun anew isn't mistaken for the old one.
func (s *slots) raiseGeneration(ctx context.Context, prefix string, unit int64) (int64, error) {
	return s.store.Add(ctx, s.generationAfter(prefix, unit))
}

func (s *slots) generationAfter(prefix string, unit int64) counters.Addition {
	return counters.Addition{
		Key: counters.GenerationKey(prefix), Delta: unit * (1 + rand.Int64N(1<<16)), TTL: s.ttl(0), New: true,
	}
}

// ttl returns how long the counter of a slot must be kept that has been open
// for elapsed: until no window looks at it.
func (s *slots) ttl(elapsed time.Duration) time.Duration {
	return counters.TTL(time.Duration(s.window.Slots+1)*s.window.Width+s.window.late()-elapsed, s.window.Horizon)
}
