package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

type config struct {
	timeout  time.Duration // the store timeout
	length   time.Duration // of a fault, or of random ones
	seed     uint64        // of random ones
	rounds   int           // of each trial
	callers  int
	pause    time.Duration // of a caller, from check to check
	patience time.Duration // with a store that has to decide again
	gap      time.Duration // between floods of the trial that evicts
	parallel int           // trials
	rows     *regexp.Regexp

	// Of share trials.
	warming time.Duration // in which clients use what they use before an outage
	clients int           // of each algorithm
	stalls  int           // that each row of a stall is the mean of, each with clients of its own
	kinds   int           // at a time, of outages and stalls: with 2 the ones disturb the others
}

// misses are what didn't hold in a trial.
type misses struct {
	Missed []string `json:"missed,omitempty"`
}

// must notes what doesn't hold.
func (r *misses) must(ok bool, format string, args ...any) {
	if !ok {
		r.Missed = append(r.Missed, fmt.Sprintf(format, args...))
	}
}

func (r *misses) verdict() string {
	if len(r.Missed) > 0 {
		return "MISSED"
	}
	return "ok"
}

// An act begins a fault, or ends it.
type act func(ctx context.Context) error

func nothing(context.Context) error { return nil }

func signal(m *testbed.Memcached, sig syscall.Signal) act {
	return func(context.Context) error { return m.Signal(sig) }
}

func kill(m *testbed.Memcached) act {
	return func(context.Context) error { m.Stop(); return nil }
}

// tail is how long the load goes on when the store decides again, and how long
// a transient over-count may deny after it.
const tail = 1200 * time.Millisecond

// A bed is the processes of one row: memcached servers, a proxy before each,
// and weirs that share the servers.
type bed struct {
	*record
	cfg     config
	build   *testbed.Build
	stores  []*testbed.Memcached
	proxies []*testbed.Proxy
	servers string // the weirs' -memcached
	weirs   []*testbed.Process
	// lossy: what was sent may not arrive. If a weir then decides a check on its
	// own, it can't know whether the store counts it, and doesn't count it again.
	lossy bool

	goroutines []float64 // of each weir, when nobody asks
}

// newBed starts so many memcached servers, of so many megabytes each. Stop stops
// what was started, also after an error.
func newBed(ctx context.Context, cfg config, build *testbed.Build, stores, megabytes int) (*bed, error) {
	b := &bed{record: newRecord(), cfg: cfg, build: build}
	var addrs []string
	for range stores {
		m, err := testbed.StartMemcached(ctx, megabytes)
		if err != nil {
			return b, err
		}
		b.stores = append(b.stores, m)
		p, err := testbed.StartProxy(m.Addr, testbed.Fault{})
		if err != nil {
			return b, err
		}
		b.proxies, addrs = append(b.proxies, p), append(addrs, p.Addr)
	}
	b.servers = strings.Join(addrs, ",")
	return b, nil
}

// stop ends all processes.
func (b *bed) stop() {
	for _, w := range b.weirs {
		w.Stop()
	}
	for _, p := range b.proxies {
		p.Stop()
	}
	for _, m := range b.stores {
		m.Stop()
	}
}

// start starts so many weirs, and lets clients ask that nobody judges, so that
// the weirs have opened what they keep open.
func (b *bed) start(ctx context.Context, weirs int) error {
	for range weirs {
		w, err := b.build.Start(ctx, b.servers, "-store-timeout", b.cfg.timeout.String())
		if err != nil {
			return err
		}
		b.weirs = append(b.weirs, w)
	}
	if _, err := b.untilTheStoreDecides(ctx); err != nil {
		return err
	}
	for i := range b.weirs {
		by := b.on(i)
		// What is repaid after an outage goes over the connections for batches.
		err := by.checkTogether("many-", 0, probes)
		by.close()
		if err != nil {
			return err
		}
	}
	// Some begin only after the first answers.
	for stable := false; !stable; {
		before := b.goroutines
		if err := errors.Join(testbed.Sleep(ctx, 100*time.Millisecond), b.countGoroutines(ctx)); err != nil {
			return err
		}
		stable = slices.Equal(before, b.goroutines)
	}
	return nil
}

// on returns a caller of the weir with number i, of as many as there are.
func (b *bed) on(i int) *caller { return newCaller(b.weirs[i%len(b.weirs)].Addr) }

// use lets clients spend a cost, each by all weirs in turn, so that all know
// them.
func (b *bed) use(clients []*client, cost int64) {
	n := int64(len(b.weirs))
	for i := range n {
		by := b.on(int(i))
		for _, c := range clients {
			b.check(by, c, (cost+i)/n) // together the cost
		}
		by.close()
	}
}

// spend lets clients use up their limit, and all weirs notice.
func (b *bed) spend(clients []*client) {
	b.use(clients, limit)
	for i := range b.weirs {
		by := b.on(i)
		for _, c := range clients {
			b.check(by, c, 1)
			c.spent = true
		}
		by.close()
	}
}

// topUp asks until each weir has denied each client.
func (b *bed) topUp(clients []*client) {
	_ = testbed.Parallel(len(clients), workers, func(n int) error {
		for i := range b.weirs {
			by := b.on(i)
			a, ok := b.check(by, clients[n], 1)
			for ok && a.Allowed {
				a, ok = b.check(by, clients[n], max(1, a.Limits[0].Remaining))
			}
			by.close()
		}
		return nil
	})
}

// workers act at the same time.
const workers = 4

// A load is callers that ask for clients in turn, at a steady pace.
type load struct {
	clients atomic.Pointer[[]*client]
	ended   context.CancelFunc
	callers sync.WaitGroup
}

// load starts as many callers as cfg says, spread over a pause: if all asked at
// once, they would wait for each other. Only those of different weirs ask for a
// client at about the same time.
func (b *bed) load(ctx context.Context, clients []*client) *load {
	l := new(load)
	l.clients.Store(&clients)
	ctx, l.ended = context.WithCancel(ctx)
	for i := range b.cfg.callers {
		l.callers.Go(func() {
			by := b.on(i)
			defer by.close()
			turn := i / len(b.weirs)
			if testbed.Sleep(ctx, b.cfg.pause*time.Duration(turn*len(b.weirs))/time.Duration(b.cfg.callers)) != nil {
				return
			}
			ticks := time.NewTicker(b.cfg.pause)
			defer ticks.Stop()
			for ; ; turn++ {
				select {
				case <-ctx.Done():
					return
				case <-ticks.C:
				}
				clients := *l.clients.Load()
				b.check(by, clients[turn%len(clients)], 1)
			}
		})
	}
	return l
}

// add lets the load ask for further clients.
func (l *load) add(clients []*client) {
	all := slices.Concat(*l.clients.Load(), clients)
	l.clients.Store(&all)
}

// stop returns when all callers have ended.
func (l *load) stop() {
	l.ended()
	l.callers.Wait()
}

// probes are clients enough to meet every server.
const probes = 24

// untilTheStoreDecides returns how long it takes until no weir answers on its
// own.
func (b *bed) untilTheStoreDecides(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	for i, w := range b.weirs {
		by, n := b.on(i), 0
		err := testbed.Poll(ctx, b.cfg.patience-time.Since(begin), 5*time.Millisecond, func() (bool, error) {
			for ; n < probes; n++ {
				a, ok := b.check(by, &client{policy: "fixed", name: fmt.Sprint("probe-", n)}, 0)
				if !ok || a.Degraded {
					return false, nil
				}
			}
			return true, nil
		})
		by.close()
		if err != nil {
			return 0, fmt.Errorf("the store didn't decide within %v: %w: %s", b.cfg.patience, err, w.Log)
		}
	}
	return time.Since(begin), nil
}

// watch measures how long an answer takes that needs no store, until the function
// that it returns is called. That returns the longest, or how late it was asked for
// if that is more: what this machine adds to all others.
func (b *bed) watch() (longest func() time.Duration) {
	var slowest time.Duration
	by := b.on(0)
	stop := testbed.Every(watchInterval, func(due time.Time) {
		begin := time.Now()
		_, _, _ = by.ask(http.MethodGet, "/healthz", "") // also a failure takes its time
		slowest = max(slowest, begin.Sub(due), time.Since(begin))
	})
	return func() time.Duration {
		stop()
		by.close()
		return slowest
	}
}

// watchInterval is the pause between two answers that watch asks for.
const watchInterval = 5 * time.Millisecond

const goroutinesMetric = "go_goroutines"

// countGoroutines notes how many there are in each weir.
func (b *bed) countGoroutines(ctx context.Context) error {
	b.goroutines = nil
	for _, w := range b.weirs {
		n, err := loadgen.Metric(ctx, w.Addr, goroutinesMetric)
		if err != nil {
			return err
		}
		b.goroutines = append(b.goroutines, n)
	}
	return nil
}

// lingering is how long goroutines may take to end: those of a connection that
// has fallen silent wait a minute for late replies.
const lingering = 65 * time.Second

// leaked returns how many goroutines there are more than there were, once they
// have had time to end.
func (b *bed) leaked(ctx context.Context) (int64, error) {
	before := b.goroutines
	var more int64
	var failed error
	_ = testbed.Poll(ctx, lingering, 50*time.Millisecond, func() (bool, error) { // what is there in the end has leaked
		failed, more = b.countGoroutines(ctx), 0
		for i, n := range b.goroutines {
			more += max(0, int64(n-before[i]))
		}
		return more == 0 || failed != nil, nil
	})
	return more, failed
}
