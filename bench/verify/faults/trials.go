package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

// A trial is a row: what happens to how many weirs.
type trial struct {
	name      string
	processes int
	stores    int // 0 means 1
	megabytes int // 0 means 64
	run       func(ctx context.Context, b *bed, r *row) error
}

func (t trial) String() string {
	if t.processes > 1 {
		return fmt.Sprintf("%s, %d processes", t.name, t.processes)
	}
	return t.name
}

// measure runs a trial on processes of its own. What goes wrong with them is
// missed like a promise; the error is that of ctx.
func (t trial) measure(ctx context.Context, cfg config, build *testbed.Build) (row, error) {
	r := row{Fault: t.String(), Processes: t.processes}
	b, err := newBed(ctx, cfg, build, cmp.Or(t.stores, 1), cmp.Or(t.megabytes, 64))
	defer b.stop()
	if err != nil {
		return r, err
	}
	if err := t.run(ctx, b, &r); err != nil {
		r.must(false, "%v", err)
	} else {
		leaked, err := b.leaked(ctx)
		r.must(err == nil, "%v", err)
		r.Leaked = leaked
	}
	b.judge(&r)
	return r, ctx.Err()
}

var trials = []trial{
	{name: "SIGSTOP", processes: 1, run: stall},
	{name: "SIGSTOP", processes: 4, run: stall},
	{name: "SIGKILL and restart", processes: 1, run: restart},
	{name: "SIGKILL and restart", processes: 4, run: restart},
	{name: "flush_all", processes: 1, run: flush},
	{name: "flush_all", processes: 4, run: flush},
	{name: "-m 2", processes: 1, megabytes: 2, run: evict},
	{name: "delayed replies", processes: 1, run: network(testbed.Fault{RoundTrip: 30 * time.Millisecond})},
	{name: "replies byte by byte", processes: 1, run: network(testbed.Fault{Trickle: time.Millisecond})},
	{name: "replies cut in mid-line", processes: 1, run: network(testbed.Fault{Cut: 0.2})},
	{name: "RST storms", processes: 1, run: network(testbed.Fault{Reset: 0.2})},
	{name: "swallowed replies", processes: 1, run: network(testbed.Fault{Swallow: true})},
	{name: "random faults", processes: 1, stores: 3, run: randomTrial},
	{name: "random faults", processes: 3, stores: 3, run: randomTrial},
}

// round lets clients ask that have spent nothing, half and all of their limit,
// while a fault is on, and tops them up when the store decides again.
func (b *bed) round(ctx context.Context, r *row, on, off act) error {
	spent, half, fresh := b.newClients(1), b.newClients(2), b.newClients(2)
	b.spend(spent)
	b.use(half, limit/2)
	l := b.load(ctx, slices.Concat(spent, half))
	defer l.stop()
	if err := testbed.Sleep(ctx, 2*b.cfg.pause); err != nil {
		return err
	}
	longest := b.watch()
	b.setFault(true)
	err := on(ctx)
	l.add(fresh)
	err = errors.Join(err, testbed.Sleep(ctx, b.cfg.length), off(ctx))
	b.setFault(false)
	r.Machine = max(r.Machine, longest())
	if err != nil {
		return err
	}
	back, err := b.untilTheStoreDecides(ctx)
	if err != nil {
		return err
	}
	r.Back = max(r.Back, back)
	if err := testbed.Sleep(ctx, tail); err != nil {
		return err
	}
	l.stop()
	if err := testbed.Sleep(ctx, tail); err != nil {
		return err
	}
	b.topUp(slices.Concat(spent, half, fresh))
	return nil
}

// rounds runs rounds of a fault.
func (b *bed) rounds(ctx context.Context, r *row, on, off act) error {
	if len(b.weirs) == 0 {
		if err := b.start(ctx, r.Processes); err != nil {
			return err
		}
	}
	for range b.cfg.rounds {
		if err := b.round(ctx, r, on, off); err != nil {
			return err
		}
	}
	return nil
}

// stall: nothing is lost, so that each client gets its limit and no more.
func stall(ctx context.Context, b *bed, r *row) error {
	if err := b.rounds(ctx, r, signal(b.stores[0], syscall.SIGSTOP), signal(b.stores[0], syscall.SIGCONT)); err != nil {
		return err
	}
	p99 := loadgen.Percentile(b.settled, 99)
	r.must(p99 <= settledP99+r.Machine, "p99 was %v while the breaker was open", p99)
	_, below, _ := b.above(0)
	r.must(below == 0, "%d were counted that nobody was admitted for", below)
	return nil
}

// restart: after an outage, and at once.
func restart(ctx context.Context, b *bed, r *row) error {
	m := b.stores[0]
	if err := b.rounds(ctx, r, kill(m), m.Restart); err != nil {
		return err
	}
	r.InFlight += b.mayBeInFlight(r)
	err := b.rounds(ctx, r, func(ctx context.Context) error { m.Stop(); return m.Restart(ctx) }, nothing)
	r.InFlight += b.mayBeInFlight(r)
	return err
}

// mayBeInFlight returns how much may be in flight when a server forgets, in
// each round. One process knows what it has under way.
func (b *bed) mayBeInFlight(r *row) int64 {
	if r.Processes == 1 {
		return 0
	}
	return int64(b.cfg.callers * b.cfg.rounds)
}

func flush(ctx context.Context, b *bed, r *row) error {
	r.InFlight = b.mayBeInFlight(r)
	forget := func(context.Context) error {
		_, err := b.stores[0].Do("flush_all", "OK")
		return err
	}
	return b.rounds(ctx, r, forget, nothing)
}

func network(f testbed.Fault) func(context.Context, *bed, *row) error {
	return func(ctx context.Context, b *bed, r *row) error {
		b.lossy = f.Cut+f.Reset > 0 || f.Swallow
		set := func(f testbed.Fault) act {
			return func(context.Context) error { b.proxies[0].Set(f); return nil }
		}
		return b.rounds(ctx, r, set(f), set(testbed.Fault{}))
	}
}

// flood is how many clients use up the memory of -m 2, each checked once.
const flood = 80_000

func evict(ctx context.Context, b *bed, r *row) error {
	if err := b.start(ctx, r.Processes); err != nil {
		return err
	}
	victims := b.newClients(5)
	b.spend(victims)
	for range b.cfg.rounds {
		if err := errors.Join(b.flood(), testbed.Sleep(ctx, b.cfg.gap)); err != nil {
			return err
		}
		b.topUp(victims)
	}
	const within = 15 * time.Second // statistics are read every 10 s
	w := b.weirs[0]
	var n float64
	logged := false
	err := testbed.Poll(ctx, within, 100*time.Millisecond, func() (bool, error) {
		n, _ = loadgen.Metric(ctx, w.Addr, "weir_memcached_evictions_total") // which isn't there before the first
		logged = strings.Contains(w.Log.String(), "evict")
		return n > 0 && logged, nil
	})
	r.must(err == nil, "the metric tells of %.0f evictions, the log of any: %v", n, logged)
	return nil
}

// flood checks each of the clients that evict others.
func (b *bed) flood() error {
	const size = 100
	by := b.on(0)
	defer by.close()
	return testbed.Parallel(flood/size, workers, func(n int) error { return by.checkTogether("of-the-flood-", n*size, size) })
}
