package cas

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/counters"
	"weir/counters/limitertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTake(t *testing.T)     { limitertest.Methods(t, way{}) }
func TestTakeMany(t *testing.T) { limitertest.Methods(t, way{many: true}) }

// A way is how limiters are asked: by Take, or by TakeMany for one request. Its methods
// are the tests that have to hold for both: go test -run TestTake/TestLosses runs one
// in both ways.
type way struct{ many bool }

// A manyTaker is a limiter that can be asked in both ways.
type manyTaker interface {
	taker
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
}

func (by way) take(ctx context.Context, l manyTaker, r counters.Request) (counters.Decision, error) {
	if by.many {
		var taken counters.Taken
		l.TakeMany(ctx, []counters.Request{r}, func(_ int, t counters.Taken) { taken = t })
		if taken.Panic != nil {
			panic(taken.Panic)
		}
		if taken.Done {
			return taken.Decision, taken.Err
		}
	}
	return l.Take(ctx, r)
}

// asks returns the limiter, whose Take asks it in this way.
func (by way) asks(l limiter, err error) (counters.Limiter, error) { return asked{l, by}, err }

type asked struct {
	limiter
	by way
}

func (l asked) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	return l.by.take(ctx, l.limiter, r)
}

// on returns the store, which can do many swaps if TakeMany is to decide.
func (by way) on(store counters.StateStore) counters.StateStore {
	if _, many := store.(counters.ManyStateStore); many || !by.many {
		return store
	}
	return manyStore{store}
}

// A manyStore does many swaps one by one.
type manyStore struct{ counters.StateStore }

func (s manyStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	var waiting []int
	for i := range keys {
		waiting = append(waiting, i)
	}
	for len(waiting) > 0 {
		var later []int
		for _, i := range waiting {
			for again := true; again; {
				r, turn := begin(i)
				if turn == counters.Later {
					later = append(later, i)
				}
				if turn != counters.Now {
					break
				}
				again = done(s.swap(ctx, i, r))
			}
		}
		if waiting = later; len(waiting) > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (s manyStore) swap(ctx context.Context, i int, r counters.Replacement) (_ int, now counters.State, swapped bool, err error) {
	if r.Value == nil {
		now, err = s.Load(ctx, r.Key)
	} else {
		now, swapped, err = s.Swap(ctx, r.Key, r.Old, r.Value, r.TTL)
	}
	return i, now, swapped, err
}
