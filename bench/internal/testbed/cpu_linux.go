package testbed

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpu returns the processor time that a process has used, to the nanosecond.
func cpu(pid int) (time.Duration, error) {
	// The clock that clock_getcpuclockid(3) names. The kernel reads it where
	// /proc counts ticks of 10 ms.
	clock := int32(^pid<<3 | 2)
	var used unix.Timespec
	err := unix.ClockGettime(clock, &used)
	return time.Duration(used.Nano()), err
}
