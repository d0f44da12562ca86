package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"weir/api/telemetry"
	"weir/bench/internal/algorithms"
	"weir/counters"
	"weir/counters/combiner"
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

// A world is one server, the processes that use it, and the events to come. Its
// scheduler is the goroutine that made it. Other goroutines run only while the
// scheduler waits for all of them to block, so an event may wake only one.
type world struct {
	scenario
	*network
	broken mutation
	judge  func(*call) // told of each call that has ended
	random *rand.Rand
	// lateness decides how late answers are. It is none of the world's randomness,
	// whose other numbers don't depend on it.
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
	takenBack  time.Time    // until when what was lost may be taken back, as it was told late
	writes     []*operation // that count or swap, in the order in which they were sent
	loads      []*operation
	held       []*operation // whose late answers wait for the end of the outage
	telling    atomic.Int64 // goroutines that act on late answers
	outage     outage
	violations []violation

	ended   []*call // since the scheduler has looked; guarded by mu
	stirred bool    // a goroutine may have gone on since the scheduler has looked
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
	unsure   bool  // the store failed its process meanwhile
	refunded bool
	undoes   *call     // of a refund, or of a renewal
	receipt  bool      // the refund has no more of it than a receipt says
	marked   time.Time // when the server has first counted a reset
	deadline time.Time // zero: as long from when it began as the store may take
}

type kind int

const (
	take kind = iota
	peek
	refund
	reset
	flush
	charge
)

func (k kind) String() string {
	return [...]string{"take", "peek", "refund", "reset", "flush", "charge"}[k]
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

func newWorld(s scenario, r *rand.Rand, broken mutation, trace io.Writer) *world {
	n := &network{awake: make(chan struct{}, 1)}
	w := &world{
		scenario: s, broken: broken, random: r, lateness: rand.New(rand.NewPCG(s.seed, 1)), trace: trace,
		network: n, server: server{items: make(map[string]item), flaws: broken.flaws, touched: n.touch},
		farthest: farthest, timer: time.NewTimer(0),
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
	p.connection = &connection{network: w.network, process: p.number}
	l := w.newLimiter(p.connection)
	if w.broken.limiter != nil {
		l = w.broken.limiter(l, w, p)
	}
	p.limiter = l
}

// newLimiter returns a limiter of the scenario, with nothing in its memory.
func (w *world) newLimiter(c telemetry.Store) limiter {
	o := counters.Options{Policy: policy, CountDenied: w.countDenied, ClockSkew: cmp.Or(w.skew, -1), StoreTimeout: w.timeout, RefundFailed: w.network.refundFailed}
	if b := w.broken.options; b != nil {
		b(&w.scenario, &o)
	}
	l, err := w.algorithm.New(c, algorithms.Config{Options: o, Window: w.window, Limit: w.limit, Burst: w.burst})
	if err != nil {
		panic(err) // no scenario is wrong
	}
	return l
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

// sleep waits until the first tick after some time.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	w.align()
}

// align waits for the next tick.
func (w *world) align() {
	if rest := time.Since(w.start) % tick; rest > 0 {
		time.Sleep(tick - rest)
	}
}

func (c *call) before(other *call) int { return cmp.Compare(c.number, other.number) }

// A restoration is that of a counter or state, which the server had lost.
type restoration struct {
	key string
	at  time.Time
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

// admitted reports whether somebody was told that c is admitted.
func (c *call) admitted() bool {
	return c.kind == take && !c.returned.IsZero() && !c.crashed && c.err == nil && c.decision.Allowed
}

// unsent reports whether the store was surely not asked for c, so that its process
// has decided.
func (c *call) unsent() bool {
	return errors.Is(c.failed, counters.ErrNotSent) || errors.Is(c.failed, combiner.ErrWithdrawn)
}

func (c *call) denied() bool {
	return c.kind == take && !c.returned.IsZero() && c.err == nil && !c.decision.Allowed
}

func (w *world) newRequest(p *process, cost int64) counters.Request {
	// No two requests are made in the same nanosecond, nor one as another's lease begins later.
	now := p.now().Add(time.Duration(len(w.calls)) * 100)
	return counters.Request{Client: client, Cost: cost, Limit: w.limit, Now: now}
}

func (w *world) newCall(kind kind, p *process, cost int64) *call {
	return &call{kind: kind, process: p, request: w.newRequest(p, cost)}
}

// slotAt returns the number of the slot of a moment.
func (w *world) slotAt(t time.Time) int64 { return counters.Calendar(t, w.width()).Number }

// counterOf returns the key of the counter of the slot with that number.
func (w *world) counterOf(slot int64) string {
	return counters.CounterKey(algorithms.Namespace(policy, w.width()).Client(client), slot)
}

// counter returns the key of the counter of c.
func (w *world) counter(c *call) string { return w.counterOf(w.slotAt(c.request.Now)) }

// oldest returns the number of the first slot that is in a window by some clock.
func (w *world) oldest() int64 { return w.slotAt(time.Now().Add(w.skew)) - int64(w.algorithm.Slots) }

func maxTime(of ...time.Time) time.Time { return slices.MaxFunc(of, time.Time.Compare) }

func minTime(of ...time.Time) time.Time { return slices.MinFunc(of, time.Time.Compare) }
