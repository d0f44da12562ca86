package loadgen

import (
	"runtime"
	"syscall"
	"time"
)

// RaisePriority keeps the calling goroutine on a thread of its own, which ends
// with it, and gives that priority if this user may: on a machine that the
// bench shares with the server, checks would otherwise be late because of those
// before them.
func RaisePriority() {
	runtime.LockOSThread()
	const thisThread, priority = 0, -15
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, thisThread, priority)
}

// Pause sleeps for d, and wakes some 0.1 ms late. Go's own timers wake an idle
// process a millisecond late.
func Pause(d time.Duration) {
	rest := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&rest, nil) // a signal makes it shorter, and the caller looks at the clock
}
