package simulate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"weir/cas"
	"weir/counters"
)

// judgeCall judges a call on its own: it ends in time, it fails only if the
// store did, and it may ask again while the state can last.
func (w *world) judgeCall(c *call) {
	const sweep = 2 * tick // a caller that waits for a leader leaves so much late
	longestCall := w.timeout + sweep
	if c.kind == flush {
		longestCall += 5*time.Second + w.timeout // a round, and what is under way at its end
	}
	if took := c.returned.Sub(c.began); took > longestCall {
		w.violate("timeout", "#%d took %v", c.number, took)
	}
	err := cmp.Or(c.err, c.failed)
	late := errors.Is(err, context.DeadlineExceeded)
	again := (c.kind == refund || c.kind == charge) && (late || errors.Is(err, cas.ErrContended)) // it is tried
	forgotten := late && c.kind == take && w.width() == 0 && w.resetBy(c)
	waited := late && w.width() == 0 && w.storeTook(c) >= w.timeout/2
	open := len(c.process.open) > 0 || late && !c.life.heardAfter(c.returned).After(c.returned) // or was until this tick
	if err != nil && !again && !forgotten && !waited && !open && c.process.failed.Before(c.began) {
		w.violate("errors", "#%d failed although the store answered everything: %v", c.number, err)
	}
	if c.failed != nil && c.denied() && w.mayBeKnown(c)+c.request.Cost <= w.capacity()-w.kept() {
		w.violate("reason", "#%d is denied without the store, but its process can't know of more than %d of %d in use", c.number, w.mayBeKnown(c), w.capacity())
	}
	longest := w.inTheWay()
	if c.denied() && c.decision.RetryAfter > longest {
		w.violate("retry-after", "#%d is told %v, but nothing lasts longer than %v", c.number, c.decision.RetryAfter, longest)
	}
}

// resetBy reports whether the process of c has reset the client meanwhile, or
// before it while somebody led whom c may have had to wait for: it has forgotten
// what others' attempts have seen.
func (w *world) resetBy(c *call) bool {
	underWay := func(o *call) bool { return o.returned.IsZero() || !o.returned.Before(c.began) }
	return slices.ContainsFunc(w.calls, func(r *call) bool {
		return r.kind == reset && r.life == c.life && (underWay(r) || slices.ContainsFunc(w.calls, func(o *call) bool {
			return o.life == c.life && (o.kind == take || o.kind == refund) && !o.began.After(r.returned) && underWay(o)
		}))
	})
}

// judgeAdmissions compares the log of admissions with the bounds of the docs:
// of those that the store has decided, and of all that a process has admitted
// which has lost nothing.
func (w *world) judgeAdmissions() {
	var decided []*call
	var lives []*connection
	own := make(map[*connection][]*call)
	for _, c := range w.calls {
		if !c.admitted() || c.refunded {
			continue
		}
		if c.failed == nil {
			decided = append(decided, c)
		}
		if own[c.life] == nil {
			lives = append(lives, c.life)
		}
		if c.failed == nil || !w.unaware(c) {
			own[c.life] = append(own[c.life], c)
		}
	}
	if w.alone() {
		w.judgeBound(slices.DeleteFunc(slices.Clone(w.calls), func(c *call) bool { return !c.admitted() || c.refunded }))
	}
	w.judgeBound(decided)
	if !w.faults.outages || w.faults.refunds || w.faults.resets || w.denialsFill() {
		return
	}
	for _, life := range lives {
		w.judgeBound(own[life])
	}
}

// judgeBound judges admissions. Each happened at some moment between its call
// and its return, so a bound is broken if too many had both within a span. What
// was refunded doesn't count, and no span reaches over a moment at which the
// server lost counts, unless there is but one process: that knows them, but for
// those of a fixed window that is over when its clock jumps back into it.
func (w *world) judgeBound(admissions []*call) {
	slices.SortStableFunc(admissions, func(a, b *call) int { return a.returned.Compare(b.returned) })
	slot := func(c *call) int64 { return counters.Calendar(c.request.Now, w.window).Number }
	var beside []*call
	if w.faults.resets {
		beside = w.beside()
	}
	known := make(map[*call]time.Time) // of those that a process has admitted alone: until when
	for _, c := range admissions {
		if c.failed != nil {
			known[c] = w.knownUntil(c)
		}
	}
	for _, first := range admissions {
		end, alone := w.start.Add(1<<60), w.alone()
		if i := slices.IndexFunc(w.lost, func(at time.Time) bool { return !at.Before(first.began) }); i >= 0 && !alone {
			end = w.lost[i]
		}
		var sure int64
		var unsure []*call // may be forgotten
		for _, last := range admissions {
			if last.began.Before(first.began) || w.fixed() && slot(last) != slot(first) {
				continue
			}
			if !last.returned.Before(end) {
				break
			}
			if last.failed == nil || alone {
				sure += last.request.Cost
			} else {
				unsure = append(unsure, last)
			}
			sum := sure
			for _, c := range unsure {
				if known[c].After(last.returned) {
					sum += c.request.Cost
				}
			}
			span, most := last.returned.Sub(first.began), w.limit
			if !w.fixed() {
				most = w.bound(span, w.emptyings(first.began, last.returned))
			}
			for _, c := range beside {
				if !c.began.After(last.returned) && c.returned.After(first.began.Add(-w.window)) {
					most += c.request.Cost
				}
			}
			if sum > most {
				w.violate("bound", "%d of %d admitted from #%d to #%d, within %v", sum, most, first.number, last.number, span)
				return
			}
		}
	}
}

// beside returns the checks that were under way as the client was reset. They may
// not be counted.
func (w *world) beside() (checks []*call) {
	for _, c := range w.calls {
		if c.kind == take && slices.ContainsFunc(w.calls, func(r *call) bool {
			return r.kind == reset && !r.began.After(c.returned) && (r.returned.IsZero() || !r.returned.Before(c.began))
		}) {
			checks = append(checks, c)
		}
	}
	return checks
}

// alone reports whether a process has had the client to itself, and so knows
// what the server has lost: unless it was reset, or it takes back what was lost,
// as it was told too late that it had been counted.
func (w *world) alone() bool {
	return len(w.processes) == 1 && !w.faults.resets && !(w.fixed() && w.faults.jumps) && w.takenBack.IsZero()
}

// outcome returns that of c, and since when it is. A process has the store
// count what it owes before all else. Soon means that a late answer counts only if
// it has come in a tick before the process was answered again, and so decides by it.
func (w *world) outcome(c *call, soon bool) (outcome, time.Time) {
	by := func(since time.Time) time.Time {
		if soon {
			return c.life.heardAfter(since).Add(-1)
		}
		return time.Now()
	}
	owedSince := c.returned // or since its process was told that it wasn't done
	for _, o := range w.writes {
		if o.late != nil && o.known() == owed && w.mayCount(o, c) {
			owedSince = maxTime(owedSince, o.late.told)
		}
	}
	tells := func(o *operation) bool {
		return o.connection == c.life && !o.sent.Before(owedSince) && (w.width() == 0 || o.key == w.counter(c))
	}
	if !c.unsent() {
		if !w.told(c, by(c.returned)) {
			return unknown, c.life.heardAfter(c.returned)
		}
		// What was done may have been of other calls, and c told in vain.
		if w.done(c) && !slices.ContainsFunc(w.writes, func(o *operation) bool { return tells(o) && o.answered && o.known() == unknown }) {
			return owed, time.Time{}
		}
	}
	result, at := owed, time.Time{}
	for _, o := range w.writes {
		if !tells(o) {
			continue
		}
		switch {
		case result != owed && o.sent.After(at):
			return result, at
		case !o.answered:
		case o.known() == unknown || o.late != nil && o.late.told.After(by(o.ended)):
			result, at = unknown, o.sent
		case o.known() == owed:
		case result == owed:
			result, at = counted, o.sent
		}
	}
	return result, at
}

// heardAfter returns when the process was first answered after a moment.
func (c *connection) heardAfter(since time.Time) time.Time {
	i := slices.IndexFunc(c.heard, func(at time.Time) bool { return !at.Before(since) })
	if i < 0 {
		return since.Add(1 << 60)
	}
	return c.heard[i]
}

// storeTook returns how much of the time of c the store has taken for the states that its
// process has read and swapped, for calls behind which it may have waited.
func (w *world) storeTook(c *call) (took time.Duration) {
	for _, o := range slices.Concat(w.loads, w.writes) {
		if o.connection == c.life && o.sent.Before(c.returned) && o.answered && o.ended.After(c.began) {
			took += min(o.ended.Sub(maxTime(o.sent, c.began)), c.returned.Sub(maxTime(o.sent, c.began)))
		}
	}
	return took
}

// denialsFill reports whether each denial fills the bucket or the log: one of
// unknown outcome may stand for all that was owed before.
func (w *world) denialsFill() bool { return w.countDenied && w.width() == 0 }

// unaware reports whether the process of c couldn't know all it had admitted
// when it decided c: the store was about to count some of it, or c was late,
// and a later slot had taken the place of its own.
func (w *world) unaware(c *call) bool {
	return slices.ContainsFunc(w.writes, func(o *operation) bool {
		return o.connection == c.life && !o.sent.After(c.returned) && (!o.answered || !o.ended.Before(c.returned)) && !errors.Is(o.err, counters.ErrNotSent)
	}) || w.width() > 0 && slices.ContainsFunc(w.calls, func(other *call) bool {
		return other.kind == take && other.life == c.life && w.slotAt(other.request.Now) > w.slotAt(c.request.Now) && !other.began.After(c.returned)
	})
}

// knownUntil returns until when the process of c, which it has admitted without
// the store, surely knows of it: the store has answered then, and perhaps
// hasn't counted it.
func (w *world) knownUntil(c *call) time.Time {
	if result, at := w.outcome(c, true); result == unknown {
		return at
	}
	return w.start.Add(1 << 60)
}

// inTheWay returns how long what was asked for may be in the way. All that was charged may
// drain from a bucket before it.
func (w *world) inTheWay() time.Duration {
	longest := w.lasts() + 2*(w.skew+w.timeout)
	for _, c := range w.calls {
		if c.kind == charge && w.burst > 0 {
			longest += w.window * time.Duration(c.request.Cost) / time.Duration(w.limit)
		}
	}
	return longest
}

// mayBeKnown returns the most that the process of c can know to be in use: all
// that was asked for elsewhere too, as it may have seen it counted. Where others
// have taken a share, or what nobody knows the outcome of may seem to be others', what it
// has admitted alone may stand for all.
func (w *world) mayBeKnown(c *call) (used int64) {
	horizon := time.Now().Add(-w.inTheWay())
	if !c.unsent() {
		used = c.request.Cost // it may have been counted itself
	}
	for _, other := range w.calls {
		back := !other.returned.IsZero() // before, its goroutine may write what has become of it
		ahead := back && other.denied() && other.decision.Local && other.failed == nil && !w.countDenied
		if other != c && other.kind == take && !ahead && (!back || !other.returned.Before(horizon)) {
			used += other.request.Cost
			if !back || other.failed != nil {
				used += other.request.Cost // once as read, and once as admitted here
			}
			alone := back && other.failed != nil && (other.decision.Allowed || w.countDenied)
			if (len(w.processes) > 1 || w.unclear() > 0) && (alone || !back && other.life == c.life) { // or it may be just now
				used = w.capacity()
			}
			if w.denialsFill() {
				used = w.capacity()
			}
		}
	}
	return used
}

// emptyings returns how often a refund left the bucket empty within a span of
// time.
func (w *world) emptyings(from, to time.Time) (n int) {
	for _, at := range w.emptied {
		if !at.Before(from) && !at.After(to) {
			n++
		}
	}
	return n
}

// do makes a call and waits for its end.
func (w *world) do(c *call) *call {
	w.begin(c)
	w.run()
	return c
}

func (w *world) take(p *process, cost int64) *call {
	return w.do(w.newCall(take, p, cost))
}

// judgeQuiet asks a world in which nothing else happens any more.
func (w *world) judgeQuiet() {
	time.Sleep(time.Second + 2*w.timeout + 10*tick) // what is due is told by then
	w.awaitDebts()
	w.log("all is quiet")
	byClock := slices.Clone(w.processes)
	slices.SortStableFunc(byClock, func(a, b *process) int { return cmp.Compare(a.offset, b.offset) })
	for _, p := range byClock {
		unclear := w.unclear() > 0 || w.countDenied
		c := w.take(p, 1)
		used := w.mayBeUsed(c, unclear)
		if c.err == nil && !c.decision.Allowed && used+1 <= w.capacity()-w.kept() {
			w.violate("reason", "#%d is denied, but at most %d of %d can be in use", c.number, used, w.capacity())
		}
		if c.err == nil && !c.decision.Local {
			w.judgeView(p)
		}
	}
	w.judgeRetryAfter()
	if w.faults.refunds && !w.countDenied {
		w.judgeRefund()
	}
	if w.faults.resets {
		w.judgeReset()
	}
	if w.faults.jumps {
		w.judgeCorrection()
	}
}

// judgeRefused checks that soon after the last call what was counted for checks
// that were refused, as the store didn't answer in time, is given back: but for
// what a reset that has failed may have taken along.
func (w *world) judgeRefused() {
	failed := func(c *call) bool { return c.kind == reset && c.err != nil }
	if !w.refuses || w.unclear() > 0 || slices.ContainsFunc(w.calls, failed) {
		return
	}
	w.sleep(w.timeout)
	if w.owing() > 0 { // it is about to be
		return
	}
	if n := len(w.lost); n > 0 && w.width() == 0 && time.Since(w.lost[n-1]) < w.inTheWay() {
		return // what was given back of what is lost was taken from what had come since
	}
	c := w.do(w.newCall(peek, w.processes[0], 1))
	used := w.mayBeUsed(c, false)
	if free := w.capacity() - w.kept() - used; c.err == nil && c.decision.Remaining < free {
		w.violate("reason", "#%d is told that %d remain, but at most %d of %d can be in use", c.number, c.decision.Remaining, used, w.capacity())
	}
}

// judgeRefund checks that a second after a refund what it gave back is free
// everywhere, also where its slot had been settled. Nothing is left of the time
// of the check that it undoes.
func (w *world) judgeRefund() {
	by, other := w.processes[0], w.processes[len(w.processes)-1]
	time.Sleep(w.lasts() + w.skew + w.timeout + 3*time.Second) // it comes after no reset
	w.align()
	c := w.take(by, w.capacity())
	w.sleep(w.width() + w.skew + w.timeout)
	if knows := w.take(other, 1); !c.admitted() || !knows.denied() {
		return
	}
	c.refunded = true
	w.do(&call{kind: refund, process: by, request: c.request, undoes: c, deadline: c.began.Add(w.timeout)})
	time.Sleep(w.timeout)
	w.run()
	w.sleep(time.Second)
	free := w.capacity()
	if w.burst > 0 {
		free-- // a bucket gives back no fraction
	}
	if again := w.take(other, free); !again.decision.Allowed {
		w.violate("reason", "#%d isn't admitted a second after #%d was refunded", again.number, c.number)
	}
}

// judgeCorrection checks what clients are told when a clock was an hour ahead
// and is right again. What counts is lost then, as by a reset.
func (w *world) judgeCorrection() {
	wrong := w.processes[0]
	if len(w.processes) == 1 { // judgeBound trusts its clock
		return
	}
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		w.lose()
		wrong.offset += ahead
		w.log("the clock of %v jumps by %v", wrong, ahead)
		w.take(wrong, w.capacity())
	}
	w.lose()
	for _, p := range w.processes {
		w.take(p, 1)
	}
}

// judgeReset checks that a second after a reset the limit is free everywhere,
// but for what was admitted meanwhile. The reset comes while a process that
// knows nothing yet, and is far from the server, reads counts that are settled.
func (w *world) judgeReset() {
	by, late := w.processes[0], w.processes[len(w.processes)-1]
	if by == late { // one of the two is far from the store
		return
	}
	w.sleep(w.lasts() + w.skew)
	before := w.take(by, w.capacity())
	time.Sleep(w.width() + w.skew + w.timeout)
	w.crash(late)
	by.latency, late.latency, w.farthest = 1, farthest, farthest
	meanwhile := w.newCall(take, late, 1)
	w.begin(meanwhile)
	w.after(w.ticks(10), func() { w.begin(w.newCall(reset, by, 0)) })
	w.run()
	w.endFaults()
	time.Sleep(time.Second)
	free := w.capacity()
	// Windows give nothing back so soon after a reset.
	if meanwhile.err != nil || meanwhile.decision.Allowed || meanwhile.decision.Contended || w.countDenied || w.width() > 0 {
		free--
	}
	if free == 0 {
		return
	}
	if c := w.take(late, free); !c.decision.Allowed {
		w.violate("reset", "#%d isn't admitted a second after the reset", c.number)
	}
	if before.admitted() && w.width() == 0 { // windows take it for one that isn't as late
		before.refunded = true
		w.do(&call{kind: refund, process: by, request: before.request, undoes: before})
		for range w.capacity() {
			w.take(late, 1)
		}
	}
}

// judgeView compares what p knows of the client, which it has just asked about,
// with what the store has. A process may know more than there is when others
// have given back; it never knows less.
func (w *world) judgeView(p *process) {
	if w.faults.stalled || !w.vanished.IsZero() {
		return
	}
	exact := !w.faults.refunds && !w.faults.slow && w.failures == 0 && w.owing() == 0
	r := w.newRequest(p, 1)
	local, ok := p.limiter.PeekLocal(r)
	if !ok {
		return
	}
	stored := w.do(&call{kind: peek, process: p, request: r}).decision
	local.Local, stored.Receipt = false, counters.Receipt{} // which only who asks the store is told
	if local.Remaining > stored.Remaining || exact && local != stored {
		w.violate("view", "%v knows %+v, the store has %+v", p, local, stored)
	}
}

// judgeRetryAfter checks that a lone client which asks again when it was told
// to is admitted. It asks any process, or always the same where they may
// differ: one whose clock is ahead admits it earlier than others say, and one
// that has settled a slot doesn't see what was taken from it later.
func (w *world) judgeRetryAfter() {
	time.Sleep(counters.MaxStaleness + w.skew + tick)
	p := w.processes[w.random.IntN(len(w.processes))]
	alike := w.skew == 0 && !w.faults.refunds && !w.faults.slow && !w.faults.stalled && w.failures == 0 && w.vanished.IsZero()
	for range 2 * w.capacity() {
		if alike {
			p = w.processes[w.random.IntN(len(w.processes))]
		}
		time.Sleep(w.ticks(pick(w.random, 0, 0, int(w.window/tick/4))))
		cost := 1 + w.random.Int64N(min(3, w.capacity()))
		c := w.take(p, cost)
		if c.err != nil {
			w.violate("errors", "#%d failed in a quiet world: %v", c.number, c.err)
			return
		}
		if !w.judgeReturn(c) {
			return
		}
	}
}

// judgeReturn lets the client of c come back when it was told to, and reports
// whether it is admitted then.
func (w *world) judgeReturn(c *call) bool {
	told := c.decision.RetryAfter
	if c.decision.Allowed {
		if !w.countDenied || !w.chance(3) {
			return true
		}
		told = c.decision.FitsAfter // if another limit has denied it
	}
	w.sleep(max(0, c.request.Now.Add(told).Sub(c.process.now())))
	again := w.take(c.process, c.request.Cost)
	// What it has counted stays in use if the store hasn't answered in time that
	// it was taken back.
	stays := c.denied() && c.failed == nil && w.width() > 0 && !c.process.failed.Before(c.began)
	if !again.decision.Allowed && !stays {
		w.violate("retry-after", "#%d was told %v and came back with #%d in vain", c.number, told, again.number)
	}
	return again.decision.Allowed
}

// mayBeUsed returns the most that by, the last call, can find in use: what was
// admitted, and what may have been counted by calls that failed. All may have
// been if it is unclear what was.
func (w *world) mayBeUsed(by *call, unclear bool) int64 {
	var since time.Time // what ended before is forgotten
	var kept time.Time  // what was made before, by its clock, isn't given back
	var used int64
	resets := make(map[int64]int64)
	for _, c := range w.calls {
		if c.kind == reset && c.err == nil && !c.crashed && !w.faults.stalled {
			since = c.began
		}
		if c.kind == reset {
			// Each further reset of a second is taken for a second more.
			second := c.request.Now.Unix()
			if resets[second]++; resets[second] > 1 {
				kept = maxTime(kept, time.Unix(second+resets[second], 0))
			}
			kept = maxTime(kept, c.request.Now).Add(w.skew + w.timeout + time.Millisecond)
		}
	}
	horizon := by.began.Add(-w.inTheWay())
	for _, c := range w.calls[:by.number] {
		if c.kind == refund && w.burst > 0 && !c.undoes.returned.Before(horizon) {
			// A bucket gives back nothing that has drained, nor a fraction.
			drained := w.limit * int64(c.returned.Sub(c.undoes.began)+w.timeout) / int64(w.window)
			used += min(c.request.Cost, drained+1)
		}
		alone := c.kind == refund && c.undoes.failed != nil // it is that, or an unknown outcome
		if c.kind == refund && (c.err != nil || alone) && !c.undoes.returned.Before(horizon) {
			used += c.request.Cost // it may not be done in the end either
		}
		if c.kind != take || c.returned.Before(since) && c.failed == nil || c.returned.Before(horizon) {
			continue // what was admitted without the store may be counted after a reset
		}
		unsure := !c.request.Now.After(kept) || w.isBack(c)
		if w.givenBack(c) && !unsure && !unclear && w.burst == 0 { // a bucket gives back nothing that has drained
			continue
		}
		if c.admitted() && (!c.refunded || unsure) || c.denied() && unsure || c.err != nil || c.failed != nil || c.decision.Contended || c.crashed || unclear {
			used += c.request.Cost
			if w.denialsFill() {
				used = w.capacity()
			}
		}
	}
	return used
}

// isBack reports whether what c has given back may be in use again: others may
// have seen it before, and have put it back since. A bucket or a log has nothing
// of a denial.
func (w *world) isBack(c *call) bool {
	one := w.width() == 0
	gaveBack := c.refunded || !one && !c.decision.Local
	return gaveBack && slices.ContainsFunc(w.putBack, func(r restoration) bool { return !r.at.Before(c.began) && (one || r.key == w.counter(c)) })
}

// awaitDebts waits until nobody owes anything. What is told last is settled a second
// later, if others are in the way, and again and again while the server is slow.
func (w *world) awaitDebts() {
	for tries := 0; tries < 5 && w.owing() > 0; tries++ {
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(tick) {
			w.run() // who asks meanwhile is answered
		}
	}
}

// owing returns how many processes have still to tell the server something.
func (w *world) owing() (n int) {
	for _, p := range w.processes {
		n += p.limiter.Owing()
	}
	return n
}
