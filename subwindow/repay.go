package subwindow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"weir/counters"
)

// mostDebts is how many debts of a client are repaid together with others': they
// are one of many things that are sent in a piece.
const mostDebts = 128

// A repayment has the store count what a process has admitted of a client
// without it: first keys are read, and then the additions are done. Until it
// ends, the debts stand, as others decide by them meanwhile. One goroutine at a
// time uses it.
type repayment struct {
	*slots
	view   *view
	client string
	prefix string
	now    time.Time
	debts  []debt

	// keys are to be read into counts: the marks of resets, and then the counters
	// of the debts that were sent.
	keys   []string
	counts []int64
	marks  int

	assessed bool
	due      []int64 // what is to be counted of each debt
	tells    bool    // others have to be told
	sent     bool    // the additions may have been, and nobody has told what became of them
}

// repayment returns that of what v owes in the slots whose counters matter at
// now, be it to late requests, or nil if that is nothing.
func (s *slots) repayment(v *view, client string, now time.Time) *repayment {
	if !v.owes() {
		return nil
	}
	debts := v.due(counters.Calendar(now.Add(-s.ttl(0)), s.window.Width).Number + 1)
	if len(debts) == 0 {
		return nil
	}
	r := &repayment{slots: s, view: v, client: client, prefix: s.keys.Client(client), now: now, debts: debts}
	// Marks of resets last longer than debts wait once the store is back.
	r.keys = s.marks(r.prefix, now.Add(-s.markLife()), now)
	r.marks = len(r.keys)
	for _, d := range debts {
		if d.sent {
			r.keys = append(r.keys, counters.CounterKey(r.prefix, d.bucket))
		}
	}
	r.counts = make([]int64, len(r.keys))
	return r
}

// assess decides by what was read how much of each debt is due: what the store
// has surely not counted. What it has may be others', so this is rather too
// little. A reset ends what was admitted before it. The debts of a slot that the
// store has counts of have them then. The error is ErrLost if the store has lost
// the slot of a debt.
func (r *repayment) assess(ctx context.Context) error {
	reset := r.lastDone(r.now, r.counts[:r.marks])
	r.view.drop(reset)
	counts, debts := r.counts[r.marks:], r.debts[:0]
	var have []int64 // buckets
	for _, d := range r.debts {
		due := d.cost
		if d.sent {
			count := counts[0]
			counts = counts[1:]
			if d.have && count == counters.Absent && d.at > reset {
				return counters.ErrLost
			}
			if count > 0 {
				have = append(have, d.bucket)
			}
			due = 0
			if d.before != math.MinInt64 {
				due = min(d.cost, d.before+d.cost-max(0, count))
			}
		}
		if d.at > reset {
			debts, r.due = append(debts, d), append(r.due, due)
			r.tells = r.tells || r.maySettle(ctx, d.bucket)
		}
	}
	for i, d := range debts {
		debts[i].have = d.have || slices.Contains(have, d.bucket)
	}
	r.debts, r.assessed = debts, true
	return nil
}

// next appends what the store is to do next.
func (r *repayment) next(to []counters.Addition) []counters.Addition {
	if !r.assessed {
		return append(to, counters.Addition{Read: r.keys, Counts: r.counts})
	}
	r.sent = true
	return r.additions(to)
}

// asks reports whether the store has to count anything.
func (r *repayment) asks() bool {
	return r.tells || slices.ContainsFunc(r.due, func(n int64) bool { return n > 0 })
}

// additions appends what the store has to count, and last what tells others, if
// they have to be told.
func (r *repayment) additions(to []counters.Addition) []counters.Addition {
	for i, d := range r.debts {
		if r.due[i] > 0 {
			open := r.now.Sub(time.Unix(0, d.bucket*int64(r.window.Width)))
			to = append(to, counters.Addition{
				Key: counters.CounterKey(r.prefix, d.bucket), Delta: r.due[i], TTL: r.ttl(open), New: !d.have, Have: d.have,
			})
		}
	}
	if r.tells {
		to = append(to, r.generationAfter(r.prefix, r.now, 0, changedUnit, mostChanged))
	}
	return to
}

// end notes what has become of the additions. It returns what is to be refunded,
// as it was given back meanwhile, and the errors.
func (r *repayment) end(added []counters.Added) (refunds []request, _ error) {
	told := !r.tells || added[len(added)-1].Err == nil
	var errs []error
	for _, one := range added {
		errs = append(errs, one.Err)
	}
	var unknown []debt
	for i, d := range r.debts {
		var err error
		if r.due[i] > 0 {
			err, added = added[0].Err, added[1:]
		}
		switch {
		case err == nil:
			if excess := r.view.repaid(d, r.due[i], told); excess > 0 {
				refund := counters.Request{Client: r.client, Cost: excess, Now: time.UnixMilli(d.at)}
				refunds = append(refunds, request{Request: refund, view: r.view})
			}
		case !d.sent && mayHaveCounted(err):
			unknown = append(unknown, d)
		}
	}
	for _, d := range unknown {
		r.view.doubt(d)
	}
	return refunds, errors.Join(errs...)
}

// lose ends a repayment whose store has panicked: if additions were sent, nobody
// knows what became of them.
func (r *repayment) lose() {
	if !r.sent {
		return
	}
	r.sent = false
	added := make([]counters.Added, len(r.additions(nil)))
	for i := range added {
		added[i].Err = counters.ErrUnavailable
	}
	_, _ = r.end(added) // nothing is surely counted
}

// mayHaveCounted reports whether an Add that has failed with err may have
// counted.
func mayHaveCounted(err error) bool {
	return !errors.Is(err, counters.ErrNotSent) && !errors.Is(err, counters.ErrLost) && !errors.Is(err, counters.ErrNotAdded)
}

// took goes on after what next appended has ended, or with err instead, and
// reports whether there is more. It returns what is to be refunded, as it was
// given back meanwhile. After an error, one of a store's, nothing has been asked
// of the store for those who wait.
func (r *repayment) took(ctx context.Context, added []counters.Added, err error) (more bool, refunds []request, _ error) {
	r.sent = false
	if err == nil && !r.assessed {
		if err = added[0].Err; err == nil {
			err = r.assess(ctx)
		}
		if err == nil && r.asks() {
			return true, nil, nil
		}
		added = nil
	}
	if err == nil {
		refunds, err = r.end(added)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	return false, refunds, err
}

// repay has the store count what v owes at now. It returns what took does.
func (s *slots) repay(ctx context.Context, v *view, client string, now time.Time) (refunds []request, err error) {
	r := s.repayment(v, client, now)
	if r == nil {
		return nil, nil
	}
	if s.many != nil && len(r.debts) <= mostDebts {
		refunds, err = s.repayTogether(ctx, r)
		if !errors.Is(err, counters.ErrNotAdded) {
			return refunds, err
		}
		if r = s.repayment(v, client, now); r == nil {
			return refunds, nil
		}
	}
	for more := true; more; {
		var some []request
		more, some, err = r.took(ctx, s.doEach(ctx, r.next(nil), r.tells), nil)
		refunds = append(refunds, some...)
	}
	return refunds, err
}

// repayTogether does a repayment as TakeMany does. A store may have another
// connection for that: what TakeMany has had no answer to is done there before
// what is read next.
func (s *slots) repayTogether(ctx context.Context, r *repayment) (refunds []request, err error) {
	defer r.lose()
	keys := []string{counters.GenerationKey(r.prefix)}
	s.many.AddMany(ctx, keys, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		return r.next(to), counters.Now
	}, func(_ int, added []counters.Added, failure error) (more bool) {
		more, refunds, err = r.took(ctx, added, failure)
		return more
	})
	return refunds, err
}

// doEach does additions one by one, as a step of a repayment or a subtraction asks
// for them. If the last tells others, it is done only if the rest was.
func (s *slots) doEach(ctx context.Context, additions []counters.Addition, tells bool) []counters.Added {
	added := make([]counters.Added, len(additions))
	if additions[0].Key == "" {
		added[0].Err = s.store.Read(ctx, additions[0].Read, additions[0].Counts)
		return added
	}
	counts := len(additions)
	if tells {
		counts--
	}
	do := func(i int) {
		if a := additions[i]; a.Delta < 0 {
			added[i].Err = s.store.Subtract(ctx, a.Key, -a.Delta)
		} else {
			added[i].Count, added[i].Err = s.store.Add(ctx, a)
		}
	}
	var doing sync.WaitGroup
	for i := 1; i < counts; i++ {
		doing.Go(func() { do(i) })
	}
	if counts > 0 {
		do(0)
	}
	doing.Wait()
	failed := func(one counters.Added) bool { return one.Err != nil }
	switch {
	case !tells:
	case slices.ContainsFunc(added, failed):
		added[counts].Err = counters.ErrNotSent
	default:
		added[counts].Count, added[counts].Err = s.store.Add(ctx, additions[counts])
	}
	return added
}
