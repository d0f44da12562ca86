package subwindow

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"weir/counters"
	"weir/counters/ledger"
)

// mostTogether is how many slots of a client may be told in an exchange together with other
// clients: more are told apart, as they would fill the piece that all share.
const mostTogether = 128

// mostSteps bounds a leader's work for the calls of a slot: a store may lose what is put back
// again and again.
const mostSteps = 64

// Begin implements ledger.Work.
func (w *work) Begin(ctx context.Context, a *account, client string, batch *ledger.Batch[account]) {
	w.a, w.calls = a, batch.Calls()
	w.deadline, _ = ctx.Deadline()
	w.lost, w.untellable, w.repairs, w.flown = w.lost[:0], false, false, nil
	w.prepare(a, client)
	w.nextSlot()
}

// Next implements ledger.Work.
func (w *work) Next() ledger.Step {
	a := w.a
	w.steps++
	w.reach() // others may have gone on meanwhile
	a.expire(&w.window, w.now, w.options.Telling())
	a.absorb()
	w.dues, w.floors, w.additions = w.dues[:0], w.floors[:0], w.additions[:0]
	for {
		// First be sure of what is there, then put back what is lost, answer what is counted, tell
		// what is due, and count what fits.
		switch {
		case a.doubtful, a.owes() && a.staleGeneration:
			return w.look()
		case w.repairs:
			return w.repair()
		case w.counted:
			w.deal()
		case a.owes() && w.tellDues():
			if len(w.dues) > mostTogether {
				return ledger.Apart
			}
			return ledger.Together
		case len(w.pending) == 0:
			if !w.nextSlot() {
				return ledger.Over
			}
		case w.choose() > 0:
			return w.count()
		case len(w.pending) == 0: // they needed no counting
		case w.upToDate:
			w.deny()
		default:
			return w.look()
		}
	}
}

// Finish implements ledger.Work.
func (w *work) Finish() (more bool, flown []ledger.Flown) {
	a := w.a
	w.reach()
	err := w.added[0].Err
	switch {
	case w.step == stepTell:
		err = w.duesTold()
	case err != nil:
	case w.step == stepCount:
		w.tally(w.added[0].Count)
	case w.step == stepRepair:
		w.repaired(w.added[0].Count)
	default:
		w.verify()
		for _, d := range w.dues {
			if i := slices.Index(w.buckets, d.bucket); i >= 0 {
				a.forgo(d, w.read[len(w.read)-len(w.buckets)+i])
			}
		}
		if w.step == stepLook {
			w.fillSlots()
		}
	}
	switch {
	case err == nil && w.steps < mostSteps:
		if u := a.owed; u != nil && u.until == 0 { // the store has answered: others tell it soon what they owe
			u.until = w.now + int64(w.options.Telling())
		}
		return true, nil
	case errors.Is(err, counters.ErrLost) && w.steps < mostSteps:
		a.flight, a.doubtful = nil, true
		return true, nil
	case err == nil:
		err = fmt.Errorf("%w: it loses what is put back", counters.ErrUnavailable)
	}
	w.fail(err)
	return false, w.flown
}
