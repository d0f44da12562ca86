package subwindow

import (
	"errors"
	"slices"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

type call = ledger.Call[account]

// A work is what a leader does: one step after another, until its calls are answered. Calls
// that fall in the same slot are decided together.
type work struct {
	*family
	position // of the pending calls
	a        *account
	deadline time.Time // zero: none
	calls    []*call   // that aren't pending yet
	pending  []*call
	chosen   []bool  // which of pending are being counted
	use      []int64 // what is in use, without the chosen
	sum      int64   // of the costs of the chosen
	// counted says that sum is in the store, and hasn't been dealt out: before that,
	// losses may have to be put back and all be read.
	counted    bool
	again      bool    // of a fixed window: the process had asked in this slot before
	upToDate   bool    // the store has said all there is to know of the pending calls
	untellable bool    // others couldn't be told that the past has changed
	spare      *flight // that no caller refers to
	step       step
	all        bool // final slots are read too
	keys       []string
	text       []byte // of the keys, with a space behind each
	buckets    []int64
	read       []int64 // what was read of keys: the generation, if it is verified, and buckets
	lost       []loss  // by the store, as far as it is known since all was read
	repairs    bool    // these, or the generation, have to be put back
	floors     []counters.Floor
	additions  []counters.Addition // with dues, those of the slots, and then perhaps what tells others
	dues       []due               // that are told, or when only read, were due then
	added      []counters.Added
	flown      []ledger.Flown
	steps      int
}

// A loss is how much is missing in a slot of what is known to have been there.
type loss struct{ bucket, missing, known int64 }

type step uint8

const (
	stepLook   step = iota
	stepVerify      // the generation, and what is to be given back
	stepCount
	stepTell
	stepRepair
)

// nextSlot makes the next calls that fall in the same slot pending: a batch may stand on
// both sides of a boundary.
func (w *work) nextSlot() bool {
	if len(w.calls) == 0 {
		return false
	}
	n := 1
	w.position = w.window.positionAt(w.calls[0].Request.Now)
	for _, call := range w.calls[1:] {
		p := w.window.positionAt(call.Request.Now)
		if p.bucket != w.bucket {
			break
		}
		if n++; p.now > w.now {
			w.position = p
		}
	}
	w.pending = append(w.pending[:0], w.calls[:n]...)
	w.chosen = slices.Grow(w.chosen[:0], n)[:n]
	w.calls = w.calls[n:]
	w.upToDate, w.steps = false, 0
	w.again = w.a.top >= w.newest()
	w.reach()
	return true
}

// reach gives the account the slots of the pending calls.
func (w *work) reach() {
	if w.a.top != w.newest() { // mostly it has them
		w.a.reach(&w.position, w.kept)
	}
}

// End implements ledger.Work.
func (w *work) End() {
	if w.a.flight != nil { // the leader has panicked: nobody will know what has become of it
		w.a.unanswered(w.a.flight, w.options.ClockSkew).outcome = ledger.Unknown
	}
	clear(w.pending[:cap(w.pending)])
	clear(w.keys[:cap(w.keys)])
	w.a.doubtful = w.a.doubtful || w.repairs // somebody may have put it back by now
	w.a, w.calls = nil, nil
}

// await adds f, whose exchange has ended with err, to flown if the store may say later what has
// become of it; else nobody will ever know.
func (w *work) await(f *flight, err error) {
	if late := (*counters.Unanswered)(nil); errors.As(err, &late) {
		w.flown = append(w.flown, ledger.Flown{Flight: f, Late: late})
	} else {
		f.outcome = ledger.Unknown
	}
}

// open returns how long a slot has been open.
func (w *work) open(bucket int64) time.Duration {
	return time.Duration(w.now - bucket*int64(w.window.Width))
}

// resetting reports whether a reset of the client may still be under way.
func (w *work) resetting() bool {
	return w.now <= w.a.forgottenTo(w.options.ClockSkew)+int64(w.options.StoreTimeout)
}
