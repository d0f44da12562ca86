package simulate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
	"weir/cas"
	"weir/counters"
)

// judgeCall judges a call on its own: it ends in time, it fails only if the
// store did, and it may ask again while the state can last.
func (w *world) judgeCall(c *call) {
	const sweep = 2 * tick // a caller that waits for a leader leaves so much late
	if took := c.returned.Sub(c.began); took > w.timeout+sweep {
		w.violate("timeout", "#%d took %v", c.number, took)
	}
	contended := c.kind == refund && errors.Is(c.err, cas.ErrContended) // it is tried again
	if c.err != nil && !contended && c.process.failed.Before(c.began) && len(c.process.open) == 0 {
		w.violate("errors", "#%d failed although the store answered everything: %v", c.number, c.err)
	}
	if longest := w.lasts() + 2*(w.skew+w.timeout); c.denied() && c.decision.RetryAfter > longest {
		w.violate("retry-after", "#%d is told %v, but nothing lasts longer than %v", c.number, c.decision.RetryAfter, longest)
	}
}

// judgeAdmissions compares the log of admissions with the bounds of the docs.
// An admission happened at some moment between its call and its return. So a
// bound is broken if too many had both within a span. What was refunded doesn't
// count, and no span reaches over a moment at which the server lost counts.
func (w *world) judgeAdmissions() {
	var admissions []*call
	for _, c := range w.calls {
		if c.admitted() && !c.refunded {
			admissions = append(admissions, c)
		}
	}
	slices.SortStableFunc(admissions, func(a, b *call) int { return a.returned.Compare(b.returned) })
	type place struct{ slot, life int64 }
	sums := make(map[place]int64) // of fixed windows
	for _, first := range admissions {
		end := w.start.Add(1 << 60)
		life := 0
		for _, at := range w.lost {
			if !at.Before(first.began) {
				end = at
				break
			}
			life++
		}
		if w.fixed() {
			if at := (place{counters.Calendar(first.request.Now, w.window).Number, int64(life)}); first.returned.Before(end) {
				if sums[at] += first.request.Cost; sums[at] > w.limit {
					w.violate("bound", "%d of %d admitted in the calendar window of #%d", sums[at], w.limit, first.number)
					return
				}
			}
			continue
		}
		var sum int64
		for _, last := range admissions {
			if last.began.Before(first.began) {
				continue
			}
			if !last.returned.Before(end) {
				break
			}
			sum += last.request.Cost
			if span := last.returned.Sub(first.began); sum > w.bound(span) {
				w.violate("bound", "%d of %d admitted from #%d to #%d, within %v", sum, w.bound(span), first.number, last.number, span)
				return
			}
		}
	}
}

// judgeCounts checks that each counter is what was admitted in its slot and not
// given back. That is known where nothing was lost and no outcome is unknown.
func (w *world) judgeCounts() {
	if w.width() == 0 || w.failures > 0 || len(w.lost) > 0 {
		return
	}
	want := make(map[int64]int64)
	for _, c := range w.calls {
		if c.kind != take || c.refunded {
			continue
		}
		if c.crashed || c.err != nil {
			return
		}
		if c.decision.Allowed || w.countDenied {
			want[counters.Calendar(c.request.Now, w.width()).Number] += c.request.Cost
		}
	}
	for bucket, n := range want {
		key := counters.CounterKey(w.counterPrefix(), bucket)
		if i, ok := w.server.live(key, time.Now()); ok && i.count != n {
			w.violate("counts", "the counter of slot %d is %d, but %d are admitted", bucket, i.count, n)
		}
	}
}

// counterPrefix is what the keys of the client's counters begin with.
func (w *world) counterPrefix() string {
	return algorithms.Namespace(policy, w.width()).Client(client)
}

// do makes a call and waits for its end.
func (w *world) do(c *call) *call {
	w.begin(c)
	w.run()
	return c
}

func (w *world) take(p *process, cost int64) *call {
	return w.do(&call{kind: take, process: p, request: w.newRequest(p, cost)})
}

// judgeQuiet asks a world in which nothing else happens any more.
func (w *world) judgeQuiet() {
	time.Sleep(counters.MaxStaleness + 10*tick)
	w.log("all is quiet")
	byClock := slices.Clone(w.processes)
	slices.SortStableFunc(byClock, func(a, b *process) int { return cmp.Compare(a.offset, b.offset) })
	for _, p := range byClock {
		used := w.mayBeUsed()
		c := w.take(p, 1)
		if c.err == nil && !c.decision.Allowed && used+1 <= w.capacity() {
			w.violate("reason", "#%d is denied, but at most %d of %d can be in use", c.number, used, w.capacity())
		}
		if c.err == nil && !c.decision.Local {
			w.judgeView(p)
		}
	}
	w.judgeRetryAfter()
	if w.faults.resets {
		w.judgeReset()
	}
}

// judgeReset checks that a second after a reset the limit is free everywhere,
// but for what was admitted meanwhile. The reset comes while a process that
// knows nothing yet, and is far from the server, reads counts that are settled.
func (w *world) judgeReset() {
	by, late := w.processes[0], w.processes[len(w.processes)-1]
	w.take(by, w.capacity())
	time.Sleep(w.width() + w.skew + w.timeout)
	w.crash(late)
	by.latency, late.latency, w.farthest = 1, farthest, farthest
	meanwhile := &call{kind: take, process: late, request: w.newRequest(late, 1)}
	w.begin(meanwhile)
	w.after(w.ticks(10), func() { w.begin(&call{kind: reset, process: by, request: w.newRequest(by, 0)}) })
	w.run()
	w.settle()
	time.Sleep(time.Second)
	free := w.capacity()
	if meanwhile.err != nil || meanwhile.decision.Allowed || meanwhile.decision.Contended || w.countDenied {
		free--
	}
	if free == 0 {
		return
	}
	if c := w.take(late, free); !c.decision.Allowed {
		w.violate("reset", "#%d isn't admitted a second after the reset", c.number)
	}
}

// judgeView compares what p knows of the client, which it has just asked about,
// with what the store has. A process may know more than there is when others
// have given back; it never knows less.
func (w *world) judgeView(p *process) {
	if w.faults.stalled || !w.vanished.IsZero() {
		return
	}
	r := w.newRequest(p, 1)
	local, ok := p.limiter.PeekLocal(r)
	if !ok {
		return
	}
	stored := w.do(&call{kind: peek, process: p, request: r}).decision
	local.Local = false
	exact := !w.faults.refunds && !w.faults.slow && w.failures == 0
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
		cost := 1 + w.random.Int64N(w.maxCost)
		c := w.take(p, cost)
		if c.err != nil {
			w.violate("errors", "#%d failed in a quiet world: %v", c.number, c.err)
			return
		}
		if c.decision.Allowed {
			continue
		}
		time.Sleep(max(0, c.request.Now.Add(c.decision.RetryAfter).Sub(p.now())))
		w.align()
		if again := w.take(p, cost); !again.decision.Allowed {
			w.violate("retry-after", "#%d was told %v and came back with #%d in vain", c.number, c.decision.RetryAfter, again.number)
			return
		}
	}
}

// mayBeUsed returns the most that can be in use: what was admitted, and what
// may have been counted by calls that failed.
func (w *world) mayBeUsed() int64 {
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
	horizon := time.Now().Add(-w.lasts() - 2*(w.skew+w.timeout))
	unclear := w.failures > 0 || w.countDenied
	for _, c := range w.calls {
		if c.kind != take || c.returned.Before(since) || c.returned.Before(horizon) {
			continue
		}
		unsure := !c.request.Now.After(kept)
		if c.admitted() && (!c.refunded || unsure) || c.denied() && unsure || c.err != nil || c.decision.Contended || c.crashed || unclear {
			used += c.request.Cost
			if w.countDenied && w.width() == 0 {
				used = w.capacity() // a denial fills the bucket or the log
			}
		}
	}
	return used
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
