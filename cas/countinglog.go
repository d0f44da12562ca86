package cas

import (
	"fmt"
	"time"

	"weir/counters"
)

// A CountingLog is a Limiter that admits at most limit in any window, as a
// SlidingLog does, in a few hundred bytes whatever the limit is: it doesn't
// keep when each cost was admitted, but of up to ceil(limit/entries) in a row
// when the first and the last were. The package says what it denies for that.
// Make one with NewCountingLog; its methods are those of Limiter.
type CountingLog struct{ limiter }

// The entries that a counting log can have.
const (
	MinLogEntries     = 8
	MaxLogEntries     = 1024
	DefaultLogEntries = 64
)

// NewCountingLog returns a limiter by a log of about so many entries,
// MinLogEntries to MaxLogEntries. It reads the states of a SlidingLog, which
// reads its states too. It remembers fewer than cfg.Clients where their entries
// would take more than 64 MiB. The error says what is wrong with the window
// (see counters.CheckWindow), the entries or cfg.
func NewCountingLog(store counters.StateStore, window time.Duration, entries int64, cfg Config) (*CountingLog, error) {
	a, err := newCountingLog(window, entries, cfg.CountDenied)
	l, err := newLimiter(store, a, err, "sliding_log", countedBytes*entries, cfg)
	return made(&CountingLog{l}, err)
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
