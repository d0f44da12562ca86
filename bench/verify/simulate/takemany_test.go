package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"weir/bench/internal/algorithms"
	"weir/counters"
	"weir/counters/storetest"
	"weir/subwindow"
)

// A manyConnection does what is asked for many clients one after the other, and
// what is asked for one at once, but for what tells others: that comes last, as
// it would on one socket.
type manyConnection struct{ *connection }

func (c manyConnection) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	for i := range keys {
		for more := true; more; {
			additions, turn := begin(i, nil)
			more = turn == counters.Now && done(i, c.addAll(ctx, additions), nil)
		}
	}
}

func (c manyConnection) addAll(ctx context.Context, additions []counters.Addition) []counters.Added {
	added := make([]counters.Added, len(additions))
	var adding sync.WaitGroup
	for i, a := range additions {
		if isGeneration(a.Key) {
			adding.Wait()
		}
		adding.Go(func() { added[i] = storetest.AddEach(ctx, c, []counters.Addition{a})[0] })
	}
	adding.Wait()
	return added
}

// byTakeMany decides as many of its checks by TakeMany as that can.
type byTakeMany struct{ *subwindow.Limiter }

func (l byTakeMany) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	var taken counters.Taken
	l.TakeMany(ctx, []counters.Request{r}, func(_ int, t counters.Taken) { taken = t })
	if taken.Done {
		return taken.Decision, taken.Err
	}
	return l.Limiter.Take(ctx, r)
}

// Windows that are asked for many clients at a time keep all promises.
func TestWorldsOfMany(t *testing.T) {
	t.Parallel()
	many := mutation{limiter: func(_ limiter, w *world, p *process) limiter {
		return byTakeMany{w.newLimiter(manyConnection{p.connection}).(*subwindow.Limiter)}
	}}
	// Who is left to Take at the end of its time may wait for others until that is
	// over.
	seed := search(t.Context(), 1, *seeds, func(seed uint64) bool {
		if s := draw(seed, rand.New(rand.NewPCG(seed, 0))); s.algorithm.Kind != algorithms.Counters {
			return false // it is the world of TestWorlds
		}
		return slices.ContainsFunc(simulate(seed, many, nil), func(v violation) bool { return v.oracle != "errors" })
	})
	if seed != 0 {
		t.Errorf("seed %d: %v", seed, replay(seed, many, t.Output()))
	}
}
