package subwindow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"weir/counters"
)

// repay counts in the store what was admitted without it, in the slots whose
// counters matter at now, be it to late requests. It returns what is to be
// refunded, as it was given back meanwhile. After an error, one of a store's,
// nothing has been asked of the store for those who wait.
func (s *slots) repay(ctx context.Context, v *view, client string, now time.Time) ([]request, error) {
	if !v.owes() {
		return nil, nil
	}
	oldest := counters.Calendar(now.Add(-s.ttl(0)), s.window.Width).Number + 1
	if len(v.due(oldest)) == 0 {
		return nil, nil
	}
	prefix := s.keys.Client(client)
	// A reset ends what was admitted before it. Its marks last longer than debts
	// wait once the store is back.
	reset, err := s.lastDone(ctx, prefix, now.Add(-s.markLife()), now)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	v.drop(reset)
	debts := v.due(oldest)
	// The debts stand until they are repaid, as others decide by them meanwhile.
	due, err := s.due(ctx, prefix, debts)
	var refunds []request
	if err == nil {
		refunds, err = s.repayAll(ctx, v, client, debts, due, now)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	return refunds, err
}

// repayAll counts what is due of each debt, and returns what is to be refunded.
func (s *slots) repayAll(ctx context.Context, v *view, client string, debts []debt, due []int64, now time.Time) (refunds []request, _ error) {
	prefix := s.keys.Client(client)
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
		err = s.changed(ctx, prefix, now)
	}
	for i, d := range debts {
		if errs[i] == nil {
			if excess := v.repaid(d, due[i], err == nil); excess > 0 {
				refund := counters.Request{Client: client, Cost: excess, Now: time.UnixMilli(d.at)}
				refunds = append(refunds, request{Request: refund, view: v})
			}
		}
	}
	for i, d := range debts {
		if err := errs[i]; err != nil && !d.sent && !errors.Is(err, counters.ErrNotSent) && !errors.Is(err, counters.ErrLost) {
			v.doubt(d)
		}
	}
	return refunds, err
}

// due returns how much of each debt the store has surely not counted. What it
// has may be others', so this is rather too little. The debts of a slot that it
// has counts of have them then. The error is ErrLost if the store has lost the
// slot of one.
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
			for j := range debts {
				debts[j].have = debts[j].have || debts[j].bucket == d.bucket && counts[0] > 0
			}
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
