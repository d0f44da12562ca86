package counters

import (
	"context"
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

// FixedWindowConfig configures a FixedWindow.
type FixedWindowConfig struct {
	// Keys is where the limit's counters are kept.
	Keys Namespace
	// Window is the width of the calendar windows; see CheckWindow.
	Window time.Duration
	// ClockSkew is the largest difference between the clocks of instances.
	ClockSkew time.Duration
	// CountDenied makes denied requests count too.
	CountDenied bool
}

// FixedWindow admits at most the limit in each calendar window, by one counter
// per client and window: exactly, under any concurrency and from any number of
// instances. Across a boundary up to twice the limit can be admitted within one
// window's length. It is safe for concurrent use.
type FixedWindow struct {
	store Store
	cfg   FixedWindowConfig
}

// NewFixedWindow returns a fixed window on the given store. The error says
// what is wrong with the window.
func NewFixedWindow(store Store, cfg FixedWindowConfig) (*FixedWindow, error) {
	if err := CheckWindow(cfg.Window); err != nil {
		return nil, err
	}
	return &FixedWindow{store: store, cfg: cfg}, nil
}

// Take admits r and counts it, or denies it. A denied cost is counted only
// with CountDenied. The error is one of a Store's.
func (f *FixedWindow) Take(ctx context.Context, r Request) (Decision, error) {
	if r.Cost == 0 {
		return f.Peek(ctx, r)
	}
	window := Calendar(r.Now, f.cfg.Window)
	key := f.key(r, window)
	left := f.cfg.Window - window.Elapsed
	n, err := f.store.Add(ctx, key, r.Cost, TTL(left, f.cfg.ClockSkew), nil, nil)
	if err != nil {
		return Decision{}, err
	}
	used, allowed := n, n <= r.Limit
	if !allowed && !f.cfg.CountDenied {
		// A give-back that fails leaves the count too high until the window
		// ends; the denial stands either way.
		_ = f.store.Subtract(ctx, key, r.Cost)
		used -= r.Cost
	}
	return fixedDecision(used, r, left, allowed), nil
}

// Peek decides r without counting it. The error is one of a Store's.
func (f *FixedWindow) Peek(ctx context.Context, r Request) (Decision, error) {
	window := Calendar(r.Now, f.cfg.Window)
	var count [1]int64
	if err := f.store.Read(ctx, []string{f.key(r, window)}, count[:]); err != nil {
		return Decision{}, err
	}
	return fixedDecision(count[0], r, f.cfg.Window-window.Elapsed, count[0] <= r.Limit-r.Cost), nil
}

// GiveBack takes back a request that Take admitted. The error is one of a
// Store's; after one the count may stay too high until the window ends.
func (f *FixedWindow) GiveBack(ctx context.Context, r Request) error {
	if r.Cost == 0 {
		return nil
	}
	return f.store.Subtract(ctx, f.key(r, Calendar(r.Now, f.cfg.Window)), r.Cost)
}

// Reset forgets what the client has used: in the window of now, and in the
// next, which instances with faster clocks may count in already. The error is
// one of a Store's.
func (f *FixedWindow) Reset(ctx context.Context, client string, now time.Time) error {
	prefix := f.cfg.Keys.Client(client)
	number := Calendar(now, f.cfg.Window).Number
	return f.store.Delete(ctx, []string{CounterKey(prefix, number), CounterKey(prefix, number+1)})
}

func (f *FixedWindow) key(r Request, window CalendarWindow) string {
	return CounterKey(f.cfg.Keys.Client(r.Client), window.Number)
}

// fixedDecision returns the answer to r when it was admitted or not, and used,
// which includes it if it is counted, is in use of a window that ends after
// left.
func fixedDecision(used int64, r Request, left time.Duration, allowed bool) Decision {
	d := Decision{Allowed: allowed, Remaining: max(0, r.Limit-used)}
	if used > 0 {
		d.ResetAfter = left
	}
	if !allowed {
		d.RetryAfter = left
	}
	return d
}
