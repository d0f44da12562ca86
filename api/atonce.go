package api

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxAtOnce is how many calls atOnce begins at once.
	maxAtOnce = 128
	// shifts is how often it begins as many more until the store timeout:
	// enough for a thousand.
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
	var next atomic.Int64
	var failure atomic.Pointer[error]
	begun := make(chan struct{}) // closed when all calls are
	allBegun := sync.OnceFunc(func() { close(begun) })
	work := func() {
		defer func() {
			if v := recover(); v != nil {
				err := fmt.Errorf("%v\n%s", v, debug.Stack())
				failure.CompareAndSwap(nil, &err)
			}
		}()
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			f(int(i))
		}
		allBegun()
	}
	var workers sync.WaitGroup
	if n <= maxAtOnce {
		for range n - 1 {
			workers.Go(work)
		}
		work()
	}
	for hired := 0; n > maxAtOnce && hired < n; {
		for range min(maxAtOnce, n-hired) {
			hired++
			workers.Go(work)
		}
		select {
		case <-begun:
			hired = n
		case <-time.After(timeout / shifts):
		}
	}
	workers.Wait()
	if err := failure.Load(); err != nil {
		panic(*err)
	}
}
