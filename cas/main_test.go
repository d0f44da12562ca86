package cas

import (
	"context"
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/counters"
	"weir/counters/limitertest"
)

// Every test is run twice: with Take, and with TakeMany where that decides.
func TestMain(m *testing.M) { goleak.VerifyTestMain(twice{m}) }

type twice struct{ *testing.M }

func (m twice) Run() int {
	code := m.M.Run()
	_ = flag.Set("test.bench", "") // it is there
	throughMany = true
	return max(code, m.M.Run())
}

// throughMany has limiters decide by TakeMany.
var throughMany bool

// A manyTaker is a limiter that can decide in both ways.
type manyTaker interface {
	taker
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
}

// takeEitherWay is the limiter's Take, or what decides as it does.
func takeEitherWay(ctx context.Context, l manyTaker, r counters.Request) (counters.Decision, error) {
	if throughMany {
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

// eitherWay returns the limiter, whose Take is takeEitherWay.
func eitherWay(l limiter, err error) (limitertest.Limiter, error) { return takesEitherWay{l}, err }

// A limiter is one by any algorithm.
type limiter interface {
	limitertest.Limiter
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
	Flush()
	Owing() int
	Clients() int
}

type takesEitherWay struct{ limiter }

func (l takesEitherWay) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	return takeEitherWay(ctx, l.limiter, r)
}

// manyOn returns the store, which can do many swaps if TakeMany is to decide.
func manyOn(store counters.StateStore) counters.StateStore {
	if _, many := store.(counters.ManyStateStore); many || !throughMany {
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
