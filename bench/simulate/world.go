package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing/synctest"
	"time"

	"weir/bench/internal/algorithms"
	"weir/counters"
)

// tick is the grain of the world's time. Whatever happens between two ticks is
// taken up at the next, in an order of its own, so that the random pauses of a
// limiter, which are shorter, change nothing.
const tick = time.Millisecond

// client is the only client: all that processes do meets at its keys.
const client = "c"

// farthest is the longest that a step of an operation usually takes, in ticks.
const farthest = 8

// A mutation breaks the world or its limiters, to show that the oracles see it.
// The zero value breaks nothing.
type mutation struct {
	// options spoils the options of every limiter.
	options func(*scenario, *counters.Options)
	// limiter replaces a limiter of a process by another.
	limiter func(limiter, *world, *process) limiter
	flaws
}

// A violation says which oracle objects, and to what.
type violation struct{ oracle, what string }

func (v violation) String() string { return v.oracle + ": " + v.what }

// A world is one server, the processes that use it, and what is to happen. Its
// scheduler is the goroutine that made it. Others run only while it waits for
// all of them to block, so an event may wake one and no more.
type world struct {
	scenario
	network
	broken mutation
	judge  func(*call) // told of each call that has ended
	random *rand.Rand
	// lateness decides about late answers.
	lateness *rand.Rand
	trace    io.Writer // nil if nobody reads it
	start    time.Time
	calm     bool // no more faults, and nobody comes back
	// farthest bounds the latency of every process.
	farthest int

	server    server
	processes []*process
	favourite *process // of the traffic
	queue     queue
	drawn     int // events so far
	timer     *time.Timer

	calls      []*call
	unfinished int
	lost       []time.Time // when the server lost counts
	emptied    []time.Time // when a refund has left the bucket empty
	putBack    []restoration
	vanished   time.Time    // when counts last vanished without a reset
	failures   int          // of operations whose outcome is unknown, and of refunds
	untold     int          // of these, without what changes nothing or was told late
	takenBack  time.Time    // until when what was lost may be taken back, as it was told late
	corrected  bool         // a clock was far ahead
	writes     []*operation // that count or swap, in the order in which they were sent
	held       []*operation // whose late answers wait for the end of the outage
	telling    atomic.Int64 // goroutines that act on late answers
	outage     outage
	violations []violation

	ended   []*call // since the scheduler has looked; guarded by mu
	idle    []caller
	stirred bool // a goroutine may have gone on since the scheduler has looked
}

func (w *world) violate(oracle, format string, args ...any) {
	v := violation{oracle, fmt.Sprintf(format, args...)}
	w.violations = append(w.violations, v)
	w.log("VIOLATED %v", v)
}

// A process is an instance of weir, with a clock of its own.
type process struct {
	number     int
	offset     time.Duration // of its clock
	latency    int           // each step of its operations takes up to so many ticks
	limiter    limiter
	connection *connection
	open       []*operation // that aren't answered
	looked     *operation   // that has last told it of resets
	failed     time.Time    // when an operation last failed
}

func (p *process) String() string { return fmt.Sprintf("p%d", p.number) }

func (p *process) now() time.Time { return time.Now().Add(p.offset) }

// A call is one use of a limiter.
type call struct {
	number   int
	process  *process
	life     *connection // the process's when it was made
	kind     kind
	request  counters.Request
	began    time.Time
	returned time.Time // zero until then
	decision counters.Decision
	err      error
	alone    bool  // if the store fails, its process decides
	failed   error // of the store, when the process has decided
	crashed  bool  // nobody got the answer
	refunded bool
	undoes   *call     // of a refund
	marked   time.Time // when the server has first counted in the mark of a reset
	deadline time.Time // zero: as long from when it began as the store may take
	caller   caller
}

type kind int

const (
	take kind = iota
	peek
	refund
	reset
	flush
)

func (k kind) String() string {
	return [...]string{"take", "peek", "refund", "reset", "flush"}[k]
}

// An outage is a time in which the server answers nobody, or not one process.
type outage struct {
	kind    outageKind
	process *process // nil: none is answered
	lasting bool     // no event ends it: who owes the server something tries for ever
}

type outageKind int

const (
	available outageKind = iota
	unsent               // nothing is sent
	stalled              // operations are applied late, if at all
	cut                  // connections break, before or after operations are applied
)

func (k outageKind) String() string { return [...]string{"available", "unsent", "stalled", "cut"}[k] }

// of returns what kind of outage it is for p.
func (o outage) of(p *process) outageKind {
	if o.process != nil && o.process != p {
		return available
	}
	return o.kind
}

// A caller is a goroutine that makes one call after the other. It costs less
// than one for each call.
type caller chan func()

func newWorld(s scenario, r *rand.Rand, broken mutation, trace io.Writer) *world {
	w := &world{
		scenario: s, broken: broken, random: r, lateness: newLateness(s.seed), trace: trace,
		network:  network{awake: make(chan struct{}, 1), traced: trace != nil},
		farthest: farthest, server: server{items: make(map[string]item), flaws: broken.flaws}, timer: time.NewTimer(0),
	}
	<-w.timer.C
	time.Sleep(time.Duration(r.IntN(10_000)) * tick)
	w.start = time.Now()
	for i := range s.processes {
		p := &process{number: i, offset: w.offset(), latency: pick(r, 1, 1, 3, farthest)}
		w.processes = append(w.processes, p)
		w.boot(p)
		w.log("%v begins, its clock %v ahead, up to %v from the server", p, p.offset, time.Duration(p.latency)*tick)
	}
	return w
}

// boot gives p a limiter without memory.
func (w *world) boot(p *process) {
	p.connection = &connection{network: &w.network, process: p.number}
	l := w.newLimiter(p.connection)
	if w.broken.limiter != nil {
		l = w.broken.limiter(l, w, p)
	}
	p.limiter = l
}

// newLimiter returns a limiter of the scenario, with nothing in its memory.
func (w *world) newLimiter(c algorithms.Store) limiter {
	o := counters.Options{Policy: policy, CountDenied: w.countDenied, ClockSkew: w.skew, StoreTimeout: w.timeout, RefundFailed: w.refundFailed}
	if w.skew == 0 {
		o.ClockSkew = -1
	}
	if b := w.broken.options; b != nil {
		b(&w.scenario, &o)
	}
	l, err := w.algorithm.New(c, algorithms.Config{Options: o, Window: w.window, Limit: w.limit, Burst: w.burst})
	if err != nil {
		panic(err) // no scenario is wrong
	}
	return l.(limiter)
}

func (w *world) refundFailed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures++
	w.untold++
}

// offset returns how far a clock is ahead, and mostly one of the extremes.
func (w *world) offset() time.Duration {
	return pick(w.random, 0, w.skew, w.ticks(int(w.skew/tick)))
}

func (w *world) chance(of int) bool { return w.random.IntN(of) == 0 }

// ticks returns up to most ticks.
func (w *world) ticks(most int) time.Duration { return time.Duration(w.random.IntN(most+1)) * tick }

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%7v  %s\n", time.Since(w.start), fmt.Sprintf(format, args...))
	}
}

func (w *world) after(d time.Duration, do func()) { w.at(time.Now().Add(d), event{do: do}) }

// at lets e happen at t.
func (w *world) at(t time.Time, e event) {
	w.drawn++
	e.at, e.order = t.UnixNano(), w.random.Uint64()<<20|uint64(w.drawn)
	w.queue.push(e)
}

// settle ends the faults. From now on, three operations of a call end in time.
func (w *world) settle() {
	w.calm, w.farthest = true, max(1, int(w.timeout/tick/12))
	w.restore()
}

// restore ends the outage, if there is one.
func (w *world) restore() {
	if w.outage.kind != available {
		w.log("the outage is over")
	}
	w.outage = outage{}
	w.release()
}

// fail begins an outage.
func (w *world) fail(o outage) {
	w.outage = o
	if o.process != nil {
		w.log("an outage begins for %v: %v", o.process, o.kind)
	} else {
		w.log("an outage begins: %v", o.kind)
	}
}

// run lets things happen until nothing more will, or in a lasting outage until
// all calls have ended.
func (w *world) run() {
	w.stirred = true
	for {
		if w.stirred {
			w.stirred = false
			synctest.Wait()
			w.collect()
		}
		for len(w.queue) > 0 && w.queue[0].stale() {
			w.queue.pop()
		}
		switch {
		case w.unfinished == 0 && (len(w.queue) == 0 || w.outage.lasting):
			return
		case len(w.queue) == 0:
			<-w.awake
			w.align()
			w.stirred = true
			continue
		}
		if wait := w.queue[0].at - time.Now().UnixNano(); wait > 0 {
			w.timer.Reset(time.Duration(wait))
			select {
			case <-w.timer.C:
			case <-w.awake:
				w.align()
			}
			w.stirred = true // others may wake at the same time
			continue
		}
		if e := w.queue.pop(); e.answers != nil {
			w.answer(e.answers, e.err)
		} else {
			e.do()
		}
	}
}

// align waits for the next tick.
func (w *world) align() {
	if rest := time.Since(w.start) % tick; rest > 0 {
		time.Sleep(tick - rest)
	}
}

// collect takes over the operations that were sent and the calls that have
// ended, in an order that doesn't depend on which goroutine was first.
func (w *world) collect() {
	w.mu.Lock()
	sent, ended, awaited := w.sent, w.ended, w.awaited
	w.sent, w.ended, w.awaited = nil, nil, nil
	select {
	case <-w.awake:
	default:
	}
	w.mu.Unlock()
	slices.SortFunc(ended, (*call).before)
	for _, c := range ended {
		w.end(c)
	}
	slices.SortFunc(sent, (*operation).before)
	for _, o := range sent {
		w.transmit(o)
	}
	slices.SortStableFunc(awaited, (*operation).before)
	for _, o := range awaited {
		w.listen(o)
	}
}

func (c *call) before(other *call) int { return cmp.Compare(c.number, other.number) }

// transmit decides what becomes of o.
func (w *world) transmit(o *operation) {
	p := w.processes[o.process]
	p.open = append(p.open, o)
	o.sent = time.Now()
	switch o.verb {
	case subtract:
		o.looked = p.looked
	case add, swap:
		w.writes = append(w.writes, o)
	}
	if rest := o.deadline.Sub(w.start) % tick; rest > 0 {
		o.deadline = o.deadline.Add(tick - rest)
	}
	if !time.Now().Before(o.deadline) {
		w.at(time.Now(), event{answers: o, err: fmt.Errorf("%w, %w", counters.ErrTimeout, counters.ErrNotSent)})
		return
	}
	out := w.outage.of(p)
	if out == unsent {
		w.at(time.Now().Add(w.ticks(2)), event{answers: o, err: fmt.Errorf("%w, %w", counters.ErrUnavailable, counters.ErrNotSent)})
		return
	}
	usual, left, last := min(p.latency, w.farthest), int(time.Until(o.deadline)/tick), o.deadline
	held, hold := w.random.IntN(len(o.steps)+1), usual // the step, or the reply, that takes long
	if w.faults.slow && !w.calm && w.chance(8) {
		hold = max(usual, left)
	}
	if w.faults.stalled && !w.calm && w.chance(8) {
		hold, last = max(usual, 2*left), last.Add(w.timeout)
	}
	delay := func(step int) time.Duration {
		if step == held {
			return w.ticks(hold)
		}
		return w.ticks(usual)
	}
	steps, silent, result := len(o.steps), false, error(nil)
	if w.faults.late && !w.calm && (o.verb == add || o.verb == swap) && w.lateness.IntN(10) == 0 {
		silent = true
		if w.lateness.IntN(4) == 0 {
			steps = 0
		}
	}
	if w.faults.lost && !w.calm && w.chance(15) {
		steps, silent, result, o.broken = w.random.IntN(steps+1), w.chance(2), counters.ErrUnavailable, true
		if steps == 0 {
			result = fmt.Errorf("%w, %w", counters.ErrUnavailable, counters.ErrNotSent)
		}
	}
	switch out {
	case stalled:
		steps, silent, hold, last = steps*w.random.IntN(2), true, max(usual, 2*left), o.deadline.Add(w.timeout)
	case cut:
		steps, silent, result, o.broken = w.random.IntN(steps+1), w.chance(2), counters.ErrUnavailable, true
	}
	at := time.Now()
	times := make([]time.Time, len(o.steps))
	for i := range times {
		if at = at.Add(delay(i)); at.After(last) {
			at = last
		}
		times[i] = at
	}
	if o.planned = steps; steps > 0 {
		o.finish = times[steps-1]
	}
	var apply func(i int)
	apply = func(i int) {
		for ; i < o.planned; i++ {
			if times[i].After(time.Now()) {
				w.at(times[i], event{do: func() { apply(i) }})
				return
			}
			w.apply(o, i)
		}
	}
	w.at(times[0], event{do: func() { apply(0) }})
	if !silent {
		w.at(at.Add(tick+delay(len(o.steps))), event{answers: o, err: result})
	}
	w.at(o.deadline, event{answers: o, err: counters.ErrTimeout})
}

// apply does a step of o.
func (w *world) apply(o *operation, step int) {
	now := time.Now()
	o.steps[step](&w.server, now)
	if o.applied.IsZero() {
		o.applied = now
	}
	// A subtraction perhaps takes from what others have counted since.
	resets := step == 0 && o.swapped && o.call != noCall && w.calls[o.call].kind == reset
	// What deploy/README.md says of a reset whose mark is lost too soon.
	forgets := step == 0 && o.swapped && o.is.forgets(o.was)
	late := step == 0 && (o.swapped || o.verb == subtract) && now.Before(w.takenBack)
	if resets || forgets || late || o.verb == remove || o.verb == put || o.verb == subtract && (now.Sub(w.vanished) < 3*w.timeout || w.takesAfterReset(o, now)) {
		w.lose()
	}
	switch {
	case o.marks && o.verb == add && w.calls[o.call].marked.IsZero():
		w.calls[o.call].marked = now
	case step == 0 && o.swapped && w.burst > 0 && o.is.size == emptyBucket:
		w.emptied = append(w.emptied, now)
	}
	for _, key := range o.putBack {
		w.putBack = append(w.putBack, restoration{key, now})
	}
	o.putBack = nil
	if w.traced {
		w.log("%v: %s", o, o.effect)
	}
}

// A restoration is that of a counter or state, which the server had lost.
type restoration struct {
	key string
	at  time.Time
}

// emptyBucket is how many bytes the state of an empty bucket has.
const emptyBucket = 1

// takesAfterReset reports whether o may take from what was counted after a
// reset, and its process couldn't know of that: it had looked for resets before
// this one began, or looked for them too late after what o takes back.
func (w *world) takesAfterReset(o *operation, now time.Time) bool {
	for _, c := range w.calls {
		if !w.maySubtract(o, c, now) {
			continue
		}
		life := 4*w.timeout + w.skew // of a refund
		late := c.request.Now.Add(life)
		for _, r := range w.calls {
			if r.marked.IsZero() || r.marked.After(now) || c.request.Now.After(r.request.Now.Add(w.skew+2*w.timeout)) {
				continue
			}
			if o.looked == nil || !r.marked.Before(o.looked.applied) || r.request.Now.Unix() > late.Unix() ||
				o.looked.applied.Unix() >= expiry(r.marked, counters.TTL(life, w.skew+w.timeout)) {
				return true
			}
		}
	}
	return false
}

// maySubtract reports whether o may be to take back what c has counted, or what
// c is to take back.
func (w *world) maySubtract(o *operation, c *call, now time.Time) bool {
	if c.process.number != o.process || c.kind != take && c.kind != refund {
		return false
	}
	again := !c.returned.IsZero() && now.Sub(c.returned) < 3*w.timeout && (c.denied() || c.kind == refund && c.err != nil)
	// It may take back what it was told late to be counted, or be to.
	again = again || !c.returned.IsZero() && w.faults.late && c.kind == take && (c.err != nil || c.failed != nil)
	return (c.returned.IsZero() || again) &&
		slot(o.key) == strconv.FormatInt(counters.Calendar(c.request.Now, w.width()).Number, 10)
}

// answer ends o for its caller.
func (w *world) answer(o *operation, err error) {
	o.answered, o.ended, w.stirred = true, time.Now(), true
	if w.faults.late && err == counters.ErrTimeout && (o.verb == add || o.verb == swap) {
		err = w.postpone(o)
	}
	o.err = err
	p := w.processes[o.process]
	p.open = slices.DeleteFunc(p.open, func(other *operation) bool { return other == o })
	if err == nil {
		o.connection.heard = append(o.connection.heard, time.Now())
		if o.marks && o.verb == read {
			p.looked = o
		}
	}
	if err != nil {
		p.failed = time.Now()
		if !errors.Is(err, counters.ErrNotSent) {
			w.mu.Lock() // the end of a process wakes several at a time
			w.failures++
			if o.late == nil && o.verb != read && o.verb != load {
				w.untold++
			}
			w.mu.Unlock()
		}
		w.log("%v: %v", o, err)
	}
	close(o.done)
}

// lose notes that the server has lost counts: what was admitted before isn't
// counted any more.
func (w *world) lose() { w.lost = append(w.lost, time.Now()) }

// vanish notes that counts were lost and no limiter can know it.
func (w *world) vanish(why string) {
	w.lose()
	w.vanished = time.Now()
	w.log("the server: %s", why)
}

// A callContext bounds a call by its deadline, and names it.
type callContext struct {
	context.Context
	call     *call
	deadline time.Time
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c.call.number
	}
	return c.Context.Value(key)
}

// logCall writes what c asks for.
func (w *world) logCall(c *call) {
	switch c.kind {
	case refund:
		w.log("%v #%-3d refunds %d of #%d", c.process, c.number, c.request.Cost, c.undoes.number)
	case reset:
		w.log("%v #%-3d resets", c.process, c.number)
	case flush:
		w.log("%v #%-3d flushes", c.process, c.number)
	default:
		w.log("%v #%-3d %vs %d at %v of its clock", c.process, c.number, c.kind, c.request.Cost, c.request.Now.Sub(w.start))
	}
}

// logAnswer writes what c was told.
func (w *world) logAnswer(c *call) {
	if c.failed != nil {
		w.log("%v #%-3d %v; its process decides", c.process, c.number, c.failed)
	}
	switch {
	case c.err != nil:
		w.log("%v #%-3d %v", c.process, c.number, c.err)
	case c.kind == refund || c.kind == reset || c.kind == flush:
		w.log("%v #%-3d is done", c.process, c.number)
	case c.decision.Allowed:
		w.log("%v #%-3d ALLOWED, %d remain", c.process, c.number, c.decision.Remaining)
	default:
		w.log("%v #%-3d denied, retry after %v", c.process, c.number, c.decision.RetryAfter)
	}
}

// begin makes a call.
func (w *world) begin(c *call) {
	p := c.process
	c.number, c.life, c.began, c.alone = len(w.calls), p.connection, time.Now(), w.faults.outages
	w.calls = append(w.calls, c)
	w.unfinished++
	w.stirred = true
	if w.traced {
		w.logCall(c)
	}
	ctx := &callContext{context.Background(), c, cmp.Or(c.deadline, c.began.Add(w.timeout))}
	l := p.limiter
	c.caller = w.hire()
	c.caller <- func() {
		c.make(ctx, l)
		w.mu.Lock()
		w.ended = append(w.ended, c)
		w.mu.Unlock()
		w.wake()
	}
}

// make asks l.
func (c *call) make(ctx context.Context, l limiter) {
	defer func() {
		if r := recover(); r != nil {
			c.err = fmt.Errorf("it panics: %v", r)
		}
	}()
	switch c.kind {
	case take:
		c.decision, c.err = l.Take(ctx, c.request)
		if c.err != nil && c.alone {
			c.failed = c.err
			c.decision, c.err = l.TakeLocal(c.request, c.failed)
		}
	case peek:
		c.decision, c.err = l.Peek(ctx, c.request)
	case refund:
		c.err = l.Refund(ctx, c.request, c.undoes.decision)
	case reset:
		c.err = l.Reset(ctx, client, c.request.Now)
	case flush:
		l.Flush()
	}
}

// hire returns a caller that is idle.
func (w *world) hire() caller {
	if last := len(w.idle) - 1; last >= 0 {
		c := w.idle[last]
		w.idle = w.idle[:last]
		return c
	}
	c := make(caller)
	go func() {
		for work := range c {
			work()
		}
	}()
	return c
}

// dismiss ends all callers.
func (w *world) dismiss() {
	for _, c := range w.idle {
		close(c)
	}
}

// end takes note of a call that has returned.
func (w *world) end(c *call) {
	c.returned = time.Now()
	w.unfinished--
	w.idle = append(w.idle, c.caller)
	if c.crashed {
		return
	}
	if w.traced {
		w.logAnswer(c)
	}
	w.judge(c)
	if c.admitted() && w.faults.refunds && !w.calm && w.chance(2) {
		w.planRefund(c)
	}
	if c.denied() && !w.calm && len(w.calls) < 100 && w.chance(10) {
		w.planReturn(c)
	}
}

// planReturn lets the client come back when it was told to, and ask for all it
// can get.
func (w *world) planReturn(c *call) {
	pause := max(0, c.request.Now.Add(c.decision.RetryAfter).Sub(c.process.now()))
	pause = (pause+tick-1)/tick*tick + w.ticks(2)
	for range 1 + w.random.Int64N(w.capacity()) {
		w.after(pause, func() {
			w.begin(&call{kind: take, process: c.process, request: w.newRequest(c.process, 1)})
		})
	}
}

// planRefund lets c be taken back: soon, late, in what is left of its own time,
// or just when its slot is settled. Then somebody asks at the same time.
func (w *world) planRefund(c *call) {
	var deadline time.Time
	p, pause := c.process, w.ticks(pick(w.random, 3, 30, int(w.lasts()/tick)))
	if width := w.width(); width > 0 && w.chance(2) {
		settled := width - counters.Calendar(c.request.Now, width).Elapsed + w.skew + w.timeout
		pause = max(0, c.began.Add(settled).Sub(c.returned)) + w.ticks(5)
		w.after(pause+w.ticks(5), func() { w.begin(&call{kind: take, process: p, request: w.newRequest(p, 1)}) })
	}
	if w.chance(3) { // another limit has denied it
		deadline = c.began.Add(w.timeout)
		pause = pick(w.random, 0, max(0, deadline.Sub(c.returned)))
	}
	if deadline.IsZero() && len(w.calls) < 60 && w.chance(4) { // between two rushes
		if w.faults.resets && w.chance(2) {
			w.after(pause, func() { w.begin(&call{kind: reset, process: p, request: w.newRequest(p, 0)}) })
			pause += w.timeout
		}
		w.planRush(pause)
		pause += w.ticks(20)
		w.planRush(pause)
	}
	w.after(pause, func() {
		if c.life == p.connection && c.began.After(w.vanished) {
			c.refunded = true
			w.begin(&call{kind: refund, process: p, request: c.request, undoes: c, deadline: deadline})
		}
	})
}

// planRush lets somebody ask for all that can be had.
func (w *world) planRush(pause time.Duration) {
	for range w.capacity() {
		p := w.processes[w.random.IntN(len(w.processes))]
		w.after(pause+w.ticks(10), func() { w.begin(&call{kind: take, process: p, request: w.newRequest(p, 1)}) })
	}
}

// admitted reports whether somebody was told that c is admitted.
func (c *call) admitted() bool {
	return c.kind == take && !c.returned.IsZero() && !c.crashed && c.err == nil && c.decision.Allowed
}

func (c *call) denied() bool {
	return c.kind == take && !c.returned.IsZero() && c.err == nil && !c.decision.Allowed
}

func (w *world) newRequest(p *process, cost int64) counters.Request {
	now := p.now().Add(time.Duration(len(w.calls))) // no two requests are made in the same nanosecond
	return counters.Request{Client: client, Cost: cost, Limit: w.limit, Now: now, RefundUnanswered: w.refuses}
}

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
		w.begin(&call{kind: reset, process: p, request: w.newRequest(p, 0)})
		for _, other := range w.processes { // somebody asks at the same time
			w.after(w.ticks(3), func() { w.begin(&call{kind: take, process: other, request: w.newRequest(other, 1)}) })
		}
	case w.chance(25):
		w.begin(&call{kind: peek, process: p, request: w.newRequest(p, 1)})
	default:
		w.begin(&call{kind: take, process: p, request: w.newRequest(p, 1+w.random.Int64N(w.maxCost))})
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
		if keys := w.keys(); w.faults.evicts && len(keys) > 0 {
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

func (w *world) keys() []string {
	keys := make([]string, 0, len(w.server.items))
	for key := range w.server.items {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
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
