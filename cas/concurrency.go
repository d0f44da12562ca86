package cas

import (
	"cmp"
	"math"
	"math/bits"

	"weir/counters"
)

// places is the arithmetic of NewConcurrency: that of a log whose entries are leases.
//
// A lease is known by its name, which is what its time has beyond a multiple of grid. Renewals
// keep that, so each of its receipts finds it. The name of a new one is a hash of the time at
// which it was asked for: hardly ever that of a lease that has ended or was reset, and never that
// of another in the state. So that its time has this name a lease begins up to a grid before it
// was asked for, and is kept for a grid longer.
type places struct{ log }

// fibonacci is 2^64 divided by the golden ratio: its multiples are far apart, modulo 2^64.
const fibonacci = 0x9e3779b97f4a7c15

// last returns the latest time until now that names the lease that a names.
func (p places) last(a, now int64) int64 {
	ahead := (a - now) % int64(grid)
	if ahead > 0 {
		ahead -= int64(grid)
	}
	return now + ahead
}

// find returns the time and the cost of the lease in s that a names; 0 if there is none.
func (p places) find(s logState, a int64) (at, cost int64) {
	for e := range p.all(s) {
		if sameLease(e.first, a) {
			return e.first, e.cost
		}
	}
	return 0, 0
}

// begins returns when the lease of r begins in live, and the cost of the one that it renews.
func (p places) begins(live logState, r counters.Request) (at, held int64) {
	if at = r.Renews; at != 0 && r.Cost > 0 {
		_, held = p.find(live, at)
		return p.last(at, live.time), held
	}
	// Of leases that are asked for at regular times, too, each has another name.
	name, _ := bits.Mul64(uint64(r.Now.UnixNano())*fibonacci, uint64(grid))
	at = int64(name)
	for taken := true; taken; {
		taken = false
		for e := range p.all(live) { // those of one moment are in the order of their names
			if sameLease(e.first, at) {
				at, taken = at+1, true
			}
		}
	}
	return p.last(at, live.time), 0
}

// room returns the most that r may take, which holds so much of it. That it keeps, whatever
// the limit is by now.
func (p places) room(live logState, r counters.Request, held int64) int64 {
	free := p.limit(r.Limit) - live.sum
	if held > 0 {
		free = held + max(0, free)
	}
	return free
}

// step admits r if there is room beside what it holds.
func (p places) step(s logState, r counters.Request) (logState, counters.Decision) {
	live, _ := p.live(s, r)
	at, held := p.begins(live, r)
	if room := p.room(live, r, held); r.Cost == 0 || r.Cost > room {
		return s, p.decision(live, live.sum, r, r.Cost <= room)
	}
	live = p.hold(live, at, r.Cost, held > 0)
	d := p.decision(live, live.sum, r, true)
	d.Receipt = counters.Receipt{Generation: live.generation, Position: at}
	return live, d
}

func (p places) peek(s logState, r counters.Request) counters.Decision {
	live, _ := p.live(s, r)
	_, held := p.begins(live, r)
	return p.decision(live, live.sum, r, r.Cost <= p.room(live, r, held))
}

// hold returns s with a lease that begins at a time, in the place of the one that is renewed.
func (p places) hold(s logState, at, cost int64, renewed bool) logState {
	if renewed {
		before, held := p.find(s, at)
		s = p.changed(s, before, -held)
		cost = max(cost, held)
	}
	s.generation = cmp.Or(s.generation, at)
	return p.short(p.changed(s, at, cost), 0)
}

// charge has the leases of debts begin when they were decided to, unless they have ended.
func (p places) charge(s logState, debts ...*debt) logState {
	for _, d := range debts {
		s, _ = p.live(s, d.request())
		at := cmp.Or(d.position, d.now)
		before, held := p.find(s, at)
		renewed := held > 0 && (d.renews != 0 || before > at)
		if held > 0 {
			at = max(at, before) // as of a renewal that was told before
		}
		if s.time = max(s.time, at); !outside(at, s.time, p.window) {
			s = p.hold(s, at, d.cost, renewed)
		}
	}
	return s
}

// refund ends the lease of d, of whatever state, if there still is one, or those that end
// first. One that was to be renewed goes on.
func (p places) refund(s logState, d *debt) logState {
	switch {
	case d.renews != 0:
		return s
	case d.position != counters.EarliestLeases:
		at, _ := p.find(s, cmp.Or(d.position, d.now))
		s = p.changed(s, at, -d.cost)
	default:
		s, _ = p.live(s, d.request())
		s = p.without(s, math.MinInt64, d.cost)
	}
	if s.n == 0 {
		return logState{}
	}
	return s
}

// fuller takes each lease to be as of when it was renewed last.
func (p places) fuller(present, known logState, r counters.Request) (logState, bool) {
	last := make(map[int64]int64)
	for _, s := range []logState{present, known} {
		for e := range p.all(s) {
			name := p.last(e.first, 0)
			last[name] = max(last[name], e.first)
		}
	}
	renewed := func(t int64) int64 { return last[p.last(t, 0)] }
	return p.log.fuller(p.moved(present, renewed), p.moved(known, renewed), r)
}

func (p places) asOf(s logState, now int64) logState {
	s.time, s.generation = min(s.time, now), min(s.generation, now)
	return p.moved(s, func(t int64) int64 { return p.last(t, min(t, now)) })
}
