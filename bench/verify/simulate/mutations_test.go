package simulate

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// The world is worth something only if it sees bugs. Each of these is seen
// within two thousand seeds, by the oracle it is meant for, in a seed that is
// right without it.
func TestBugsAreSeen(t *testing.T) {
	t.Parallel()
	for _, bug := range []struct {
		name   string
		oracle string
		broken mutation
	}{
		{"it reads, judges, and counts after that", "bound", wrap(func(w wrapped) limiter { return readThenCount{w} })},
		{"it refunds into the current slot", "bound", wrap(func(w wrapped) limiter { return refundNow{w} })},
		{"it takes back twice", "counts", wrap(func(w wrapped) limiter { return refundTwice{w} })},
		{"a denied cost stays counted", "reason", wrap(func(w wrapped) limiter { return chargeDenied{w} })},
		{"a process knows less than it has read", "view", wrap(func(w wrapped) limiter { return forgetful{w} })},
		{"retry-after is half of what is true", "retry-after", wrap(func(w wrapped) limiter { return hasty{w} })},
		{"a reset does nothing", "reset", wrap(func(w wrapped) limiter { return unresettable{w} })},
		{"a call goes on after its deadline", "timeout", wrap(func(w wrapped) limiter { return patient{w} })},
		{"a denial is an error", "errors", wrap(func(w wrapped) limiter { return failing{w} })},
		{"clocks are taken for equal", "bound", mutation{options: func(_ *scenario, o *counters.Options) { o.ClockSkew = -1 }}},
		{"a swap overwrites what others have written", "bound", mutation{flaws: flaws{versionsIgnored: true}}},
		{"a version outlives its server", "bound", mutation{flaws: flaws{versionsOutliveRestarts: true}}},
		{"a late answer says that what wasn't done was", "bound", mutation{flaws: flaws{saysDone: true}}},
		{"a late answer says that what was done wasn't", "counts", mutation{flaws: flaws{saysUndone: true}}},
		{"late answers never come", "counts", mutation{flaws: flaws{tellsNobody: true}}},
		{"late answers never come", "reason", mutation{flaws: flaws{tellsNobody: true}}},
		{"it takes back twice", "settled", wrap(func(w wrapped) limiter { return refundTwice{w} })},
		{"it refunds into the current slot", "settled", wrap(func(w wrapped) limiter { return refundNow{w} })},
		{"what is charged isn't counted", "settled", wrap(func(w wrapped) limiter { return generous{w} })},
		{"clocks are taken for equal", "leases", mutation{options: func(_ *scenario, o *counters.Options) { o.ClockSkew = -1 }}},
		{"a swap overwrites what others have written", "leases", mutation{flaws: flaws{versionsIgnored: true}}},
		{"a release does nothing", "released", wrap(func(w wrapped) limiter { return holding{w} })},
	} {
		t.Run(bug.name, func(t *testing.T) {
			seed := firstSeen(bug.broken, bug.oracle, witness(t))
			if seed == 0 {
				t.Fatalf("no seed sees it by the oracle %q", bug.oracle)
			}
			assert.False(t, violates(seed, mutation{}, bug.oracle), "seed %d", seed)
			saw(t, strconv.FormatUint(seed, 10))
		})
	}
}

// firstSeen returns a seed that an oracle objects to: the witness, if it still does,
// or the first of two thousand, or 0.
func firstSeen(broken mutation, oracle, witness string) uint64 {
	if seed, err := strconv.ParseUint(witness, 10, 64); err == nil && violates(seed, broken, oracle) {
		return seed
	}
	return search(context.Background(), 1, 2000, func(seed uint64) bool { return violates(seed, broken, oracle) })
}

func violates(seed uint64, broken mutation, oracle string) bool {
	run := simulate
	switch oracle {
	case "settled":
		run = simulateSettlements
	case "leases", "released":
		run = simulateLeases
	}
	for _, v := range run(seed, broken, nil) {
		if v.oracle == oracle {
			return true
		}
	}
	return false
}

// A wrapped limiter is right; the types made of it break one method each.
type wrapped struct {
	limiter
	world      *world
	process    *process
	connection *connection
}

func wrap(broken func(wrapped) limiter) mutation {
	return mutation{limiter: func(l limiter, w *world, p *process) limiter { return broken(wrapped{l, w, p, p.connection}) }}
}

// count counts r in the slot of a window, besides what the limiter does.
func (w wrapped) count(ctx context.Context, r counters.Request) error {
	_, err := w.connection.Add(ctx, counters.Addition{
		Key: w.world.counterOf(w.world.slotAt(r.Now)), Delta: r.Cost, TTL: time.Minute,
	})
	return err
}

type readThenCount struct{ wrapped }

func (l readThenCount) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if l.world.width() == 0 {
		return l.wrapped.Take(ctx, r)
	}
	d, err := l.Peek(ctx, r)
	if err == nil && d.Allowed {
		err = l.count(ctx, r)
	}
	return d, err
}

type refundNow struct{ wrapped }

func (l refundNow) Refund(ctx context.Context, r counters.Request, d counters.Decision) error {
	d.Receipt.At = 0
	return l.wrapped.Refund(ctx, r, d)
}

type refundTwice struct{ wrapped }

func (l refundTwice) Refund(ctx context.Context, r counters.Request, d counters.Decision) error {
	if err := l.wrapped.Refund(ctx, r, d); err != nil {
		return err
	}
	return l.wrapped.Refund(ctx, r, d)
}

type generous struct{ wrapped }

func (generous) Charge(context.Context, counters.Request) error { return nil }

type holding struct{ wrapped }

func (holding) Refund(context.Context, counters.Request, counters.Decision) error { return nil }

type chargeDenied struct{ wrapped }

func (l chargeDenied) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	d, err := l.wrapped.Take(ctx, r)
	if err == nil && !d.Allowed && l.world.width() > 0 {
		err = l.count(ctx, r)
	}
	return d, err
}

type forgetful struct{ wrapped }

func (l forgetful) PeekLocal(r counters.Request) (counters.Decision, bool) {
	d, ok := l.wrapped.PeekLocal(r)
	d.Remaining++
	return d, ok
}

type hasty struct{ wrapped }

func (l hasty) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	d, err := l.wrapped.Take(ctx, r)
	d.RetryAfter /= 2
	return d, err
}

type unresettable struct{ wrapped }

func (l unresettable) Reset(context.Context, string, time.Time) error { return nil }

type patient struct{ wrapped }

func (l patient) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	deadline, _ := ctx.Deadline()
	longer := &counters.Deadline{At: deadline.Add(l.world.timeout)}
	return l.wrapped.Take(context.WithValue(longer, callKey{}, ctx.Value(callKey{})), r)
}

type failing struct{ wrapped }

func (l failing) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	d, err := l.wrapped.Take(ctx, r)
	if err == nil && !d.Allowed {
		err = errors.New("denied")
	}
	return d, err
}
