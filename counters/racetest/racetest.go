// Package racetest keeps tests from taking five to twenty times as long where the race
// detector has nothing to find.
package racetest

import (
	"runtime/debug"
	"slices"
	"testing"
)

// Enabled reports whether the test binary has the race detector.
func Enabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Sequential skips a test in which nothing meets - arithmetic, simulated time, calls that come
// one by one - if the race detector looks. make test runs those of its package without it, too.
func Sequential(t testing.TB) {
	if Enabled() {
		t.Skip("Nothing meets here: the test runs without the race detector alone.")
	}
}

// Some returns how many of n random courses to try: of what meets in all of them alike, a
// tenth is enough for the race detector.
func Some(n uint64) uint64 {
	if Enabled() {
		return n / 10
	}
	return n
}
