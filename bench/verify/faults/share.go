package faults

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/api/policyfile"
	"weir/bench/internal/algorithms"
	"weir/bench/internal/testbed"
	"weir/counters"
	"weir/counters/memcached"
)

// Share trials measure how n instances keep one limit together while none of
// them can ask the store. An instance is a limiter of each algorithm, on a
// connection to the store of its own.
const (
	// usedBefore is what a client asks for and gets through the store, before
	// the fault.
	usedBefore = 40
	// What a client asks for while the fault is on, evenly, and in the tail after
	// it. In an outage eight instances could admit the limit six times; a stall
	// is soon over.
	askedInOutage, askedAfterOutage = 6 * limit, limit / 4
	askedInStall, askedAfterStall   = 2 * limit, limit
	// warmingUpForAStall is how long clients take to use what they use before a
	// stall.
	warmingUpForAStall = 250 * time.Millisecond
	// stallsAtATime is how many beds with a stall there are at a time; only one
	// is warmed up and stalled.
	stallsAtATime = 9
)

// shareAlgorithms are what share trials measure, each with clients of its own.
var shareAlgorithms = append(algorithms.Select(
	algorithms.Fixed, algorithms.Sliding10, algorithms.Token, algorithms.Leaky, algorithms.Log), algorithms.Counting)

// What clients do.
const (
	spread = "spread" // ask any instance
	sticky = "sticky" // ask one instance
	moved  = "moved"  // ask one instance, and when it dies with the store, another
)

// bounds are what clients may be admitted, in percent of the limit.
type bounds struct{ least, most float64 }

// What is wanted: the first two of the mean of each algorithm, the third of each
// client.
var (
	together      = bounds{90, 115}
	afterOneStall = bounds{0, 110}
	exactly       = bounds{100, 100}
	unbounded     = bounds{0, math.Inf(1)}
)

func (b bounds) hold(percent float64) bool { return b.least <= percent && percent <= b.most }

func (b bounds) String() string {
	switch {
	case b == unbounded:
		return "-"
	case b.least == b.most:
		return fmt.Sprintf("%.0f", b.most)
	case b.least == 0:
		return fmt.Sprintf("<= %.0f", b.most)
	default:
		return fmt.Sprintf("%.0f to %.0f", b.least, b.most)
	}
}

// A shareTrial is a row.
type shareTrial struct {
	fault     string
	stall     time.Duration // 0 in an outage
	kill      bool          // else the server stops
	instances int
	clients   string
	wanted    bounds
}

func (t shareTrial) String() string {
	text := "share, " + t.fault
	if t.instances == 1 {
		return text + ", 1 instance"
	}
	return fmt.Sprintf("%s, %d instances, %s clients", text, t.instances, t.clients)
}

// shareTrials are all, outages first.
var shareTrials = func() (all []shareTrial) {
	outages := []shareTrial{{fault: "SIGSTOP"}, {fault: "SIGKILL", kill: true}}
	var stalls []shareTrial
	for _, d := range []time.Duration{60 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		stalls = append(stalls, shareTrial{fault: fmt.Sprintf("stall of %v", d), stall: d})
	}
	for _, t := range append(outages, stalls...) {
		for _, t.instances = range []int{1, 2, 4, 8} {
			for _, t.clients = range []string{spread, sticky, moved} {
				alone, kills := t.instances == 1, t.kill
				if alone && t.clients != spread || t.clients == moved && !kills {
					continue
				}
				t.wanted = together
				switch {
				case alone:
					t.wanted = exactly
				case t.clients == moved:
					t.wanted = unbounded
				case t.stall == 100*time.Millisecond && t.instances == 4 && t.clients == spread:
					t.wanted = afterOneStall
				}
				all = append(all, t)
			}
		}
	}
	return all
}()

// A phase is when a client asks.
type phase int

const (
	before phase = iota
	alone        // while the fault is on
	after
	phases
)

// A shareClient is one whose admissions are counted. It asks one algorithm.
type shareClient struct {
	algorithm int // number
	name      string
	number    int // among those of its algorithm
	admitted  [phases]atomic.Int64
}

// sum returns what was admitted from one phase to another.
func (c *shareClient) sum(first, last phase) (sum int64) {
	for p := first; p <= last; p++ {
		sum += c.admitted[p].Load()
	}
	return sum
}

// A shareBed is the instances of one share trial, and their clients.
type shareBed struct {
	cfg       config
	server    *testbed.Memcached
	stores    []*memcached.Store     // of the instances
	instances [][]policyfile.Limiter // by instance and algorithm
	clients   []*shareClient
	chosen    *rand.Rand // instances of clients that are spread

	asking sync.WaitGroup
	failed atomic.Pointer[error]
}

func newShareBed(cfg config, instances [][]policyfile.Limiter) *shareBed {
	b := &shareBed{cfg: cfg, instances: instances, chosen: rand.New(rand.NewPCG(1, 2))}
	for n := range cfg.clients {
		for i, a := range shareAlgorithms {
			b.clients = append(b.clients, &shareClient{algorithm: i, number: n, name: fmt.Sprintf("%s-%d", a.Short(), n)})
		}
	}
	return b
}

// instance returns the number of the one that a client asks next.
func (b *shareBed) instance(c *shareClient, clients string, p phase) int {
	n := len(b.instances)
	switch {
	case clients == spread:
		return b.chosen.IntN(n)
	case clients == sticky:
		return c.number % n
	case p == before:
		return 0
	default:
		return 1 + c.number%(n-1)
	}
}

// check has a client ask an instance as a server does: alone where the store
// fails.
func (b *shareBed) check(c *shareClient, instance int, p phase) (allowed bool) {
	l := b.instances[instance][c.algorithm]
	r := counters.Request{Client: c.name, Cost: 1, Limit: limit, Now: time.Now()}
	d, err := l.Take(&counters.Deadline{At: r.Now.Add(b.cfg.timeout)}, r)
	if err != nil {
		d, err = l.TakeLocal(r, err)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c.name, err)
		b.failed.Store(&err)
	}
	if err != nil || !d.Allowed {
		return false
	}
	c.admitted[p].Add(1)
	return true
}

// askEvenly has each client ask so often within a time, whether it is answered
// or not. Clients take turns.
func (b *shareBed) askEvenly(ctx context.Context, clients string, p phase, times int, within time.Duration) error {
	const tick = 2 * time.Millisecond
	begin, total := time.Now(), times*len(b.clients)
	for sent := 0; ; {
		due := int(float64(total) * min(1, float64(time.Since(begin))/float64(within)))
		for ; sent < due; sent++ {
			c := b.clients[sent%len(b.clients)]
			instance := b.instance(c, clients, p)
			b.asking.Go(func() { b.check(c, instance, p) })
		}
		rest := within - time.Since(begin)
		if rest <= 0 && sent == total {
			return nil
		}
		if err := testbed.Sleep(ctx, min(tick, rest)); err != nil {
			return err
		}
	}
}

// untilTheStoreDecides returns when every instance is answered by the store.
func (b *shareBed) untilTheStoreDecides(ctx context.Context) error {
	begin := time.Now()
	for _, instance := range b.instances {
		for _, l := range instance {
			var failed error
			err := testbed.Poll(ctx, b.cfg.patience-time.Since(begin), 5*time.Millisecond, func() (bool, error) {
				now := time.Now()
				_, failed = l.Peek(&counters.Deadline{At: now.Add(b.cfg.timeout)}, counters.Request{Client: "probe", Limit: limit, Now: now})
				return failed == nil, nil
			})
			if err != nil {
				return fmt.Errorf("the store didn't decide within %v: %w: %w", b.cfg.patience, err, failed)
			}
		}
	}
	return nil
}

// topUp asks until each instance that a client may ask has denied it, and no
// more than a limit.
func (b *shareBed) topUp(clients string) {
	for _, c := range b.clients {
		b.asking.Go(func() {
			n := 0
			for i := range b.instances {
				if clients != spread && i != b.instance(c, clients, after) {
					continue
				}
				for ; n < limit && b.check(c, i, after); n++ {
				}
			}
		})
	}
	b.asking.Wait()
}

// A shareFault takes the store from all instances, and gives it back.
type shareFault struct {
	on, off act
	length  time.Duration
	warming time.Duration // in which clients use what they use before
	during  int           // what each client asks for, and in the tail after it
	after   int
	alone   sync.Locker // held meanwhile, as others would disturb; nil if they don't
}

// play has all clients ask before, during and after a fault.
func (b *shareBed) play(ctx context.Context, clients string, f shareFault) error {
	if err := b.untilTheStoreDecides(ctx); err != nil {
		return err
	}
	if err := b.endure(ctx, clients, f); err != nil {
		return err
	}
	if err := b.askEvenly(ctx, clients, after, f.after, tail); err != nil {
		return err
	}
	if err := b.untilTheStoreDecides(ctx); err != nil {
		return err
	}
	b.asking.Wait()
	if err := testbed.Sleep(ctx, tail); err != nil {
		return err
	}
	b.topUp(clients)
	if err := b.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// endure has all clients ask before and during a fault.
func (b *shareBed) endure(ctx context.Context, clients string, f shareFault) error {
	if f.alone != nil {
		f.alone.Lock()
		defer f.alone.Unlock()
	}
	if err := b.askEvenly(ctx, clients, before, usedBefore, f.warming); err != nil {
		return err
	}
	b.asking.Wait()
	if err := f.on(ctx); err != nil {
		return err
	}
	return errors.Join(b.askEvenly(ctx, clients, alone, f.during, f.length), f.off(ctx))
}

// openShareBed starts a memcached, and so many instances on it. Close ends what was
// started, also after an error.
func openShareBed(ctx context.Context, cfg config, instances int) (b *shareBed, err error) {
	b = newShareBed(cfg, make([][]policyfile.Limiter, instances))
	if b.server, err = testbed.StartMemcached(ctx, 64); err != nil {
		return b, err
	}
	window := lastingWindow(time.Now())
	for i := range instances {
		store, err := memcached.New(memcached.Config{Servers: []string{b.server.Addr}, Timeout: cfg.timeout})
		if err != nil {
			return b, err
		}
		b.stores = append(b.stores, store)
		for _, a := range shareAlgorithms {
			l, err := a.New(store, algorithms.Config{
				Options: counters.Options{Policy: a.Short(), StoreTimeout: cfg.timeout, Clients: 1000}, Window: window, Limit: limit,
			})
			if err != nil {
				return b, err
			}
			b.instances[i] = append(b.instances[i], l)
		}
	}
	return b, nil
}

// close ends the instances, when nobody asks them any more, and the memcached.
func (b *shareBed) close() {
	b.asking.Wait()
	var flushing sync.WaitGroup
	for _, l := range slices.Concat(b.instances...) {
		flushing.Go(l.Flush)
	}
	flushing.Wait()
	for _, store := range b.stores {
		store.Close()
	}
	if b.server != nil {
		b.server.Stop()
	}
}

// lastingWindow returns a window that is about a day and doesn't end for a good
// while: no fixed window ends, and no bucket drains, while a trial runs.
func lastingWindow(now time.Time) time.Duration {
	const lasts, step = 10 * time.Minute, time.Hour
	window := 24 * time.Hour
	for counters.Calendar(now, window).Number != counters.Calendar(now.Add(lasts), window).Number {
		window += step
	}
	return window
}

// breaks returns what happens to the store of a trial.
func (t shareTrial) breaks(m *testbed.Memcached, cfg config, stalls sync.Locker) shareFault {
	f := shareFault{on: signal(m, syscall.SIGSTOP), off: signal(m, syscall.SIGCONT), length: t.stall, warming: cfg.warming, during: askedInOutage, after: askedAfterOutage}
	switch {
	case t.kill:
		f.on, f.off = kill(m), m.Restart
		fallthrough
	case t.stall == 0:
		f.length = cfg.length
	default:
		f.warming, f.during, f.after, f.alone = warmingUpForAStall, askedInStall, askedAfterStall, stalls
	}
	return f
}
