package ledger

import (
	"context"
	"errors"
	"sync/atomic"

	"weir/counters"
	"weir/counters/combiner"
)

// A Record is what a Book keeps of a client: its account, of type A, and where the calls meet
// that are answered together by it. The lock of that is the lock of all of it.
type Record[A any] struct {
	spent   atomic.Bool // nothing remained for a call of the last batch: the next may need no store
	calls   combiner.Place[Request[A], counters.Decision]
	Account A
}

// A Kind says what a call is for.
type Kind uint8

const (
	Takes Kind = iota
	Peeks      // counts nothing
	Tells      // is over when the store was told what is due
)

// A Request is what a call asks of its leader.
type Request[A any] struct {
	counters.Request
	Kind   Kind
	Record *Record[A]
	// Flight is the flight that may count the call, nil if none may. Its leader sets it before
	// it claims the call, so that a caller who leaves has it.
	Flight any
}

type (
	Call[A any]  = combiner.Call[Request[A], counters.Decision]
	Batch[A any] = combiner.Batch[Request[A], counters.Decision]
)

// A Family decides by accounts of type A, the zero value of which knows nothing.
// The client is locked while a method is called with its account.
type Family[A any] interface {
	// Recall decides r by all that the account says, be it old. It reports whether
	// that is anything, and whether it is fresh: no older than counters.MaxStaleness, with
	// nothing due, and nothing that others are thought to have still to tell.
	Recall(a *A, r counters.Request) (d counters.Decision, known, fresh bool)
	// Alone decides r without the store. What it admits is due. r was part of the
	// flight, if that isn't nil.
	Alone(a *A, r counters.Request, flight any) counters.Decision
	// Leave may answer q, although its caller has just given up with err.
	Leave(a *A, q Request[A], err error) (d counters.Decision, answered bool)
	// Refund notes that r, which was admitted at its Now with the decision taken, is given
	// back, and reports whether the store is to be told.
	Refund(a *A, r counters.Request, taken counters.Decision) (tell bool)
	// Charge notes that the cost of r is consumed, be there room or not: it is due.
	Charge(a *A, r counters.Request)
	// Owes reports whether anything is due.
	Owes(a *A) bool
	// Learn notes what has become of a flight that Work.Finish has returned.
	Learn(a *A, flight any, o Outcome)
}

// An Outcome says what has become of a flight.
type Outcome uint8

const (
	Pending Outcome = iota // it may still become known
	Unknown                // it never will
	Done
	NotDone
)

// Certain reports whether it is known that it was done, or that it wasn't.
func (o Outcome) Certain() bool { return o > Unknown }

// OutcomeOf returns the outcome of an exchange that has ended with err, as far as that says:
// it is Unknown of a counters.Unanswered, too, whose outcome may be known later.
func OutcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, counters.ErrNotSent), errors.Is(err, counters.ErrRefused), errors.Is(err, counters.ErrLost), errors.Is(err, counters.ErrNotAdded):
		return NotDone
	}
	return Unknown
}

// A Step is what a leader does next.
type Step uint8

const (
	Over     Step = iota // all calls are answered
	Together             // an exchange that may go along with those of other clients
	Apart                // one by itself: it takes several operations, or must not wait for those of others
	Waits                // nothing yet: Exchange waits, or Next is called again
)

// Work is what the leader of a client's calls does, in steps: Next, Exchange,
// Finish, and again. One goroutine at a time uses it. All but Exchange are called
// with the client locked, and don't wait.
type Work[A any] interface {
	// Begin begins with a batch of calls of the client of that name.
	Begin(ctx context.Context, a *A, client string, batch *Batch[A])
	// Next answers what can be, and decides what the store is to be asked.
	Next() Step
	// Exchange asks the store, or waits until the work may go on. The client isn't locked: it
	// must not touch the account.
	Exchange(ctx context.Context)
	// Finish takes over what the store has said, and reports whether there is more to do.
	// If not, all calls are answered, and it returns the flights that may be answered late.
	Finish() (more bool, flown []Flown)
	// End ends the work. If a panic has cut it short, others answer its calls, and nobody
	// will know what has become of its flight.
	End()
}

// A Flown is a flight whose exchange has ended without an answer, which may come late.
type Flown struct {
	Flight any
	Late   *counters.Unanswered
}
