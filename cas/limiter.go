package cas

import (
	"cmp"
	"context"
	"errors"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A Limiter admits requests by a state per client, which it replaces by
// compare-and-swap: what it decides is what the algorithm decides for all
// requests of all instances, one after the other.
//
// Concurrent checks of a client are decided in one step, in their order, so
// that a process is one contender however many callers it has. Each attempt is
// one round trip: it starts from the state that the process has seen last, or
// from none, and an attempt that loses brings back the one that won. A denial by itself
// writes nothing, unless denied requests count, and needs no round trip at all when nothing
// remained within counters.MaxStaleness. A client that isn't remembered any more is read again, and
// what is due of it is told all the same.
//
// If other instances change the state first until the deadline, the last state
// seen decides a Take: what it would admit is denied too, as Contended. A Refund fails
// with ErrContended then, and is done later.
//
// With the decision of a Peek, at the same time, Refund can give back what a
// bucket has in use: as much as it is told to, or less if others come in
// between.
//
// Clients whose requests have different limits are kept for as long as the
// requests written last need.
//
// It is safe for concurrent use. Make one with NewTokenBucket, NewLeakyBucket,
// NewSlidingLog, NewCountingLog or NewConcurrency: the zero Limiter can decide nothing, and
// panics.
type Limiter struct{ limiter }

// A limiter is a limiterOf states of any type. As Limiter has it, whoever imports that doesn't
// compile a limiterOf again for each type.
type limiter interface {
	counters.Limiter
	TakesMany() bool
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
	Flush()
	Owing() int
	Clients() int
	ClientLimit() int
	Items(client string, limit int64) (n, key, value int)
}

// A limiterOf is the limiter whose states are of type S.
type limiterOf[S any] struct {
	ledger.ManyBook[account[S]]
	family family[S]
}

// rememberedBytes bounds the memory in which logs are remembered, by bounding the number of
// clients.
const rememberedBytes = 64 << 20

// newLimiter returns a limiter by algorithm a, unless that is wrong by err. The keys of its
// states have the name. A log takes so many bytes of memory; 0 of what isn't one.
func newLimiter[S any](store counters.StateStore, a algorithm[S], err error, name string, logBytes int64, cfg Config) (*Limiter, error) {
	options, wrong := cfg.Options.WithDefaults()
	if err = cmp.Or(err, wrong); err == nil && store == nil {
		err = errors.New("a limiter needs a store; memory.New makes one")
	}
	if err != nil {
		return nil, err
	}
	if logBytes > 0 {
		options.Clients = min(options.Clients, int(rememberedBytes/logBytes))
	}
	cfg.Options = options
	_, leases := any(a).(places)
	l := new(limiterOf[S])
	l.family = family[S]{
		rules: rules[S]{algorithm: a, cfg: cfg, leases: leases}, store: store, book: &l.Book,
		keys: counters.StateNamespace(options.KeyPrefix, options.Policy, options.Limit, name),
	}
	l.Key = func(_ *account[S], client string) string { return l.family.keys.StateKey(client) }
	if _, many := store.(counters.ManyStateStore); many {
		l.Ask = l.family.together
	}
	l.Open(ledger.Config[account[S]]{
		Family:   &l.family,
		NewWork:  func() ledger.Work[account[S]] { return &work[S]{family: &l.family} },
		Options:  &l.family.cfg.Options,
		Clients:  options.Clients,
		Timeouts: 1, // checks wait behind it
	})
	return &Limiter{l}, nil
}

// together has the store do the exchanges of many clients.
func (f *family[S]) together(ctx context.Context, m *ledger.Many[account[S]]) {
	f.store.(counters.ManyStateStore).SwapMany(ctx, m.Keys,
		func(i int) (counters.Replacement, counters.Turn) {
			w, turn := m.Begin(i)
			if turn != counters.Now {
				return counters.Replacement{}, turn
			}
			r := w.(*work[S]).asks
			r.Key = m.Keys[i]
			return r, turn
		},
		func(i int, now counters.State, swapped bool, err error) (again bool) {
			return m.Finish(i, err, func(led ledger.Work[account[S]]) {
				w := led.(*work[S])
				w.now, w.swapped, w.err = now, swapped, err
			})
		})
}

// Reset forgets what the client has used. No write that began before undoes
// that, as the state it would replace is gone, and nobody puts back what is
// remembered of it. Other instances notice within counters.MaxStaleness. The
// error is counters.ErrRequest or one of a store's.
func (l *limiterOf[S]) Reset(ctx context.Context, client string, now time.Time) error {
	if err := cmp.Or(counters.CheckClient(client), counters.CheckNow(now)); err != nil {
		return err
	}
	f := &l.family
	key := f.keys.StateKey(client)
	r := counters.Request{Limit: 1, Now: now}
	next := transition[S]{changed: true, latest: &r}
	state, err := f.store.Load(ctx, key)
	for attempt, done := 1, false; err == nil && !done; attempt++ {
		used, old, _ := f.decoded(state)
		// Others may remember a debt for as long as the store would have.
		at := now
		if attempt >= resetAttempts { // later than what others have changed since
			at = now.Add(f.cfg.Horizon() + f.cfg.ClockSkew)
		}
		next.origin = f.less(old, at.UnixNano(), max(f.lasts(), f.ttl(used, r)))
		next.origin.reset = max(at.UnixNano(), old.reset+1)
		next.value, next.ttl = f.encode(next.origin.append(nil), next.to), counters.TTL(next.origin.left(now), f.cfg.Horizon())
		if attempt < resetAttempts {
			// Of two resets the second has to be the later one.
			state, done, err = f.store.Swap(ctx, key, state, next.value, next.ttl)
		} else if err = f.store.Put(ctx, key, next.value, next.ttl); err == nil {
			state, err = f.store.Load(ctx, key)
			done = true
		}
	}
	if err != nil {
		return err
	}
	l.Forget(client) // who is asked by the account that it had is as another process
	l.Change(client, func(a *account[S]) { f.decodeWritten(state, &next, &a.last) })
	return nil
}

// resetAttempts is which attempt of a reset replaces whatever is there, and no
// longer the state that it has seen.
const resetAttempts = 16

// Items returns what the store keeps of a client that asks evenly, and as often as the
// limit allows: one item, with so many bytes of key and of value.
func (l *limiterOf[S]) Items(client string, limit int64) (n, key, value int) {
	f := &l.family
	var state S
	most := min(limit, 10_000) // no log has more entries, and a bucket doesn't grow
	for i := range most {
		at := time.Unix(0, i*(int64(f.lasts())/most)) // multiplied first, it may overflow
		state, _ = f.step(state, counters.Request{Cost: limit / most, Limit: limit, Now: at})
	}
	return 1, len(f.keys.StateKey(client)), len(f.encode(nil, state))
}
