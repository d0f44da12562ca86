// Package subwindow limits requests per window of time: fixed windows, and
// windows that slide over N slots, each a counter. A check counts first and
// judges after: of two that race for the last place, at least one sees the
// other. A closed slot is read once, and where nothing is left a denial needs no store.
//
// A weighted window's estimate never passes the limit. Strict never admits more
// than the limit in a window, and while somebody is always asking at least
// N/(N+1) of it, if slots are well above clock skew plus store timeout: for so
// long each stays in the way, so that of slots as wide as that it is N/(N+2).
// Sparse and bunched traffic loses more. Start with Window for the arithmetic,
// with Limiter for the rest.
//
// Capped never admits more than L + ceil(2L/N) in a window, of a limit L and N
// slots, nor more than 2L. For take the last request admitted in a window, in
// slot b. Either the window begins after slot b-N: then the request was judged
// by all that the window holds, each count in full, and that fitted into L. Or
// it begins in slot b-N: then all but at most ceil(2L/N) of that slot was in the
// estimate, which fitted into L, and the slot itself holds at most L. With N of
// 3 or more somebody who knows the clock gets all of it: L at the end of a slot,
// and ceil(2L/N) in the slot N later, when enough of the first is outside. With
// 1 and 2 slots capped is weighted. By clocks d apart, the bound is that of
// windows less d.
package subwindow

import (
	"errors"
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
// end of one more, the oldest. Without older slots, Slots 0, it is a fixed
// window: the calendar window that now falls in.
//
// All of its arithmetic takes counts, those of consecutive slots, newest first,
// and ahead, the number of them that come before the current slot: slots that
// have not begun on this instance's clock but on another's. Their counts are
// part of every window. If ahead is negative, the newest slots aren't in
// counts.
type Window struct {
	Slots int
	Width time.Duration
	// Strict counts the oldest slot in full, as a fixed window always does.
	// Then no window of length Slots*Width holds more than the limit. While
	// somebody is always asking, at least Slots/(Slots+1+Horizon/Width) of the
	// limit's rate is admitted: the price is at most 1/(Slots+1) where Width is
	// well above Horizon. It is more on sparse or bunched traffic: half of the
	// rate where the whole limit comes at once in each window.
	Strict bool
	// Capped counts the oldest slot in proportion, as a weighted window does, but
	// at most ceil(2*limit/Slots) less than in full: then no window holds more
	// than limit + ceil(2*limit/Slots). A slot that holds more than twice its
	// share of the limit stays in the way for longer than if it were weighted. A
	// window can't be strict too.
	Capped bool
	// Horizon is how late a count may be on this instance's clock, because of
	// the way to the store and because clocks differ. So long a slot stays in a
	// strict window when it should have left. New sets it; 0 is for a single
	// clock.
	Horizon time.Duration
}

// NewFixedWindow returns the window that is one calendar window of the given
// width. At most the limit is admitted in each, and up to twice the limit
// within one window's length across a boundary. The error is that of
// counters.CheckWindow.
func NewFixedWindow(width time.Duration) (Window, error) {
	return Window{Width: width, Strict: true}, counters.CheckWindow(width)
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

// maxKeys bounds the keys that a check may have to read.
const maxKeys = 4096

// check returns what is wrong with w: its fields are exported, so it may not come from NewWindow.
func (w *Window) check() error {
	switch {
	case w.Slots < 0 || w.Slots > MaxSubWindows:
		return fmt.Errorf("a window of %d slots must have 0 to %d", w.Slots, MaxSubWindows)
	case w.fixed() && !w.Strict:
		return errors.New("a window without older slots has to be strict; NewFixedWindow makes one")
	case w.Strict && w.Capped:
		return errors.New("a window can't be both strict and capped")
	case w.Width <= 0 || w.Width > counters.MaxWindow || w.Width%time.Millisecond != 0:
		return fmt.Errorf("slots of %v must be whole milliseconds", w.Width)
	}
	if keys := w.ahead(w.Width-1) + 1 + w.Slots + w.back() + 1; keys > maxKeys {
		return fmt.Errorf("clock skew and store timeout of together %v reach over so many slots of %v that a check would read %d keys; "+
			"it may read %d: use wider slots, or a smaller skew or timeout", w.Horizon, w.Width, keys, maxKeys)
	}
	return counters.CheckWindow(w.Width * time.Duration(max(1, w.Slots)))
}

// ahead returns how many slots after the current one, open for elapsed, may
// have counts of the window that ends now. What faster clocks count after a
// fixed window is no part of it, but of the next one.
func (w *Window) ahead(elapsed time.Duration) int {
	if w.fixed() {
		return 0
	}
	return int((elapsed + w.Horizon) / w.Width)
}

// back returns how many slots before the oldest one may still be in the window.
func (w *Window) back() int {
	return int((w.late() + w.Width - 1) / w.Width)
}

// gone returns how many of the slots that back reaches over, when the current
// one has been open for elapsed, have left the windows of all instances.
func (w *Window) gone(elapsed time.Duration) (slots int) {
	for age := w.Slots + w.back(); age > 0 && time.Duration(w.Slots+1-age)*w.Width+w.late()+w.Horizon <= elapsed; age-- {
		slots++
	}
	return slots
}

// late returns how much longer than by its own clock a slot is in the window. A
// fixed window is its own slot, and one that isn't strict is only an estimate.
func (w *Window) late() time.Duration {
	if w.fixed() || !w.Strict {
		return 0
	}
	return w.Horizon
}

// lateSlots returns how many slots a request may lag behind others.
func (w *Window) lateSlots() int64 { return int64((w.Horizon + w.Width - 1) / w.Width) }

// ttl returns how long the counter of a slot must be kept that has been open
// for elapsed: until no window looks at it.
func (w *Window) ttl(elapsed time.Duration) time.Duration {
	return counters.TTL(time.Duration(w.Slots+1)*w.Width+w.late()-elapsed, w.Horizon)
}

// stored returns how many counters of a client a store has at most, if the client
// asks in every slot and expiry is in whole seconds, rounded up, as Memcached's
// is. It depends on the Horizon.
func (w *Window) stored() int {
	kept := (w.ttl(0) + time.Second - 1).Truncate(time.Second)
	return int((kept + w.Width - 1) / w.Width)
}

func (w *Window) fixed() bool { return w.Slots == 0 }

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

// Estimate returns how much of the limit, at most counters.MaxLimit, is in use
// by the window that ends when the current slot has been open for elapsed: all
// counts in full, but the oldest slot in proportion to the part of it that the
// window still covers, rounded down (unless Strict):
//
//	sum(counts but the oldest) + floor(oldest * (width - elapsed) / width)
//
// With Slots 1 this is Cloudflare's two-counter estimate. Capped counts of the
// oldest slot
//
//	max(floor(oldest * (width - elapsed) / width), oldest - ceil(2 * limit / slots))
//
// Only then does the estimate depend on the limit.
func (w *Window) Estimate(counts []int64, ahead int, elapsed time.Duration, limit int64) int64 {
	inFull := max(0, min(ahead+w.Slots, len(counts)))
	var total int64
	for _, n := range counts[:inFull] {
		if total += n; total < 0 {
			return math.MaxInt64 // it has wrapped round
		}
	}
	for i, n := range counts[inFull:] {
		if total += w.covered(n, inFull+i-ahead, elapsed, limit); total < 0 {
			return math.MaxInt64
		}
	}
	return total
}

// Until returns the time from elapsed in the current slot to the first moment
// at which Estimate, of the same limit, is at most most, if nothing is counted
// in between: 0 when it already is, and counters.Forever if most is negative.
func (w *Window) Until(counts []int64, ahead int, elapsed time.Duration, limit, most int64) time.Duration {
	if most < 0 {
		return counters.Forever
	}
	room := most
	for i, n := range counts {
		if n > room {
			// Slot i is the first that doesn't fit in full: it has to become
			// the oldest, and then enough of it has to leave the window.
			wait := time.Duration(w.Slots + ahead - i)
			return max(0, wait*w.Width+w.shrunk(n, limit, room)+w.late()-elapsed)
		}
		room -= n
	}
	return 0
}

// covered returns what of a slot's count is inside the window, if the slot
// began age slots before the current one: age is at least Slots.
func (w *Window) covered(count int64, age int, elapsed time.Duration, limit int64) int64 {
	switch {
	case count == 0 || time.Duration(w.Slots+1-age)*w.Width+w.late() <= elapsed:
		return 0 // it has left
	case w.Strict:
		return count
	}
	hi, lo := bits.Mul64(uint64(count), uint64(w.Width-elapsed))
	share, _ := bits.Div64(hi, lo, uint64(w.Width))
	return max(int64(share), w.held(count, limit))
}

// held returns what of the oldest slot's count is in use until it leaves.
func (w *Window) held(count, limit int64) int64 {
	if !w.Capped {
		return 0
	}
	return count - w.uncounted(limit)
}

// uncounted returns how much of the oldest slot's count a capped window leaves out at most.
func (w *Window) uncounted(limit int64) int64 {
	return (2*limit + int64(w.Slots) - 1) / int64(w.Slots)
}

// Most returns how many can be admitted of a limit at most in any time as long as the
// window, whatever the traffic: it may be all of two fixed windows. A weighted window holds
// at most the limit in its oldest slot, however small the part of it that still counts, and
// at most the limit in the others.
func (w *Window) Most(limit int64) int64 {
	switch {
	case w.Strict && !w.fixed():
		return limit
	case w.Capped:
		return min(2*limit, limit+w.uncounted(limit))
	}
	return 2 * limit
}

// shrunk returns how long a slot must have been the oldest until what is
// covered of its count is at most room, which is less than the count; width at
// the most, when it leaves the window.
func (w *Window) shrunk(oldest, limit, room int64) time.Duration {
	if w.Strict || w.held(oldest, limit) > room {
		return w.Width
	}
	// floor(oldest*rest/width) <= room holds as long as rest <
	// (room+1)*width/oldest, that is rest <= ceil((room+1)*width/oldest)-1.
	hi, lo := bits.Mul64(uint64(room)+1, uint64(w.Width))
	rest, remainder := bits.Div64(hi, lo, uint64(oldest))
	if remainder == 0 {
		rest--
	}
	return w.Width - time.Duration(rest)
}
