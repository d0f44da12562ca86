package cas

import (
	"fmt"
	"time"

	"weir/counters"
)

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
