package counters

import (
	"sync/atomic"
	"time"
)

const (
	// FewBusy is how many busy clients of a TakeMany aren't tried again.
	FewBusy = 16
	// busyTries is how often each of the others is tried again, as pieces of other
	// batches are soon over.
	busyTries = 2
	// slowLeads is how many clients of a TakeMany are asked about at once, apart from others.
	// As their server may be silent, as many more begin, slowShifts times until the
	// StoreTimeout.
	slowLeads  = 128
	slowShifts = 16
)

// Busy counts the busy clients of a limiter's TakeMany, which takes many requests
// together: those whom other calls ask the store about at that moment. It is safe for
// concurrent use; the zero value has none.
type Busy struct{ found atomic.Int64 }

// TryAgain notes that a client was found busy, and counts that in tries, which are the
// client's own. It reports whether it is to be tried again; if not, as with the first
// FewBusy, it is asked about apart from others.
func (b *Busy) TryAgain(tries *int) bool {
	*tries++
	return *tries <= busyTries && b.found.Add(1) > FewBusy
}

// SlowWorkers returns Workers for the clients of a TakeMany that are asked about apart
// from others.
func SlowWorkers(storeTimeout time.Duration) *Workers {
	return &Workers{AtOnce: slowLeads, Patience: storeTimeout / slowShifts}
}
