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

// The entries that a counting log can have.
const (
	MinLogEntries     = 8
	MaxLogEntries     = 1024
	DefaultLogEntries = 64
)

// NewCountingLog returns a limiter that admits at most limit in any window, as a
// sliding log does, in a few hundred bytes whatever the limit is: it doesn't
// keep when each cost was admitted, but of up to ceil(limit/entries) in a row
// when the first and the last were. The package says what it denies for that.
//
// entries is about how many it keeps, MinLogEntries to MaxLogEntries. The limiter reads the
// states of a sliding log, which reads its states too, and remembers fewer than cfg.Clients
// where their entries would take more than 64 MiB. The error says what is wrong with the window
// (see counters.CheckWindow), the entries or cfg.
func NewCountingLog(store counters.StateStore, window time.Duration, entries int64, cfg Config) (*Limiter, error) {
	a, err := newCountingLog(window, entries, cfg.CountDenied)
	return newLimiter(store, a, err, "sliding_log", countedBytes*entries, cfg)
}

// countedBytes is what an entry of a counting log takes in memory.
const countedBytes = 24

// newCountingLog returns a counting log; the error is that of NewCountingLog.
func newCountingLog(window time.Duration, entries int64, countDenied bool) (log, error) {
	err := counters.CheckWindow(window)
	if err == nil && (entries < MinLogEntries || entries > MaxLogEntries) {
		err = fmt.Errorf("entries %d must be from %d to %d", entries, MinLogEntries, MaxLogEntries)
	}
	return log{window, entries, countDenied}, err
}

// The bounds of NewConcurrency's limit and lease.
const (
	MaxPlaces = 1000
	MinLease  = time.Second
	MaxLease  = time.Hour
)

// NewConcurrency returns a limiter of how much is under way at once: what it admits takes as
// many places as its cost, until a Refund gives them back, or until its lease ends, as
// whoever holds it may have died. A request that Renews one begins its lease anew.
//
// At no time are there more leases than the limit that haven't ended by any clock, as each
// is kept for the clock skew longer. A lease that has ended, or was given back, frees its
// places for all instances at once, so no denial is remembered. A lower limit ends no
// lease: nothing new is admitted until there is room.
//
// Its state is a log of when each lease began; see NewSlidingLog. Giving back a lease that
// there isn't changes nothing.
//
// limit, 1 to MaxPlaces, is the one that most requests will have; one of a request that is
// larger counts as MaxLogLimit at most. The error says what is wrong with the lease (MinLease
// to MaxLease), the limit or cfg.
func NewConcurrency(store counters.StateStore, lease time.Duration, limit int64, cfg Config) (*Limiter, error) {
	options, err := cfg.Options.WithDefaults()
	switch {
	case err != nil:
	case lease < MinLease || lease > MaxLease:
		err = fmt.Errorf("lease %v must be from %v to %v", lease, MinLease, MaxLease)
	case limit < 1 || limit > MaxPlaces:
		err = fmt.Errorf("limit %d of what is under way at once must be from 1 to %d", limit, MaxPlaces)
	}
	cfg.CountDenied = false // a denial holds nothing
	a := places{log{window: lease + grid + options.ClockSkew}}
	return newLimiter(store, a, err, "concurrency", logEntryBytes*limit, cfg)
}
