package simulate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"weir/counters"
)

// traffic makes a call and plans the next, until there were enough: bursts,
// pauses, and calls close to the end of a slot.
func (w *world) traffic(left int) {
	if w.favourite == nil || !w.sticky || w.chance(10) {
		asked := w.processes
		if w.latecomer && left > 0 {
			asked = asked[1:]
		}
		w.favourite = asked[w.random.IntN(len(asked))]
	}
	p := w.favourite
	switch {
	case w.faults.resets && (left == 0 || w.chance(30)):
		w.begin(w.newCall(reset, p, 0))
		for _, other := range w.processes { // somebody asks at the same time
			w.after(w.ticks(3), func() { w.begin(w.newCall(take, other, 1)) })
		}
	case w.chance(25):
		w.begin(w.newCall(peek, p, 1))
	default:
		w.begin(w.newCall(take, p, 1+w.random.Int64N(w.maxCost)))
	}
	if w.chance(15) {
		w.after(0, w.trouble)
	}
	if w.faults.outages && w.outage.kind == available && w.chance(12) {
		w.planOutage()
	}
	if w.faults.restarts && w.chance(10) { // again and again, so that old versions are met anew
		w.server.restart()
		w.vanish("restarted")
	}
	if left == 0 {
		return
	}
	var pause time.Duration
	switch n := w.random.IntN(20); {
	case n < 12:
		pause = w.ticks(2)
	case n < 16:
		pause = w.ticks(20)
	case n < 18:
		pause = w.ticks(int(w.window / tick / 2))
	default:
		width := cmp.Or(w.width(), w.window)
		rest := width - counters.Calendar(w.processes[0].now(), width).Elapsed
		pause = max(0, rest-w.ticks(5)) / tick * tick
	}
	w.after(pause, func() { w.traffic(left - 1) })
}

// planOutage lets an outage begin and end, and perhaps another follow at once.
func (w *world) planOutage() {
	o := outage{kind: pick(w.random, unsent, unsent, stalled, cut)}
	if w.chance(3) {
		o.process = w.processes[w.random.IntN(len(w.processes))]
	}
	w.fail(o)
	w.after(w.ticks(pick(w.random, 3*int(w.timeout/tick), int(w.window/tick))), func() {
		w.restore()
		if !w.calm && !w.chance(4) {
			w.after(w.ticks(farthest), func() {
				if !w.calm && w.outage.kind == available {
					w.planOutage()
				}
			})
		}
	})
}

// trouble brings a fault that isn't one of an operation, if the seed has it.
func (w *world) trouble() {
	p := w.processes[w.random.IntN(len(w.processes))]
	switch w.random.IntN(4) {
	case 0:
		if w.faults.jumps {
			p.offset = w.offset()
			w.log("the clock of %v jumps, it is %v ahead", p, p.offset)
		}
	case 1:
		if w.faults.crashes {
			w.crash(p)
		}
	case 2:
		if keys := slices.Sorted(maps.Keys(w.server.items)); w.faults.evicts && len(keys) > 0 {
			key := keys[w.random.IntN(len(keys))]
			delete(w.server.items, key)
			w.vanish(slot(key) + " is evicted")
		}
	case 3:
		if w.faults.flushes {
			clear(w.server.items)
			w.vanish("everything is flushed")
		}
	}
}

// crash ends p and begins it anew. Operations under way happen or don't; nobody
// hears of them.
func (w *world) crash(p *process) {
	w.log("%v crashes", p)
	w.mu.Lock()
	p.connection.down = true
	w.mu.Unlock()
	for _, c := range w.calls {
		if c.process == p && c.returned.IsZero() {
			c.crashed = true
		}
	}
	for _, o := range slices.Clone(p.open) {
		w.answer(o, counters.ErrUnavailable)
	}
	w.breakOff(p.connection)
	w.boot(p)
}
