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
	// shifts is how often as many more begin until the store timeout: enough for
	// a thousand.
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
	if n == 1 { // it costs no workers
		f(0)
		return
	}
	others := newWorkers(timeout)
	callEach(&others, n, f)
}

// callEach has workers call f with each number below n, but for one that it calls
// itself.
func callEach(others *counters.Workers, n int, f func(int)) {
	if n == 1 {
		f(0)
		return
	}
	var failure atomic.Pointer[Panic]
	call := func(i int) {
		if p := contain(func() { f(i) }); p != nil {
			failure.CompareAndSwap(nil, p)
		}
	}
	for i := 1; i < n; i++ {
		others.Go(func() { call(i) })
	}
	if n > 0 {
		call(0)
	}
	others.Wait()
	if p := failure.Load(); p != nil {
		panic(p)
	}
}

// inTurn has ask answer n equal questions, and returns the answers in the order in
// which they were decided. One by one, a thousand would take longer than they may.
// As concurrent callers they cost a few store operations; and as they are equal,
// their answers can be put in the order that they would have had.
func inTurn[T any](n int, ask func(i int) T, compare func(a, b T) int) []T {
	equal := make([]T, n)
	callEach(&counters.Workers{AtOnce: n}, n, func(i int) { equal[i] = ask(i) })
	slices.SortStableFunc(equal, compare)
	return equal
}

// decidedSooner compares what a limit answered to equal questions: admissions come
// before denials, and more remaining before less.
func decidedSooner(a, b LimitCheck) int {
	return cmp.Or(falseFirst(!a.Allowed, !b.Allowed), cmp.Compare(b.Remaining, a.Remaining))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}
