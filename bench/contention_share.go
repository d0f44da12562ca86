package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/cas"
	"weir/counters"
	"weir/subwindow"
)

const (
	shareCommand = "contention-share"

	// callTimeout is the deadline of each decision.
	callTimeout = time.Second
	// fill is the time in which a token bucket fills, and the sliding log's
	// window.
	fill = time.Second
)

// The loops that decide for one key.
const (
	plainCAS    = "plain CAS loop"
	combinedCAS = "combined CAS loop" // a token bucket, like the plain one
	logCAS      = "sliding log"
	fixedSlots  = "fixed window"
	sixtySlots  = "sliding N=60"
)

// loops are those whose rates are measured; the first is what the others are
// compared with.
var loops = []string{plainCAS, combinedCAS, fixedSlots, sixtySlots}

// A share is what one process does: so many callers on one key, each deciding
// again as soon as it has an answer.
type share struct {
	Loop      string
	Memcached string
	Callers   int
	Limit     int64 // per second, but for fixed and sliding windows per minute
	Burst     int64 // of the token bucket; 0 means Limit
}

// An order tells a process to begin, and for how long to go on.
type order struct{ Duration time.Duration }

// An outcome is what callers did. Times are Unix times in nanoseconds.
type outcome struct {
	Admitted, Denied, Errors int64
	FirstError               string
	// Elapsed is how long new requests were made. Late decisions came after
	// that: at most one of each caller, as it made no more then.
	Elapsed time.Duration
	Late    int64
	Latency latency
	// Decisions has those of each caller.
	Decisions []int64
	// Attempts are writes to the store, Conflicts those that found that another
	// was faster.
	Attempts, Conflicts int64
	// First and Last are when the first and the last request were made; 0 if
	// there was none.
	First, Last int64
	// Of the sliding log: when each admitted request was decided, and for the
	// denied ones the oldest admission that was in the way, without repetitions.
	Admissions, Obstacles []int64
}

func newOutcome() outcome { return outcome{Latency: latency{newHistogram()}} }

// join counts what another process did at the same time.
func (o *outcome) join(other outcome) {
	o.count(other)
	o.Elapsed = max(o.Elapsed, other.Elapsed)
	o.Decisions = append(o.Decisions, other.Decisions...)
}

// add counts what the same callers did at another time.
func (o *outcome) add(other outcome) {
	o.count(other)
	o.Elapsed += other.Elapsed
	if o.Decisions == nil {
		o.Decisions = make([]int64, len(other.Decisions))
	}
	for i, n := range other.Decisions {
		o.Decisions[i] += n
	}
}

func (o *outcome) count(other outcome) {
	o.Admitted += other.Admitted
	o.Denied += other.Denied
	o.Errors += other.Errors
	o.Late += other.Late
	if o.FirstError == "" {
		o.FirstError = other.FirstError
	}
	o.Latency.Merge(other.Latency.Histogram)
	o.Attempts += other.Attempts
	o.Conflicts += other.Conflicts
	if o.First == 0 || other.First != 0 && other.First < o.First {
		o.First = other.First
	}
	o.Last = max(o.Last, other.Last)
	o.Admissions = append(o.Admissions, other.Admissions...)
	o.Obstacles = append(o.Obstacles, other.Obstacles...)
}

// decisions returns how many requests were decided.
func (o *outcome) decisions() int64 { return o.Admitted + o.Denied }

// rate returns decisions per second. Late ones don't count, and the wait for
// them doesn't either: it would be held against loops that let callers starve.
func (o *outcome) rate() float64 { return float64(o.decisions()-o.Late) / o.Elapsed.Seconds() }

// unluckiest returns the decisions of the caller that got the fewest, as a part
// of the mean; 0 when nothing was decided.
func (o *outcome) unluckiest() float64 {
	if o.decisions() == 0 {
		return 0
	}
	return float64(slices.Min(o.Decisions)) * float64(len(o.Decisions)) / float64(o.decisions())
}

// latency is a histogram that travels as JSON.
type latency struct{ *hdrhistogram.Histogram }

// MarshalJSON implements json.Marshaler.
func (l latency) MarshalJSON() ([]byte, error) { return json.Marshal(l.Export()) }

// UnmarshalJSON implements json.Unmarshaler.
func (l *latency) UnmarshalJSON(data []byte) error {
	var s hdrhistogram.Snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	l.Histogram = hdrhistogram.Import(&s)
	return nil
}

// A crowd is processes with equal shares.
type crowd []*member

type member struct {
	cmd    *exec.Cmd
	orders *json.Encoder
	answer *json.Decoder
	stderr bytes.Buffer
}

// startCrowd starts so many processes, this program again, which wait for
// orders.
func startCrowd(ctx context.Context, s share, processes int) (crowd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var c crowd
	for range processes {
		m := &member{cmd: exec.CommandContext(ctx, self, shareCommand)}
		m.cmd.Stderr = &m.stderr
		stdin, err1 := m.cmd.StdinPipe()
		stdout, err2 := m.cmd.StdoutPipe()
		if err := errors.Join(err1, err2); err != nil {
			c.stop()
			return nil, err
		}
		if err := m.cmd.Start(); err != nil {
			c.stop()
			return nil, err
		}
		c = append(c, m)
		m.orders, m.answer = json.NewEncoder(stdin), json.NewDecoder(stdout)
		if err := m.orders.Encode(s); err != nil {
			c.stop()
			return nil, err
		}
	}
	return c, nil
}

// run lets all processes work at the same time.
func (c crowd) run(d time.Duration) (outcome, error) {
	for _, m := range c {
		if err := m.orders.Encode(order{d}); err != nil {
			return outcome{}, m.failure(err)
		}
	}
	total := newOutcome()
	for _, m := range c {
		var o outcome
		if err := m.answer.Decode(&o); err != nil {
			return total, m.failure(err)
		}
		total.join(o)
	}
	return total, nil
}

// failure ends the process and returns err with what it complained about.
func (m *member) failure(err error) error {
	m.stop()
	return fmt.Errorf("a process of the bench: %w: %s", err, &m.stderr)
}

func (m *member) stop() {
	_ = m.cmd.Process.Kill() // the only error is that it has ended already
	_ = m.cmd.Wait()
}

// stop ends the processes.
func (c crowd) stop() {
	for _, m := range c {
		m.stop()
	}
}

// runShare reads a share and then orders from stdin, in JSON, and writes the
// outcome of each to out, until stdin ends.
func runShare(ctx context.Context, _ []string, out io.Writer) error {
	in, answers := json.NewDecoder(os.Stdin), json.NewEncoder(out)
	var s share
	if err := in.Decode(&s); err != nil {
		return err
	}
	var races races
	limiter, err := openLimiter(s, &races)
	if err != nil {
		return err
	}
	defer limiter.Close()
	for {
		var order order
		if err := in.Decode(&order); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		o, err := s.work(ctx, limiter, &races, order.Duration)
		if err != nil {
			return err
		}
		if err := answers.Encode(o); err != nil {
			return err
		}
	}
}

// races counts writes to the store.
type races struct{ attempts, conflicts atomic.Int64 }

// A limiter decides until it is closed.
type limiter interface {
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	Close() error
}

// onStore is a limiter that closes its store.
type onStore struct {
	taker interface {
		Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	}
	*counters.Memcached
}

func (s onStore) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	return s.taker.Take(ctx, r)
}

func openLimiter(s share, races *races) (limiter, error) {
	if s.Loop == plainCAS {
		return newPlainLimiter(s.Memcached, races), nil
	}
	store, err := counters.NewMemcached(counters.MemcachedConfig{Servers: []string{s.Memcached}, KeyPrefix: keyPrefix})
	if err != nil {
		return nil, err
	}
	states := cas.Config{
		Keys:    counters.StateNamespace(keyPrefix, "contention", limitName, "state"),
		Clients: 1,
		Swaps: func(attempts, _ int) {
			races.attempts.Add(int64(attempts))
			races.conflicts.Add(int64(attempts - 1))
		},
	}
	slots := counters.SlotConfig{
		Clients: 1,
		Batch:   func(int) { races.attempts.Add(1) },
	}
	l := onStore{Memcached: store}
	switch s.Loop {
	case combinedCAS:
		l.taker, err = cas.NewTokenBucket(store, fill, s.Burst, states)
	case logCAS:
		l.taker, err = cas.NewSlidingLog(store, fill, s.Limit, states)
	case fixedSlots:
		slots.Keys = counters.CounterNamespace(keyPrefix, "fixed", limitName, window)
		l.taker, err = counters.NewFixedWindow(store, window, slots)
	case sixtySlots:
		var w subwindow.Window
		w, err = subwindow.NewWindow(window, 60, false)
		slots.Keys = counters.CounterNamespace(keyPrefix, "sliding", limitName, w.Width)
		l.taker = subwindow.New(store, w, slots)
	default:
		err = fmt.Errorf("there is no loop %q", s.Loop)
	}
	if err != nil {
		store.Close()
		return nil, err
	}
	return l, nil
}

// A deadlineContext has a deadline but no timer, like those of weir's handlers.
type deadlineContext struct {
	context.Context
	deadline time.Time
}

// Deadline implements context.Context.
func (c *deadlineContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (*deadlineContext) Done() <-chan struct{} { return nil }

// work lets the callers decide for the given time.
func (s share) work(ctx context.Context, l limiter, races *races, d time.Duration) (outcome, error) {
	callers := make([]caller, s.Callers)
	operations := make([]operation, s.Callers)
	for i := range callers {
		operations[i] = func(int64) (bool, error) { return callers[i].decide(ctx, l, s), nil }
	}
	attempts, conflicts := races.attempts.Load(), races.conflicts.Load()
	t, err := repeat(ctx, operations, &turn{clients: 1}, d)
	if err != nil {
		return outcome{}, err
	}
	o := newOutcome()
	for i := range callers {
		o.join(callers[i].outcome())
	}
	o.Elapsed, o.Latency = d, latency{t.latency}
	o.Attempts, o.Conflicts = races.attempts.Load()-attempts, races.conflicts.Load()-conflicts
	slices.Sort(o.Obstacles)
	o.Obstacles = slices.Compact(o.Obstacles)
	return o, nil
}

// A caller is what one caller has seen.
type caller struct {
	admitted, denied, errors int64
	firstError               error
	decided                  bool // the last request
	first, last              int64
	admissions, obstacles    []int64
}

// decide reports whether a request that is made now is admitted.
func (c *caller) decide(ctx context.Context, l limiter, s share) bool {
	now := time.Now()
	c.last = now.UnixNano()
	if c.first == 0 {
		c.first = c.last
	}
	d, err := l.Take(&deadlineContext{ctx, now.Add(callTimeout)}, counters.Request{
		Client: clientName(0), Cost: 1, Limit: s.Limit, Now: now,
	})
	c.decided = err == nil
	switch {
	case err != nil:
		c.errors++
		if c.firstError == nil {
			c.firstError = err
		}
		return false
	case d.Allowed:
		c.admitted++
	default:
		c.denied++
	}
	if s.Loop == logCAS {
		c.note(c.last, d)
	}
	return d.Allowed
}

// note records what a decision of the sliding log says about the log. A request
// that is older than the log is decided as of the log's time, so an admission's
// time is not always when it was asked for.
func (c *caller) note(now int64, d counters.Decision) {
	if d.Allowed {
		c.admissions = append(c.admissions, now+int64(d.ResetAfter-fill))
		return
	}
	// A denial that need not wait has nothing in its way.
	var obstacle int64
	if d.RetryAfter > 0 {
		obstacle = now + int64(d.RetryAfter-fill)
	}
	if n := len(c.obstacles); n == 0 || c.obstacles[n-1] != obstacle {
		c.obstacles = append(c.obstacles, obstacle)
	}
}

func (c *caller) outcome() outcome {
	o := newOutcome()
	o.Admitted, o.Denied, o.Errors = c.admitted, c.denied, c.errors
	if c.firstError != nil {
		o.FirstError = c.firstError.Error()
	}
	if c.decided {
		o.Late = 1
	}
	o.Decisions = []int64{c.admitted + c.denied}
	o.First, o.Last, o.Admissions, o.Obstacles = c.first, c.last, c.admissions, c.obstacles
	return o
}
