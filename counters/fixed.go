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

// Calendar returns the window of the given width (more than 0) that now falls
// in. A moment on a boundary belongs to the window that begins there. It holds
// for the years 1678 to 2262.
func Calendar(now time.Time, width time.Duration) CalendarWindow {
	ns, w := now.UnixNano(), int64(width)
	number, elapsed := ns/w, ns%w
	if elapsed < 0 {
		number, elapsed = number-1, elapsed+w
	}
	return CalendarWindow{Number: number, Elapsed: time.Duration(elapsed)}
}

// NewFixedWindow returns a limiter that admits at most the limit in each
// calendar window of the given width, by one counter per client and window:
// exactly, under any concurrency and from any number of instances. Across a
// boundary up to twice the limit can be admitted within one window's length.
//
// It sets cfg's Width, Slots and Window. The error says what is wrong with the
// width; see CheckWindow.
func NewFixedWindow(store Store, width time.Duration, cfg SlotConfig) (*SlotLimiter, error) {
	if err := CheckWindow(width); err != nil {
		return nil, err
	}
	cfg.Width, cfg.Slots, cfg.Window = width, 0, fixedWindow{width: width}
	return NewSlotLimiter(store, cfg), nil
}

// fixedWindow is a Window that is its only slot.
type fixedWindow struct{ width time.Duration }

func (fixedWindow) Estimate(counts []int64, _ time.Duration) int64 { return counts[0] }

func (w fixedWindow) Until(counts []int64, elapsed time.Duration, most int64) time.Duration {
	if counts[0] <= most {
		return 0
	}
	return w.width - elapsed
}
