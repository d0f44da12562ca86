package counters

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of a store. All mean that nothing could be decided. After ErrNotSent,
// ErrRefused, ErrLost and ErrNotAdded nothing has been counted; after any other nobody
// knows, unless an Unanswered tells it later. Match them with errors.Is.
var (
	// ErrTimeout: the store did not answer before the context's deadline.
	ErrTimeout = errors.New("counters: the store did not answer in time")
	// ErrUnavailable: the store could not be reached, or broke the connection.
	ErrUnavailable = errors.New("counters: the store is not available")
	// ErrNotSent comes with one of the above: nothing was sent to the store, or
	// only what reads, so nothing has happened there.
	ErrNotSent = errors.New("counters: the request was not sent")
	// ErrRefused comes with ErrUnavailable: the store has answered that it can't do
	// it, as it is full for instance, and nothing has happened there.
	ErrRefused = errors.New("counters: the store has refused the request")
	// ErrForeignValue: a key holds something that is not a counter.
	ErrForeignValue = errors.New("counters: the key holds a value that is not a counter")
	// ErrLost: a counter that was there doesn't exist any more, and nothing has
	// been counted.
	ErrLost = errors.New("counters: the store has lost the counter")
	// ErrNotAdded comes only from AddMany and SwapMany: nothing has been done, and
	// an Add, or a Swap, may well do it.
	ErrNotAdded = errors.New("counters: not added together with others")
)

// An Unanswered is the error of an Add or a Swap, also in AddMany or SwapMany, whose answer
// may still come: an ErrTimeout, or an ErrUnavailable if the store was given up meanwhile. Not
// every one of these is an Unanswered. It is safe for concurrent use.
type Unanswered struct {
	Err error
	// Await has f called, once, when the outcome is known. A store sets it, and
	// awaits f when it is closed.
	Await func(f func(err error))

	mu      sync.Mutex
	known   bool
	outcome error
	later   []func(err error)
}

func (u *Unanswered) Error() string { return u.Err.Error() }
func (u *Unanswered) Unwrap() error { return u.Err }

// WhenKnown has f called when the outcome is known: with nil if it was done, and not before the
// store takes operations again; with an ErrNotSent if it surely wasn't;
// with any other error if nobody will ever know. If it is known already, f is
// called at once; otherwise another goroutine calls it, one f after the other.
func (u *Unanswered) WhenKnown(f func(err error)) {
	u.mu.Lock()
	first, known, outcome := u.later == nil, u.known, u.outcome
	if !known {
		u.later = append(u.later, f)
	}
	u.mu.Unlock()
	switch {
	case known:
		f(outcome)
	case first:
		u.Await(u.tell)
	}
}

func (u *Unanswered) tell(err error) {
	u.mu.Lock()
	u.known, u.outcome = true, err
	later := u.later
	u.mu.Unlock()
	for _, f := range later {
		f(err)
	}
}

// Absent is what a counter reads that doesn't exist.
const Absent = -1

// A Store keeps counters that expire. Every method is safe for concurrent use
// and atomic per key. It returns before the deadline of its context, or within
// DefaultTimeout if there is none. It doesn't look at the context's
// cancellation: one operation serves several callers, and the one whose context
// it got may leave before the others. The keys of one call are those of one
// client.
type Store interface {
	// Add adds a.Delta to the counter at a.Key and returns its new value. A
	// counter that does not exist is created with the value Delta and lives for
	// a.TTL, unless a.Have: then the error is ErrLost. One that exists keeps its
	// expiry. After that, not before, it reads the counters at a.Read into
	// a.Counts.
	Add(ctx context.Context, a Addition) (int64, error)
	// Read reads the counters at keys into counts, which must be as long; one
	// that does not exist reads Absent.
	Read(ctx context.Context, keys []string, counts []int64) error
	// Subtract takes delta (at least 1) from the counter at key. It stops at 0,
	// and a counter that does not exist stays that way.
	Subtract(ctx context.Context, key string, delta int64) error
	// Raise makes each counter that is less than its floor, or doesn't exist, as
	// much as that, and lets it live for the floor's TTL. However often it is
	// done, by whomever, nothing is counted twice. After an error some may have
	// been raised.
	Raise(ctx context.Context, floors []Floor) error
	// Delete removes the counters at keys.
	Delete(ctx context.Context, keys []string) error
}

// A ManyStore is a Store that does the additions of many clients together.
type ManyStore interface {
	Store
	// AddMany does additions for each of the keys, which are of a client each,
	// those of a server in pieces of which several are under way at once.
	//
	// When it is about to send something for the i-th key, it calls begin, whose
	// Turn says whether there are additions. If so, begin has appended them, at
	// least one. They are done in this order, stay as they are meanwhile, and then done is
	// called with what has become of each. If done reports that there is more, begin is called again,
	// before it is for others of the server that haven't begun.
	//
	// If nothing can be sent for a key, done is called for it without a begin, for the last
	// time, and err is ErrNotAdded or an ErrNotSent. Otherwise err is nil.
	//
	// begin and done should be short, and may be called concurrently for different
	// keys. AddMany returns after the last of them.
	AddMany(ctx context.Context, keys []string, begin func(i int, to []Addition) ([]Addition, Turn), done func(i int, added []Added, err error) (more bool))
}

// A Turn is what a begin of AddMany or SwapMany says.
type Turn int

const (
	Never Turn = iota // there is nothing to do, and done isn't called
	Now               // what there is to do has been given
	Later             // that can't be told yet: begin is called again, after the others of its server
)

// An Added is what has become of an addition of AddMany: what Add would have returned,
// but ErrNotAdded for a new counter that is lost at once.
type Added struct {
	Count int64
	Err   error
}

// An Addition says what a Store's Add is to do.
type Addition struct {
	Key string // "" in AddMany if it is only to read
	// Delta is at least 1. In AddMany it may be less than 0: then that much is taken,
	// as Subtract does, and the Count says nothing.
	Delta int64
	TTL   time.Duration
	// New says that the counter probably doesn't exist yet. It changes how a
	// store goes about it, not the result.
	New bool
	// Have says that the counter has been seen to exist, so that its absence is
	// a loss. It doesn't go with New.
	Have bool
	// Read are the keys of counters to read, and Counts, which must be as long,
	// is where their values go; a counter that does not exist reads Absent.
	Read   []string
	Counts []int64
}

// A Floor is the least that a counter is to be after a Store's Raise.
type Floor struct {
	Key   string
	Count int64 // at least 1
	TTL   time.Duration
}

// A StateStore keeps small values that expire and are replaced by
// compare-and-swap. What Store says of concurrency, deadlines and keys holds
// here too.
type StateStore interface {
	// Load returns what is at key.
	Load(ctx context.Context, key string) (State, error)
	// Swap replaces old at key by value, which then lives for ttl. The zero old
	// stands for nothing at key. Swap does nothing if key holds another version
	// by now, or nothing any more: a lost race is a result, not an error.
	// Either way it returns what is at key after that, so that the next Swap
	// needs no Load. It keeps no reference to value.
	Swap(ctx context.Context, key string, old State, value []byte, ttl time.Duration) (now State, swapped bool, err error)
	// Put replaces whatever is at key by value, which then lives for ttl. It
	// keeps no reference to value.
	Put(ctx context.Context, key string, value []byte, ttl time.Duration) error
}

// A ManyStateStore is a StateStore that does the swaps of many clients together.
type ManyStateStore interface {
	StateStore
	// SwapMany does a replacement for each of the keys, as AddMany does additions: done
	// gets what Swap would return, and reports whether there is another to be done.
	SwapMany(ctx context.Context, keys []string, begin func(i int) (Replacement, Turn), done func(i int, now State, swapped bool, err error) (again bool))
}

// A Replacement says what a SwapMany is to do, as Swap or Load does.
type Replacement struct {
	Key string
	Old State // its Value isn't looked at
	// Value replaces Old. If it is nil, what is at Key is only loaded.
	Value []byte
	TTL   time.Duration
	// Size is about how many bytes are at Key, or 0 if that isn't known.
	Size int
	// Blind says that what is at Key after a swap isn't needed: done may get the zero
	// State instead.
	Blind bool
}

// A State is what a StateStore has at a key. The zero State is nothing at all.
type State struct {
	// Value must not be changed.
	Value []byte
	// Version is the store's own number of this value, its cas token; 0 stands
	// for nothing.
	Version uint64
	// Life is the store's own number of the connection that Version belongs to:
	// a server that has been restarted begins its versions anew. 0 is any.
	Life uint64
}

// Exists reports whether there is a value, be it an empty one.
func (s State) Exists() bool { return s.Version != 0 }

// A ServerStatus says whether a server of a store answers: Err is nil if so.
type ServerStatus struct {
	Server string
	Err    error
	// BreakerOpen says that operations on the server fail at once.
	BreakerOpen bool
	// Stats are the server's own counts; nil when they aren't known.
	Stats *ServerStats
}

// ServerStats are what a server that shares its memory says of itself.
type ServerStats struct {
	Items, Bytes int64 // that it holds
	Evictions    int64 // items that it dropped for want of memory, since its start
	// Ahead is by how much this process's clock is ahead of the server's at least, or behind
	// it if that is negative; 0 as far as the server's time, which may be up to 1 s before
	// its clock and 3 s behind it, can't tell.
	Ahead time.Duration
}
