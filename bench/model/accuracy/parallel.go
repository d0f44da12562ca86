package accuracy

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

// parallel calls f with 0 to n-1, on as many goroutines as there are cores, and
// returns all errors. After the first it starts no more.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, runtime.GOMAXPROCS(0))
	for worker := range errs {
		wait.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				if errs[worker] = f(i); errs[worker] != nil {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
