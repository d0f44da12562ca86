package counters

import (
	"sync/atomic"
	"time"
)

const (
	// FewBusy is how many clients of a TakeMany whom others ask about are left to
	// Take at once.
	FewBusy = 16
	// busyTries is how often what is beyond that is tried once more, as pieces of
	// other batches are soon over.
	busyTries = 2
	// slowLeads is how many clients of a TakeMany are asked about once more at
	// once, and slowShifts how often as many more are begun until the StoreTimeout,
	// as they may be those of a server that is silent.
	slowLeads  = 128
	slowShifts = 16
)

// Busy counts the clients of a TakeMany whom others ask about. It is safe for
// concurrent use; the zero value is none.
type Busy struct{ found atomic.Int64 }

// TryAgain notes that others ask about a client once more, and counts that in tries. It
// reports whether the client is to be tried again; if not, as with the first FewBusy, it is
// left to Take.
func (b *Busy) TryAgain(tries *int) bool {
	*tries++
	return *tries <= busyTries && b.found.Add(1) > FewBusy
}

// SlowWorkers returns those that ask about clients of a TakeMany once more.
func SlowWorkers(storeTimeout time.Duration) *Workers {
	return &Workers{AtOnce: slowLeads, Patience: storeTimeout / slowShifts}
}
