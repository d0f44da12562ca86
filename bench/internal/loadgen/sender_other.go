//go:build !linux

package loadgen

import "time"

// RaisePriority does nothing here.
func RaisePriority() {}

// Pause sleeps for d.
func Pause(d time.Duration) { time.Sleep(d) }
