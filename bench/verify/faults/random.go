package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// askedAtOnce is how many clients of each policy are asked for at a time, while random
// faults follow each other. As new ones come, the oldest are topped up and asked for no
// more.
const askedAtOnce = 6

// randomTrial has faults follow each other that the seed picks.
func randomTrial(ctx context.Context, b *bed, r *row) error {
	if err := b.start(ctx, r.Processes); err != nil {
		return err
	}
	b.lossy = true
	b.setFault(true) // all checks are timed
	l := b.load(ctx, b.newClients(askedAtOnce))
	defer l.stop()
	longest := b.watch()
	losses, err := b.randomFaults(ctx, l)
	r.Machine = longest()
	l.stop()
	b.setFault(false)
	if err != nil {
		return err
	}
	if r.Processes > 1 {
		r.InFlight = int64(losses * b.cfg.callers)
	}
	if r.Back, err = b.untilTheStoreDecides(ctx); err != nil {
		return err
	}
	if err := testbed.Sleep(ctx, tail); err != nil {
		return err
	}
	b.topUp(b.clients)
	return nil
}

// replace lets the load ask for a new client of each policy, and no more for the
// oldest of each. The oldest are topped up at once: later, nobody would put back
// what a server loses of them.
func (b *bed) replace(l *load) {
	all := slices.Clone(*l.clients.Load())
	oldest := all[:len(policies)]
	all = append(all[len(policies):], b.newClients(1)...)
	l.clients.Store(&all)
	b.topUp(oldest)
}

// randomFaults lets one fault follow another, each on one of the servers, and returns how
// often a server lost everything.
func (b *bed) randomFaults(ctx context.Context, l *load) (losses int, err error) {
	random := rand.New(rand.NewPCG(b.cfg.seed, 0))
	millis := func(least, most int) time.Duration {
		return time.Duration(least+random.IntN(most-least)) * time.Millisecond
	}
	networks := []testbed.Fault{
		{RoundTrip: 30 * time.Millisecond}, {Trickle: time.Millisecond}, {Cut: 0.2}, {Reset: 0.2}, {Swallow: true},
	}
	for begin := time.Now(); time.Since(begin) < b.cfg.length; b.replace(l) {
		n := random.IntN(len(b.stores))
		m, p := b.stores[n], b.proxies[n]
		length := millis(100, 3000)
		report.Progress("random faults: %v of %v", time.Since(begin).Round(time.Second), b.cfg.length)
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
