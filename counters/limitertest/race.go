package limitertest

import (
	"sync"
	"sync/atomic"
)

// Race has callers ask at the same time, each so many times, and returns how often one
// was admitted. A caller's number and that of its request begin at 0.
func Race(callers, requests int, admits func(caller, request int) bool) int64 {
	var admitted atomic.Int64
	var asking sync.WaitGroup
	start := make(chan struct{})
	for caller := range callers {
		asking.Go(func() {
			<-start
			for request := range requests {
				if admits(caller, request) {
					admitted.Add(1)
				}
			}
		})
	}
	close(start)
	asking.Wait()
	return admitted.Load()
}
