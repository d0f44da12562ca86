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
	"weir/counters/combiner"
)

// A debt is what a process has admitted in a slot without the store.
type debt struct {
	bucket int64
	cost   int64
	// sent says that the store may have counted it, as its answer is missing;
	// before is what the store had before then, as far as is known.
	sent   bool
	before int64
}

// TakeLocal decides r after a Take that failed with err: by what the process
// remembers of the client, however old that is, and what it has admitted since.
// It counts r here, and the next check that the store answers counts it there
// first. Of a client that isn't remembered it knows nothing. The error is
// counters.ErrRequest.
func (l *Limiter) TakeLocal(r counters.Request, err error) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	v := l.views.Get(r.Client)
	v.mu.Lock()
	defer v.mu.Unlock()
	a, _ := l.believe(v, r)
	defer l.spare.Put(a)
	allowed := l.estimate(a, r) <= r.Limit-r.Cost
	if r.Cost > 0 && (allowed || l.options.CountDenied) {
		a.counts[a.ahead] += r.Cost
		v.owe(debt{bucket: a.bucket, cost: r.Cost, sent: !notSent(err), before: math.MinInt64})
	}
	d := l.decision(a.counts, a.ahead, a.elapsed, r, allowed)
	d.Local, d.Owed = true, notSent(err)
	return d, nil
}

// notSent reports whether a Take that failed with err has surely counted
// nothing.
func notSent(err error) bool {
	return errors.Is(err, counters.ErrNotSent) || errors.Is(err, combiner.ErrWithdrawn)
}

// Recall decides r by what the process remembers of the client, however old
// that is, and counts nothing. It reports whether that is anything; of a wrong
// request it isn't.
func (l *Limiter) Recall(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil || r.Check() != nil {
		return counters.Decision{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	a, known := l.believe(v, r)
	defer l.spare.Put(a)
	d := l.decide(a.counts, a.ahead, a.elapsed, r)
	d.Local = true
	return d, known
}

// believe returns an attempt at r with all that v knows, the debts too, and
// whether that is anything. v is locked.
func (l *Limiter) believe(v *view, r counters.Request) (a *attempt, known bool) {
	a = l.begin(r.Now, "")
	newest := a.bucket + int64(a.ahead)
	for i, n := range v.counts {
		known = a.count(newest, v.bucket-int64(i), n) || known
	}
	for _, d := range v.debts {
		known = a.count(newest, d.bucket, d.cost) || known
	}
	return a, known
}

// count adds n to the count of a slot, if that is one of the attempt's, whose
// newest is given.
func (a *attempt) count(newest, bucket, n int64) bool {
	i := newest - bucket
	if size := int64(len(a.counts)); i >= size || i <= -size {
		return false
	}
	a.counts[max(0, i)] += n // a clock that has been set back forgets nothing
	return true
}

// owe adds a debt. v is locked.
func (v *view) owe(d debt) {
	v.unsettle(d.bucket)
	for i := range v.debts {
		if have := &v.debts[i]; have.bucket == d.bucket && have.sent == d.sent {
			have.cost += d.cost
			have.before = max(have.before, d.before)
			return
		}
	}
	v.debts = append(v.debts, d)
}

// unanswered notes that the store may have counted something in the current
// slot of a.
func (v *view) unanswered(a *attempt) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.owe(debt{bucket: a.bucket, sent: true, before: a.counts[a.ahead]})
}

// forgive takes a cost from the debts like d, and returns what they have no
// part of: it has been repaid.
func (v *view) forgive(d debt) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.debts {
		if have := &v.debts[i]; have.bucket == d.bucket && have.sent == d.sent {
			part := min(d.cost, have.cost)
			have.cost -= part
			d.cost -= part
		}
	}
	return d.cost
}

// repay counts in the store what was admitted without it, in the slots that the
// window at now covers. After an error, one of a store's, nothing has been
// asked of the store for those who wait.
func (l *Limiter) repay(ctx context.Context, v *view, client string, now time.Time) error {
	v.mu.Lock()
	debts := v.debts
	v.debts = nil
	v.mu.Unlock()
	if len(debts) == 0 {
		return nil
	}
	oldest := counters.Calendar(now, l.window.Width).Number - int64(l.window.Slots+l.window.back())
	debts = slices.DeleteFunc(debts, func(d debt) bool { return d.bucket < oldest }) // time has passed over them
	prefix := l.keys.Client(client)
	left, err := l.repayAll(ctx, prefix, debts, now)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, d := range debts {
		v.unsettle(d.bucket)
	}
	for _, d := range left {
		v.owe(d)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	return nil
}

// repayAll returns what is left of the debts when it fails.
func (l *Limiter) repayAll(ctx context.Context, prefix string, debts []debt, now time.Time) (left []debt, err error) {
	due, err := l.due(ctx, prefix, debts)
	if err != nil {
		return debts, err
	}
	errs := make([]error, len(debts))
	tell := false
	var adding sync.WaitGroup
	for i, d := range debts {
		tell = tell || l.maySettle(ctx, d.bucket)
		if due[i] <= 0 {
			continue
		}
		open := now.Sub(time.Unix(0, d.bucket*int64(l.window.Width)))
		adding.Go(func() {
			_, errs[i] = l.store.Add(ctx, counters.Addition{
				Key: counters.CounterKey(prefix, d.bucket), Delta: due[i], TTL: l.ttl(open), New: true,
			})
		})
	}
	adding.Wait()
	err = errors.Join(errs...)
	if err == nil && tell {
		err = l.raiseGeneration(ctx, prefix)
	}
	if err == nil {
		return nil, nil
	}
	for i, d := range debts {
		switch {
		case errs[i] == nil:
			d.cost = 0 // but other instances may have to be told
		case !d.sent && !errors.Is(errs[i], counters.ErrNotSent):
			// Without a number from before, it isn't sent twice.
			d.sent, d.before = true, math.MinInt64
		}
		left = append(left, d)
	}
	return left, err
}

// due returns how much of each debt the store has surely not counted. What it
// has may be others', so this is rather too little.
func (l *Limiter) due(ctx context.Context, prefix string, debts []debt) ([]int64, error) {
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
	if err := l.store.Read(ctx, keys, counts); err != nil {
		return nil, err
	}
	for i, d := range debts {
		if d.sent {
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
