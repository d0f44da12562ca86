package simulate

import (
	"slices"
	"time"

	"weir/bench/internal/algorithms"
)

// judge asks all processes in the end, one after the other, and compares what
// was admitted in the whole run with what the docs promise:
//
//   - bound: with one process never more than the limit, since a reset. With
//     several, what was forgotten comes on top of it: see forgotten.
//   - reason: the limit is free in the end, but for what was admitted: since the
//     last reset, or while that was under way.
//   - twice: no process is told that more is in use than was admitted, or is
//     being asked for.
//   - known: no process is told of less than it knows: than it has seen in a
//     bucket or a log, or has counted itself in a window: others may take back
//     what they have, or put back less after a loss.
//   - seen: nor is anybody told of less than anybody was in an earlier round, if
//     nothing was lost since.
//   - reseeded: nothing is put back if nothing was lost.
//   - errors and timeout: no call fails, or goes on without an end.
//
// A plot with a late answer is judged by judgeLate instead.
//
// When the server forgets a reset that not everybody has noticed, nobody can
// tell for sure. Then twice the limit is the bound, and only a bucket or a log
// still finds out, as soon as somebody is asked who knows of the reset.
func (r *run) judge() {
	if r.lates {
		defer r.close()
	}
	r.round, r.now = len(r.rounds), r.now.Add(2*time.Second)
	for _, p := range r.asked {
		for range r.limit + 2 {
			r.strands = nil
			r.begin(takes(p, 1))
			r.answerAll()
			if r.left || !r.strands[0].act.decision.Allowed {
				break
			}
		}
	}
	if r.left {
		return
	}
	if r.lates {
		r.judgeLate()
		return
	}
	sure := r.noticed()
	var since, meanwhile, own int64
	mine := make([]int64, len(r.members))
	for _, a := range r.acts {
		switch {
		case !a.admitted() || a.round < r.resetRound():
		case a.round == r.resetRound():
			meanwhile++
		default:
			since++
			mine[a.process]++
			own = max(own, mine[a.process])
		}
	}
	most := 2 * r.limit
	if sure {
		most = r.limit + r.forgotten()
	}
	if since > most {
		r.violate("bound", "%d are admitted, at most %d may be", since, most)
	}
	if sure && own > r.limit {
		r.violate("bound", "%d are admitted by one process, the limit is %d", own, r.limit)
	}
	if (sure || !r.window()) && since+meanwhile < r.limit {
		r.violate("reason", "%d are admitted, the limit is %d", since+meanwhile, r.limit)
	}
	if sure {
		r.judgeAnswers()
	}
	reseeded := 0
	for _, m := range r.members {
		reseeded += m.reseeded
	}
	if reseeded > 0 && len(r.losses) == 0 {
		r.violate("reseeded", "%d are put back, none was lost", reseeded)
	}
}

// answerAll lets all that is under way come to its end.
func (r *run) answerAll() {
	for !r.endless() {
		i := slices.IndexFunc(r.strands, func(s *strand) bool { return s.open != nil })
		if i < 0 {
			return
		}
		r.advance(r.strands[i])
	}
}

// judgeLate judges the course of a plot with a late answer, which was told before
// everybody was asked in the end. All is in one slot, nothing is lost, and nobody
// refunds.
//
//   - bound: no more than the limit is admitted, with the store and without, as
//     whoever has admitted alone is asked first in the end, if there was room for
//     all until then.
//   - reason: the limit is free, but for what was admitted: what was counted of a
//     check that its process has denied alone is given back.
//   - debts: the counters of a window are what was admitted.
func (r *run) judgeLate() {
	var admitted, inRounds int64
	for _, a := range r.acts {
		if a.admitted() {
			admitted++
		}
		if a.round < len(r.rounds) {
			inRounds++
		}
	}
	most := r.limit
	if inRounds > r.limit && slices.ContainsFunc(r.acts, func(a *act) bool { return a.alone && a.admitted() }) {
		most++
	}
	if admitted > most {
		r.violate("bound", "%d are admitted, at most %d may be", admitted, most)
	}
	if admitted < r.limit {
		r.violate("reason", "%d are admitted, the limit is %d", admitted, r.limit)
	}
	if !r.window() {
		return
	}
	var count int64
	for _, key := range r.present() {
		if isCounter(key) {
			count += r.items[key].count
		}
	}
	if count != admitted {
		r.violate("debts", "the counters are %d, but %d are admitted", count, admitted)
	}
}

func (r *run) window() bool { return r.algorithm.Kind == algorithms.Counters }

// judgeAnswers judges what takes were told in the rounds after the resets.
func (r *run) judgeAnswers() {
	knows := make([]int64, len(r.members))
	for i, a := range r.acts {
		if a.kind != take || a.round <= r.resetRound() {
			continue
		}
		used, most := r.limit-a.decision.Remaining, int64(0)
		for _, other := range r.acts {
			concurrent := other.round == a.round && other.process != a.process
			if other.kind == take && other.round >= r.resetRound() && (concurrent || other.decision.Allowed && r.before(other, i)) {
				most++
			}
		}
		if used > most {
			r.violate("twice", "p%d is told that %d are in use, but it can only be %d", a.process, used, most)
		}
		if a.decision.Allowed {
			knows[a.process]++
		}
		known := knows[a.process]
		if used < known {
			r.violate("known", "p%d is told that %d are in use, but knows of %d", a.process, used, known)
		}
		if least := r.seen(a); used < least {
			r.violate("seen", "p%d is told that %d are in use, but %d were seen before", a.process, used, least)
		}
		if !r.window() {
			knows[a.process] = used
		}
		if a.refunded {
			knows[a.process]--
		}
	}
}

// seen returns how much must be in use as a is answered: what anybody was told
// in an earlier round, if nothing was lost since, but for what was being denied
// then: a window counts that for a moment.
func (r *run) seen(a *act) (least int64) {
	for _, b := range r.acts {
		if b.refunded {
			return 0
		}
		if b.kind != take || b.round <= r.resetRound() || b.round >= a.round ||
			slices.ContainsFunc(r.losses, func(l *loss) bool { return r.around(b, l) || !r.asksAfter(b, l) }) {
			continue
		}
		used := r.limit - b.decision.Remaining
		for _, other := range r.acts {
			if other.kind == take && !other.decision.Allowed && other.round == b.round && other.process != b.process {
				used--
			}
		}
		least = max(least, used)
	}
	if a.decision.Allowed {
		least++
	}
	return least
}

// before reports whether a was called before, or as, the act i.
func (r *run) before(a *act, i int) bool { return slices.Index(r.acts, a) <= i }

// resetRound returns the last round with a reset, or -1.
func (r *run) resetRound() int {
	for _, a := range slices.Backward(r.acts) {
		if a.kind == reset {
			return a.round
		}
	}
	return -1
}

// forgotten returns how many more than the limit may be admitted, because the
// server has forgotten them.
func (r *run) forgotten() (n int64) {
	for _, l := range r.losses {
		for key, bit := range r.keys {
			if isCounter(key) && l.keys&(1<<bit) != 0 {
				n += r.unknown(l, 1<<bit)
			}
		}
	}
	return n
}

// unknown returns how much of a counter, at most, can't be put back by those who
// look for it until somebody has counted again: what others have admitted since
// they were last told, and what was in flight, unless there is only one
// process.
func (r *run) unknown(l *loss, key uint64) (most int64) {
	for _, next := range r.deeds[l.at+1:] {
		if next.act == nil || next.looks&key == 0 {
			continue
		}
		told := r.told(next.act.process, l, key)
		var n int64
		for _, a := range r.acts {
			switch {
			case a.kind != take || a.counted == noDeed || a.counted > l.at:
			case r.inFlight(a, l):
				if len(r.members) > 2 {
					n++
				}
			case a.admitted() && a.process != next.act.process && (a.counted > told || r.lostBetween(a.counted, told)):
				n++
			}
		}
		if most = max(most, n); next.changes&key != 0 {
			break
		}
	}
	return most
}

// told returns the last deed that has told a process of a counter, by a call
// that was over when it was lost.
func (r *run) told(process int, l *loss, key uint64) int {
	for i, d := range slices.Backward(r.deeds[:l.at]) {
		if d.act != nil && d.act.process == process && d.told && d.looks&key != 0 && !r.inFlight(d.act, l) {
			return i
		}
	}
	return noDeed
}

func (r *run) lostBetween(from, to int) bool {
	return slices.ContainsFunc(r.losses, func(l *loss) bool { return from < l.at && l.at < to })
}

// inFlight reports whether a had begun before the loss, and went on after it.
func (r *run) inFlight(a *act, l *loss) bool {
	of := func(d deed) bool { return d.act == a }
	return slices.ContainsFunc(r.deeds[:l.at], of) && slices.ContainsFunc(r.deeds[l.at+1:], of)
}

// noticed reports whether everybody who may remember what was in use before a
// reset had asked again when the server forgot, if that was after the reset had
// begun.
func (r *run) noticed() bool {
	for _, l := range r.losses {
		i := slices.IndexFunc(r.acts, func(a *act) bool { return a.kind == reset })
		if i < 0 || !slices.ContainsFunc(r.deeds[:l.at], func(d deed) bool { return d.act != nil && d.act.kind == reset }) {
			continue
		}
		for p := range r.members {
			if !r.noticedBy(p, r.acts[i], l) {
				return false
			}
		}
	}
	return true
}

// noticedBy is noticed for one process. A fixed window, of which there is only
// one counter, learns of a reset when it looks for what was lost, and forgets
// then what it has counted since.
func (r *run) noticedBy(process int, reset *act, l *loss) bool {
	fixed := r.algorithm.Name == algorithms.Fixed
	noticed := !fixed || !r.evicts || process == reset.process
	for _, a := range r.acts {
		switch {
		case a.process != process || a.kind != take:
		case a.round <= reset.round && (process != reset.process || r.around(a, l)):
			noticed = false
		case a.round > reset.round && !fixed && a.asked && !r.around(a, l) && slices.ContainsFunc(r.deeds[:l.at], func(d deed) bool { return d.act == a }):
			return true
		}
	}
	return noticed || r.algorithm.Slots > 0 && r.toldAgain(process, reset, l)
}

// toldAgain reports whether the process of a reset has asked after a loss, and
// so has put back the generation, before another did.
func (r *run) toldAgain(other int, reset *act, l *loss) bool {
	after := len(r.deeds)
	for _, a := range r.acts {
		if a.process == other {
			if r.around(a, l) && !r.asksAfter(a, l) {
				return false
			}
			if i := slices.IndexFunc(r.deeds, func(d deed) bool { return d.act == a }); i > l.at {
				after = min(after, i)
			}
		}
	}
	return slices.ContainsFunc(r.acts, func(a *act) bool {
		return a.process == reset.process && a.kind == take && a.round > reset.round && r.asksAfter(a, l) &&
			!slices.ContainsFunc(r.deeds[after:], func(d deed) bool { return d.act == a })
	})
}

// asksAfter reports whether all of a that the server has done came after a loss.
func (r *run) asksAfter(a *act, l *loss) bool {
	first := slices.IndexFunc(r.deeds, func(d deed) bool { return d.act == a })
	return first > l.at
}

// around reports whether a may have begun before a loss, and went on after it.
func (r *run) around(a *act, l *loss) bool {
	return a.round <= r.roundOf(l) && slices.ContainsFunc(r.deeds[l.at+1:], func(d deed) bool { return d.act == a })
}

// roundOf returns the round of a loss: that of the deeds before it.
func (r *run) roundOf(l *loss) int {
	for _, d := range slices.Backward(r.deeds[:l.at]) {
		if d.act != nil {
			return d.act.round
		}
	}
	return 0
}
