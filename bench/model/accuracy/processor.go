package accuracy

import (
	"cmp"
	"syscall"
	"time"
)

// processorTime returns what this process has taken of all cores.
func processorTime() time.Duration { return used(syscall.RUSAGE_SELF) }

// worked returns what this thread has taken, so that what else the machine does
// isn't in it; where the system doesn't tell, the time.
func worked() time.Duration {
	const thisThread = 1 // RUSAGE_THREAD of Linux
	return cmp.Or(used(thisThread), time.Since(start))
}

var start = time.Now()

func used(who int) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(who, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
