package simulate

import (
	"cmp"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
)

// simulateLeases runs a world in which callers take places, renew them and give them back,
// at any process. Its oracles are
//
//   - leases: at no moment do callers rely on more places than there are. Who has one
//     relies on it until its lease ends, a lease after it was asked for or renewed last.
//   - released: nobody is denied a place, or one that is still held to be renewed, unless
//     that many others may be taken up: by who has asked for them, and hasn't given them
//     back, until their leases have ended by any clock.
//
// A lease is renewed, again, and given back by any of its receipts.
func simulateLeases(seed uint64, broken mutation, trace io.Writer) []violation {
	return happen(seed, drawLeases, (*world).leases, broken, trace)
}

func drawLeases(seed uint64, r *rand.Rand) scenario {
	s := drawAccounts(seed, r)
	s.algorithm, s.burst, s.window = algorithms.Leases, 0, pick[time.Duration](r, 1, 1, 2, 5)*time.Second
	s.limit = 1 + r.Int64N(5)
	s.maxCost = min(s.limit, pick[int64](r, 1, 1, 2))
	return s
}

// leases lets callers use places, and then asks for all of them.
func (w *world) leases() {
	w.after(0, func() { w.hold(2 * w.scenario.calls) })
	w.run()
	w.endFaults()
	w.sleep(w.lasts() + 4*w.timeout)
	w.run()
	w.awaitDebts()
	for _, p := range w.processes {
		if c := w.take(p, w.limit); c.admitted() {
			w.giveBack(p, c)
			w.run()
		}
	}
	w.judgeLeases()
}

// hold takes a place, renews one or gives one back, and plans the next, until there were
// enough.
func (w *world) hold(left int) {
	p := w.processes[w.random.IntN(len(w.processes))]
	held := slices.DeleteFunc(slices.Clone(w.calls[max(0, len(w.calls)-20):]), func(c *call) bool {
		return !c.admitted() || w.released(c) && !w.chance(5) // it is released again
	})
	if len(held) > 0 && w.chance(2) {
		c := held[w.random.IntN(len(held))]
		if w.chance(2) && !w.released(c) {
			r := w.newRequest(p, c.request.Cost)
			r.Renews = c.since()
			w.begin(&call{kind: take, process: p, request: r, undoes: c})
		} else {
			w.giveBack(p, c)
		}
	} else {
		w.begin(w.newCall(take, p, 1+w.random.Int64N(w.maxCost)))
	}
	if w.chance(15) {
		w.after(0, w.trouble)
	}
	if w.faults.resets && w.chance(30) {
		w.begin(w.newCall(reset, p, 0))
	}
	if left > 0 {
		w.after(w.ticks(pick(w.random, 2, 50, int(w.window/tick))), func() { w.hold(left - 1) })
	}
}

// since returns when the lease of c began, as its receipt has it.
func (c *call) since() int64 { return cmp.Or(c.decision.Receipt.Position, c.request.Now.UnixNano()) }

func (w *world) giveBack(p *process, c *call) {
	r := c.request
	r.Renews = 0
	w.begin(&call{kind: refund, process: p, request: r, undoes: c, receipt: true})
}

// A use is a call for a place, and when it was relied on, or may have been taken up.
type use struct {
	*call
	from, to time.Time
}

func (u use) at(t time.Time) bool { return !t.Before(u.from) && t.Before(u.to) }

// places returns how many are of the uses that f chooses: a lease's count once.
func places(uses []use, f func(u use) bool) (sum int64) {
	counted := make(map[*call]bool)
	for _, u := range uses {
		if of := u.lease(); f(u) && !counted[of] {
			counted[of] = true
			sum += u.request.Cost
		}
	}
	return sum
}

// lease returns the call that has taken the places of c, which are renewed since.
func (c *call) lease() *call {
	for c.undoes != nil {
		c = c.undoes
	}
	return c
}

// ends returns the calls that give the places of c back.
func (w *world) ends(c *call) (all []*call) {
	for _, by := range w.calls {
		if by.kind == refund && by.lease() == c.lease() {
			all = append(all, by)
		}
	}
	return all
}

func (w *world) released(c *call) bool { return len(w.ends(c)) > 0 }

// relied returns when the caller of c relies on its place.
func (w *world) relied(c *call) use {
	u := use{c, c.returned, c.began.Add(w.window)}
	for _, by := range w.ends(c) {
		u.to = minTime(u.to, by.began)
	}
	for _, r := range w.calls {
		if r.kind == reset && (r.err != nil || r.crashed || !r.returned.Before(c.began)) {
			u.to = minTime(u.to, r.began)
		}
	}
	return u
}

// takenUp returns when the place of c may have been taken up.
func (w *world) takenUp(c *call) use {
	u := use{c, c.began, c.returned.Add(w.lasts())}
	if !c.admitted() {
		u.to = u.to.Add(2 * w.timeout) // it may be counted later
	}
	for _, by := range w.ends(c) {
		done := by.err == nil && !by.crashed && !by.unsure // what nobody learns is taken for done
		if done && c.admitted() && !by.began.Before(c.returned) {
			u.to = minTime(u.to, by.returned)
		}
	}
	return u
}

func (w *world) judgeLeases() {
	var relied, taken []use
	for _, c := range w.calls {
		if c.admitted() {
			relied = append(relied, w.relied(c))
		}
		unsure := c.unsure || c.returned.Sub(c.began) >= w.timeout // and then it may have been counted, whatever it was told
		if c.kind == take && (!c.denied() || c.decision.Contended || unsure) {
			taken = append(taken, w.takenUp(c))
		}
	}
	for _, begins := range relied {
		sum := places(relied, func(u use) bool { return begins.from.Before(begins.to) && u.at(begins.from) })
		if sum > w.limit {
			w.violate("leases", "%d of %d places are relied on since #%d", sum, w.limit, begins.number)
			return
		}
	}
	for _, c := range w.calls {
		if !c.denied() || c.crashed || c.decision.Contended {
			continue
		}
		// It may be decided by what was asked a moment before it.
		sum := c.request.Cost + places(taken, func(u use) bool {
			return u.lease() != c.lease() && u.from.Before(c.returned) && c.began.Add(-w.timeout).Before(u.to)
		})
		if sum <= w.limit {
			w.violate("released", "#%d is denied, though no more than %d of %d can be taken up with it", c.number, sum, w.limit)
			return
		}
		if i := slices.IndexFunc(relied, func(u use) bool {
			return u.lease() == c.lease() && c.returned.Before(u.to) && c.began.Sub(u.returned) > w.timeout
		}); i >= 0 {
			w.violate("released", "#%d doesn't renew what #%d still holds", c.number, relied[i].number)
			return
		}
	}
}
