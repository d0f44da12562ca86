package simulate

import (
	"io"
	"iter"
	"slices"
	"strings"
	"time"

	"weir/bench/internal/algorithms"
	"weir/counters"
)

// A plot is a short story of which every course is explored: each order in
// which the server may do the steps of concurrent operations, and each moment
// at which it may forget. An operation has as many steps as in a world, and is
// answered with its last, unless the plot has a late answer. The processes are the real limiters.
type plot struct {
	name      string
	algorithm algorithms.Algorithm
	limit     int64
	start     time.Duration // of the first round, since a slot began
	rounds    []round
	// losses are how often the server may forget at most. It forgets all, and
	// restarts, or only one key.
	losses int
	evicts bool
	// asked are the processes that are asked in the end, in this order, each
	// until it denies. The last of them is new.
	asked []int
	// flaws are those of the store.
	flaws flaws
}

// A round is what several threads do at a time. It is over when all of that is
// done.
type round struct {
	after   time.Duration // since the round before
	threads []thread
}

// A thread is what a process does one after the other. In a round a process has
// at most one that takes and refunds, and one that resets.
type thread struct {
	process int
	does    []kind
	late    bool // it may give up what counts; then its process decides alone
	refuses bool // or the check is refused
}

func takes(process, n int) thread {
	return thread{process: process, does: slices.Repeat([]kind{take}, n)}
}

// cancels takes, and refunds that.
func cancels(process int) thread { return thread{process: process, does: []kind{take, refund}} }

func resets(process int) thread { return thread{process: process, does: []kind{reset}} }

// window is that of all plots.
const window = time.Minute

// touches are the keys that a step looks at and those that it changes, as bits.
type touches struct{ looks, changes uint64 }

const everything = ^uint64(0)

func (t touches) commute(other touches) bool {
	return t.changes&(other.looks|other.changes) == 0 && other.changes&t.looks == 0
}

// A stage is where a plot is played, again and again.
type stage struct {
	plot
	members []*member
	hands   []*hand        // one for each thread of a round
	keys    map[string]int // their bits
	clients int            // each run has its own, whom nobody knows
	lates   bool           // an answer may be late
}

// A member is a process.
type member struct {
	limiter    limiter
	connection *connection
	reseeded   int // in this run
}

// A hand is a coroutine that does the thread it is given. It stops at each
// operation, and at the end, where there is none.
type hand struct {
	do    func()
	next  func() (*operation, bool)
	stop  func()
	yield func(*operation) bool
}

func newHand() *hand {
	h := new(hand)
	h.next, h.stop = iter.Pull(func(yield func(*operation) bool) {
		h.yield = yield
		for {
			h.work()
			if !yield(nil) {
				return
			}
		}
	})
	return h
}

// work does a thread, or begins to.
func (h *hand) work() {
	defer func() {
		if p := recover(); p != nil && p != (abandoned{}) {
			panic(p)
		}
	}()
	h.do()
}

// abandoned is the panic of a thread that isn't to go on.
type abandoned struct{}

// A run is one course of a plot.
type run struct {
	*stage
	network
	server
	out     io.Writer // nil if nobody reads it
	client  string
	now     time.Time
	round   int
	strands []*strand // of the round
	current *strand
	left    bool    // without an end
	closed  bool    // no operation is answered any more; guarded by mu
	letter  *letter // nil until an operation is given up

	deed       deed // that is under way
	deeds      []deed
	acts       []*act
	losses     []*loss
	violations []violation
}

// A strand is a thread of the round.
type strand struct {
	thread
	*hand
	open *operation // nil at the end
	step int        // the next of open
	act  *act
}

// An act is a call.
type act struct {
	process, round int
	kind           kind
	now            time.Time
	asked          bool // the server
	counted        int  // the deed that has counted it; noDeed if none has
	alone          bool // its process has decided
	done           bool
	decision       counters.Decision
	refunded       bool
}

const noDeed = -1

func (a *act) admitted() bool { return a.kind == take && a.done && a.decision.Allowed && !a.refunded }

// A deed is a step that was done.
type deed struct {
	touches
	act  *act // nil if the server has forgotten
	told bool // the process now knows what it has looked at
}

// A loss is a moment at which the server has forgotten.
type loss struct {
	at   int // a deed
	keys uint64
}

// A letter is a late answer.
type letter struct {
	process int
	outcome error
	listens func(err error) // nil if nobody does
	told    bool
}

// isCounter reports whether key is that of a slot or a state.
func isCounter(key string) bool {
	return !strings.HasPrefix(slot(key), slot(counters.GenerationKey("_")))
}
