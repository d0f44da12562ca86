package simulate

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/bench/internal/algorithms"
	"weir/counters"
)

// A choice is the number of a thread, whose next step is done, or what the
// server does.
type choice int

const (
	finish choice = -1 - iota
	forgetAll
	forgetKey // the first, and the others below

	// In a plot with a late answer.
	giveUp  choice = 1 << 20
	deliver choice = 1<<20 + 1
)

// A chooser chooses among what may come next, unless the run is to be cut short,
// and is told what that has touched.
type chooser interface {
	choose(enabled []choice) (c choice, ok bool)
	chosen(touches)
}

// bubble calls f where time stands still: each round has its own.
func (x *stage) bubble(f func()) {
	synctest.Test(new(testing.T), func(*testing.T) {
		x.members, x.hands, x.lates = nil, nil, x.hasLate()
		for i := range slices.Max(x.asked) + 1 {
			x.members = append(x.members, x.boot(i))
		}
		for _, round := range x.rounds {
			for !x.lates && len(x.hands) < len(round.threads) {
				x.hands = append(x.hands, newHand())
			}
		}
		f()
		for _, h := range x.hands {
			h.stop()
		}
	})
}

// boot returns a process that knows nothing.
func (x *stage) boot(number int) *member {
	m := &member{connection: &connection{process: number}}
	o := counters.Options{Policy: policy, Clients: 1000, Reseeded: func(n int) { m.reseeded += n }}
	l, err := x.algorithm.New(m.connection, algorithms.Config{Options: o, Window: window, Limit: x.limit})
	if err != nil {
		panic(err) // no plot is wrong
	}
	m.limiter = l
	return m
}

// play plays the plot as chosen. The run is left if that cuts it short, or if it
// would go on for ever.
func (x *stage) play(by chooser, out io.Writer) *run {
	x.clients++
	r := &run{stage: x, out: out, client: fmt.Sprint(client, x.clients), now: time.Now().Truncate(window).Add(x.start)}
	r.server = server{items: make(map[string]item), flaws: x.flaws, touched: r.touch}
	for i := range x.members {
		if x.lates { // what the run before has left goes on in another
			x.members[i] = x.boot(i)
		}
		m := x.members[i]
		m.connection.network, m.connection.perform, m.reseeded = &r.network, r.perform, 0
		if x.lates {
			m.connection.perform = r.park
		}
	}
	for i, round := range x.rounds {
		r.round, r.now, r.strands = i, r.now.Add(round.after), nil
		for _, t := range round.threads {
			r.begin(t)
		}
		if r.choose(by); r.left {
			break
		}
	}
	return r
}

// choose plays a round to its end.
func (r *run) choose(by chooser) {
	for {
		enabled := r.enabled()
		if len(enabled) == 0 || r.endless() {
			return
		}
		c, ok := by.choose(enabled)
		if !ok {
			r.abandon()
			return
		}
		r.move(c)
		by.chosen(r.deeds[len(r.deeds)-1].touches)
		if c == finish {
			return
		}
	}
}

// longest is how many steps a run has at most, in which everything ends.
const longest = 500

// endless reports whether a run goes on without an end, and abandons it then.
func (r *run) endless() bool {
	if len(r.deeds) < longest {
		return false
	}
	if !r.left {
		r.violate("timeout", "there is no end")
		r.abandon()
	}
	return true
}

// enabled returns what may come next; nothing if the round is over.
func (r *run) enabled() (all []choice) {
	for i, s := range r.strands {
		if s.open != nil {
			all = append(all, choice(i))
		}
	}
	over := len(all) == 0
	if !over && r.giver() != nil {
		all = append(all, giveUp)
	}
	if r.letter != nil && !r.letter.told && (!over || r.round == len(r.rounds)-1) {
		return append(all, deliver)
	}
	if over && r.round < len(r.rounds)-1 || len(r.losses) == r.plot.losses {
		return all
	}
	switch {
	case !r.evicts && len(r.items) > 0:
		all = append(all, forgetAll)
	case r.evicts:
		for _, key := range r.present() {
			all = append(all, forgetKey-choice(r.bit(key)))
		}
	}
	if over {
		all = append(all, finish)
	}
	return all
}

// present returns the keys that the server has.
func (r *run) present() []string {
	keys := slices.Sorted(maps.Keys(r.items))
	return slices.DeleteFunc(keys, func(key string) bool { return r.items[key].expires <= r.now.Unix() })
}

// move does what is chosen.
func (r *run) move(c choice) {
	switch {
	case c == giveUp:
		r.giveUp(r.giver())
		return
	case c == deliver:
		r.deliver()
		return
	case c >= 0:
		r.advance(r.strands[c])
		return
	case c == finish:
		r.deed.touches = touches{everything, everything}
	case c == forgetAll:
		r.log("the server forgets everything")
		for key := range r.items {
			r.touch(key, true)
		}
		r.restart()
		r.losses = append(r.losses, &loss{len(r.deeds), r.deed.changes})
		r.deed.looks = everything // what comes into being just before is forgotten too
	default:
		for _, key := range r.present() {
			if choice(r.bit(key)) == forgetKey-c {
				r.log("the server forgets %s", slot(key))
				r.remove(key)
			}
		}
		r.losses = append(r.losses, &loss{len(r.deeds), r.deed.changes})
	}
	r.record()
}

// giveUp has the operation of s fail at its deadline. What isn't done of it by
// then never is.
func (r *run) giveUp(s *strand) {
	o := s.open
	l := &letter{process: s.process}
	switch done := s.step > 0 && !o.lost && (o.verb != swap || o.swapped); {
	case done && !r.saysUndone || r.saysDone:
	case o.lost:
		l.outcome = counters.ErrLost
	default:
		l.outcome = counters.ErrNotSent
	}
	r.log("%v: its caller gives up", o)
	r.letter = l
	r.deed.act = s.act
	r.remembers(s)
	o.err = &counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(err error)) { l.listens = f }}
	r.resume(s)
	r.record()
}

// deliver tells the late answer.
func (r *run) deliver() {
	l := r.letter
	l.told = true
	if l.outcome == nil {
		r.log("p%d     is told late that it was done", l.process)
	} else {
		r.log("p%d     is told late: %v", l.process, l.outcome)
	}
	r.deed.changes |= r.memory(l.process)
	if l.listens != nil && !r.tellsNobody {
		go l.listens(l.outcome)
		r.gather()
	}
	r.record()
}

// touch implements server.touched.
func (r *run) touch(key string, changes bool) {
	if r.out != nil {
		r.network.touch(key, changes)
	}
	bit := uint64(1) << r.bit(key)
	if r.deed.looks |= bit; changes {
		r.deed.changes |= bit
	}
}

// bit returns the number of a key, whoever the client is.
func (r *run) bit(key string) int {
	_, key, _ = strings.Cut(key, r.client)
	bit, ok := r.keys[key]
	if !ok {
		if bit = len(r.keys); bit == bits.UintSize-len(r.members) {
			panic("too many keys")
		}
		r.keys[key] = bit
	}
	return bit
}

// remembers notes that the deed touches what the process of s remembers. The
// reset of a process does so only at its end.
func (r *run) remembers(s *strand) { r.deed.changes |= r.memory(s.process) }

// memory returns the bit of what a process remembers.
func (r *run) memory(process int) uint64 { return 1 << (bits.UintSize - 1 - process) }

// record ends a deed.
func (r *run) record() {
	r.deeds = append(r.deeds, r.deed)
	r.deed = deed{}
}

// begin begins a thread, up to its first operation.
func (r *run) begin(t thread) {
	s := &strand{thread: t}
	r.strands = append(r.strands, s)
	now := r.now
	do := func() {
		var last *act
		for i, kind := range t.does {
			s.act = &act{
				process: t.process, round: r.round, kind: kind, counted: noDeed,
				now: now.Add(time.Duration(t.process)*time.Microsecond + time.Duration(i)*time.Millisecond),
			}
			r.call(s, last)
			if kind == take {
				last = s.act
			}
			r.remembers(s)
		}
	}
	if r.lates {
		go do()
		r.gather()
	} else {
		s.hand = r.hands[len(r.strands)-1]
		s.do = do
		r.resume(s)
	}
	r.deed = deed{}
}

// call makes the call of s. A refund is one of the act last.
func (r *run) call(s *strand, last *act) {
	a := s.act
	l := r.members[a.process].limiter
	ctx := r.context(s, a.now)
	request := counters.Request{Client: r.client, Cost: 1, Limit: r.limit, Now: a.now}
	r.acts = append(r.acts, a)
	var err error
	switch a.kind {
	case take:
		a.decision, err = l.Take(ctx, request)
		if errors.Is(err, counters.ErrTimeout) && s.late {
			failed := err
			if a.decision, err = (counters.Decision{}), nil; !s.refuses {
				a.alone = true
				a.decision, err = l.TakeLocal(request, failed)
			}
		}
	case refund:
		last.refunded = last.decision.Allowed
		request.Now = last.now
		err = l.Refund(ctx, request, last.decision)
	case reset:
		err = l.Reset(ctx, r.client, a.now)
	default:
		panic("no plot has a " + a.kind.String())
	}
	if r.left {
		return
	}
	a.done = true
	if err != nil {
		r.violate("errors", "the %v of p%d: %v", a.kind, a.process, err)
	}
	switch {
	case a.kind != take:
		r.log("p%d     the %v is done", a.process, a.kind)
	case a.decision.Allowed:
		r.log("p%d     ALLOWED, %d remain", a.process, a.decision.Remaining)
	default:
		r.log("p%d     denied", a.process)
	}
}

// perform implements connection.perform.
func (r *run) perform(o *operation) {
	if !r.current.yield(o) || r.left {
		panic(abandoned{})
	}
}

// advance does the next step of s.
func (r *run) advance(s *strand) {
	o, last := s.open, len(s.open.steps)
	if s == r.giver() {
		last++ // it may be given up when all is done, before it is answered
	}
	if r.deed.act = s.act; s.step < len(o.steps) {
		r.step(s, o, s.step)
	}
	if s.step++; s.step >= last {
		if s.act.kind != reset {
			r.remembers(s)
		}
		r.resume(s)
	}
	if r.lates {
		r.remembers(s)
	}
	r.record()
}

// step does a step of an operation.
func (r *run) step(s *strand, o *operation, i int) {
	r.network.touched = r.network.touched[:0]
	o.steps[i](&r.server, r.now)
	r.deed.act, r.deed.told = s.act, o.tells(i)
	s.act.asked = true
	if i == 0 && (o.verb == add && isCounter(o.key) && !o.lost || o.swapped) {
		s.act.counted = len(r.deeds)
	}
	if r.out != nil {
		r.log("%v:%s", o, r.effect(&r.server))
	}
}

// tells reports whether a step, which was done, tells what is there.
func (o *operation) tells(step int) bool {
	switch o.verb {
	case swap:
		return step > 0 || o.swapped
	case add, read, load:
		return !o.lost
	default:
		return false
	}
}

// resume lets s go on to its next operation.
func (r *run) resume(s *strand) {
	if r.lates {
		o := s.open
		s.open, s.step = nil, 0
		close(o.done)
		r.gather()
		return
	}
	before := r.current
	r.current = s
	s.open, _ = s.next()
	s.step, r.current = 0, before
}

// abandon ends the threads of a run that is cut short.
func (r *run) abandon() {
	r.left = true
	if r.lates {
		r.close()
		return
	}
	for _, s := range r.strands {
		if s.open != nil {
			r.resume(s)
		}
	}
}

func (r *run) log(format string, args ...any) {
	if r.out != nil {
		fmt.Fprintf(r.out, "%3d  %s\n", len(r.deeds), fmt.Sprintf(format, args...))
	}
}

func (r *run) violate(oracle, format string, args ...any) {
	r.violations = append(r.violations, violation{oracle, fmt.Sprintf(format, args...)})
	r.log("VIOLATED %v", r.violations[len(r.violations)-1])
}
