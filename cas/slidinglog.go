package cas

import (
	"fmt"
	"time"

	"weir/counters"
)

// NewSlidingLog returns a limiter that admits at most limit in any window, exactly:
// it keeps when each cost was admitted. A request that is exactly one window
// old no longer counts, so the window is half-open: (now-window, now]. It is
// exact by the clocks of its instances: with clocks d apart, at most limit are
// admitted in any window less d.
//
// Limit and window may change between two requests: the log is the same for all
// limits, and what a shorter window has dropped stays dropped. A request's own
// limit above MaxLogLimit counts as MaxLogLimit.
//
// limit is the one that most requests will have. The limiter remembers fewer than cfg.Clients
// where their logs would take more than 64 MiB. The error says what is wrong with the window
// (see counters.CheckWindow), the limit or cfg.
func NewSlidingLog(store counters.StateStore, window time.Duration, limit int64, cfg Config) (*Limiter, error) {
	a, err := newSlidingLog(window, limit, cfg.CountDenied)
	return newLimiter(store, a, err, "sliding_log", logEntryBytes*limit, cfg)
}

// logEntryBytes is what an entry of a log takes in memory.
const logEntryBytes = 7

// newSlidingLog returns a sliding log, or an error that says what is wrong with
// the window (see counters.CheckWindow) or with the limit that most requests
// will have.
func newSlidingLog(window time.Duration, limit int64, countDenied bool) (log, error) {
	err := counters.CheckWindow(window)
	if err == nil && (limit < 1 || limit > MaxLogLimit) {
		err = fmt.Errorf("limit %d of a sliding log must be from 1 to %d: it stores the time of each admitted request; "+
			"use a log with entries, or sliding_window, for larger limits", limit, MaxLogLimit)
	}
	return log{window: window, countDenied: countDenied}, err
}
