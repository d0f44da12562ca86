package api

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"weir/counters"
)

const (
	// maxAtOnce is how many calls atOnce begins at once.
	maxAtOnce = 128
	// shifts is how often as many more begin until the store timeout: enough for
	// a thousand.
	shifts = 16
)

// atOnce calls f with each number below n, many at once, and returns when all
// calls have. Those whose server is silent take all the time there is, the
// timeout, so others begin what they can't. If calls panic, so does atOnce, in
// its own goroutine, when the others have ended.
func atOnce(n int, timeout time.Duration, f func(int)) {
	if n == 1 {
		f(0)
		return
	}
	var failure atomic.Pointer[error]
	call := func(i int) {
		defer func() {
			if v := recover(); v != nil {
				err := fmt.Errorf("%v\n%s", v, debug.Stack())
				failure.CompareAndSwap(nil, &err)
			}
		}()
		f(i)
	}
	others := counters.Workers{AtOnce: maxAtOnce, Patience: timeout / shifts}
	for i := 1; i < n; i++ {
		others.Go(func() { call(i) })
	}
	if n > 0 {
		call(0)
	}
	others.Wait()
	if err := failure.Load(); err != nil {
		panic(*err)
	}
}
