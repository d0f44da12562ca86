package decide

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"weir/counters"
)

const (
	// maxAtOnce is how many calls begin at once.
	maxAtOnce = 128
	// shifts is how often in a store timeout another maxAtOnce may begin, as those before
	// are held up: enough for a thousand calls.
	shifts = 16
)

// newWorkers returns workers for tasks that take the store timeout at most. While a silent
// server holds workers up for all of that time, more are started.
func newWorkers(timeout time.Duration) counters.Workers {
	return counters.Workers{AtOnce: maxAtOnce, Patience: timeout / shifts}
}

// AtOnce calls f with each number below n, many at once, and returns when all
// calls have. Each takes the timeout at most. If calls panic, so does AtOnce, in
// its own goroutine, when the others have ended.
func AtOnce(n int, timeout time.Duration, f func(int)) {
	callEach(n, maxAtOnce, timeout/shifts, f)
}

// callEach is AtOnce with an AtOnce and a Patience for its counters.Workers.
func callEach(n, atOnce int, patience time.Duration, f func(int)) {
	if n <= 1 { // it costs no workers
		for i := range n {
			f(i)
		}
		return
	}
	others := counters.Workers{AtOnce: atOnce, Patience: patience}
	var failure atomic.Pointer[Panic]
	call := func(i int) {
		if p := contain(func() { f(i) }); p != nil {
			failure.CompareAndSwap(nil, p)
		}
	}
	for i := 1; i < n; i++ {
		others.Go(func() { call(i) })
	}
	call(0)
	others.Wait()
	if p := failure.Load(); p != nil {
		panic(p)
	}
}

// asIfInTurn has ask answer n equal questions at once, and returns the answers sorted by compare,
// as if they had been asked one after another. At once they cost a few store operations; in turn, a
// thousand would take too long.
func asIfInTurn[T any](n int, ask func(i int) T, compare func(a, b T) int) []T {
	equal := make([]T, n)
	callEach(n, n, 0, func(i int) { equal[i] = ask(i) })
	slices.SortStableFunc(equal, compare)
	return equal
}

// decidedSooner compares what a limit answered to equal questions: admissions come
// before denials, and more remaining before less.
func decidedSooner(a, b LimitCheck) int {
	return cmp.Or(bit(b.Allowed)-bit(a.Allowed), cmp.Compare(b.Remaining, a.Remaining))
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}
