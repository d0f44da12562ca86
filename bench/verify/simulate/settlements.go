package simulate

import (
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
	"weir/counters"
)

// simulateSettlements runs a world in which checks reserve what any process settles later:
// it gives back the rest, or charges what is beyond. Its oracle is
//
//   - settled: when all is quiet, every process finds in use what was used in the end. It is
//     no less where a process may hear of a reset seconds later; and it may be more by what is
//     dropped as it is to be given back together with what is from before a reset. If it
//     isn't known of all operations whether they were done, or a process has crashed, it is
//     no less than what was reserved, less what was given back.
func simulateSettlements(seed uint64, broken mutation, trace io.Writer) []violation {
	return happen(seed, drawSettlements, (*world).settlements, broken, trace)
}

// drawSettlements draws a scenario in which nothing leaves the window or drains.
func drawSettlements(seed uint64, r *rand.Rand) scenario {
	s := drawAccounts(seed, r)
	s.limit, s.window = pick[int64](r, 40, 400, 400, 10_000), 2*time.Minute
	switch {
	case s.algorithm.Kind == algorithms.Bucket:
		s.limit = min(s.limit, 1000)
		s.window, s.burst = 100*time.Hour, s.limit
	case s.algorithm.Slots > 0:
		s.algorithm.Slots = pick(r, 1, 10, 60, 120)
	}
	s.maxCost, s.charges = 9, true
	return s
}

// settlements lets checks reserve and others settle, then once more after a reset, and
// judges what is in use.
func (w *world) settlements() {
	w.after(0, func() { w.reserve(w.scenario.calls / 2) })
	w.run()
	forgotten := 0 // so many calls are, by a reset
	if w.faults.resets {
		w.quieten()
		if w.do(w.newCall(reset, w.processes[0], 0)).err != nil {
			return
		}
		time.Sleep(3 * time.Second) // windows give nothing back so soon after it
		w.align()
		forgotten = len(w.calls)
		w.calm = false
		w.after(0, func() { w.reserve(w.scenario.calls / 2) })
		w.run()
	}
	w.quieten()
	w.judgeSettled(forgotten)
}

// quieten ends the faults, and returns when nobody owes anything.
func (w *world) quieten() {
	w.endFaults()
	w.sleep(time.Second + 2*w.timeout)
	w.run()
	w.awaitDebts()
}

// reserve makes a check whose cost is an estimate, settles one or charges a cost, and plans
// the next, until there were enough.
func (w *world) reserve(left int) {
	p := w.processes[w.random.IntN(len(w.processes))]
	switch n := w.random.IntN(10); {
	case n < 5:
		r := w.newRequest(p, 1+w.random.Int64N(w.maxCost))
		r.Reserved = true
		w.begin(&call{kind: take, process: p, request: r})
	case n < 9:
		open := slices.DeleteFunc(slices.Clone(w.calls), func(c *call) bool { return !c.admitted() || c.refunded })
		if len(open) > 0 {
			w.settleAt(p, open[w.random.IntN(len(open))])
		}
	default:
		w.begin(w.newCall(charge, p, w.maxCost))
	}
	if w.chance(15) {
		w.after(0, w.trouble)
	}
	if left > 0 {
		w.after(w.ticks(pick(w.random, 2, 50, 1000)), func() { w.reserve(left - 1) })
	}
}

// settleAt has p settle what c has reserved.
func (w *world) settleAt(p *process, c *call) {
	c.refunded = true
	r := w.newRequest(p, 0)
	switch less := c.request.Cost - w.random.Int64N(2*c.request.Cost); {
	case less > 0:
		r.Cost, r.Now = less, c.request.Now
		w.begin(&call{kind: refund, process: p, request: r, undoes: c, receipt: true})
	case less < 0:
		r.Cost = -less
		w.begin(&call{kind: charge, process: p, request: r})
	}
}

// givesBackOlder reports whether the process of c, a refund or a check that it has refused, was to
// give back what one of so many calls before a reset had reserved at the same time, in the same
// slot: it drops both if it hasn't heard of the reset.
func (w *world) givesBackOlder(c *call, forgotten int) bool {
	until := func(c *call) time.Time {
		if c.err != nil { // it is done later
			return c.life.heardAfter(c.returned)
		}
		return c.returned
	}
	counted := c
	if c.kind == refund {
		counted = c.undoes
	}
	return w.width() > 0 && slices.ContainsFunc(w.calls, func(o *call) bool {
		return o.kind == refund && o.life == c.life && o.undoes.number < forgotten && w.counter(o.undoes) == w.counter(counted) &&
			!o.began.After(until(c)) && !c.began.After(until(o))
	})
}

// judgeSettled compares what is in use with what was used since so many calls.
func (w *world) judgeSettled(forgotten int) {
	if time.Since(w.start) > time.Minute { // a client has come back when it was told to
		return
	}
	known := w.unclear() == 0 && !w.faults.crashes
	exact := known && !(w.faults.slow && forgotten > 0)
	var used, givenBack, dropped int64
	// forgiven is from before a reset. A process that hasn't heard of that may give it back
	// with what is due in the same slot of a window.
	var forgiven int64
	slot := func(c *call) int64 { return counters.Calendar(c.request.Now, w.window).Number }
	for _, c := range w.calls[forgotten:] {
		switch {
		case w.algorithm.Slots <= 1 && slot(c) != slot(w.calls[len(w.calls)-1]): // it may have left the window
			return
		case c.admitted():
			used += c.request.Cost
		case c.kind == take: // and denied, or refused
			if w.givesBackOlder(c, forgotten) {
				dropped += c.request.Cost
			}
		case c.kind == refund && c.undoes.number >= forgotten:
			used -= c.request.Cost
			givenBack++
			if w.givesBackOlder(c, forgotten) {
				dropped += c.request.Cost
			}
		case c.kind == refund && w.algorithm.Kind == algorithms.Counters:
			forgiven += c.request.Cost
		case c.kind == charge && known:
			used += c.request.Cost
		}
	}
	least, most := used-forgiven, used+dropped
	if w.algorithm.Kind == algorithms.Bucket { // it gives back no fraction of what has drained a little
		least, most = used-1, used+givenBack
	}
	for _, p := range w.processes {
		c := w.take(p, 1)
		if c.err != nil {
			w.violate("errors", "#%d failed in a quiet world: %v", c.number, c.err)
			return
		}
		if c.decision.Allowed {
			least, most = least+1, most+1
		}
		found := w.limit - c.decision.Remaining
		if found < min(least, w.limit) || exact && found > most {
			w.violate("settled", "#%d finds %d in use, but from %d to %d are", c.number, found, least, most)
			return
		}
	}
}
