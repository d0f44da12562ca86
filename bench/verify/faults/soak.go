package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

const (
	soakStores    = 3
	soakProcesses = 3
	// soakAsked is how many clients of each policy are asked for at a time. As
	// new ones come, the oldest are topped up and asked for no more.
	soakAsked = 6
)

// Soak runs faults that a seed picks, one after another, and then prints what
// callers saw. One weir alone, whose memory holds all it has admitted, and
// several that share their limits, stand on the same servers.
func Soak(ctx context.Context, args []string, out io.Writer) error {
	cfg := config{callers: 64, pause: 100 * time.Millisecond, patience: 20 * time.Second}
	flags := report.NewFlags("soak")
	flags.DurationVar(&cfg.timeout, "store-timeout", counters.DefaultTimeout, "weir's")
	flags.DurationVar(&cfg.length, "duration", 10*time.Minute, "how long faults follow each other")
	seed := flags.Uint64("seed", uint64(time.Now().UnixNano()), "of the faults")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if cfg.length <= 0 || cfg.timeout <= 0 {
		return flags.Errorf("-duration and -store-timeout must be more than 0")
	}
	fmt.Fprintf(out, "-seed %d\n", *seed)
	r, err := soak(ctx, cfg, *seed)
	return flags.Publish(out, "soak", r, err)
}

func soak(ctx context.Context, cfg config, seed uint64) (*Report, error) {
	version, err := testbed.MemcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	build, err := testbed.BuildWeir(ctx, policyFile, "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	alone, err := newBed(ctx, cfg, build, soakStores, 64)
	if err != nil {
		return nil, err
	}
	defer alone.stop()
	sharing := &bed{record: newRecord(), cfg: cfg, build: build, servers: alone.servers, args: append(slices.Clone(alone.args), "-key-prefix", "sharing")}
	defer sharing.stop()
	rows := []row{{Fault: "one alone", Processes: 1}, {Fault: "several", Processes: soakProcesses}}
	beds := []*bed{alone, sharing}
	loads := make([]*load, len(beds))
	for i, b := range beds {
		if err := b.start(ctx, rows[i].Processes); err != nil {
			return nil, err
		}
		b.lossy = true
		b.setFault(true) // all checks are timed
		loads[i] = b.load(ctx, b.newClients(soakAsked))
		defer loads[i].stop()
	}
	longest := alone.watch()
	losses, err := alone.misfortunes(ctx, seed, func() {
		for i, b := range beds {
			b.replace(loads[i])
		}
	})
	machine := longest()
	if err != nil {
		return nil, err
	}
	for i, b := range beds {
		r := &rows[i]
		r.Machine = machine
		loads[i].stop()
		b.setFault(false)
		if r.Processes > 1 {
			r.InFlight = int64(losses * cfg.callers)
		}
		r.Back, err = b.untilTheStoreDecides(ctx)
		r.must(err == nil, "%v", err)
		if err := testbed.Sleep(ctx, tail); err != nil {
			return nil, err
		}
		b.topUp(b.clients)
		r.Leaked, err = b.leaked(ctx)
		r.must(err == nil, "%v", err)
		b.judge(r)
	}
	return &Report{Machine: report.ThisMachine(version), Timeout: cfg.timeout, Length: cfg.length, Rows: rows}, ctx.Err()
}

// replace lets the load ask for a new client of each policy, and for the
// oldest of each no more. Those are topped up: what nobody asks for any more is
// put back by nobody either.
func (b *bed) replace(l *load) {
	all := slices.Clone(*l.clients.Load())
	oldest := all[:len(policies)]
	all = append(all[len(policies):], b.newClients(1)...)
	l.clients.Store(&all)
	b.topUp(oldest)
}

// misfortunes lets one fault follow another, each on one of the servers. It
// calls between in between, and returns how often a server forgot.
func (b *bed) misfortunes(ctx context.Context, seed uint64, between func()) (losses int, err error) {
	random := rand.New(rand.NewPCG(seed, 0))
	millis := func(least, most int) time.Duration {
		return time.Duration(least+random.IntN(most-least)) * time.Millisecond
	}
	networks := []testbed.Fault{
		{RoundTrip: 30 * time.Millisecond}, {Trickle: time.Millisecond}, {Cut: 0.2}, {Reset: 0.2}, {Swallow: true},
	}
	for begin := time.Now(); time.Since(begin) < b.cfg.length; between() {
		n := random.IntN(len(b.stores))
		m, p := b.stores[n], b.proxies[n]
		length := millis(100, 3000)
		report.Progress("soak: %v of %v", time.Since(begin).Round(time.Second), b.cfg.length)
		switch kind := random.IntN(3 + len(networks)); kind {
		case 0:
			err = errors.Join(m.Signal(syscall.SIGSTOP), testbed.Sleep(ctx, length), m.Signal(syscall.SIGCONT))
		case 1:
			losses++
			m.Stop()
			err = errors.Join(testbed.Sleep(ctx, length), m.Restart(ctx))
		case 2:
			losses++
			_, err = m.Do("flush_all", "OK")
		default:
			p.Set(networks[kind-3])
			err = testbed.Sleep(ctx, length)
			p.Set(testbed.Fault{})
		}
		if err = errors.Join(err, testbed.Sleep(ctx, millis(300, 3000))); err != nil {
			return losses, err
		}
	}
	return losses, nil
}
