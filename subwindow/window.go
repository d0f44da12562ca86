// Package subwindow limits requests in a window that slides: the window is cut
// into sub-windows (slots), each with a counter of its own, and what happened
// in the last window is estimated from the counters.
package subwindow

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"weir/counters"
)

// MaxSubWindows bounds the counters that one client may need: an hour of
// seconds.
const MaxSubWindows = 3600

// A Window is a length of time cut into Slots slots of Width each. The window
// that ends now covers part of the current slot, Slots-1 whole slots, and the
// end of one more, the oldest.
//
// All of its arithmetic takes counts: the counts of consecutive slots, newest
// first. The last element is the oldest slot, the one Slots before the current;
// what stands before the current slot are slots that have not begun on this
// instance's clock but on another's. Their counts are part of every window.
type Window struct {
	Slots int
	Width time.Duration
	// Strict counts the oldest slot in full. Then no window of length
	// Slots*Width holds more than the limit, and at most 1/(Slots+1) of the
	// limit's rate is lost.
	Strict bool
}

// NewWindow cuts length (see counters.CheckWindow) into slots (1 to
// MaxSubWindows) of whole milliseconds each. The error says what would be
// right.
func NewWindow(length time.Duration, slots int, strict bool) (Window, error) {
	if err := counters.CheckWindow(length); err != nil {
		return Window{}, err
	}
	if slots < 1 || slots > MaxSubWindows {
		return Window{}, fmt.Errorf("sub_windows %d must be from 1 to %d", slots, MaxSubWindows)
	}
	if length%(time.Duration(slots)*time.Millisecond) != 0 {
		return Window{}, fmt.Errorf("sub_windows %d cuts %v into slots that aren't whole milliseconds; use %s",
			slots, length, divisors(length.Milliseconds(), slots))
	}
	return Window{Slots: slots, Width: length / time.Duration(slots), Strict: strict}, nil
}

// divisors names the numbers nearest to slots that divide ms.
func divisors(ms int64, slots int) string {
	below, above := slots-1, slots+1
	for ms%int64(below) != 0 {
		below--
	}
	for above <= MaxSubWindows && ms%int64(above) != 0 {
		above++
	}
	if above > MaxSubWindows {
		return fmt.Sprintf("%d", below)
	}
	return fmt.Sprintf("%d or %d", below, above)
}

// Estimate returns how much of the limit is in use by the window that ends when
// the current slot has been open for elapsed: all counts in full, but the
// oldest slot in proportion to the part of it that the window still covers,
// rounded down (unless Strict):
//
//	sum(counts but the oldest) + floor(oldest * (width - elapsed) / width)
//
// With Slots 1 this is Cloudflare's two-counter estimate.
func (w Window) Estimate(counts []int64, elapsed time.Duration) int64 {
	last := len(counts) - 1
	total := w.overlap(counts[last], elapsed)
	for _, n := range counts[:last] {
		if total += n; total < 0 {
			return math.MaxInt64 // it has wrapped round
		}
	}
	return total
}

// Until returns the time from elapsed in the current slot to the first moment
// at which Estimate is at most most (at least 0), if nothing is counted in
// between; 0 when it already is.
func (w Window) Until(counts []int64, elapsed time.Duration, most int64) time.Duration {
	room := most
	for i, n := range counts {
		if n > room {
			// Slot i is the first that doesn't fit in full: it has to become the
			// oldest, and then enough of it has to leave the window.
			ahead := time.Duration(len(counts) - 1 - i)
			return max(0, ahead*w.Width+w.shrunk(n, room)-elapsed)
		}
		room -= n
	}
	return 0
}

// overlap returns what of the oldest slot's count is inside the window.
func (w Window) overlap(oldest int64, elapsed time.Duration) int64 {
	if w.Strict || oldest == 0 {
		return oldest
	}
	hi, lo := bits.Mul64(uint64(oldest), uint64(w.Width-elapsed))
	share, _ := bits.Div64(hi, lo, uint64(w.Width))
	return int64(share)
}

// shrunk returns how long a slot must have been the oldest until overlap of its
// count is at most room, which is less than the count; width at the most, when
// it leaves the window.
func (w Window) shrunk(oldest, room int64) time.Duration {
	if w.Strict {
		return w.Width
	}
	// floor(oldest*rest/width) <= room holds as long as
	// rest < (room+1)*width/oldest, that is rest <= ceil((room+1)*width/oldest)-1.
	hi, lo := bits.Mul64(uint64(room)+1, uint64(w.Width))
	rest, remainder := bits.Div64(hi, lo, uint64(oldest))
	if remainder == 0 {
		rest--
	}
	return w.Width - time.Duration(rest)
}
