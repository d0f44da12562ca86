package counters

import (
	"fmt"
	"time"
)

// The shortest and the longest window of any limiter.
const (
	MinWindow = 100 * time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
)

// CheckWindow returns an error that says what a window may be when window is
// not one: whole milliseconds, from MinWindow to MaxWindow.
func CheckWindow(window time.Duration) error {
	if window < MinWindow || window > MaxWindow || window%time.Millisecond != 0 {
		return fmt.Errorf("window %v must be whole milliseconds from %v to 366 days", window, MinWindow)
	}
	return nil
}

// A CalendarWindow is a moment's place among windows of equal width that are
// numbered from the Unix epoch.
type CalendarWindow struct {
	// Number is floor(now / width).
	Number int64
	// Elapsed is the time since the window began, from 0 to just under width.
	Elapsed time.Duration
}

// Calendar returns the window of the given width that now falls in. A moment on
// a boundary belongs to the window that begins there. A width of 0 or less
// counts as a nanosecond. It holds for the years 1678 to 2262.
func Calendar(now time.Time, width time.Duration) CalendarWindow {
	ns, w := now.UnixNano(), max(1, int64(width))
	number, elapsed := ns/w, ns%w
	if elapsed < 0 {
		number, elapsed = number-1, elapsed+w
	}
	return CalendarWindow{Number: number, Elapsed: time.Duration(elapsed)}
}
